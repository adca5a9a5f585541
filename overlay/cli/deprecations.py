"""Former spellings of options: they work for two more minor versions, with a line that says so."""

from __future__ import annotations

from typing import NamedTuple

import click

#: The first version that takes no spelling which was former in 0.2.0.
UNTIL = "0.4.0"


class Deprecation(NamedTuple):
    """A former spelling of an option of a command.

    :ivar option: the spelling now; :ivar until: the first version that no longer takes the former.
    """

    command: str
    former: str
    option: str
    until: str


#: Every former spelling that works.
DEPRECATIONS = (
    Deprecation("check", "--format", "--output-format", UNTIL),
    Deprecation("import", "--onto", "--release", UNTIL),
    Deprecation("prune", "--oldest", "--releases", UNTIL),
)


def current_spelling(command: str, arguments: list[str]) -> list[str]:
    """Arguments of a command with each former spelling as it is spelt now.

    A line on standard error says of each what to write; what stands behind ``--`` is left alone.
    """
    former = {each.former: each for each in DEPRECATIONS if each.command == command}
    words: list[str] = []
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    rest = arguments[len(options) :]
    for word in options:
        name, equals, value = word.partition("=")
        words.append(f"{former[name].option}{equals}{value}" if name in former else word)
    for name in dict.fromkeys(word.partition("=")[0] for word in options):
        if name in former:
            warn(f"{name} is {former[name].option} now", former[name].until)
    return words + rest


def warn(text: str, until: str = UNTIL) -> None:
    """Say on standard error, in one line, what will not work any more.

    :param until: the first version in which it does not.
    """
    click.echo(f"warning: {text}; the former spelling goes with {until}", err=True)


def warn_of_writing(command: str) -> None:
    """Say that a command that proposes, unless told to write, will write unless told not to."""
    click.echo(
        f"warning: `overlay {command}` will write from {UNTIL} on, as every other command does: "
        "say --dry-run to look, or --write",
        err=True,
    )
