"""Folders that one process of a run makes and all of them use: models, an installed overlay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of a name, filled by the first process of this run that asks for it.

    Nobody may write into it afterwards.

    :param make: fills the folder, which is there; if it fails, whoever asks next tries again.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each of them has a folder of its own in that of the run
    folder, made = base / name, base / f"{name}.made"
    with FileLock(base / f"{name}.lock"):
        if not made.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
