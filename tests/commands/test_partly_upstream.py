"""A release that took a part of a feature: each command says how many hunks; none writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.authoring.composing import compose
from tests.planning.test_upstream import MINE, THREE, TOOK_TWO
from tests.support import fake_vllm
from tests.support.cli import Cli
from tests.support.patches import patch_text, write_feature

PATH = "vllm/v1/three.py"
HEADERS = "Description: A\nOrigin: B\nLast-Update: 2026-11-22\nBase: 0.25.0\n"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    text = patch_text(PATH, *compose(THREE, MINE), headers=HEADERS)
    write_feature(tmp_path / "ours", {"10-a/0.25.0..0.25.0.patch": text}, "three", "0.25.0..0.25.0")
    return tmp_path / "ours"


@pytest.mark.parametrize("command", ["check", "apply", "status"])
def test_it_says_how_many_hunks_upstream_took(
    cli: Cli, ours: Path, tmp_path: Path, command: str
) -> None:
    root = fake_vllm.site_packages(tmp_path / "site", "0.26.0", {PATH: TOOK_TWO})
    before = (root / PATH).read_bytes()
    result = cli(command, root, "--patches", ours)
    assert result.exit == 1
    assert "upstream took 2 of 3 hunks" in " ".join(result.out.split())
    assert "overlay port three --releases 0.26.0" in " ".join(result.out.split())
    assert (root / PATH).read_bytes() == before


@pytest.mark.parametrize("command", ["check", "status"])
def test_what_upstream_has_whole_needs_nobody(
    cli: Cli, ours: Path, tmp_path: Path, command: str
) -> None:
    text = MINE.replace(b"    first_1 = 1\n", b"    first_1 = 10\n")  # an image is torn
    root = fake_vllm.site_packages(tmp_path / "site", "0.26.0", {PATH: text})
    assert cli(command, root, "--patches", ours, "-v").exit == 0
