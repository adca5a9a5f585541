"""Installers that come after us: nothing left, nothing broken.  Real pip, and uv where there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from tests.support import fake_vllm, transactions
from tests.support.transactions import ADDED, PROPOSER, RELEASE, TWO, Site, snapshot

pytestmark = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-m", "pip", "--version"], check=False, capture_output=True
    ).returncode
    != 0,
    reason="this Python has no pip",
)
#: Beside this interpreter, as in the development environment, or on the PATH.
UV = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


@dataclass(frozen=True)
class Installer:
    """A virtual environment, and what installs into it."""

    name: str
    python: Path
    packages: Path
    wheels: Path

    def run(self, *words: str) -> None:
        """Run ``pip`` or ``uv pip``."""
        if self.name == "uv":
            command = [str(UV), "--offline", "pip", words[0], "--python", str(self.python)]
        else:
            command = [sys.executable, "-m", "pip", "--python", str(self.python), words[0]]
            command += ["--disable-pip-version-check"]
        done = subprocess.run(
            [*command, *words[1:]],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "UV_CACHE_DIR": str(self.wheels / "cache")},
        )
        assert done.returncode == 0, done.stderr

    def install(self, version: str, *options: str) -> Site:
        """Install a fake vLLM."""
        wheel = next((self.wheels / version).glob("*.whl"), None)
        if wheel is None:
            # Once, for installers note when it was built.
            wheel = fake_vllm.wheel(self.wheels / version, version, tag="py3-none-any")
        self.run("install", "--no-index", "--no-deps", *options, str(wheel))
        record = self.packages / f"vllm-{version}.dist-info/RECORD"
        assert record.exists()
        pristine = {path: (self.packages / path).read_bytes() for path in fake_vllm.files(version)}
        return Site(self.packages, record, pristine)

    def uninstall(self) -> None:
        """Uninstall it."""
        self.run("uninstall", *(["-y"] if self.name == "pip" else []), "vllm")


@pytest.fixture(
    params=[
        "pip",
        pytest.param("uv", marks=pytest.mark.skipif(UV is None, reason="uv is not installed")),
    ]
)
def installer(request: pytest.FixtureRequest, tmp_path: Path) -> Installer:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    packages = next((tmp_path / "env/lib").glob("python*/site-packages"))
    return Installer(request.param, python, packages, tmp_path / "wheels")


def run_added(site: Site) -> None:
    """Let Python leave bytecode of the added module and of a patched one."""
    for path in (ADDED, PROPOSER):
        subprocess.run([sys.executable, "-m", "py_compile", str(site.root / path)], check=True)
    assert list((site.root / ADDED).parent.glob("__pycache__/graphs.*.pyc"))


def test_uninstalling_leaves_nothing(installer: Installer) -> None:
    empty = snapshot(installer.packages)
    site = installer.install(RELEASE)
    site.apply()
    run_added(site)
    installer.uninstall()
    assert snapshot(installer.packages) == empty


def test_reinstalling_leaves_a_pristine_vllm(installer: Installer) -> None:
    site = installer.install(RELEASE)
    pristine = snapshot(site.root)
    site.apply()
    run_added(site)
    installer.install(RELEASE, "--reinstall" if installer.name == "uv" else "--force-reinstall")
    assert snapshot(site.root) == pristine
    site.apply()
    site.revert()
    assert snapshot(site.root) == pristine


def test_upgrading_leaves_the_new_release(installer: Installer, tmp_path: Path) -> None:
    site = installer.install(RELEASE)
    site.apply()
    run_added(site)
    newer = installer.install("0.27.0")
    for path, content in fake_vllm.files("0.27.0").items():
        assert (site.root / path).read_bytes() == content
    assert not (site.root / "vllm/v1/draft").exists()
    assert not (site.root / ".vllm-overlay").exists()
    assert not site.record.exists()
    newer.apply(release="0.27.0")
    newer.revert()
    installer.uninstall()
    assert snapshot(site.root) == {}


def test_an_interrupted_apply_does_not_survive_a_reinstall(installer: Installer) -> None:
    from overlay.on_disk.recovery import recover
    from tests.support.faults import Dead, FaultyOs, dying, faulty

    site = installer.install(RELEASE)
    pristine = snapshot(site.root)
    with faulty(FaultyOs()) as counting:
        transactions.installed(installer.wheels / "counted").apply()
    for at in range(9, len(counting.names), 31):
        with faulty(FaultyOs(at, dying, lasting=True)), pytest.raises(Dead):
            site.apply()
        installer.install(RELEASE, "--reinstall" if installer.name == "uv" else "--force-reinstall")
        recover(site.root)
        left = snapshot(site.root)
        assert left.keys() - pristine.keys() in (set(), ours(left))
        site.revert()
        assert snapshot(site.root) == pristine


def ours(left: transactions.Snapshot) -> set[str]:
    """What an apply that was finished after all adds."""
    state = {path for path in left if path.startswith(".vllm-overlay")}
    return {*state, ADDED, "vllm/v1/draft", "vllm/v1/draft/parts"}


@pytest.mark.skipif(UV is None, reason="uv is not installed")
def test_the_links_of_uv_s_symlink_mode_are_refused_and_never_written_through(
    tmp_path: Path,
) -> None:
    """With ``--link-mode symlink`` every file is a link into uv's cache, which other
    environments share: the overlay neither follows nor replaces such a link."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    packages = next((tmp_path / "env/lib").glob("python*/site-packages"))
    installer = Installer("uv", tmp_path / "env/bin/python", packages, tmp_path / "wheels")
    site = installer.install(RELEASE, "--link-mode", "symlink")
    proposer = site.root / PROPOSER
    assert proposer.is_symlink()
    before, cache = snapshot(site.root), snapshot(tmp_path / "wheels/cache/archive-v0")
    for act in (site.apply, lambda: site.apply(TWO)):
        with pytest.raises(TransactionError, match=r"leads out of the target.*--link-mode copy"):
            act()
    assert not site.revert().wrote
    assert (snapshot(site.root), snapshot(tmp_path / "wheels/cache/archive-v0")) == (before, cache)
    assert proposer.is_symlink()
    # What the message says to do helps.
    site = installer.install(RELEASE, "--link-mode", "copy", "--reinstall")
    assert site.apply().wrote
    assert snapshot(tmp_path / "wheels/cache/archive-v0") == cache


def test_a_single_link_into_a_cache_is_refused_also_for_record(tmp_path: Path) -> None:
    """A RECORD that is a link is refused, too: writing its rows would change the cache."""
    for path in (PROPOSER, "vllm-0.26.0.dist-info/RECORD"):
        site = transactions.installed(tmp_path / path.replace("/", "-") / "site")
        kept = tmp_path / path.replace("/", "-") / "kept"
        (site.root / path).rename(kept)
        (site.root / path).symlink_to(kept)
        content, before = kept.read_bytes(), snapshot(site.root)
        with pytest.raises(TransactionError, match="leads out of the target"):
            site.apply()
        assert (kept.read_bytes(), snapshot(site.root)) == (content, before)
