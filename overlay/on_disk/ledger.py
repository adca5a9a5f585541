"""The ledger: what the overlay did to a package, in ``ledger.json`` of its state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from overlay.errors import LedgerError, command, described, says_nothing_of_files
from overlay.package import (
    VLLM,
    Package,
    file_problem,
    folder_problem,
    inside,
    is_module,
    package_named,
    require_id,
    require_list,
    require_text,
)
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State, combine
from overlay.settings import FORMER_IDS
from overlay.untrusted import is_folder, parse_json, read_below, sha256

#: Schema 1 had a text ``why`` in the place of ``reason``; it is still read.
SCHEMA = 2

#: That of a ledger with data files or removed files, which former overlays cannot read.
_DATA_SCHEMA = 3

#: The most bytes of a ledger or a journal; those of a hundred patched files are a tenth of it.
MAX_STATE_BYTES = 2 * 1024 * 1024

_HEX = frozenset("0123456789abcdef")


def is_record(path: str) -> bool:
    """Whether ``path`` is that of a RECORD beside a package."""
    folder, _, name = path.partition("/")
    return name == "RECORD" and folder.endswith(".dist-info") and path.isprintable()


def is_pristine_copy(path: str, package: Package = VLLM) -> bool:
    """Whether ``path`` is that of a pristine copy, which is called by its sha256."""
    folder, _, name = path.rpartition("/")
    return folder == package.pristine_folder and _is_sha256(name)


class Entry(NamedTuple):
    """One file that the overlay changed or added.

    :ivar before: sha256 of its pristine bytes, which lie in ``pristine/``; ``None`` for an added
        file.
    :ivar after: sha256 of the bytes that the overlay wrote; ``None`` for a removed file.
    :ivar mode: permission bits; :ivar size: bytes.
    """

    path: str
    before: str | None
    after: str | None
    mode: int
    size: int


class LedgerFeature(NamedTuple):
    """One feature as it was when the overlay applied.

    :ivar result: the result that its plan had.
    :ivar source: fingerprint of the folder it was read from; ``None`` where it was not recorded.
    """

    digest: str
    origin: str
    result: FeatureResult
    source: str | None = None


class RecordEntry(NamedTuple):
    """RECORD, to which the overlay added rows: its path, and its sha256 before and after."""

    path: str
    before: str
    after: str


class Ledger(NamedTuple):
    """What the overlay changed in a target.

    :ivar overlay: version of the overlay that wrote it; :ivar release: that of the package.
    :ivar folders: the folders that were made inside the package, outermost first.
    :ivar record: ``None`` where no RECORD lies beside the target.
    """

    overlay: str
    release: str
    features: tuple[LedgerFeature, ...]
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    record: RecordEntry | None

    def entry(self, path: str) -> Entry | None:
        """The entry of ``path``; ``None`` where the ledger does not list it."""
        return next((entry for entry in self.entries if entry.path == path), None)

    def feature(self, name: str) -> LedgerFeature | None:
        """The feature called ``name``; ``None`` where it was not among the patches."""
        return next((entry for entry in self.features if entry.result.feature == name), None)

    @property
    def package(self) -> Package:
        """The package that it is about, by the paths of its entries."""
        paths = (entry.path for entry in self.entries)
        return package_named(next(paths, VLLM.initial).partition("/")[0])

    @property
    def applied(self) -> tuple[LedgerFeature, ...]:
        """The features that were applied to the target."""
        return tuple(entry for entry in self.features if entry.result.state is State.APPLIED)


class LedgerLost(LedgerError):
    """The ledger is damaged or gone; it may still be reconstructed."""


def load(root: Path, package: Package = VLLM) -> Ledger | None:
    """Read the ledger of a package in ``root``; ``None`` where nothing is applied.

    :raises LedgerLost: if it is damaged, or gone from beside its pristine copies.
    :raises LedgerError: if it cannot be read, or a newer overlay wrote it.
    """
    path = root / package.ledger_path
    try:
        data = read_below(root, package.ledger_path, MAX_STATE_BYTES)
    except OSError as error:
        if says_nothing_of_files(error):
            raise LedgerError(described(error)) from error
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}): it records what the overlay changed in "
            f"this {package.title}. Run the command as a user that may read it; where it is not a "
            f"plain file, somebody else put it there: {reinstall(package=package)}"
        ) from error
    if data is not None:
        return decode(data, str(path), package)
    # While a transaction runs, the pristine copies are written first and the ledger last.
    running = os.path.lexists(root / package.journal_path)
    if is_folder(root / package.pristine_folder) and not running:
        raise LedgerLost(_lost(f"{path} is gone, but its pristine copies are there", package))
    return None


def copies(root: Path, package: Package = VLLM) -> Callable[[str], bytes]:
    """Return a function that reads the pristine copy with a given sha256 in ``root``.

    That function raises ``LedgerError`` where the copy is missing or damaged.
    """

    def pristine(digest: str) -> bytes:
        path = root / package.pristine_folder / digest
        try:
            data = read_below(root, f"{package.pristine_folder}/{digest}")
        except OSError as error:
            if says_nothing_of_files(error):
                raise LedgerError(described(error)) from error
            raise LedgerError(
                f"{path} cannot be read ({error.strerror}): expected the pristine copy of a file "
                f"that the overlay changed; {reinstall(package=package)}"
            ) from error
        if data is None or sha256(data) != digest:
            content = "nothing is there" if data is None else "other bytes are there"
            raise LedgerError(
                f"{path}: expected the pristine copy of a file that the overlay changed, but "
                f"{content}; {reinstall(package=package)}"
            )
        return data

    return pristine


def damaged_copies(root: Path, ledger: Ledger, package: Package = VLLM) -> tuple[str, ...]:
    """The files of a ledger whose pristine copy is missing or damaged; with one, revert fails."""
    read = copies(root, package)
    damaged = []
    for entry in ledger.entries:
        try:
            if entry.before is not None:
                read(entry.before)
        except LedgerError:
            damaged.append(entry.path)
    return tuple(damaged)


def reinstall(release: str | None = None, package: Package = VLLM, *, state: bool = True) -> str:
    """What to do where only a fresh package helps, as the end of a sentence.

    :param state: whether the overlay's own folder is there, and has to go.
    """
    requirement = f"{package.distribution}=={release}" if release else package.distribution
    rest = f", remove the folder {package.state_folder} beside it," if state else ""
    return (
        f"reinstall {package.title} (pip install --force-reinstall --no-deps {requirement}, or the "
        f"distribution that you use instead){rest} and apply again"
    )


def encode(ledger: Ledger) -> bytes:
    """Encode a ledger as ``ledger.json``; equal bytes for equal ledgers."""
    features = [
        {"digest": entry.digest, "origin": entry.origin, "source": entry.source}
        | _plain(entry.result)
        for entry in ledger.features
    ]
    data = any(entry.after is None or not is_module(entry.path) for entry in ledger.entries)
    schema = _DATA_SCHEMA if data else SCHEMA
    document = {"schema": schema, **_plain(ledger), "features": features}
    return (json.dumps(document, indent=1) + "\n").encode()


def digest(ledger: Ledger | None) -> str:
    """The sha256 that tells one ledger from another; that of no bytes for no ledger."""
    return sha256(b"" if ledger is None else encode(ledger))


def _plain(value: Any) -> Any:
    """Convert named tuples to objects, at every depth; JSON would make lists of them."""
    if not isinstance(value, tuple):
        return value
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value]


def decode(data: bytes, where: str, package: Package = VLLM) -> Ledger:
    """Read ``ledger.json``.

    :param where: its path, for messages.
    :param package: the one whose ledger it is.
    :raises LedgerLost: if it is damaged.
    :raises LedgerError: if a newer overlay wrote it.
    """
    try:
        document = parse_json(data)
        schema = document["schema"]
        if isinstance(schema, int) and schema > _DATA_SCHEMA:
            raise LedgerError(
                f"{where} was written by a newer overlay (vllm-overlay {document.get('overlay')}, "
                f"schema {schema}; this one, schema {_DATA_SCHEMA}). Nothing was changed; use that "
                "version of vllm-overlay, or a newer one"
            )
        if schema not in (1, SCHEMA, _DATA_SCHEMA) or isinstance(schema, bool):
            raise ValueError(f"schema is {schema!r}, expected {SCHEMA}")
        return _ledger(document, package)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{where} is damaged ({type(error).__name__}: {error})"
        raise LedgerLost(_lost(problem, package)) from error


def _lost(problem: str, package: Package) -> str:
    return (
        f"{problem}: expected the overlay's record of what it changed in this {package.title}. "
        f"Nothing was changed; {command('revert')} removes what it can prove to be the overlay's; "
        f"otherwise, {reinstall(package=package)}"
    )


def _ledger(document: dict[str, Any], package: Package) -> Ledger:
    removals = document["schema"] == _DATA_SCHEMA
    entries = tuple(
        _entry(entry, package, removals=removals) for entry in require_list(document["entries"])
    )
    paths = [entry.path for entry in entries]
    if len(set(paths)) < len(paths):
        raise ValueError("it lists a path twice")
    above = {
        folder
        for entry in entries
        if entry.before is None
        for folder in map(str, PurePosixPath(entry.path).parents)
    }
    ledger = Ledger(
        overlay=require_text(document["overlay"]),
        release=require_text(document["release"]),
        features=_merged(
            LedgerFeature(
                require_text(feature["digest"]),
                require_text(feature["origin"]),
                _feature(feature, package),
                None if feature.get("source") is None else require_sha256(feature["source"]),
            )
            for feature in require_list(document["features"])
        ),
        entries=entries,
        folders=tuple(
            _folder(folder, above, package) for folder in require_list(document["folders"])
        ),
        record=None if document["record"] is None else _record(document["record"]),
    )
    if not entries and any(feature.result.files for feature in ledger.applied):
        raise ValueError("it lists features that are applied, and no file that they changed")
    return ledger


def _merged(features: Iterable[LedgerFeature]) -> tuple[LedgerFeature, ...]:
    """What an older overlay applied as features of their own and is one now, as that one.

    Its digest joins theirs, so that it differs from the digest of the feature as it is now.
    """
    parts: dict[str | int, list[LedgerFeature]] = {}
    for number, each in enumerate(features):
        parts.setdefault(FORMER_IDS.get(each.result.feature, number), []).append(each)
    return tuple(
        _whole(key, group) if isinstance(key, str) else group[0] for key, group in parts.items()
    )


def _whole(name: str, parts: Sequence[LedgerFeature]) -> LedgerFeature:
    states = {part.result.state for part in parts}
    state = State.APPLIED if State.APPLIED in states else combine(states)
    files = dict.fromkeys(file for part in parts for file in part.result.files)
    result = parts[0].result._replace(feature=name, state=state, files=tuple(files))
    return parts[0]._replace(digest=" ".join(part.digest for part in parts), result=result)


def _entry(entry: dict[str, Any], package: Package, *, removals: bool) -> Entry:
    """Return an entry.

    :param removals: whether it may be of a removed file.
    """
    path = inside(entry["path"])
    if problem := file_problem(path, package):
        raise ValueError(f"{problem}, and an apply could not have changed it")
    before = None if entry["before"] is None else require_sha256(entry["before"])
    after = None if removals and entry["after"] is None else require_sha256(entry["after"])
    if before is after is None:
        raise ValueError(f"{path!r} is neither changed nor added, so an apply did not list it")
    return Entry(
        path,
        before,
        after,
        _number(entry["mode"]) & 0o777,
        _number(entry["size"]),
    )


def _folder(folder: object, above: Collection[str], package: Package) -> str:
    """Return a folder that was made for an added module.

    :param above: every folder above an added module.
    """
    path = inside(folder)
    if problem := folder_problem(path, package):
        raise ValueError(f"{problem}, and an apply could not have made it")
    if path not in above:
        raise ValueError(f"{path!r} holds no added module, so an apply did not make it")
    return path


def _record(record: dict[str, Any]) -> RecordEntry:
    path = inside(record["path"])
    if not is_record(path):
        raise ValueError(f"{path!r} is not the RECORD of a distribution beside the package")
    return RecordEntry(path, require_sha256(record["before"]), require_sha256(record["after"]))


def _feature(feature: dict[str, Any], package: Package) -> FeatureResult:
    return FeatureResult(
        feature=require_id(feature["feature"]),
        state=State(feature["state"]),
        files=tuple(_file(file, package) for file in require_list(feature["files"])),
        reason=_reason(feature),
        untested=bool(feature["untested"]),
    )


def _file(file: dict[str, Any], package: Package) -> FileResult:
    hunks = tuple(
        HunkResult(
            scope=require_text(hunk["scope"]),
            state=State(hunk["state"]),
            line=None if hunk["line"] is None else _number(hunk["line"]),
            reason=_reason(hunk),
            candidates=tuple(_number(line) for line in require_list(hunk["candidates"])),
        )
        for hunk in require_list(file["hunks"])
    )
    path = inside(file["path"])
    if problem := file_problem(path, package):
        raise ValueError(f"{problem}, so no feature has it")
    return FileResult(
        path, State(file["state"]), _optional_text(file["patch"]), hunks, _reason(file)
    )


def _reason(result: dict[str, Any]) -> Reason | None:
    if "why" in result:  # schema 1 put what to do behind a mark
        text, _, next_step = (_optional_text(result["why"]) or "").partition("; next: ")
        return Reason(text, next_step or None) if text else None
    reason = result["reason"]
    if reason is None:
        return None
    cause = require_text(reason.get("cause", ""))
    return Reason(require_text(reason["text"]), _optional_text(reason["next_step"]), cause)


def _optional_text(value: object) -> str | None:
    return None if value is None else require_text(value)


def _number(value: object) -> int:
    """Return a count, a line or a mode.

    :raises TypeError: if it is not a whole number from 0 up to 2**53.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def require_sha256(value: object) -> str:
    """Return ``value`` if it is a hexadecimal sha256.

    :raises TypeError: if it is not a text; :raises ValueError: if it is not a sha256.
    """
    text = require_text(value)
    if not _is_sha256(text):
        raise ValueError(f"{text!r} is not a sha256")
    return text


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def hash_of(data: bytes | None) -> str | None:
    """The sha256 of a file's bytes; ``None`` for no file."""
    return None if data is None else sha256(data)
