"""Read which version a package on disk has, and which distribution installed it; nothing is run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from overlay.errors import TargetError
from overlay.package import VLLM, Package, distribution_name
from overlay.targets.record import may_list_packages, owns, packages_in
from overlay.untrusted import UnfitFile, read_regular

_VERSION_PY = re.compile(
    r"^(?:__version__|version)\s*(?:=\s*(?:__version__|version)\s*)?=\s*(['\"])([^'\"\n]+)\1",
    re.MULTILINE,
)


class Distribution(NamedTuple):
    """An installed distribution that owns a package.

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
    """The version that a package's ``_version.py`` states."""
    match = _VERSION_PY.search(content.decode("utf-8", "replace"))
    return match[2] if match else None


def owners(folder: Path, package: Package = VLLM) -> list[Distribution]:
    """The distributions beside a package in ``folder`` whose RECORD lists it.

    Distributions with its name in theirs are asked first and, where one of them owns it, no other:
    an environment may hold hundreds, and RECORDs of megabytes.

    :raises TargetError: if the folder or a RECORD cannot be read.
    """
    infos = [name for name in _names(folder) if name.endswith(".dist-info")]
    likely = [name for name in infos if is_likely(name, package)]
    owning = _owning(folder, likely, package)
    return owning or _owning(folder, [name for name in infos if name not in set(likely)], package)


def is_likely(info: str, package: Package) -> bool:
    """Whether a ``.dist-info`` folder is probably that of a package, by its name."""
    return distribution_name(package.distribution) in distribution_name(info)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise TargetError(unreadable(folder, error)) from error


def _owning(folder: Path, names: list[str], package: Package) -> list[Distribution]:
    owning = []
    for name in names:
        info = folder / name
        record = read_bytes(info / "RECORD")
        if record is None or not owns(record, package):
            continue
        metadata = read_bytes(info / "METADATA") or b""
        stem, _, version = name[: -len(".dist-info")].rpartition("-")
        owning.append(
            Distribution(
                name=header(metadata, "Name") or stem.replace("_", "-"),
                version=header(metadata, "Version") or version,
                info=info,
                record=record,
            )
        )
    return owning


def only_owner(folder: Path, package: Package = VLLM) -> Distribution | None:
    """The one distribution that owns a package in ``folder``, ``None`` where nothing does.

    :raises TargetError: if two do: which files are whose cannot be told.
    """
    owning = owners(folder, package)
    if len(owning) > 1:
        names = " and ".join(f"{one.name} {one.version} ({one.info.name})" for one in owning)
        raise TargetError(
            f"{folder}: expected one distribution that owns {package.name}/, found {len(owning)}: "
            f"{names}. They overwrote each other's files. Uninstall all of them, then install the "
            "one that you want"
        )
    return owning[0] if owning else None


def same_name(folder: Path, owner: Distribution) -> list[str]:
    """The other ``.dist-info`` folders in ``folder`` with the name of ``owner``, sorted.

    :raises TargetError: if the folder cannot be read.
    """
    wanted = distribution_name(owner.name)
    infos = [name for name in _names(folder) if name.endswith(".dist-info")]
    stems = {name: name[: -len(".dist-info")].rpartition("-")[0] for name in infos}
    return [
        name
        for name, stem in stems.items()
        if name != owner.info.name and distribution_name(stem) == wanted
    ]


def keeps_rows(owner: Distribution, package: Package) -> bool:
    """Whether the overlay's rows of a package go into the RECORD of the distribution that owns it.

    There is one block of them in a RECORD.  Of several packages that one distribution brings, it
    is that of the package with its name, else of the first.
    """
    names = [distribution_name(name) for name in (owner.name, package.name)]
    if names[0] == names[1] or may_list_packages(owner.record) == 1:
        return True
    brought = packages_in(owner.record)
    called = [name for name in brought if distribution_name(name) == names[0]]
    return [*called, *brought][0] == package.name


def source_version(root: Path, package: Package = VLLM) -> str | None:
    """The version of a source tree without an installed distribution; git is not asked.

    Looked for in ``_version.py``, ``PKG-INFO``, an egg-info and ``version.txt``, in that order: the
    first is what the package itself would answer.
    """
    content = read_bytes(root / package.name / "_version.py")
    if content is not None and (version := version_in_source(content)):
        return version
    candidates = [root / "PKG-INFO", root / f"{package.name}.egg-info" / "PKG-INFO"]
    for path in candidates:
        content = read_bytes(path)
        if content is not None and (version := header(content, "Version")):
            return version
    for path in (root / "version.txt", root / package.name / "version.txt"):
        content = read_bytes(path)
        if content is not None and (text := content.decode("utf-8", "replace").strip()):
            return text.split()[0]
    return None
