"""Read what a stranger may have made: files, folders, JSON, TOML, links and text for a terminal.

What a target, a cache, a patches folder or an environment holds is a stranger's data.  Every such
file is read by ``read_regular`` or ``read_below``; whether others could have written a place is
decided by ``problem_of_owner``; foreign text is shown by ``printable``.  Importing this module
costs little: the plugin and ``overlay status`` need it in every process.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from overlay.errors import OverlayError, TargetError, TransactionError, bounded, told_once

#: The most bytes that a foreign file may have; the files of vLLM stay far below.
MAX_BYTES = 16 * 1024 * 1024


class UnfitFile(OSError):
    """What lies at a path is not a regular file of bounded size, so it was not read.

    An ``OSError``, since callers already name the path and the next step of those; ``strerror``
    says what was expected and what was found.
    """


class NotPrivate(OverlayError):
    """Somebody else owns a file or folder, or others can write to it."""


def sha256(data: bytes) -> str:
    """The hexadecimal sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def read_regular(
    path: str | os.PathLike[str], limit: int = MAX_BYTES, *, follow: bool = True
) -> bytes | None:
    """Read a file that a stranger may have made; ``None`` where there is none.

    A pipe, a socket, a device, a folder and a file of more than ``limit`` bytes are refused
    without waiting for any of them and without reading them.

    :param limit: the most bytes that are read.
    :param follow: whether the last part of ``path`` may be a symbolic link.
    :raises UnfitFile: if it is not a regular file, or has more than ``limit`` bytes.
    :raises OSError: if the system refuses to let it be read.
    """
    name = os.fspath(path)
    return _read(name, name, None, limit, 0 if follow else _NOFOLLOW)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file of any size that a stranger may have made, such as an archive.

    :raises UnfitFile: if it is not a regular file.
    :raises OSError: if it is not there, or the system refuses to let it be read.
    """
    name = os.fspath(path)
    _require_regular(name, os.stat(name), None)
    file = os.open(name, _FILE)
    try:
        _require_regular(name, os.fstat(file), None)
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_below(root: Path, path: str, limit: int = MAX_BYTES) -> bytes | None:
    """Read ``path`` below ``root`` as ``read_regular`` does, through no symbolic link there.

    Each folder is opened in the one above, so that a link that takes a folder's place meanwhile
    leads nowhere either.

    :param root: a real path; :param path: relative to it, without links in it.
    :raises UnfitFile: also if a part of it is a symbolic link.
    """
    full = os.path.join(root, path)
    try:
        with parent_below(root, path) as (parent, name):
            return _read(name, full, parent, limit, _NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def parent_below(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder that holds ``path``, through no symbolic link below ``root``.

    :yields: its descriptor, good for ``dir_fd`` only, and the last part of ``path``.
    :raises UnfitFile: if a symbolic link is in the way.
    :raises OSError: if a folder cannot be opened, or is not there.
    """
    *above, name = path.split("/")
    place = str(root)
    folder = os.open(place, _FOLDER)
    try:
        for part in above:
            place = os.path.join(place, part)
            try:
                inner = os.open(part, _FOLDER | _NOFOLLOW, dir_fd=folder)
            except OSError as error:
                if _is_link(part, folder):
                    raise _unfit(place, "expected a folder, found a symbolic link") from error
                raise type(error)(error.errno, error.strerror, place) from error
            # In this order: a Ctrl-C between the two must not make `finally` close it again.
            outer, folder = folder, inner
            os.close(outer)
        yield folder, name
    finally:
        os.close(folder)


_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

#: A folder to look further from; with O_PATH, one that may be searched and not read will do.
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
)

#: Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def _read(name: str, full: str, folder: int | None, limit: int, flags: int) -> bytes | None:
    """Read ``name`` in ``folder``, called ``full`` in messages."""
    try:
        # Looked at first: opening a device can have effects, and a socket cannot be opened.
        status = os.stat(name, dir_fd=folder, follow_symlinks=not flags & _NOFOLLOW)
        _require_regular(full, status, limit)
        file = os.open(name, _FILE | flags, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if isinstance(error, UnfitFile):
            raise
        raise type(error)(error.errno, error.strerror, full) from error
    try:
        _require_regular(full, os.fstat(file), limit)
        data = _all(file, limit + 1)
    except OSError as error:
        error.filename = error.filename or full
        raise
    finally:
        os.close(file)
    if len(data) > limit:
        raise _unfit(full, f"expected at most {limit} bytes, and it grew while it was read")
    return data


def _all(file: int, most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := os.read(file, min(most, 1 << 20))):
        pieces.append(piece)
        most -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _require_regular(full: str, status: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unfit(full, f"expected a plain file, found {kind(status.st_mode)}")
    if limit is not None and status.st_size > limit:
        raise _unfit(full, f"expected a file of at most {limit} bytes, found {status.st_size}")


def _unfit(full: str, problem: str) -> UnfitFile:
    return UnfitFile(errno.EINVAL, problem, full)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there, and not merely a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def kind(mode: int) -> str:
    """What lies somewhere, in words, by its ``st_mode``."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def parse_json(data: bytes | str) -> Any:
    """Parse JSON that a stranger may have written.

    :raises ValueError: if it is not JSON, also where it is nested too deeply to be parsed.
    """
    import json

    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


#: The largest whole numbers that TOML promises; Python's own could not even be printed.
_LARGEST = 1 << 63

#: Dots in a line: the parser takes quadratic time for a key of thousands of parts.
_MAX_DOTS = 256

#: Characters of a document; the largest that the overlay ships has 2,432.
_MAX_LENGTH = 1 << 21


class MalformedToml(ValueError):
    """A text is not TOML, or not of a form that anybody writes.

    :ivar line: 1-based, where it is known.
    """

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line


def parse_toml(data: bytes | str) -> dict[str, Any]:
    """Parse TOML that a stranger may have written; a byte-order mark at its start is passed over.

    :raises MalformedToml: and nothing else, whatever ``data`` holds.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = (data.decode("utf-8") if isinstance(data, bytes) else data).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MalformedToml("it is not UTF-8", line) from error
    if len(text) > _MAX_LENGTH:
        raise MalformedToml(f"expected at most {_MAX_LENGTH} characters, found {len(text)}", None)
    for number, content in enumerate(text.split("\n"), 1):
        if content.count(".") > _MAX_DOTS:
            raise MalformedToml(f"expected at most {_MAX_DOTS} dots in a line", number)
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        raise MalformedToml(str(error), int(place[1]) if place else None) from error
    except RecursionError as error:
        raise MalformedToml("its brackets are nested too deeply", None) from error
    except (ValueError, OverflowError, MemoryError) as error:  # numbers of thousands of digits
        raise MalformedToml(str(error) or type(error).__name__, None) from error
    if _has_large_number(table):
        raise MalformedToml("it holds a whole number of more than 64 bits", None)
    return table


def _has_large_number(table: dict[str, Any]) -> bool:
    """Whether a number of a document is larger than TOML allows: such would not be printed."""
    pending: list[object] = [table]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            return True
    return False


def problem_of_owner(
    place: str | os.PathLike[str], *, allow_group: bool = False, trusted: Collection[int] = ()
) -> str | None:
    """Why somebody else could have written ``place``, in words; ``None`` if nobody could.

    It has to belong to this user or to root, not to be a symbolic link, and not to be writable by
    others.  The folders above are not looked at.

    :param allow_group: whether the group may write where it is the private group that many systems
        give each user (as with umask 002); for what users make themselves, as patches folders.
    :param trusted: numbers of users to whom it may belong, too.
    :raises OSError: if it is not there, or may not be looked at.
    """
    status = os.lstat(place)
    if stat.S_ISLNK(status.st_mode):
        return f"{place} is a symbolic link: expected a file or folder of your own"
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), 0, *trusted):
        return (
            f"{place} belongs to {user_name(status.st_uid)}: expected a file or folder of your own"
        )
    group = bool(status.st_mode & stat.S_IWGRP) and not (allow_group and _private_group(status))
    if status.st_mode & stat.S_IWOTH or group:
        return (
            f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}): "
            "expected at most 0755"
        )
    return None


def require_private(place: str | os.PathLike[str], *, allow_group: bool = False) -> None:
    """Refuse a file or folder that somebody else could have written, or that is not there.

    :param allow_group: as for ``problem_of_owner``.
    :raises NotPrivate: saying whose it is, and what to do.
    """
    try:
        problem = problem_of_owner(place, allow_group=allow_group)
    except OSError as error:
        raise NotPrivate(
            f"{place}: expected a file or folder of your own; the system says: {error.strerror}"
        ) from error
    if problem is not None:
        link = os.path.islink(place)
        step = "remove the link" if link else "correct its owner or mode, or remove it"
        raise NotPrivate(f"{problem}; {step}")


def require_own_name(place: Path) -> None:
    """Refuse a name that somebody else gave, be it that of a link to what is the user's own.

    :raises NotPrivate: naming its owner; :raises OSError: if it is not there.
    """
    if (owner := os.lstat(place).st_uid) not in (os.geteuid(), 0):
        raise NotPrivate(
            f"{place} belongs to {user_name(owner)}: expected a file or folder of your own; "
            "correct its owner, or remove it"
        )


def user_name(user: int) -> str:
    """The name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _private_group(status: os.stat_result) -> bool:
    """Whether the group of a file is the one that holds its owner alone, as its name tells."""
    import grp

    try:
        owner = pwd.getpwuid(status.st_uid)
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return (
        group.gr_gid == owner.pw_gid
        and group.gr_name == owner.pw_name
        and set(group.gr_mem) <= {owner.pw_name}
    )


#: Characters that reorder the text around them on a screen, and the two Unicode line ends.
_REORDERING = {
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    0x200E,
    0x200F,
    0x061C,
    0x2028,
    0x2029,
}

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` with every control character escaped, safe for a terminal, a log or a pipe.

    Escaped are C0 and C1 control characters, DEL, characters that reorder text, and bytes that
    were not UTF-8 in a path (lone surrogates); other Unicode is left as it is.  A backslash is left
    too: the result is for people, and is never read back.  Lines too long to be read are cut.

    >>> printable("title\\x1b]0;x\\x07\\n")
    'title\\\\x1b]0;x\\\\x07\\\\n'

    :param lines: whether line feeds stay: for a text of several lines.
    """
    text = bounded(text)
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or (lines and character == "\n")
        else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path, as ``os.fsdecode`` keeps it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or 0x7F <= code < 0xA0:
        return _NAMED.get(character, f"\\x{code:02x}")
    if code in _REORDERING or 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return character


def way_out(root: Path, path: str, real: str | None = None) -> tuple[Path, str] | None:
    """The first part of ``path`` that leads out of ``root``, and where to; ``None`` if none does.

    :param root: a real path; :param path: relative to it.
    :param real: the real path of the whole of it, where the caller has asked for that already.
    """
    inside = str(root).rstrip(os.sep) + os.sep
    if (real or os.path.realpath(root / path)).startswith(inside):
        return None
    place = root
    for part in path.split("/"):
        place /= part
        real = os.path.realpath(place)
        if not real.startswith(inside):
            return place, real
    # A link changed between the two looks; by now it leads inside again.
    return root / path, "elsewhere a moment ago"


@contextmanager
def all_unreadable(paths: Iterable[str], read: Callable[[str], object]) -> Iterator[None]:
    """Name, where the block ends because of a file that cannot be read, each of ``paths`` like it.

    :param read: raises ``TargetError`` or ``TransactionError`` where a file cannot be read.
    :raises TargetError, TransactionError: with one line for each cause, where there are several.
    """
    try:
        yield
    except (TargetError, TransactionError) as first:
        tried = ((path, _problem(path, read)) for path in sorted(paths))
        problems = {text: path for path, text in tried if text}
        if len(problems) < 2 or str(first) not in problems:
            raise
        alike = told_once((path, text) for text, path in problems.items())
        raise type(first)("\n".join(alike)) from first


def _problem(path: str, read: Callable[[str], object]) -> str | None:
    try:
        read(path)
    except (TargetError, TransactionError) as error:
        return str(error)
    return None
