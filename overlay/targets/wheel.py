"""Read the members of a wheel under a package, one by one, out of the zip archive."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

from overlay.errors import ArchiveError
from overlay.package import VLLM, Package
from overlay.targets.archive import MAX_MEMBERS, NotInArchive, check_member, check_size
from overlay.targets.metadata import header, unreadable, version_in_source
from overlay.targets.record import Record, owns
from overlay.targets.target import MAX_FILE_BYTES, Target, public_release

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class Wheel:
    """The members of a wheel that matter: those of its packages and its metadata.

    :param file: the archive's path, or a seekable binary file.
    :param name: what messages call it.
    :raises ArchiveError: if it is cut off, damaged, dangerous or too large.
    """

    def __init__(self, file: Path | IO[bytes], name: str) -> None:
        self.name = name
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise ArchiveError(unreadable(Path(name), error)) from error
        self.members = self._index()

    def _index(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._zip.infolist()
        if len(infos) > MAX_MEMBERS:
            raise ArchiveError(
                f"{self.name}: expected at most {MAX_MEMBERS} members, found {len(infos)}. The "
                "archive is not what a build of vLLM makes: do not use it"
            )
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            # zipfile cuts the name at a NUL and turns backslashes round on some systems.
            check_member(self.name, info.orig_filename)
            if info.is_dir():
                continue
            if info.filename in members:
                raise self._damaged(f"it holds {info.filename} twice")
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise ArchiveError(
                    f"{self.name}: expected plain files only, {info.filename} is a link or a "
                    "device. The archive is not what a build of vLLM makes: do not use it"
                )
            members[info.filename] = info
        return members

    def read(self, member: str) -> bytes | None:
        """A member's bytes, its checksum verified; ``None`` where it is not there.

        :raises ArchiveError: if it is damaged, encrypted or too large.
        """
        info = self.members.get(member)
        if info is None:
            return None
        check_size(self.name, member, info.file_size)
        try:
            with self._zip.open(info) as file:
                return file.read(MAX_FILE_BYTES + 1)  # without a bound, a bomb goes off here
        except _DAMAGE as error:
            raise self._damaged(f"{member}: {error}") from error
        except OSError as error:
            raise ArchiveError(unreadable(Path(self.name), error)) from error

    def metadata(self, package: Package = VLLM) -> tuple[str | None, bytes]:
        """The version of the distribution with a package, and its RECORD (empty if there is none).

        :raises NotInArchive: if the package is not in it.
        :raises ArchiveError: if several distributions in the archive own the package.
        """
        if package.initial not in self.members:
            raise NotInArchive(self.name, package)
        infos = [
            member[: -len("/RECORD")]
            for member in self.members
            if member.endswith(".dist-info/RECORD") and member.count("/") == 1
        ]
        owning = [
            (info, raw)
            for info in infos
            if owns(raw := self.read(f"{info}/RECORD") or b"", package)
        ]
        if len(owning) > 1:
            raise self._damaged(f"it holds several distributions that own {package.name}/")
        if owning:
            info, record = owning[0]
            version = header(self.read(f"{info}/METADATA") or b"", "Version")
            return version or PurePosixPath(info).stem.rpartition("-")[2], record
        return version_in_source(self.read(f"{package.name}/_version.py") or b""), b""

    def extents(self, members: Iterable[str]) -> list[tuple[int, int]]:
        """The extents of the given members in the file, as ``(start, end)``, headers and all."""
        starts = sorted(info.header_offset for info in self._zip.infolist())
        ends = dict(zip(starts, [*starts[1:], self._zip.start_dir], strict=True))
        offsets = (self.members[member].header_offset for member in members)
        return [(offset, ends[offset]) for offset in offsets]

    def _damaged(self, problem: str) -> ArchiveError:
        return ArchiveError(
            f"{self.name}: expected a whole wheel, it is cut off or damaged ({problem}). "
            "Download it again"
        )


def resolve_wheel(path: Path, name: str, package: Package = VLLM) -> Target:
    """The read-only target in the wheel at ``path``.

    :raises NotInArchive: if the package is not in it.
    :raises ArchiveError: if it is damaged, dangerous or too large.
    """
    wheel = Wheel(path, name)
    version, record = wheel.metadata(package)
    release, warnings = public_release(version, package)
    return Target(
        name=name,
        vllm=version,
        release=release,
        root=None,
        record=Record(record, package) if record else None,
        record_file=None,
        warnings=warnings,
        reader=wheel.read,
        package=package,
    )
