"""Former spellings of options: they work for two more minor versions, with a line that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click


class Deprecation(NamedTuple):
    """A former spelling of an option of a command.

    :ivar option: the spelling now; :ivar until: the first version that no longer takes the former.
    :ivar value: makes the value that the option takes now of the one that it took.
    """

    command: str
    former: str
    option: str
    until: str
    value: Callable[[str], str] = str


#: Every former spelling that works.
DEPRECATIONS = (Deprecation("check", "--format", "--output-format", "0.4.0"),)


def current_spelling(command: str, arguments: list[str]) -> list[str]:
    """Arguments of a command with each former spelling as it is spelt now.

    A line on standard error says of each what to write; what stands behind ``--`` is left alone.
    """
    former = {each.former: each for each in DEPRECATIONS if each.command == command}
    words: list[str] = []
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    rest = arguments[len(options) :]
    pending: Deprecation | None = None
    warned: list[Deprecation] = []
    for word in options:
        name, equals, value = word.partition("=")
        if pending is not None:
            words.append(pending.value(word))
            pending = None
        elif name in former:
            entry = former[name]
            if entry not in warned:
                warn(f"{entry.former} is {entry.option} now", entry.until)
                warned.append(entry)
            words.append(f"{entry.option}={entry.value(value)}" if equals else entry.option)
            pending = None if equals else entry
        else:
            words.append(word)
    return words + rest


def warn(text: str, until: str) -> None:
    """Say on standard error, in one line, what will not work any more.

    :param until: the first version in which it does not.
    """
    click.echo(f"warning: {text}; the former spelling goes with {until}", err=True)
