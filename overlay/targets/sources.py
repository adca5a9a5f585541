"""What is taken out of an archive of a release: its source files, and the names of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlay.errors import ArchiveError


@dataclass(frozen=True)
class Sources:
    """What an archive of a release holds that a patch could mean.

    :ivar files: path (``vllm/...``) to bytes; :ivar left_out: further paths under ``vllm/``.
    """

    version: str | None
    files: Mapping[str, bytes]
    left_out: frozenset[str]

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, ``None`` where the release has no such file.

        :raises ArchiveError: if the release has it but it was left out as no source file.
        """
        if path in self.left_out:
            raise left_out(path)
        return self.files.get(path)


def left_out(path: str) -> ArchiveError:
    """The error for a path that a release has and that is no source file."""
    return ArchiveError(
        f"{path}: expected a source file; the release has this file, but only text files are taken "
        "out of a release. Unpack the release and name the folder instead"
    )
