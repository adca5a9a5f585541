"""Locate folders of features and fingerprint their bytes, without parsing them.

Each process of vLLM asks what its features require and which packages they are for, so no
``feature.toml`` is parsed that has no line which may answer.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay.errors import OverlayError, PatchFormatError, UsageError
from overlay.package import VLLM, Package, id_problem, inside, package_named
from overlay.untrusted import (
    MalformedToml,
    is_folder,
    parse_toml,
    problem_of_owner,
    read_below,
    read_regular,
)

if TYPE_CHECKING:
    from overlay.settings import Switches

#: The module through which patched code reports what it does; features add it with equal bytes.
EFFECTS_MODULE = "vllm.v1.overlay_effects"

EFFECTS_PATH = f"{EFFECTS_MODULE.replace('.', '/')}.py"

#: The most files and folders in a folder of features; the eight that are shipped have some 200.
MOST = 50_000


def shipped_folder() -> Path:
    """The folder of the features that come with the overlay.

    :raises OverlayError: if this installation lacks it.
    """
    here = Path(overlay.__file__).resolve().parent
    packaged = here / "patches"
    if packaged.is_dir():
        return packaged
    checkout = here.parent / "patches"
    if checkout.is_dir() and (here.parent / "pyproject.toml").is_file():
        return checkout
    raise OverlayError(
        f"expected the shipped patches at {packaged}, found none; reinstall vllm-overlay"
    )


#: The folder inside a folder of patches that holds the features which are taking the place of
#: others: ``new/<id>`` are read in the place of ``<id>``, and ``gone/<id>`` are not read.  The
#: commands that write features make it by one rename (``overlay.authoring.disk``).
SWITCH = ".overlay-switch"

#: The folder inside a folder of patches whose ``files/`` holds modules that several features add:
#: those that ``shared`` in their ``feature.toml`` names.  It is not a feature.
SHARED = "shared"

_DOCUMENTS = ("README", "LICENSE", "NOTICE", "CHANGELOG")

_LEFT_BEHIND = re.compile(r"__pycache__|\.[a-z]+_cache")

#: Hidden files (.DS_Store, an editor's .swp or lock), backups, and what patch(1) and git leave.
_STRAY = re.compile(r"\..*|.*~|.*\.(orig|rej|bak|sw[a-p])|#.*#|Thumbs\.db|desktop\.ini", re.DOTALL)


def left_behind(name: str) -> bool:
    """Whether Python and the usual tools leave such a folder behind; nothing is said of it."""
    return _LEFT_BEHIND.fullmatch(name) is not None


def stray(name: str) -> bool:
    """Whether an editor, a file manager or a patch tool makes such a file; it is ignored.

    >>> [name for name in (".DS_Store", "x.patch~", "x.patch", ".x.swp", "#x#") if stray(name)]
    ['.DS_Store', 'x.patch~', '.x.swp', '#x#']
    """
    return _STRAY.fullmatch(name) is not None


def unread(path: str) -> str | None:
    """Why nothing would be read of a path below a feature's folder; ``None`` where it would be.

    >>> unread("vllm/__pycache__/a.py") is None, unread("vllm/a.py") is None
    (False, True)
    """
    part = next((part for part in path.split("/") if stray(part) or left_behind(part)), None)
    if part is None:
        return None
    return (
        f"{path} would not be read: in a folder of patches {part!r} counts as left there by a "
        "tool; give it another name"
    )


def entries(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """What lies in a folder of patches: name -> where it is read, in the order of the names.

    Features that a switch brings are read where it laid them, wherever it was interrupted.

    :raises OSError: if the folder cannot be listed.
    """
    place = Path(folder)
    switch = place / SWITCH
    parts = _parts(switch)
    while True:
        paths = {name: place / name for name in os.listdir(place) if name != SWITCH}
        now = _parts(switch)
        if now == parts:  # else a writer is moving them just now
            break
        parts = now
    coming, dropped = parts or ([], [])
    paths |= {name: switch / "new" / name for name in coming}
    return {name: path for name, path in sorted(paths.items()) if name not in dropped}


def feature_paths(folder: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Name and place of what has to be a feature in a folder of patches, by name.

    :raises OSError: if the folder cannot be listed.
    """
    for name, path in entries(folder).items():
        ignored = stray(name) or left_behind(name)
        beside = name == "__init__.py" or is_document(path)
        if not (ignored or beside or is_shared(path)):
            yield name, path


def feature_documents(folder: Path) -> list[Path]:
    """The ``feature.toml`` of each feature in a folder of patches, by name; without reading any.

    A folder that cannot be listed has none: loading its features says why.
    """
    try:
        documents = [path / "feature.toml" for _, path in feature_paths(folder)]
    except OSError:
        return []
    return [document for document in documents if os.path.lexists(document)]


def patches_folders(switches: Switches) -> list[Path]:
    """The folders of features that a process of vLLM looks into."""
    return [shipped_folder(), *switches.patches]


def features_in(folders: Iterable[Path]) -> Iterator[tuple[str, Path, Path]]:
    """Name, path and patches folder of all that may be a feature; what is none is in no ledger."""
    for folder in map(Path, dict.fromkeys(map(os.path.realpath, folders))):
        try:
            members = list(feature_paths(folder))
        except OSError:
            members = [("", folder)]  # whoever plans says what is wrong with the folder
        for name, path in members:
            yield name, path, folder


def required_features(switches: Switches) -> frozenset[str]:
    """The features without which vLLM must not start, by the environment or by themselves.

    ``all`` among them is every one.
    """
    features = features_in(patches_folders(switches))
    return switches.present | {name for name, path, _ in features if is_required(path)}


def is_required(feature: Path) -> bool:
    """Whether a feature's folder says that vLLM must not start without the feature.

    A ``feature.toml`` that cannot be parsed says so by a line.
    """
    document = _document(feature, b"required")
    try:
        return bool(document) and parse_toml(document).get("required") is True
    except MalformedToml:
        line = rb"""(?m)^[ \t]*["']?required["']?[ \t]*=[ \t]*true\b"""
        return re.search(line, document) is not None


def further_packages(folders: Iterable[Path]) -> tuple[Package, ...]:
    """The packages other than vLLM that features in folders patch, by name."""
    packages = {package_in(path) for _, path, _ in features_in(folders)} - {VLLM}
    return tuple(sorted(packages))


def package_in(feature: Path) -> Package:
    """The package that a feature's folder says it patches; vLLM where it says none.

    What is malformed is vLLM's: loading the feature reports it.
    """
    document = _document(feature, b"package")
    try:
        name = parse_toml(document).get("package") if document else None
        return package_named(name) if isinstance(name, str) else VLLM
    except ValueError:
        return VLLM


def _document(feature: Path, key: bytes) -> bytes:
    """A feature's ``feature.toml``; nothing where no line of it may set a key, or it is unreadable.

    Loading the feature says what cannot be read.
    """
    try:
        data = read_regular(feature / "feature.toml", follow=False) or b""
    except OSError:
        return b""
    lines = data.splitlines() if key in data else []
    sets = any(line.partition(b"=")[0].strip(b" \t\"'") == key for line in lines)
    return data if sets else b""


def is_document(path: Path) -> bool:
    """Whether it is a text for people, which may lie beside a feature."""
    return path.name.split(".")[0] in _DOCUMENTS and path.suffix in ("", ".md", ".txt", ".rst")


def is_shared(path: Path) -> bool:
    """Whether something in a folder of patches is its folder of shared modules, with no more in it.

    Anything else of that name is malformed.
    """
    return path.name == SHARED and is_folder(path) and not misplaced(path)


def misplaced(shared: Path) -> list[Path]:
    """What nobody reads in a folder of shared modules.

    One that cannot be listed holds nothing: reading a module of it says why.
    """
    try:
        paths = [shared / name for name in sorted(os.listdir(shared)) if name != "files"]
    except OSError:
        return []
    return [
        path
        for path in paths
        if not (is_document(path) or left_behind(path.name) or stray(path.name))
    ]


def shared_module(patches: Path, path: str) -> bytes | None:
    """The bytes of a shared module, read through no link; ``None`` where there is none.

    :param patches: the folder of patches; :param path: in the package of the features that name it.
    :raises OSError: if it cannot be read, or a link or something else is in its place.
    :raises ValueError: if the path leaves the folder of shared modules.
    """
    return read_below(patches, f"{SHARED}/files/{inside(path)}")


def table_of(feature: Path) -> dict[str, Any] | None:
    """A feature's ``feature.toml``; ``None`` where it is malformed, as loading it reports."""
    try:
        return parse_toml(read_regular(feature / "feature.toml", follow=False) or b"")
    except (OSError, ValueError):
        return None


def source_of(feature: Path, patches: Path) -> str:
    """A sha256 (hex) over what a feature is read from: its folder and the shared modules it names.

    Counts each module whose path stands in its ``feature.toml``, which is not parsed: each process
    of vLLM may ask.

    :param feature: its folder; :param patches: the folder of patches that it belongs to.
    """
    texts: dict[str, bytes] = {}
    own = fingerprint([str(feature)], texts.__setitem__)
    files = patches / SHARED / "files"
    text = texts.get("feature.toml", b"")
    if not (is_folder(patches / SHARED) and is_folder(files)):
        return own
    total, has_shared = hashlib.sha256(own.encode()), False
    for name, _ in _walk(str(files)):
        path = os.fsencode(name)
        if name.endswith("/") or path not in text:
            continue
        try:
            data = read_below(patches, f"{SHARED}/files/{name}") or b""
        except OSError:
            data = b""  # malformed, as loading the feature reports
        has_shared = True
        total.update(path + f"\0{len(data)}\0".encode() + data)
    return total.hexdigest() if has_shared else own


def _parts(switch: Path) -> tuple[list[str], list[str]] | None:
    """The names of the features that a switch brings, and of those that it takes away.

    ``None`` where no switch with all its parts, and of features alone, is there.
    """
    new, dropped = switch / "new", switch / "gone"
    if not all(map(is_folder, (switch, new, dropped, switch / "old"))):
        return None
    try:
        parts = sorted(os.listdir(new)), sorted(os.listdir(dropped))
    except FileNotFoundError:
        return None  # it has just ended
    return None if any(id_problem(name) for part in parts for name in part) else parts


def is_switch(place: Path) -> bool:
    """Whether a switch of features lies there, and not what somebody or something else made."""
    return _parts(place) is not None


class ErrorList(list[PatchFormatError]):
    """The malformed places of folders of patches, as they are found."""

    def add(self, place: Path, problem: str, line: int | None = None) -> None:
        """Note what is wrong with a file or folder, or with a line of it."""
        self.append(PatchFormatError(str(place), line, problem))


def read_bytes(path: Path, errors: ErrorList) -> bytes | None:
    """The bytes of a file of a patches folder; ``None`` after an error.

    :param errors: takes why it cannot be read: a pipe, a device, a file that is too large.
    """
    problem = "it vanished while it was read"
    try:
        data = read_regular(path, follow=False)
    except OSError as error:
        data, problem = None, f"it cannot be read: {error.strerror}"
    if data is None:
        errors.add(path, problem)
    return data


def read_text(path: Path, errors: ErrorList) -> str | None:
    """The text of a file of a patches folder; ``None`` after an error, as for ``read_bytes``."""
    data = read_bytes(path, errors)
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        errors.add(path, "it is not UTF-8", data.count(b"\n", 0, error.start) + 1)
        return None


def owner_problem(folder: Path) -> str | None:
    """Why somebody else could have written a patches folder, in words; ``None`` if nobody could.

    The folder itself counts, and every folder and file in it that is read.  A folder that is not
    there has no problem: loading it says that it is not there.

    :raises OSError: if the folder may not be looked at.
    """
    real = Path(os.path.realpath(folder))
    if not real.is_dir():
        return None
    for place in (str(real), *(place for _, place in _walk(str(real)))):
        # A link is not followed when features are read; that it is one is told there.
        if not os.path.islink(place) and (problem := problem_of_owner(place, allow_group=True)):
            return problem
    return None


def fingerprint(folders: Iterable[str], visit: Callable[[str, bytes], object] | None = None) -> str:
    """A sha256 (hex) over the path and the bytes of every file in the folders, in their order.

    A folder that is not there has no files.  What is not a plain file of bounded size counts by
    its name and by why it cannot be read: reading the features reports it.

    :param visit: called with the path below its folder and the bytes of each file.
    """
    total = hashlib.sha256()
    for folder in folders:
        for name, path in _walk(folder):
            if name.endswith("/"):
                continue
            problem = "vanished"
            try:
                data = read_regular(path, follow=False)
            except OSError as error:
                data, problem = None, error.strerror or "unreadable"
            if data is None:
                total.update(f"{name}\0{problem}\0".encode(errors="surrogateescape"))
                continue
            total.update(f"{name}\0{len(data)}\0".encode(errors="surrogateescape") + data)
            if visit is not None:
                visit(name, data)
        total.update(b"\0folder\0")
    return total.hexdigest()


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """The path below ``folder`` and the place of each file, and of each folder (with a slash).

    :raises UsageError: if there are more than ``MOST``: then it holds something else, perhaps a
        whole disk.
    """
    pending = _listed(folder, "")
    count = 0
    while pending:
        name, place, below = pending.pop()
        count += 1
        if count > MOST:
            raise UsageError(
                f"expected a folder of features at {folder}, found more than {MOST:,} files in it; "
                "name the folder that holds the features' folders"
            )
        yield name, place
        if below:
            pending += _listed(place, name)


def _listed(folder: str, prefix: str) -> list[tuple[str, str, bool]]:
    """What is read of a folder, last name first."""
    # os.scandir, since pathlib's walk alone would take a tenth of the time a process may lose.
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name, reverse=True)
    except OSError:
        return []  # not there, or not readable: reading the features reports it
    read = []
    for entry in entries:
        switch = entry.name == SWITCH and not prefix
        if switch or not (stray(entry.name) or left_behind(entry.name)):
            # A link to a folder could lead anywhere, and round in a circle.
            below = entry.is_dir(follow_symlinks=False)
            read.append((f"{prefix}{entry.name}{'/' if below else ''}", entry.path, below))
    return read
