"""TARGET: what the user names, and the tree of files that it names.

A target is nothing (the vLLM that this Python would import), a folder that holds ``vllm/``, a wheel
or sdist file, or a release, which is fetched from the configured package index.  Nothing of a
target is ever executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from overlay.errors import FileNotKept
from overlay.package import VLLM, Package, check_path, parse_release


def targets_of(package: Package) -> str:
    """What a TARGET of a package may be, for messages."""
    newest = package.releases[-1] if package.releases else "1.0"
    release = "0.26.0" if package == VLLM else f"{package.distribution}=={newest}"
    return (
        f"a virtual environment, a folder that holds {package.name}/, a wheel, an sdist, or a "
        f"release such as {release}"
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
    package: Package
    lister: Callable[[], Iterable[str]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        version: str | None,
        name: str,
        package: Package,
        reader: Callable[[str], bytes | None],
        *,
        root: Path | None = None,
        record: Mapping[str, str] | None = None,
        record_file: Path | None = None,
        warnings: tuple[str, ...] = (),
        lister: Callable[[], Iterable[str]] | None = None,
    ) -> Target:
        """The target whose package has a version, with a warning where that is not a version."""
        release = None
        try:
            release = None if version is None else parse_release(version)
        except ValueError:
            strange = (
                f"{package.title} calls its version {version!r}, which is not a version number"
            )
            warnings = (*warnings, strange)
        return cls(
            name, version, release, root, record, record_file, warnings, reader, package, lister
        )

    @property
    def public(self) -> str | None:
        """The release as the ledger writes it; ``None`` where it is unknown."""
        return None if self.release is None else str(self.release)

    @property
    def stated(self) -> str:
        """The release as a ledger keeps it: its version, else what the installation calls it."""
        return self.public or self.vllm or "unknown"

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


@dataclass(frozen=True)
class Sources:
    """The source files of a release, which a patch may name.

    :ivar files: path (``vllm/...``) to bytes; :ivar left_out: further paths of the package.
    """

    version: str | None
    files: Mapping[str, bytes]
    left_out: frozenset[str]

    def paths(self) -> Iterable[str]:
        """The paths of all files."""
        return self.files

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, ``None`` where the release has no such file.

        :raises ArchiveError: if the release has the file, but it is not a source file.
        """
        if path in self.left_out:
            raise left_out(path)
        return self.files.get(path)


@dataclass(frozen=True)
class Origin:
    """The origin of a release.

    :ivar file: the file's name; :ivar index: the page that offered it; :ivar digest: the hash that
        the whole file was checked against (``sha256=...``), ``None`` where it could not be.
    :ivar warnings: what the user has to know about it, every time.
    """

    file: str
    index: str
    digest: str | None
    warnings: tuple[str, ...]


def left_out(path: str) -> FileNotKept:
    """The error for a file of a release that is not a source file."""
    return FileNotKept(
        f"{path}: expected a source file; the release has this file, but only text files are taken "
        "out of a release. Unpack the release and name the folder instead"
    )
