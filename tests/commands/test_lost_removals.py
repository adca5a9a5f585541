"""A module that a feature removed, where what was kept of it is lost: no byte goes unsaid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overlay.authoring.composing import whole_file
from overlay.authoring.writing import render_patch
from tests.support import fake_vllm
from tests.support.cli import PROPOSER, Cli
from tests.support.patches import write_feature

HEADERS = {"Description": "A test", "Origin": "the tests", "Last-Update": "2026-11-20"}

#: What is lost, by a name, and whether the module's bytes are left somewhere.
LOSSES = {
    "ledger.json": True,
    "pristine": False,
    ".": False,
}


@pytest.fixture
def site(cli: Cli, tmp_path: Path) -> Path:
    """An installation from which a feature removed a module, beside one that another edits."""
    site = fake_vllm.site_packages(tmp_path / "site", version="0.26.0")
    patch = render_patch(HEADERS, PROPOSER, (whole_file((site / PROPOSER).read_bytes(), None),))
    write_feature(tmp_path / "ours", {"10-gone/0.20.0..0.33.0.patch": patch}, id="gone")
    shutil.rmtree(cli.shipped / "demo")
    return site


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("word", ["status", "check", "apply", "revert", "adopt"])
def test_it_comes_back_or_is_said(
    cli: Cli, tmp_path: Path, site: Path, lost: str, word: str
) -> None:
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    mine = ("--patches", tmp_path / "ours", site)
    assert cli("apply", *mine).exit == 0
    assert not (site / PROPOSER).exists()
    place = site / ".vllm-overlay" / lost
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    answer = cli(word, *mine)
    if answer.exit == 0:
        assert LOSSES[lost]
        assert word in ("revert", "adopt")
        assert cli("revert", *mine).exit == 0
        assert {path: path.read_bytes() for path in before} == before
    else:
        said = answer.out + answer.err
        assert any(each in said for each in (PROPOSER, "pristine copy", "`overlay revert"))
        assert not (site / PROPOSER).exists()
        kept = [path.read_bytes() for path in site.rglob("pristine/*")]
        assert (before[site / PROPOSER] in kept) is LOSSES[lost]


def test_a_removed_module_comes_back_only_with_the_bytes_of_the_release(
    cli: Cli, tmp_path: Path, site: Path
) -> None:
    assert cli("apply", "--patches", tmp_path / "ours", site).exit == 0
    (site / ".vllm-overlay/ledger.json").unlink()
    (copy,) = (site / ".vllm-overlay/pristine").iterdir()
    copy.write_bytes(b"MINE = 1\n")
    answer = cli("revert", "--patches", tmp_path / "ours", site)
    assert answer.exit == 2
    assert PROPOSER in answer.err
    assert copy.read_bytes() == b"MINE = 1\n"
    assert not (site / PROPOSER).exists()
