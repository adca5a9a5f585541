"""The commands that messages name, with the target and the folders of patches that were named.

A message such as "run `overlay revert`" is written in many rooms, and what the user named is known
in one: so the API sets the invocation for as long as it works, and every command is made here.
The plugin has none; there a command means the environment that it runs in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import NamedTuple

#: The commands that take a TARGET, and those of them that write to it.
_WRITING = frozenset({"apply", "revert", "adopt"})
_ON_A_TARGET = _WRITING | {"check", "status", "diff", "report"}

#: The commands for which ``--feature`` and ``--without`` choose what is meant, as they did before.
_ON_CHOSEN = frozenset({"check", "apply", "diff"})

#: The commands that take no ``--patches``.
_WITHOUT_PATCHES = frozenset({"cache", "completion", "help"})


class Command(NamedTuple):
    """A command of the overlay, which a message shows in backticks, quoted for a shell.

    :ivar words: the arguments of ``overlay``, the command's name first.
    """

    words: tuple[str, ...]

    def __str__(self) -> str:
        from shlex import join  # only where something is wrong

        return f"`{join(('overlay', *self.words))}`"


class Invocation(NamedTuple):
    """What the user named, which every command in a message repeats.

    It can be pasted in any folder, so its paths are absolute.

    :ivar target: the arguments that name the target: TARGET, ``--python`` with a path, or nothing.
    :ivar patches: the folders of ``--patches``; those of ``OVERLAY_PATCHES`` need no repetition.
    :ivar chosen: the arguments that choose features: ``--feature`` and ``--without``, each with an
        id.
    """

    target: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()

    def command(self, name: str, *words: str, read_only: bool = False) -> Command:
        """A command on the same target with the same patches.

        :param name: such as ``apply``; :param words: its further arguments.
        :param read_only: whether the target is a file or a release, to which no command can write;
            a command that writes is then meant for the installed package.
        """
        spoken = name in _ON_A_TARGET and not (read_only and name in _WRITING)
        spoken = spoken or (name == "new" and "--from-edits" in words)
        folders = () if name in _WITHOUT_PATCHES else self.patches
        named = [word for folder in folders for word in ("--patches", folder)]
        if name in _ON_CHOSEN and "--feature" not in words:
            words = self._chosen(words)
        return Command((name, *words, *named, *(self.target if spoken else ())))

    def _chosen(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments of a command with the features that were chosen, less those left out.

        ``--feature`` and ``--without`` cannot name one feature both, so what is left of those that
        were named is named.
        """
        out = {value for option, value in pairwise(words) if option == "--without"}
        meant = [
            (option, value)
            for option, value in zip(self.chosen[::2], self.chosen[1::2], strict=True)
            if value not in out
        ]
        if out and any(option == "--feature" for option, _ in meant):
            gone = {at for at, word in enumerate(words) if word == "--without"}
            words = tuple(w for at, w in enumerate(words) if not gone & {at, at - 1})
        return (*words, *(word for pair in meant for word in pair))


def absolute(folder: str | os.PathLike[str]) -> str:
    """A path that means the same from every working folder."""
    return os.path.abspath(os.path.expanduser(folder))


#: That of a caller who named nothing.
NOTHING_NAMED = Invocation()

_current: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def current() -> Invocation | None:
    """The invocation that is worked on; ``None`` outside of every call of the API."""
    return _current.get()


def command(name: str, *words: str) -> Command:
    """A command on the target and with the patches of the current invocation."""
    return (_current.get() or Invocation()).command(name, *words)


def remember(invocation: Invocation) -> None:
    """Let every command repeat an invocation from here on, in this context."""
    _current.set(invocation)


@contextmanager
def invoked(invocation: Invocation) -> Iterator[None]:
    """Let every command that is named inside repeat an invocation."""
    token = _current.set(invocation)
    try:
        yield
    finally:
        _current.reset(token)
