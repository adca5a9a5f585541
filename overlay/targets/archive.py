"""Limits and checks for the members of wheels and sdists, and the files taken out of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlay.errors import ArchiveError
from overlay.package import VLLM, Package
from overlay.targets.target import MAX_FILE_BYTES

#: The most members of an archive (vLLM 0.33.0 has 9629).
MAX_MEMBERS = 200_000

#: The most bytes that an sdist may unpack to (vLLM 0.33.0: 137 million).
MAX_UNPACKED_BYTES = 1 << 30

#: How many times its size an archive may unpack to (Python sources: 3 to 6 times) ...
MAX_RATIO = 100

#: ... which is checked from this many unpacked bytes on.
RATIO_FREE_BYTES = 64 * 1024 * 1024

#: The suffixes of the files that are taken out of a release: source files and texts.
TEXT_SUFFIXES = (
    ".cfg .cpp .cu .cuh .h .ini .jinja .jinja2 .json .md .py .pyi .sh .toml .txt .typed .yaml .yml"
).split()


def check_member(archive: str, member: str) -> None:
    """Refuse a member whose path leads anywhere but below the folder it is unpacked in.

    :raises ArchiveError: if it is absolute, has ``..``, a backslash, a drive or a NUL.
    """
    parts = member.split("/")
    drive = len(parts[0]) == 2 and parts[0][1] == ":"
    if member.startswith("/") or ".." in parts or "\\" in member or "\0" in member or drive:
        raise ArchiveError(
            f"{archive}: expected members with plain relative paths, found {member!r}, which leads "
            "elsewhere. The archive is not what a build of vLLM makes: do not use it"
        )


def check_size(archive: str, member: str, size: int) -> None:
    """Refuse to read a member that is larger than any source file.

    :raises ArchiveError: if ``size`` is above ``MAX_FILE_BYTES``.
    """
    if size > MAX_FILE_BYTES:
        raise ArchiveError(
            f"{archive}: expected source files of at most {MAX_FILE_BYTES} bytes, {member} has "
            f"{size}. The archive is not what a build of vLLM makes: do not use it"
        )


def is_text(path: str) -> bool:
    """Whether a file with this path is taken out of a release."""
    name = path.rsplit("/", 1)[-1]
    return name[name.rfind(".") :].lower() in TEXT_SUFFIXES if "." in name else False


class NotInArchive(ArchiveError):
    """An archive that does not hold a package.

    :param name: what the user called the archive.
    """

    def __init__(self, name: str, package: Package = VLLM) -> None:
        super().__init__(
            f"{name}: expected a wheel or sdist of {package.title}, which holds {package.initial}; "
            f"this archive does not. Name an archive of {package.title}"
        )


@dataclass(frozen=True)
class Sources:
    """The source files of a release, which a patch may name.

    :ivar files: path (``vllm/...``) to bytes; :ivar left_out: further paths of the package.
    """

    version: str | None
    files: Mapping[str, bytes]
    left_out: frozenset[str]

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, ``None`` where the release has no such file.

        :raises ArchiveError: if the release has the file, but it is not a source file.
        """
        if path in self.left_out:
            raise left_out(path)
        return self.files.get(path)


def left_out(path: str) -> ArchiveError:
    """The error for a file of a release that is not a source file."""
    return ArchiveError(
        f"{path}: expected a source file; the release has this file, but only text files are taken "
        "out of a release. Unpack the release and name the folder instead"
    )
