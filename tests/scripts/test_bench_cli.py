"""The script that measures what the commands cost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench_cli import Case, World, figures_of


@pytest.mark.slow
def test_each_command_is_said_with_its_medians_as_soon_as_it_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worlds = [World(Path.cwd(), tmp_path / name / "site") for name in ("own", "beside")]
    alike = [Case("nothing", [sys.executable, "-c", ""], tmp_path) for _ in worlds]
    for number in (1, 2):
        own, *others = figures_of(alike[:number], worlds[:number], 1)
        said = f"nothing: {own['median_s']:.3f} s"
        for figure in others:
            said += f", beside it {figure['median_s']:.3f} s"
        assert capfd.readouterr().out == f"{said}\n"
