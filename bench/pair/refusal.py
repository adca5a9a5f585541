"""What the scripts of the real pair refuse, and how a folder is written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


class Refused(Exception):
    """An input that cannot be used; the text is one sentence for whoever gave it."""


def require_free(folder: Path) -> None:
    """See to it that a folder can be made.

    :raises Refused: if something of that name exists, or there is no folder to hold it.
    """
    if folder.exists() or folder.is_symlink():
        raise Refused(f"{folder} exists: name a folder that does not, or remove it")
    require_place(folder)


def require_place(path: Path) -> None:
    """See to it that there is a folder to hold a file or a folder.

    :raises Refused: if there is none.
    """
    if not path.parent.is_dir():
        raise Refused(f"{path.parent} is no folder: make it, or name another place")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to write into, which gets its name where nothing was raised, else goes away.

    :raises Refused: as :func:`require_free`.
    """
    require_free(folder)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield half
        half.chmod(0o755)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def ended(program: str, work: Callable[[], None]) -> int:
    """Exit status of a program: 0, or 2 and one sentence where it refuses."""
    try:
        work()
    except Refused as refusal:
        print(f"{program}: {refusal}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"{program}: expected the package {error.name} in {sys.executable}", file=sys.stderr)
        return 2
    return 0
