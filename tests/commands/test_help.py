"""The help of every command fits a terminal, says every default, and gives a thing one name."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from overlay.cli import COMMANDS
from overlay.cli import cli as group
from tests.support.cli import Cli

#: Options that ask for something more: without them it is not done, which no default could say.
ACTIONS = {
    "check": {"--since"},
    "revert": {"--keep-as"},
    "import": {"--release"},
    "new": {"--file"},
    "edit": {"--file", "--commit", "--abort", "--rename", "--fold", "--split", "--into"}
    | {"--context"},
    "port": {"--accept", "--retire", "--skip", "--resolver"},
    "log": {"--upstream"},
    "verify": {"--model", "--draft", "--logs"},
    "bench": {"--model", "--draft", "--html", "--svg", "--logs"},
}


def command_and_context(name: str) -> tuple[click.Command, click.Context]:
    """A command as the group has it, in a terminal of 100 columns."""
    root = click.Context(group, info_name="overlay")
    command = group.get_command(root, name)
    assert command is not None
    return command, click.Context(command, root, name, terminal_width=100)


def options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Spelling and help of each option with a value that may be left out."""
    for each in command.get_params(context):
        if isinstance(each, click.Option) and not each.is_flag and not each.required:
            record = each.get_help_record(context)
            if record is not None:
                yield next(name for name in each.opts if name.startswith("--")), record[1]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_it_fits_a_hundred_columns_and_has_an_example(cli: Cli, name: str) -> None:
    if not name:
        text = click.Context(group, info_name="overlay", terminal_width=100).get_help()
    else:
        command, context = command_and_context(name)
        text = command.get_help(context)
        assert f"    overlay {name}" in text
    assert [line for line in text.splitlines() if len(line) > 100] == []
    assert "\t" not in text
    assert "Example:" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_default_is_said(name: str) -> None:
    silent = {
        spelling
        for spelling, text in options(*command_and_context(name))
        if "default" not in text and "by default" not in text
    }
    if name in ("check", "port"):
        silent -= {"--releases"}  # without it TARGET is meant, or nothing
    assert silent == ACTIONS.get(name, set())


@pytest.mark.parametrize("name", COMMANDS)
def test_releases_are_named_and_writing_is_said_in_one_way(name: str) -> None:
    command, context = command_and_context(name)
    spellings = {
        spelling: each
        for each in command.get_params(context)
        if isinstance(each, click.Option)
        for spelling in each.opts
    }
    for spelling, each in spellings.items():
        if each.metavar == "RELEASE":
            assert spelling == "--release"
        if each.metavar == "RANGE":
            assert spelling == "--releases"
    if "--write" in spellings:
        assert "--dry-run" in spellings
    assert {"-q", "--quiet", "--offline", "--color"} <= set(spellings)
    assert "--json" in spellings
