"""The rows of the table of bad inputs, and where they make their inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import Cli

Arguments = Sequence["str | Path"]


@dataclass
class World:
    """Where a row makes its input."""

    cli: Cli
    tmp: Path
    patch: pytest.MonkeyPatch

    def site(self, *, applied: bool = False, version: str = "0.26.0") -> Path:
        """An installation, patched where ``applied``."""
        site = fake_vllm.site_packages(self.tmp / "site", version=version)
        if applied:
            assert self.cli("apply", site).exit == 0
        return site

    def file(self, name: str, content: bytes = b"") -> Path:
        """A file in the scratch folder."""
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def fifo(self, path: Path) -> Path:
        """A pipe without a writer, in the place of whatever is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        return path

    def link(self, path: Path, to: str | Path) -> Path:
        """A symbolic link, in the place of whatever is there."""
        path.unlink(missing_ok=True)
        path.symlink_to(to)
        return path


@dataclass(frozen=True)
class Row:
    """One bad input.

    :ivar exit: how the command ends; :ivar word: what it has to say somewhere.
    """

    name: str
    make: Callable[[World], Arguments]
    exit: int
    word: str


ROWS: list[Row] = []

Make = Callable[[World], Arguments]


def row(name: str, exit_: int, word: str) -> Callable[[Make], Make]:
    """Put the decorated function into the table."""

    def add(make: Make) -> Make:
        ROWS.append(Row(name, make, exit_, word))
        return make

    return add


def simple(name: str, exit_: int, word: str, make: Make) -> None:
    """Put a short row into the table."""
    ROWS.append(Row(name, make, exit_, word))
