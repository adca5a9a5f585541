"""Change folders of patches and of sessions: the system calls of this room, and the switch.

A set of features is replaced as a whole by one rename, the **switch**: their new folders are laid
into a hidden folder beside them, and renaming that to ``.overlay-switch`` decides.  From then on
every reader takes the new features (``overlay.features.sources.entries``), wherever this process
is killed; before, every reader takes the old ones.  What follows only tidies: the folders move to
their places, and the next command that writes here ends what a killed one left.

The calls are written ``os.<name>``, so that the fault tests can fail or kill at each of them.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from overlay.errors import OverlayError, UsageError
from overlay.features.sources import SWITCH, stray
from overlay.untrusted import read_regular

#: Seconds that a command waits for another one that writes into the same folder of patches.
LOCK_SECONDS = 20.0

_STAGED, _DONE = ".overlay-staged-", ".overlay-done-"


class NewFolder(NamedTuple):
    """What one feature's folder is to hold.

    :ivar files: path below the folder -> bytes; ``None`` removes a file.
    :ivar whole: whether the folder holds nothing else; otherwise the files are laid over what is
        there now.
    """

    id: str
    files: Mapping[str, bytes | None]
    whole: bool = True


def replace_features(
    patches: Path, new: Sequence[NewFolder] = (), gone: Sequence[str] = ()
) -> None:
    """Replace, add and remove features of one folder of patches, all of them or none.

    :param patches: made where it is missing.
    :param new: the features to come; :param gone: ids of those to go.
    :raises OverlayError: if another command keeps writing there.
    :raises OSError: if it cannot be written; the features are those from before then.  (Those to
        come where the system refuses even to take the switch back.)
    """
    patches.mkdir(parents=True, exist_ok=True)
    with _locked(patches):
        _tidy(patches)
        staged = Path(tempfile.mkdtemp(prefix=_STAGED, dir=patches))
        try:
            os.chmod(staged, _folder_mode())
            for part in ("new", "gone", "old"):
                os.mkdir(staged / part)
            for folder in new:
                lay(staged / "new" / folder.id, _contents(patches / folder.id, folder))
            for name in gone:
                lay(staged / "gone", {name: b""})
            sync(staged)
            os.replace(staged, patches / SWITCH)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        try:
            _finish(patches)
        except BaseException:
            if os.path.lexists(patches / SWITCH):
                _undo(patches, [folder.id for folder in new])
            raise


def settle(patches: Path) -> bool:
    """End a switch of features that was interrupted; whether there was one.

    :raises OverlayError: if another command keeps writing there; :raises OSError: if it cannot be
        written.
    """
    if not os.path.lexists(patches / SWITCH):
        return False
    with _locked(patches):
        return _tidy(patches)


def _tidy(patches: Path) -> bool:
    """End an interrupted switch, and remove what killed processes left; the lock is held."""
    interrupted = os.path.lexists(patches / SWITCH)
    if interrupted:
        _finish(patches)
    for name in os.listdir(patches):
        if name.startswith((_STAGED, _DONE)):
            shutil.rmtree(patches / name, ignore_errors=True)
    return interrupted


def _finish(patches: Path) -> None:
    """Move the features of a switch to their places; it may have been begun before."""
    switch = patches / SWITCH
    old = switch / "old"
    for name in sorted(os.listdir(switch / "gone")):
        if os.path.lexists(patches / name) and not os.path.lexists(old / name):
            os.replace(patches / name, old / name)
    for name in sorted(os.listdir(switch / "new")):
        if os.path.lexists(patches / name):
            os.replace(patches / name, old / name)
        os.replace(switch / "new" / name, patches / name)
    done = patches / f"{_DONE}{os.getpid()}-{time.monotonic_ns()}"
    os.replace(switch, done)
    shutil.rmtree(done, ignore_errors=True)
    sync(patches)


def _undo(patches: Path, new: Sequence[str]) -> None:
    """Take back a switch that could not be ended; readers see the new features up to its end.

    :param new: ids of the features that it brings.
    """
    switch = patches / SWITCH
    for name in new:
        if not os.path.lexists(switch / "new" / name):
            os.replace(patches / name, switch / "new" / name)
    for name in os.listdir(switch / "old"):
        os.replace(switch / "old" / name, patches / name)
    taken_back = patches / f"{_DONE}{os.getpid()}-{time.monotonic_ns()}"
    os.replace(switch, taken_back)
    shutil.rmtree(taken_back, ignore_errors=True)


def _contents(present: Path, wanted: NewFolder) -> dict[str, bytes]:
    """Every file that a feature's new folder holds."""
    files: dict[str, bytes] = {}
    if not wanted.whole:
        files = contents(present)
    for name, data in wanted.files.items():
        if data is None:
            files.pop(name, None)
        else:
            files[name] = data
    return files


def files_below(folder: Path) -> list[str]:
    """The path below ``folder`` of every regular file in it; links and bytecode are left out."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(place, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found.append(os.path.relpath(path, folder).replace(os.sep, "/"))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file that ``files_below`` names, by its path below ``folder``.

    :raises UnfitFile: if one is not a regular file any more, or too large.
    :raises OSError: if one cannot be read.
    """
    read = {name: read_regular(folder / name, follow=False) for name in files_below(folder)}
    return {name: data for name, data in read.items() if data is not None}


def lay(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder and bring them to the disk; folders are made where missing.

    :param files: path below ``folder`` -> bytes.
    :raises OSError: if one cannot be written, or is there already.
    """
    _make(folder)
    places = {folder}
    for name, data in files.items():
        place = folder / name
        _make(place.parent)
        places |= {above for above in place.parents if folder in above.parents}
        write_new(place, data)
    for place in places:
        sync(place)


def _make(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing."""
    if not folder.is_dir():
        _make(folder.parent)
        os.mkdir(folder)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and bring it to the disk.

    :raises OSError: if it cannot be written, or something of that name is there.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def write_over(path: Path, data: bytes) -> None:
    """Give a file new bytes by one rename; it is as before or as after, whenever this is killed.

    :raises OSError: if it cannot be written.
    """
    new = path.with_name(f".{path.name}.new-{os.getpid()}")
    new.unlink(missing_ok=True)
    try:
        write_new(new, data)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    sync(path.parent)


def appear(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with files in it, whole or not at all.

    :raises FileExistsError: if something of that name is there.
    :raises OSError: if it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.new-"
    staged = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        os.chmod(staged, _folder_mode())
        lay(staged, files)
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        os.replace(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    sync(folder.parent)
    for left in folder.parent.glob(f"{prefix}*"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)


def vanish(folder: Path) -> None:
    """Remove a folder and what is in it: it is there as it was, or it is gone.

    :raises OSError: if it cannot be removed.
    """
    prefix = f".{folder.name}.gone-"
    gone = folder.with_name(f"{prefix}{os.getpid()}")
    os.replace(folder, gone)
    sync(folder.parent)
    for left in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)


def withdraw(folder: Path, document: str, own: Collection[str]) -> bool:
    """Remove a session's own files, and its folder where nothing else is in it.

    :param document: the file without which the folder is not taken for a session; it goes first.
    :param own: the others, below the folder; those that are not there are passed over.
    :returns: whether the folder is gone.
    :raises OSError: if they cannot be removed.
    """
    names = {document, *own}
    there = files_below(folder)
    if all(name in names or stray(name.rpartition("/")[2]) for name in there):
        vanish(folder)
        return True
    for name in (document, *sorted(names & set(there) - {document})):
        os.unlink(folder / name)
        above = (folder / name).parent
        with suppress(OSError):  # other files are in it
            while above != folder:
                above.rmdir()
                above = above.parent
    return False


def sync(folder: Path) -> None:
    """Bring a folder's names to the disk, where its file system can."""
    opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(opened)


def _folder_mode() -> int:
    """The mode that this process gives new folders; ``mkdtemp`` makes private ones."""
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o777 & ~mask


@contextmanager
def _locked(patches: Path) -> Iterator[None]:
    """Hold a folder of patches as its only writer, where its file system has locks.

    :raises OverlayError: if another command holds it for too long.
    :raises UsageError: if it is not a folder.
    """
    import fcntl

    try:
        handle = os.open(patches, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except NotADirectoryError as error:
        raise UsageError(f"{patches}: expected a folder of patches, found a file") from error
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR):
                    break  # without locks; a second switch fails at its rename
            else:
                break
            if time.monotonic() >= deadline:
                raise OverlayError(
                    f"{patches} is being written by another overlay command: waited "
                    f"{LOCK_SECONDS:g} s. Nothing was changed; run the command again when that "
                    "one is done"
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)
