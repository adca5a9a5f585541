"""Law: what a command that changes a target says of the next process is what ``status`` says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cli import PROPOSER, Cli

STEPS = (
    ("apply",),
    ("apply", "--feature", "demo"),
    ("apply", "--feature", "team-capture"),
    ("revert",),
    ("revert", "--feature", "demo"),
    ("revert", "--feature", "team-capture"),
)
BOTH = ["demo", "team-capture"]


@pytest.fixture
def installed(site: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM with the plugin beside it, which knows of both folders."""
    (site / "vllm_overlay-0.1.0.dist-info").mkdir()
    monkeypatch.setenv("OVERLAY_PATCHES", str(cli.team))
    return site


def coming(cli: Cli, *command: str | Path) -> list[str]:
    result = cli(*command, "--json")
    assert result.exit == 0, result
    named: list[str] = result.json["targets"][0].get("in_memory", [])
    return named


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_every_change_says_of_the_next_process_what_status_says(
    cli: Cli, installed: Path, steps: list[tuple[str, ...]]
) -> None:
    for step in steps:
        said = coming(cli, step[0], installed, *step[1:])
        assert said == coming(cli, "status", installed)


def test_a_revert_names_also_what_was_never_on_disk(cli: Cli, installed: Path) -> None:
    assert coming(cli, "apply", installed, "--feature", "demo") == ["team-capture"]
    assert coming(cli, "revert", installed) == BOTH
    assert coming(cli, "revert", installed) == BOTH  # with nothing left to do, too
    text = cli("revert", installed).out
    assert "in memory: demo and team-capture" in text


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [("OVERLAY", "disk", []), ("OVERLAY", "off", []), ("OVERLAY_FEATURES", "demo", ["demo"])],
)
def test_what_the_environment_forbids_is_not_named(
    cli: Cli,
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    named: list[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert coming(cli, "revert", installed) == coming(cli, "status", installed) == named


def test_without_the_plugin_nothing_comes(cli: Cli, site: Path) -> None:
    assert coming(cli, "revert", site) == coming(cli, "status", site) == []


def test_a_revert_needs_no_patches_for_it(cli: Cli, installed: Path) -> None:
    """Also where what is left has drifted, or the patches cannot be read."""
    assert cli("apply", installed).exit == 0
    (cli.shipped / "demo" / "feature.toml").write_text("id = ")
    assert coming(cli, "revert", installed) == []
    assert "# patched" not in (installed / PROPOSER).read_text(encoding="utf-8")
