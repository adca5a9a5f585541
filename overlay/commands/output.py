"""Write a file that the user named for an answer: ``report -o``, ``bench --html`` and ``--svg``.

A plain file is replaced as a whole; whatever else has the name (a device, a pipe, standard output)
is written to and stays what it is.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from overlay.errors import OverlayError, described
from overlay.untrusted import kind, user_name

#: How many links may lead from one to the next, as for the system.
_MAX_LINKS = 40


def write_output(option: str, place: Path, data: bytes) -> None:
    """Write an answer where the user wants it.

    A plain file is as before or as after, whenever this is killed, and keeps its mode; so is the
    file to which a link of the user's own leads, and the link stays.

    :param option: the option that names the place, for messages.
    :raises OverlayError: if it cannot be written.
    """
    try:
        file = _real_place(place)
        if file is None:
            _write_into(place, data)
        else:
            _replace(file, data)
    except OSError as error:
        raise OverlayError(
            f"{option} {place}: it could not be written: {described(error)}"
        ) from error


def _real_place(place: Path) -> Path | None:
    """The plain file, or the free name, to which ``place`` leads.

    :returns: ``None`` where it leads to a pipe or a character device, or to something that is open.
    :raises OSError: if it is a folder, a disk or a socket, or a link of somebody else's: who may
        make links beside the file could have any file of the user's overwritten.
    """
    for links in range(_MAX_LINKS):
        _require_own_links(place.parent, _MAX_LINKS - links)
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return place
        if stat.S_ISREG(status.st_mode):
            return place
        if stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            return None
        if not stat.S_ISLNK(status.st_mode):
            what = kind(status.st_mode)
            raise OSError(errno.EINVAL, f"expected a file or a pipe, found {what}", str(place))
        _require_own(place, status)
        if os.path.exists(place) and status.st_dev in _proc():
            return None  # /proc/self/fd/1 names what is open, whatever its text says
        place = place.parent / os.readlink(place)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(place))


def _require_own_links(folder: Path, most: int) -> None:
    """Refuse a folder to which a link of somebody else's leads, at any place of its path.

    :param most: how many links are followed; the system refuses more itself.
    """
    for place in (*reversed(folder.parents), folder):
        try:
            status = os.lstat(place)
        except OSError:
            return  # opening the file says what is missing
        if stat.S_ISLNK(status.st_mode):
            _require_own(place, status)
            if most:
                _require_own_links(place.parent / os.readlink(place), most - 1)


def _require_own(link: Path, status: os.stat_result) -> None:
    """Refuse a link of somebody else's.

    :raises PermissionError: naming its owner.
    """
    if status.st_uid not in (os.geteuid(), 0):
        owner = user_name(status.st_uid)
        raise PermissionError(errno.EACCES, f"it is a symbolic link of {owner}'s", str(link))


def _proc() -> tuple[int, ...]:
    """The device of the file system with the files that are open; none on some systems."""
    return (os.lstat("/proc").st_dev,) if os.path.isdir("/proc/self") else ()


def _replace(file: Path, data: bytes) -> None:
    """Give a plain file new bytes by one rename."""
    if file.exists() and not os.access(file, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    mode = None
    if file.exists() and (status := os.lstat(file)).st_uid == os.geteuid():
        mode = stat.S_IMODE(status.st_mode) & 0o777
    handle, new = tempfile.mkstemp(prefix=".overlay-", suffix=".new", dir=file.parent)
    try:
        try:
            _write_all(handle, data)
            os.fchmod(handle, _usual_mode() if mode is None else mode)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(new, file)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


def _write_into(place: Path, data: bytes) -> None:
    """Write to what is there: a pipe, a device, or a file that is open already."""
    status = os.stat(place)
    for number in (1, 2):
        # What is open as standard output goes on where that stands, and may be a socket.
        if os.path.samestat(status, os.fstat(number)):
            _write_all(number, data)
            return
    # Without O_NONBLOCK, opening a pipe waits for somebody to read from it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(place, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads from it", str(place)) from error
        raise
    try:
        os.set_blocking(handle, True)
        _write_all(handle, data)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _usual_mode() -> int:
    """The mode that this process gives new files."""
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask
