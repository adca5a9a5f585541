"""The type that every kind of target resolves to: a tree of files with a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from overlay.package import VLLM, Package, check_path, parse_release


def public(target: Target) -> str | None:
    """The release of a target as the ledger writes it; ``None`` where it is unknown."""
    return None if target.release is None else str(target.release)


#: What a TARGET may be, for messages.
TARGETS = (
    "a virtual environment, a folder that holds vllm/, a wheel, an sdist, or a release such as "
    "0.26.0"
)


def targets_of(package: Package) -> str:
    """What a TARGET of a package may be, for messages."""
    if package == VLLM:
        return TARGETS
    release = package.releases[-1] if package.releases else "1.0"
    return (
        f"a virtual environment, a folder that holds {package.name}/, a wheel, an sdist, or a "
        f"release such as {package.distribution}=={release}"
    )


#: Called while something is read or fetched: what, bytes done, bytes in all (``None``: unknown).
Progress = Callable[[str, int, "int | None"], None]

#: The most bytes that a source file may have; vLLM's largest stays far below.
MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """The files of one package; satisfies ``overlay.package.Tree``.

    :ivar name: what the user named; where nothing was named, the folder that was found (which
        may be named next time to mean the same target).
    :ivar vllm: the package's full version as found (``0.32.0+cpu``), ``None`` where nothing tells
        it.
    :ivar release: the public version, ``None`` where ``vllm`` is unknown or no version.
    :ivar root: the real path of the folder that holds the package (``vllm/``); ``None`` for
        read-only targets.
    :ivar record: path to sha256 (hex) for the rows of RECORD under the package; ``None`` where the
        target has no RECORD, or its files were checked against one already.
    :ivar record_file: the RECORD on disk, where one lies beside ``root`` and takes our rows.
    :ivar package: which package it is.
    :ivar lister: lists the paths of its files, its modules at least; ``None`` where only a RECORD
        tells them.
    """

    name: str
    vllm: str | None
    release: Version | None
    root: Path | None
    record: Mapping[str, str] | None
    record_file: Path | None
    warnings: tuple[str, ...]
    reader: Callable[[str], bytes | None] = field(repr=False, compare=False)
    package: Package = VLLM
    lister: Callable[[], Iterable[str]] | None = field(default=None, repr=False, compare=False)

    def paths(self) -> Sequence[str]:
        """The paths of the package's files, its modules at least, as far as it tells them."""
        if self.lister is None:
            return () if self.record is None else tuple(self.record)
        return tuple(self.lister())

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path`` (such as ``vllm/...``), or ``None`` where there is no such file.

        :raises TargetError: if the path leaves the package, or the file cannot be read safely.
        """
        check_path(path, self.package)
        return self.reader(path)


def public_release(
    version: str | None, package: Package = VLLM
) -> tuple[Version | None, tuple[str, ...]]:
    """The public release of a version string, and a warning where it is not a version."""
    if version is None:
        return None, ()
    try:
        return parse_release(version), ()
    except ValueError:
        return None, (
            f"{package.title} calls its version {version!r}, which is not a version number",
        )
