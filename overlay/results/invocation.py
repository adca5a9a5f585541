"""The commands that messages name, with the target and the folders of patches that were named.

A message such as "run `overlay revert`" is written in many rooms, and what the user named is known
in one: so the API sets the invocation for as long as it works, and every command is made here.
The plugin has none; there a command means the environment that it runs in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import NamedTuple

#: The commands that take a TARGET, and those of them that write to it.
_WRITING = frozenset({"apply", "revert", "adopt"})
_ON_A_TARGET = _WRITING | {"check", "status", "diff", "report"}

#: The commands for which ``--feature`` and ``--without`` choose what is meant, as they did before.
ON_CHOSEN = frozenset({"check", "apply", "diff"})

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
    :ivar selectors: the arguments that choose features: ``--feature`` and ``--without``.
    """

    target: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()

    def command(self, name: str, *words: str, read_only: bool = False) -> Command:
        """A command on the same target with the same patches.

        :param name: such as ``apply``; :param words: its further arguments.
        :param read_only: whether the target is a file or a release, to which no command can write;
            a command that writes is then meant for the installed package.
        """
        says_target = name in _ON_A_TARGET and not (read_only and name in _WRITING)
        says_target = says_target or (name == "new" and "--from-edits" in words)
        folders = () if name in _WITHOUT_PATCHES else self.patches
        options = [word for folder in folders for word in ("--patches", folder)]
        if name in ON_CHOSEN and "--feature" not in words:
            words, selectors = self._chosen_with(words)
            options = [*selectors, *options]
        return Command((name, *words, *options, *(self.target if says_target else ())))

    def _chosen_with(self, words: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
        """Arguments of a command and those that choose features, as far as they go together.

        What the command leaves out is not named; where the user named others, these say it all.
        """
        out = _values(words, "--without")
        feature_ids = [id_ for id_ in _values(self.selectors, "--feature") if id_ not in out]
        without = [id_ for id_ in _values(self.selectors, "--without") if id_ not in out]
        if feature_ids and out:
            words = tuple(word for word in words if word != "--without" and word not in out)
        options = (("--feature", feature_ids), ("--without", without))
        return words, [word for option, ids in options for id_ in ids for word in (option, id_)]


def _values(words: Sequence[str], option: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == option]


def absolute(folder: str | os.PathLike[str]) -> str:
    """A path that means the same from every working folder."""
    return os.path.abspath(os.path.expanduser(folder))


#: That of a caller who named nothing.
NOTHING_NAMED = Invocation()

_current: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def current() -> Invocation | None:
    """The invocation that is worked on; ``None`` outside of every call of the API."""
    return _current.get()


#: Whether the user forbids the network, in this context.
_offline: ContextVar[bool] = ContextVar("offline", default=False)


def stay_offline() -> None:
    """Forbid the network from here on, in this context."""
    _offline.set(True)


def is_offline() -> bool:
    """Whether the user forbids the network."""
    return _offline.get()


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
