"""A copy of an installed vLLM as the release is, beside the one that the overlay patched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.on_disk import ledger as ledgers

if TYPE_CHECKING:
    from overlay.on_disk.ledger import Ledger


def make_stock_copy(root: Path, folder: Path) -> Ledger | None:
    """Make ``folder/vllm``: links to the files below ``root``, the release's own for patched ones.

    Nothing of the installation changes. Bytecode is linked as well, but for the files that differ.

    :param root: the folder that holds the installed package.
    :param folder: an existing one, for the front of an import path.
    :returns: the ledger; ``None`` where nothing is applied on disk.
    :raises OverlayError: if the ledger or a pristine copy cannot be read.
    """
    ledger = ledgers.load(root)
    entries = {} if ledger is None else {entry.path: entry for entry in ledger.entries}
    pristine = ledgers.copies(root)
    for place, _, names in os.walk(root / "vllm"):
        inside = Path(place).relative_to(root)
        for name in names:
            path = (inside / name).as_posix()
            if path not in entries and _source(path) not in entries:
                # A folder without files of the release would be a package, too.
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).symlink_to(root / path)
    for path, entry in entries.items():
        if entry.before is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(pristine(entry.before))
    return ledger


def _source(path: str) -> str:
    """The source of a file of bytecode, ``a/__pycache__/b.cpython-312.pyc``."""
    folder, _, name = path.rpartition("/")
    return f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"
