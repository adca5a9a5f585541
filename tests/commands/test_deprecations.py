"""Former spellings work as today's do, and say in one line what to write."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from packaging.version import Version

from overlay import __version__
from overlay.cli import DEPRECATIONS, UNTIL, Deprecation, current_spelling
from overlay.cli import cli as group
from tests.support.cli import Cli


@pytest.mark.parametrize("entry", DEPRECATIONS, ids=lambda each: f"{each.command}{each.former}")
def test_each_leads_to_an_option_and_ends(
    entry: Deprecation, capsys: pytest.CaptureFixture[str]
) -> None:
    command = group.get_command(click.Context(group), entry.command)
    assert command is not None
    options = {name for each in command.params for name in each.opts}
    assert entry.option in options
    assert entry.former not in options
    assert Version(entry.until) > Version(__version__)
    value = "0.26.0"
    for words, expected in (
        ([entry.former, "0.26.0", "-q"], [entry.option, value, "-q"]),
        ([f"{entry.former}=0.26.0"], [f"{entry.option}={value}"]),
        ([entry.former, "0.26.0", entry.former, "0.26.0"], [entry.option, value] * 2),
    ):
        assert current_spelling(entry.command, words) == expected
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"warning: {entry.former} is {entry.option} now")
    assert current_spelling(entry.command, ["--", entry.former]) == ["--", entry.former]
    assert current_spelling("apply", [entry.former]) == [entry.former]
    assert capsys.readouterr().err == ""


def test_no_warning_names_a_version_that_is_here() -> None:
    """Then the former way is taken out."""
    assert Version(UNTIL) > Version(__version__)


def test_a_former_spelling_answers_as_the_one_of_today(cli: Cli, site: Path) -> None:
    former = cli("check", site, "--format", "junit")
    now = cli("check", site, "--output-format", "junit")
    assert (former.exit, former.out) == (now.exit, now.out)
    warning, *rest = former.err.splitlines()
    assert rest == now.err.splitlines()
    assert warning == (
        "warning: --format is --output-format now; the former spelling goes with 0.4.0"
    )
