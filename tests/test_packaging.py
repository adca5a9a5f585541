"""What is released: built alike anywhere, within its size, and run from where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from overlay import __version__
from overlay._features.folder import load
from tests.support import fake_vllm
from tests.support.cli import CAPTURE, digest
from tests.support.patches import write_feature

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]
#: Beside this interpreter, as in the development environment, or on the PATH.
UV = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


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


def copied(folder: Path) -> Path:
    """A copy of the project, which a test may change."""
    for name in sources():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, copy)
    return folder


PIP_WHEEL = (
    *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
    "--wheel-dir",
)


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel of a copy of the project."""
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(source, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[1]


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, as a stranger has it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built[0]) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


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
    } - {"README.md"}
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


def test_a_tool_in_an_environment_of_its_own_serves_the_one_with_vllm(
    environment: Path, tmp_path: Path
) -> None:
    """As ``uv tool install`` and pipx have it: the command is a link, vLLM is elsewhere."""
    overlay = tmp_path / "local/bin/overlay"
    overlay.parent.mkdir(parents=True)
    overlay.symlink_to(environment / "bin/overlay")
    serving = tmp_path / "serving"
    packages = serving / "lib/python3.12/site-packages"  # of whatever Python
    fake_vllm.site_packages(packages, version="0.19.0")
    (serving / "bin").mkdir()
    (serving / "bin/python").symlink_to(sys.executable)  # never run
    (serving / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    mine = tmp_path / "mine"
    write_feature(mine, {"10-capture/0.19.0..0.19.0.patch": CAPTURE}, releases="0.19.0..0.19.0")
    before = digest(packages)

    def ask(*words: str | Path) -> str:
        return run(overlay, "--patches", mine, *words, cwd=tmp_path)

    assert "demo can be applied to vLLM 0.19.0" in ask("check", serving)
    assert "Applied demo to vLLM 0.19.0" in ask("apply", "--python", serving)
    assert "demo is applied" in ask(
        "status", "--python", serving / "bin/python", "--require", "demo"
    )
    assert digest(packages) != before
    assert "Reverted vLLM 0.19.0" in ask("revert", serving / "bin/python")
    assert digest(packages) == before
    alone = subprocess.run(
        [overlay, "check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert alone.returncode == 2
    assert "name a TARGET: a virtual environment" in alone.stderr


def test_bytecode_beside_the_patches_is_none_of_them(environment: Path, tmp_path: Path) -> None:
    """Installers compile every module that they unpack, those that are data too."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    python = environment / "bin" / "python"
    run(python, "-m", "compileall", "-q", site / "overlay", cwd=tmp_path)
    shown = json.loads(run(environment / "bin" / "overlay", "list", "--json", cwd=tmp_path))
    assert not [path for one in shown["features"] for path in one["added"] if ".pyc" in path]


def test_a_newer_checkout_leaves_no_patch_of_the_older_one(tmp_path: Path) -> None:
    """Two installs out of one checkout, with a variant renamed and a module gone in between."""
    source = copied(tmp_path / "source")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    old = source / "overlay" / "of_the_older_version.py"
    old.write_text('"""A module that the newer version does not have."""\n')

    def install() -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--force-reinstall"]
        run(*pip, "install", *options, source)

    install()
    assert (site / "overlay" / old.name).is_file()
    old.unlink()
    topic = source / "patches" / "draft-graphs" / "40-runner-capture"
    *_, last = sorted(topic.glob("*.patch"))
    first = last.stem.partition("..")[0]
    last.rename(last.with_name(f"{first}..0.34.0.patch"))
    toml = topic.parent / "feature.toml"
    toml.write_text(toml.read_text().replace("..0.33.0", "..0.34.0"))
    init = source / "overlay" / "__init__.py"
    init.write_text(init.read_text().replace(__version__, "99.0.0"))
    install()

    assert not (site / "overlay" / old.name).exists()
    here = {path.relative_to(source / "patches").as_posix() for path in files(source / "patches")}
    there = site / "overlay" / "patches"
    assert {path.relative_to(there).as_posix() for path in files(there)} == here - {"README.md"}
    overlay = environment / "bin" / "overlay"
    assert run(overlay, "--version", cwd=tmp_path) == "overlay 99.0.0\n"
    shown = json.loads(run(overlay, "list", "--json", cwd=tmp_path))
    (draft_graphs,) = (one for one in shown["features"] if one["feature"] == "draft-graphs")
    assert "0.34.0" in json.dumps(draft_graphs)


def files(folder: Path) -> list[Path]:
    return [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def test_it_is_built_from_sources_that_nobody_may_write_to(tmp_path: Path) -> None:
    """As BuildKit mounts them; root may write to any folder that is not mounted read-only."""
    source = copied(tmp_path / "source")
    out = tmp_path / "out"
    command = [*PIP_WHEEL, str(out), str(source)]
    if os.geteuid() == 0:
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(source), *command]
    else:
        for folder in [source, *(path for path in source.rglob("*") if path.is_dir())]:
            folder.chmod(0o555)
    run(*command)
    (built,) = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        assert "overlay/patches/draft-graphs/feature.toml" in archive.namelist()


def test_two_builds_are_equal_byte_for_byte(
    built: tuple[Path, Path], unpacked: Path, tmp_path: Path
) -> None:
    """In another folder, with other times and rights of files; and the wheel out of the sdist."""
    source = copied(tmp_path / "of another name")
    for path in files(source):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1, 1))
    before = os.umask(0o077)
    try:
        again = build(source, tmp_path / "again")
        _, from_sdist = build(unpacked, tmp_path / "from-sdist")
    finally:
        os.umask(before)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]
    assert from_sdist.read_bytes() == built[1].read_bytes()


def test_the_sizes_are_within_their_bounds(built: tuple[Path, Path]) -> None:
    sdist, wheel = (path.stat().st_size for path in built)
    assert sdist < 1_500_000
    assert wheel < 1_000_000


def test_the_sdist_collects_its_fast_tests(unpacked: Path) -> None:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    assert " tests collected" in run(*collect, cwd=unpacked).splitlines()[-1]


@pytest.mark.thorough  # the fast lane, a second time
def test_the_sdist_passes_its_fast_tests(unpacked: Path) -> None:
    passed = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=unpacked)
    assert " passed" in passed.splitlines()[-1]


@pytest.mark.skipif(UV is None, reason="uv is not installed")
def test_the_shipped_patches_are_read_where_uv_installed_them_as_links(
    wheel: Path, tmp_path: Path
) -> None:
    """``UV_LINK_MODE=symlink`` makes a link of every file, which patches folders may not hold."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    install = [
        str(UV),
        "--offline",
        "--cache-dir",
        tmp_path / "cache",
        "pip",
        "install",
        "--no-deps",
    ]
    run(*install, "--link-mode", "symlink", "--python", python, wheel)
    packages = next((tmp_path / "env/lib").glob("python*/site-packages"))
    assert (packages / "overlay/patches/draft-graphs/feature.toml").is_symlink()
    libraries = sysconfig.get_path("purelib")  # the dependencies
    code = f"import sys; sys.path.append({libraries!r}); from overlay import features; "
    code += "print([feature.id for feature in features()])"
    assert "draft-graphs" in run(python, "-I", "-c", code, cwd=tmp_path)


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name), validate=True)


def test_the_metadata_is_what_an_index_takes(metadata: Metadata) -> None:
    assert str(metadata.version) == __version__
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description
    assert metadata.project_urls
    assert metadata.keywords
    assert metadata.author
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE", "NOTICE"]


def test_every_dependency_is_imported(metadata: Metadata) -> None:
    needed = [line for line in metadata.requires_dist or () if "extra ==" not in str(line)]
    modules = {line.name.replace("-", "_") for line in needed}
    assert modules
    text = "\n".join(path.read_text() for path in files(REPOSITORY / "overlay"))
    unused = [
        name for name in modules if f"import {name}" not in text and f"from {name}" not in text
    ]
    assert not unused
