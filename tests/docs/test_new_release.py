"""``docs/new-release.md``, carried out: the newest release is taken away and added again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.package import KNOWN_RELEASES, VLLM
from tests.support.markdown import ROOT

#: Each part (list, port, check) is tested by itself; this repeats them on the shipped features.
pytestmark = [pytest.mark.network, pytest.mark.thorough]

OLD, NEW = KNOWN_RELEASES[-2:]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """This project as it was before the newest release."""
    leave = shutil.ignore_patterns("__pycache__")
    for name in ("overlay", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "overlay/package.py"
    text = package.read_text()
    assert text.count(f" {NEW}") == 1
    package.write_text(text.replace(f" {NEW}", ""))
    # What was ported by hand for the newest release alone is there already.
    by_hand = (tmp_path / "patches").glob(f"*/*/{NEW}..{NEW}.patch")
    ahead = {file.parents[1] for file in by_hand}
    for file in (tmp_path / "patches").glob("*/feature.toml"):
        if file.parent in ahead:
            continue
        toml = file.read_text()
        if f'package = "{VLLM.name}' in toml or "package =" not in toml:
            file.write_text(toml.replace(f"..{NEW}", f"..{OLD}"))
    for file in list((tmp_path / "patches").glob(f"*/*/*..{NEW}.patch")):
        if file.parents[1] in ahead:
            continue
        text = file.read_text().replace(f"Base: {NEW}", f"Base: {OLD}")
        file.unlink()
        file.with_name(file.name.replace(f"..{NEW}", f"..{OLD}")).write_text(text)
    return tmp_path


def run(checkout: Path, *words: str) -> str:
    """What the checkout's own overlay prints."""
    done = subprocess.run(
        [sys.executable, "-m", "overlay", *words],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def meant(folder: Path) -> dict[str, str]:
    """The files of features that still serve something, without what says where they were made."""
    retired = {file.parent.name for file in folder.glob("*/feature.toml") if not _topics(file)}
    return {
        path: re.sub(r"(?m)^(Base|Last-Update): .*$", "", file.read_text())
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".patch", ".toml", ".py")
        and (path := file.relative_to(folder).as_posix()).partition("/")[0] not in retired
    }


def _topics(feature: Path) -> list[Path]:
    return list(feature.parent.glob("*/*.patch"))


def test_one_command_adds_a_release(checkout: Path) -> None:
    assert f"{NEW}    new" in run(checkout, "list", "--releases")
    run(checkout, "port", "--all", NEW, "--write")
    package = checkout / "overlay/package.py"
    package.write_text(package.read_text().replace(f" {OLD}", f" {OLD} {NEW}"))
    assert meant(checkout / "patches") == meant(ROOT / "patches")
    checked = run(checkout, "check", "--releases", "all")
    assert f"on {len(KNOWN_RELEASES)} targets" in checked
