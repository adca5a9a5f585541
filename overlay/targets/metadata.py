"""Read which version a vLLM on disk has, and which distribution installed it; nothing is run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from overlay.errors import TargetError
from overlay.targets.record import owns_vllm
from overlay.untrusted import UnfitFile, read_regular

_VERSION_PY = re.compile(
    r"^(?:__version__|version)\s*(?:=\s*(?:__version__|version)\s*)?=\s*(['\"])([^'\"\n]+)\1",
    re.MULTILINE,
)


class Distribution(NamedTuple):
    """An installed distribution that owns the package ``vllm``.

    :ivar info: its ``.dist-info`` folder; :ivar record: the bytes of its RECORD.
    """

    name: str
    version: str
    info: Path
    record: bytes


def read_bytes(path: Path) -> bytes | None:
    """The file's bytes, ``None`` where it is not there.

    :raises TargetError: if it is there and cannot be read, or is not a plain file of bounded size.
    """
    try:
        return read_regular(path)
    except OSError as error:
        raise TargetError(unreadable(path, error)) from error


def unreadable(path: Path, error: OSError) -> str:
    """What to say where a path is not read, or the system refuses to let it be."""
    if isinstance(error, UnfitFile):
        return f"{path}: {error.strerror}"
    what = error.strerror or str(error)
    advice = ""
    if isinstance(error, PermissionError):
        advice = "; run overlay as a user who may read it"
    return f"{path}: expected to read it, the system says: {what}{advice}"


def header(metadata: bytes, name: str) -> str | None:
    """A header's value from METADATA or PKG-INFO, such as that of ``Version``."""
    head = metadata.replace(b"\r\n", b"\n").split(b"\n\n", 1)[0].decode("utf-8", "replace")
    # No regular expression: compiling one would take each process of vLLM longer than the rest.
    for line in head.split("\n"):
        key, _, value = line.partition(":")
        if key.lower() == name.lower() and len(value.split()) == 1:
            return value.strip()
    return None


def version_in_source(content: bytes) -> str | None:
    """The version that ``vllm/_version.py`` states."""
    match = _VERSION_PY.search(content.decode("utf-8", "replace"))
    return match[2] if match else None


def owners(folder: Path) -> list[Distribution]:
    """The distributions beside ``vllm/`` in ``folder`` whose RECORD lists it.

    Distributions with ``vllm`` in their name are asked first and, where one of them owns it, no
    other: an environment may hold hundreds, and RECORDs of megabytes.

    :raises TargetError: if the folder or a RECORD cannot be read.
    """
    infos = [name for name in _names(folder) if name.endswith(".dist-info")]
    likely = [name for name in infos if "vllm" in name.lower()]
    likely_owners = _owning(folder, likely)
    return likely_owners or _owning(folder, [name for name in infos if name not in set(likely)])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise TargetError(unreadable(folder, error)) from error


def _owning(folder: Path, names: list[str]) -> list[Distribution]:
    distributions = []
    for name in names:
        info = folder / name
        record = read_bytes(info / "RECORD")
        if record is None or not owns_vllm(record):
            continue
        metadata = read_bytes(info / "METADATA") or b""
        stem, _, version = name[: -len(".dist-info")].rpartition("-")
        distributions.append(
            Distribution(
                name=header(metadata, "Name") or stem.replace("_", "-"),
                version=header(metadata, "Version") or version,
                info=info,
                record=record,
            )
        )
    return distributions


def only_owner(folder: Path) -> Distribution | None:
    """The one distribution that owns ``folder/vllm``, ``None`` where nothing does.

    :raises TargetError: if two do: which files are whose cannot be told.
    """
    owning = owners(folder)
    if len(owning) > 1:
        names = " and ".join(
            f"{distribution.name} {distribution.version} ({distribution.info.name})"
            for distribution in owning
        )
        raise TargetError(
            f"{folder}: expected one distribution that owns vllm/, found {len(owning)}: {names}. "
            "They overwrote each other's files. Uninstall all of them, then install the one that "
            "you want"
        )
    return owning[0] if owning else None


def source_version(root: Path) -> str | None:
    """The version of a source tree without an installed distribution; git is not asked.

    Looked for in ``vllm/_version.py``, ``PKG-INFO``, ``version.txt`` and an egg-info, in that
    order: the first is what vLLM itself would answer.
    """
    content = read_bytes(root / "vllm" / "_version.py")
    if content is not None and (version := version_in_source(content)):
        return version
    candidates = [root / "PKG-INFO", root / "vllm.egg-info" / "PKG-INFO"]
    for path in candidates:
        content = read_bytes(path)
        if content is not None and (version := header(content, "Version")):
            return version
    for path in (root / "version.txt", root / "vllm" / "version.txt"):
        content = read_bytes(path)
        if content is not None and (text := content.decode("utf-8", "replace").strip()):
            return text.split()[0]
    return None
