"""The wheel holds all that the product needs: built, installed elsewhere, and run there."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from overlay import __version__
from overlay.features.folder import load

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    process = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def sources() -> list[str]:
    """The files of the project, without what tools leave behind."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    return [name for name in listed if (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools leaves folders beside ``setup.py``."""
    source = tmp_path_factory.mktemp("source")
    for name in sources():
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((REPOSITORY / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run(*pip, "--no-index", "--wheel-dir", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; what it depends on is lent by this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    run(*pip, "install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    return folder


def test_every_patch_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name.removeprefix("overlay/patches/") for name in names if "/patches/" in name}
    assert packed
    assert packed == {
        name.removeprefix("patches/") for name in sources() if name.startswith("patches/")
    }
    assert "overlay/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "overlay",
        f"vllm_overlay-{__version__}.dist-info",
    }


def test_the_licence_and_the_notice_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    assert {"LICENSE", "NOTICE"} <= names
    assert "Apache-2.0" in text
    assert "Requires-Python: >=3.10" in text


def test_the_installed_command_has_the_patches(environment: Path, tmp_path: Path) -> None:
    overlay = environment / "bin" / "overlay"
    assert run(overlay, "--version", cwd=tmp_path) == f"overlay {__version__}\n"
    where = run(
        environment / "bin" / "python",
        "-c",
        "import overlay; print(overlay.__file__)",
        cwd=tmp_path,
    )
    assert Path(where.strip()).is_relative_to(environment)
    shown = json.loads(run(overlay, "list", "--json", cwd=tmp_path))
    here = load([REPOSITORY / "patches"])
    assert here
    assert [(one["feature"], one["digest"]) for one in shown["features"]] == [
        (feature.id, feature.digest) for feature in here
    ]
    assert {one["origin"] for one in shown["features"]} == {"shipped"}


def test_bytecode_beside_the_patches_is_none_of_them(environment: Path, tmp_path: Path) -> None:
    """Installers compile every module that they unpack, those that are data too."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    python = environment / "bin" / "python"
    run(python, "-m", "compileall", "-q", site / "overlay", cwd=tmp_path)
    shown = json.loads(run(environment / "bin" / "overlay", "list", "--json", cwd=tmp_path))
    assert not [path for one in shown["features"] for path in one["added"] if ".pyc" in path]
