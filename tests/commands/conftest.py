"""Fixtures of the command tests: a command line with two features, and a fake installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSE, Cli
from tests.support.patches import write_feature


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """One shipped feature, ``demo``, and one of a team, ``team-capture``."""
    shipped, team = tmp_path / "shipped", tmp_path / "team"
    write_feature(
        shipped,
        {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"},
    )
    write_feature(team, {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id="team-capture")
    monkeypatch.setattr("overlay._features.sources.shipped_folder", lambda: shipped)
    monkeypatch.delenv("OVERLAY_PATCHES", raising=False)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    return Cli(shipped, team, capsys)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site-packages")
