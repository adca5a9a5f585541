"""The exceptions that end a command, each with the exit code it ends it with.

Every message says what was expected, what was found, where, and what to do next.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import NamedTuple

#: How many further files with one cause are named.
_ALIKE = 3

# Patterns are compiled where they are used: each process of vLLM imports this module.
# A login may hold quotes, which end a URL elsewhere.
_URL = (
    r"(?P<scheme>[A-Za-z][\w+.-]*://)(?P<rest>(?:[^\s/?#@]*@)?[^\s'\"<>]+?)"
    r"(?P<end>[:.,;)\]]*(?=[\s'\"<>]|\Z))"
)

#: A login in a URL that lacks its scheme, and the part of one that ``urllib3`` shows.
_BARE = r"(?<!\S)[\w.+-]+:[^\s/@]+@|(?<=url: )(?P<path>/[^\s?#]*)[?#]\S*"


def close_names(name: str, names: Sequence[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names that somebody probably meant by ``name``, the nearest first.

    :param cutoff: how alike they must be, from 0 to 1.
    """
    from difflib import get_close_matches  # only where something is wrong

    return get_close_matches(name, names, most, cutoff)


def did_you_mean(unknown: Iterable[str], names: Sequence[str], way: str = "") -> str:
    """The end of a sentence about unknown names: those that were probably meant, and a way on.

    :param unknown: what somebody wrote; :param way: what to do where it is none of the names.

    >>> did_you_mean(["dem"], ["demo"], "look elsewhere")
    '; did you mean demo? Or look elsewhere'
    """
    close = [match for name in unknown for match in close_names(name[:100], names)]
    if not close:
        return f"; {way}" if way else ""
    question = f"; did you mean {' and '.join(dict.fromkeys(close))}?"
    return f"{question} Or {way}" if way else question


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it, the first cause last."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((cause for cause in inner if isinstance(cause, BaseException)), None)


def without_secrets(text: str) -> str:
    """A URL, or a text with URLs in it, without what holds tokens: login, parameters, fragment.

    >>> without_secrets("https://me:pw@host/x.diff?token=s3cret#also: no answer")
    'https://host/x.diff: no answer'
    """

    def plain(url: re.Match[str]) -> str:
        return url["scheme"] + _without_secrets(url["rest"]) + url["end"]

    return re.sub(_BARE, lambda match: match["path"] or "", re.sub(_URL, plain, text))


def _without_secrets(rest: str) -> str:
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A password with a slash in it ends the host, so that what follows is no port.
    broken = not host.startswith("[") and re.search(r":(?!\d*\Z)", host) is not None
    if "@" in (rest if broken else host):
        rest = (rest if broken else host).rpartition("@")[2] + ("" if broken else rest[len(host) :])
    return re.split(r"[?#;]", rest, maxsplit=1)[0]


#: The most characters of a line of a message, and the most lines.
MAX_LINE, MAX_LINES = 1500, 200

_LONG_WORD = r"\S{200,}"


def bounded(text: str, most: int = MAX_LINE) -> str:
    """A text of which each line is short enough to be read.

    In a line that is not, long words such as names of files are cut first, then its middle: a
    message ends with what to do next.

    >>> bounded("expected a version, found 99999999999999999999, such as 0.26.0", 40)
    'expected a version,  ...  such as 0.26.0'

    :param most: characters of a line.
    """
    if len(text) <= most:
        return text
    return "\n".join(_cut(line, most) if len(line) > most else line for line in text.split("\n"))


def _fewer_lines(text: str) -> str:
    lines = text.split("\n")
    more = len(lines) - MAX_LINES
    return text if more <= 0 else "\n".join([*lines[:MAX_LINES], f"... and {more} lines more"])


def _cut(line: str, most: int) -> str:
    line = re.sub(_LONG_WORD, lambda word: f"{word[0][:120]}...{word[0][-60:]}", line)
    head, tail = most // 2, most // 2 - 5
    return line if len(line) <= most else f"{line[:head]} ... {line[-tail:]}"


class OverlayError(Exception):
    """Something in the usage or the environment stops the command.

    :ivar exit_code: the exit status of the command line (2: usage or environment).
    """

    exit_code = 2

    def __init__(self, message: str = "", *further: object) -> None:
        super().__init__(_fewer_lines(bounded(message)), *further)


class UsageError(OverlayError):
    """The command was asked for something it does not do."""


#: The most malformed places of one file that are told.
MAX_ERRORS = 50


class PatchFormatError(OverlayError):
    """A patch or a feature folder is malformed.

    :param file: the malformed file, as the user would name it.
    :param line: 1-based line, or ``None`` where the whole file is meant.
    :param problem: what is wrong, and what would be right.
    """

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        self.file, self.line, self.problem = file, line, bounded(problem)
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {self.problem}")


class PatchFormatErrors(OverlayError):
    """Every malformed place of a patch folder, reported together."""

    def __init__(self, errors: list[PatchFormatError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in errors))


class TargetError(OverlayError):
    """The target cannot be found or read, or is not a vLLM."""


class Absent(TargetError):
    """A package that is not in a Python, a folder or an archive at all."""


class PackageIndexError(OverlayError):
    """The package index cannot be reached, or does not serve what is needed."""


class ReleaseError(PackageIndexError):
    """A release cannot be fetched.

    :ivar release: as the user named it; :ivar cause: why, which other releases may share.
    """

    def __init__(self, release: str, cause: str) -> None:
        self.release, self.cause = release, cause
        super().__init__(f"release {release}: {cause}")


class ArchiveError(TargetError):
    """A wheel or sdist is damaged, dangerous, or too large to be read."""


class FileNotKept(ArchiveError):
    """A release has a file whose bytes are not at hand: only texts are taken out of a release."""


class TransactionError(OverlayError):
    """The target could not be written; it is in one of the two whole states."""


class PlanOutdated(TransactionError):
    """Another command applied something since the plan was made; a new plan has to know of it."""


class LedgerError(OverlayError):
    """The ledger of a target is damaged, or was written by a newer overlay."""


class RevertRefused(OverlayError):
    """Somebody edited a patched file after us; reverting would lose the edit.

    :ivar paths: the files that were edited.
    """

    exit_code = 1

    def __init__(self, message: str, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(message)


_STEPS = {
    errno.EACCES: "run the command as the user that owns the place",
    errno.EPERM: "run the command as its owner; to that one, it is immutable (`chattr -i`)",
    errno.EROFS: "the file system is read-only: run the command where it is not",
    errno.ENOSPC: "free some space and run the command again",
    errno.EDQUOT: "free some of your quota and run the command again",
    errno.ENOTDIR: "a file is in the place of a folder: remove it, or reinstall the package",
    errno.EBUSY: "it is in use, or mounted by itself: change the file that is mounted there",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`) and run the command again",
    errno.ENFILE: "the machine has too many open files: close some and run the command again",
    errno.ENOMEM: "free some memory and run the command again",
    errno.EIO: "the disk reports a fault: check it before you run the command again",
}


#: What the system answers where this process is the cause, and not what it opens.
_OF_PROCESS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def says_nothing_of_files(error: OSError) -> bool:
    """Whether an error is a limit of this process or machine, and tells nothing about a file."""
    return error.errno in _OF_PROCESS


def working_folder() -> str | None:
    """The working folder; ``None`` where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def described(error: OSError) -> str:
    """What the operating system refused, where, and what to do next."""
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
    relative = isinstance(error, FileNotFoundError) and not any(map(os.path.isabs, names))
    if relative and working_folder() is None:
        return "the working folder is gone; cd to a folder that is there and run the command again"
    place = f"{' -> '.join(names)}: " if names else ""
    what = error.strerror or str(error) or type(error).__name__
    step = _STEPS.get(error.errno or 0, "remove the cause and run the command again")
    return f"{place}{what}; {step}"


def told_once(problems: Iterable[tuple[str, str]]) -> list[str]:
    """The problems of files as sentences; where many files have one cause, it is told once.

    :param problems: the path of each file, and what is wrong with it, which begins with a place.

    >>> told_once((f"{name}.py", f"x.diff:1: it adds {name}.py") for name in "abcde")
    ['x.diff:1: it adds a.py; the same of 4 further files: b.py, c.py, d.py and 1 more']
    """
    causes: dict[str, list[tuple[str, str]]] = {}
    for path, problem in problems:
        cause = (problem.partition(": ")[2] or problem).replace(path, "\0")
        causes.setdefault(cause, []).append((path, problem))
    sentences: list[str] = []
    for entries in causes.values():
        first, *rest = entries
        if len(rest) < _ALIKE:
            sentences += [problem for _, problem in entries]
            continue
        names = ", ".join(path for path, _ in rest[:_ALIKE])
        more = f" and {len(rest) - _ALIKE} more" if len(rest) > _ALIKE else ""
        sentences.append(f"{first[1]}; the same of {len(rest)} further files: {names}{more}")
    return sentences


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
