"""Change folders of patches and of sessions: the system calls of this room, and the switch.

A set of features is replaced as a whole by one rename, the **switch**: their new folders are laid
into a hidden folder beside them, and renaming that to ``.overlay-switch`` decides.  From then on
every reader takes the new features (``overlay._features.sources.entries``), wherever this process
is killed; before, every reader takes the old ones.  What follows only tidies: the folders move to
their places, and the next command that writes here ends what a killed one left.

What lies in a session's folder is written and removed through no symbolic link below it.

One overlay command at a time writes into a folder: its lock is ``flock`` on the folder itself.  On
a file system without such locks it is a file in the user's cache, as for a target
(``overlay.on_disk.journal``).  Where that has no locks either, nothing is written: two commands
that tidy and switch at once leave half a feature.

The calls are written ``os.<name>``, so that the fault tests can fail or kill at each of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from overlay._features.sources import SWITCH, is_switch, stray
from overlay.cache import WITHOUT_LOCKS, flocked, lock_file, open_lock, release
from overlay.errors import OverlayError, UsageError
from overlay.package import id_problem, inside
from overlay.untrusted import UnfitFile, parent_below, read_regular

_STAGED, _DONE = ".overlay-staged-", ".overlay-done-"

#: What lay in the place of a switch and is none; it is kept.
_ASIDE = ".overlay-put-aside-"

#: Bytes of a file of a feature: an origin is as large as the change that was imported.
_MOST = 1 << 26


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
    patches: Path, new: Sequence[NewFolder] = (), removed_ids: Sequence[str] = ()
) -> None:
    """Replace, add and remove features of one folder of patches, all of them or none.

    :param patches: made where it is missing.
    :param new: the features to come; :param removed_ids: ids of those to go.
    :raises OverlayError: if an id cannot be one, a path leaves its feature, or another command
        keeps writing there.
    :raises OSError: if it cannot be written, or is read back otherwise; the features are those from
        before then.  (Those to come where the system refuses even to take the switch back.)
    """
    for folder in new:
        require_inside(folder.id, folder.files)
    for name in removed_ids:
        require_inside(name)
    _make(patches)
    with only_writer(patches):
        _tidy(patches)
        staged = Path(tempfile.mkdtemp(prefix=_STAGED, dir=patches))
        try:
            os.chmod(staged, _folder_mode())
            for part in ("new", "gone", "old"):
                os.mkdir(staged / part)
            for folder in new:
                place, files = staged / "new" / folder.id, _contents(patches / folder.id, folder)
                write_tree(place, files)
                if contents(place) != files:
                    raise OSError(errno.EIO, "what was written is not read back", str(place))
            for name in removed_ids:
                write_tree(staged / "gone", {name: b""})
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


def require_inside(id_: str, files: Collection[str] = ()) -> None:
    """Refuse a feature whose files, by paths below its folder, would be laid elsewhere.

    :raises UsageError: naming the id or the path.
    """
    problem = id_problem(id_)
    try:
        for name in files:
            inside(name)
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise UsageError(f"expected a feature's id and paths inside its folder: {problem}")


def finish_switch(patches: Path) -> bool:
    """End a switch of features that was interrupted; whether there was one.

    :raises OverlayError: if another command keeps writing there; :raises OSError: if it cannot.
    """
    if not is_switch(patches / SWITCH):
        return False
    with only_writer(patches):
        return _tidy(patches)


def _tidy(patches: Path) -> bool:
    """End an interrupted switch, and remove what killed processes left; the lock is held."""
    interrupted = is_switch(patches / SWITCH)
    if interrupted:
        _finish(patches)
    elif os.path.lexists(patches / SWITCH):
        os.replace(patches / SWITCH, _new_name(patches, _ASIDE))
    for prefix in (_STAGED, _DONE):
        _sweep(patches, prefix)
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
    _take_away(switch)
    sync(patches)


def _take_away(switch: Path) -> None:
    """Remove a switch, which ends as none with the first call."""
    place = _new_name(switch.parent, _DONE)
    os.replace(switch, place)
    shutil.rmtree(place, ignore_errors=True)


def _new_name(folder: Path, prefix: str) -> Path:
    return folder / f"{prefix}{os.getpid()}-{time.monotonic_ns()}"


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
    _take_away(switch)


def _contents(present: Path, folder: NewFolder) -> dict[str, bytes]:
    files = {} if folder.whole else contents(present)
    for name, data in folder.files.items():
        if data is None:
            files.pop(name, None)
        else:
            files[name] = data
    return files


def files_below(folder: Path) -> list[str]:
    """The path below ``folder`` of every regular file in it; links and bytecode are left out."""
    paths: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(place, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                paths.append(os.path.relpath(path, folder).replace(os.sep, "/"))
    return paths


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file that ``files_below`` names, by its path below ``folder``.

    :raises UnfitFile: if one is not a regular file any more, or too large.
    :raises OSError: if one cannot be read.
    """
    read = {name: read_regular(folder / name, _MOST, follow=False) for name in files_below(folder)}
    return {name: data for name, data in read.items() if data is not None}


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder and bring them to the disk; folders are made where missing.

    :param files: path below ``folder`` -> bytes.
    :raises OSError: if one cannot be written, or is there already.
    """
    _make(folder)
    places = {""}
    for name, data in files.items():
        above = name.rpartition("/")[0]
        _make(folder / above)
        while above not in places:
            places.add(above)
            above = above.rpartition("/")[0]
        write_new(folder / name, data)
    for place in places:
        sync(folder / place)


def _make(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with suppress(FileExistsError):  # another command made it meanwhile
            os.mkdir(each)


def write_new(path: str | Path, data: bytes, folder: int | None = None) -> None:
    """Write a file that is not there yet, and bring it to the disk.

    :param folder: the open folder that ``path`` lies in; ``None``: the working folder.
    :raises OSError: if it cannot be written, or something of that name is there.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _place(root: Path, name: str) -> Iterator[tuple[int, str]]:
    """Open the folder below ``root`` that holds a file, as ``parent_below``.

    Errors in the block name all of ``name``, which must not leave ``root`` (``ValueError``).
    """
    full = os.path.join(root, inside(name))
    try:
        with parent_below(root, name) as place:
            yield place
    except OSError as error:
        if not isinstance(error, UnfitFile):
            error.filename, error.filename2 = full, None
        raise


def write_below(root: Path, name: str, data: bytes) -> None:
    """Give a file below a folder new bytes by one rename; folders are made where missing.

    :raises UnfitFile: if a symbolic link is in the way.
    :raises OSError: if it cannot be written; it is as before then.
    """
    parts = name.split("/")
    for depth in range(1, len(parts)):
        with suppress(FileExistsError), _place(root, "/".join(parts[:depth])) as (folder, part):
            os.mkdir(part, dir_fd=folder)
    with _place(root, name) as (folder, last):
        new = f".{last}.new-{os.getpid()}"
        _unlink(new, folder)
        try:
            write_new(new, data, folder)
            os.replace(new, last, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _unlink(new, folder)
        sync(".", folder)


def remove_below(root: Path, name: str) -> None:
    """Remove a file below a folder, if it is there.

    :raises UnfitFile: if a symbolic link is in the way; :raises OSError: if it cannot be removed.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _place(root, name) as (folder, last):
        os.unlink(last, dir_fd=folder)


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def create_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with files in it, whole or not at all.

    :raises FileExistsError: if something of that name is there.
    :raises OSError: if it cannot be written.
    """
    _make(folder.parent)
    prefix = f".{folder.name}.new-"
    with only_writer(folder.parent):
        staged = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        try:
            os.chmod(staged, _folder_mode())
            write_tree(staged, files)
            if os.path.lexists(folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
            os.replace(staged, folder)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        sync(folder.parent)
        _sweep(folder.parent, prefix)


def _sweep(folder: Path, prefix: str) -> None:
    """Remove what killed processes left in a folder; the lock is held."""
    for name in os.listdir(folder):
        if name.startswith(prefix):
            shutil.rmtree(folder / name, ignore_errors=True)


def delete_folder(folder: Path) -> None:
    """Remove a folder and what is in it: it is there as it was, or it is gone.

    :param folder: by whatever path, ``.`` too.
    :raises OSError: if it cannot be removed.
    """
    folder = Path(os.path.realpath(folder))
    prefix = f".{folder.name}.gone-"
    with only_writer(folder.parent):
        os.replace(folder, folder.with_name(f"{prefix}{os.getpid()}"))
        sync(folder.parent)
        _sweep(folder.parent, prefix)


def remove_session(folder: Path, document: str, own: Collection[str]) -> bool:
    """Remove a session's own files, and its folder where nothing else is in it.

    :param document: the file without which the folder is not taken for a session; it goes first.
    :param own: the others, below the folder; those that are not there are passed over.
    :returns: whether the folder is gone.
    :raises OSError: if they cannot be removed.
    """
    there, names = files_below(folder), {document, *own}
    if all(name in names or stray(name.rpartition("/")[2]) for name in there):
        delete_folder(folder)
        return True
    for name in (document, *sorted(names & set(there) - {document})):
        remove_below(folder, name)
        above = name.rpartition("/")[0]
        with suppress(OSError):  # other files are in it
            while above:
                with _place(folder, above) as (place, last):
                    os.rmdir(last, dir_fd=place)
                above = above.rpartition("/")[0]
    return False


def sync(path: str | Path, folder: int | None = None) -> None:
    """Bring a folder's names to the disk, where its file system can."""
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0), dir_fd=folder)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(opened)


def _folder_mode() -> int:
    """The mode that this process gives new folders; ``mkdtemp`` makes private ones."""
    os.umask(mask := os.umask(0o022))
    return 0o777 & ~mask


# The lock


#: Seconds that a command waits for another one that writes into the same folder.
SECONDS = 20.0


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder as the only overlay command that writes into it.

    :raises OverlayError: if another command holds it for too long, or it cannot be locked at all.
    :raises UsageError: if it is not a folder.
    """
    handle = _locked(folder)
    try:
        yield
    finally:
        release(handle)


def _locked(folder: Path) -> int:
    """The descriptor that holds the lock."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise UsageError(f"{folder}: expected a folder of patches, found a file") from error
    is_locked = False
    try:
        is_locked = flocked(handle, fcntl.LOCK_EX, SECONDS)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise OverlayError(
                f"{folder} cannot be locked ({error.strerror}). Nothing was changed"
            ) from error
        return _beside(folder)
    finally:
        if not is_locked:
            os.close(handle)
    if not is_locked:
        raise _busy(folder, "")
    return handle


def _beside(folder: Path) -> int:
    """The same for a folder on a file system without locks."""
    path = lock_file(os.path.realpath(folder))
    try:
        handle = open_lock(path, SECONDS)
    except OSError as error:
        raise OverlayError(
            f"{folder} lies on a file system without locks, and the lock file {path} cannot be "
            f"locked either ({error.strerror}). Nothing was changed; set XDG_CACHE_HOME to a "
            "folder on a local disk"
        ) from error
    if handle is None:
        raise _busy(folder, f", which holds {path}")
    return handle


def _busy(folder: Path, by: str) -> OverlayError:
    return OverlayError(
        f"{folder} is being written by another overlay command{by}: waited {SECONDS:g} s. Nothing "
        "was changed; run the command again when that one is done"
    )
