"""What the overlay did to a target, kept in ``<root>/.vllm-overlay/ledger.json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from overlay import untrusted as hashing
from overlay import untrusted as reading
from overlay.errors import LedgerError
from overlay.package import LEDGER_PATH, STATE_FOLDER, inside, require_text
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State

#: Schema 1 had a text ``why`` in the place of ``reason``; it is still read.
SCHEMA = 2

PRISTINE_FOLDER = f"{STATE_FOLDER}/pristine"

IGNORE_PATH = f"{STATE_FOLDER}/.gitignore"

JOURNAL_PATH = f"{STATE_FOLDER}/journal.json"

_HEX = frozenset("0123456789abcdef")


class Entry(NamedTuple):
    """One file that we changed or added.

    :ivar before: sha256 of its pristine bytes, which lie in ``pristine/``; ``None`` where we added
        the file.
    :ivar after: sha256 of what we wrote; :ivar mode: permission bits; :ivar size: bytes.
    """

    path: str
    before: str | None
    after: str
    mode: int
    size: int


class LedgerFeature(NamedTuple):
    """One feature as it stood when we applied.

    :ivar result: what a plan had worked out.
    :ivar source: fingerprint of the folder it was read from; ``None`` where nobody noted it.
    """

    digest: str
    origin: str
    result: FeatureResult
    source: str | None = None


class RecordEntry(NamedTuple):
    """RECORD, to which we added rows: its path and its sha256 before and after."""

    path: str
    before: str
    after: str


class Ledger(NamedTuple):
    """What stands in a target because of us.

    :ivar overlay: version of the overlay that wrote it; :ivar release: the vLLM it was written for.
    :ivar folders: the folders that we made inside ``vllm/``, outermost first.
    :ivar record: ``None`` where no RECORD lies beside the target.
    """

    overlay: str
    release: str
    features: tuple[LedgerFeature, ...]
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    record: RecordEntry | None

    def entry(self, path: str) -> Entry | None:
        """The entry of ``path``, if it is ours."""
        return next((entry for entry in self.entries if entry.path == path), None)

    def feature(self, name: str) -> LedgerFeature | None:
        """The feature called ``name``, if it was there when we applied."""
        return next((one for one in self.features if one.result.feature == name), None)

    @property
    def applied(self) -> tuple[LedgerFeature, ...]:
        """The features that we put into the target."""
        return tuple(one for one in self.features if one.result.state is State.APPLIED)


class LedgerLost(LedgerError):
    """The ledger is damaged or gone: what it said may still be worked out anew."""


def load(root: Path) -> Ledger | None:
    """The ledger of the target in ``root``, or ``None`` where nothing of ours stands.

    :raises LedgerLost: if it is damaged, or gone from beside its pristine copies.
    :raises LedgerError: if it cannot be read, or a newer overlay wrote it.
    """
    path = root / LEDGER_PATH
    try:
        data = reading.read(path)
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}): it says what the overlay changed in this "
            "vLLM. Run the command as a user that may read it"
        ) from error
    if data is not None:
        return decode(data, str(path))
    # While a transaction runs, the copies come first and the ledger last.
    if (root / PRISTINE_FOLDER).is_dir() and not (root / JOURNAL_PATH).exists():
        raise LedgerLost(_lost(f"{path} is gone, but its pristine copies are there"))
    return None


def copies(root: Path) -> Callable[[str], bytes]:
    """How to read the pristine bytes with a sha256 that a ledger in ``root`` names.

    The function that is returned raises ``LedgerError`` where they are missing or damaged.
    """

    def pristine(sha256: str) -> bytes:
        path = root / PRISTINE_FOLDER / sha256
        try:
            data = reading.read(path)
        except OSError as error:
            raise LedgerError(f"{path} cannot be read ({error.strerror})") from error
        if data is None or hashing.sha256(data) != sha256:
            found = "nothing is there" if data is None else "other bytes are there"
            raise LedgerError(
                f"{path}: expected the pristine copy of a file that the overlay changed, but "
                f"{found}. {reinstall()}"
            )
        return data

    return pristine


def reinstall(release: str | None = None) -> str:
    """What to do where only a fresh vLLM helps."""
    wanted = f"vllm=={release}" if release else "vllm"
    return (
        f"Reinstall vLLM (pip install --force-reinstall --no-deps {wanted}, or the distribution "
        f"that you use instead), remove the folder {STATE_FOLDER} beside it, and apply again"
    )


def encode(ledger: Ledger) -> bytes:
    """The bytes of ``ledger.json``; equal for equal ledgers."""
    features = [
        {"digest": one.digest, "origin": one.origin, "source": one.source, **_plain(one.result)}
        for one in ledger.features
    ]
    document = {"schema": SCHEMA, **_plain(ledger), "features": features}
    return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode()


def _plain(value: Any) -> Any:
    """A named tuple as an object, and all inside it; to JSON it would be a list."""
    if not isinstance(value, tuple):
        return value
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value]


def decode(data: bytes, where: str) -> Ledger:
    """Read ``ledger.json``.

    :param where: its path, for messages.
    :raises LedgerLost: if it is damaged.
    :raises LedgerError: if a newer overlay wrote it.
    """
    try:
        document = json.loads(data)
        schema = document["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise LedgerError(
                f"{where} was written by a newer overlay (vllm-overlay {document.get('overlay')}, "
                f"schema {schema}; this one, schema {SCHEMA}). Nothing was changed; use that "
                "version of vllm-overlay, or a newer one"
            )
        if schema not in (1, SCHEMA) or isinstance(schema, bool):
            raise ValueError(f"schema is {schema!r}, expected {SCHEMA}")
        return _ledger(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerLost(_lost(f"{where} is damaged ({type(error).__name__}: {error})")) from error


def _lost(found: str) -> str:
    return (
        f"{found}: expected the overlay's record of what it changed in this vLLM. Nothing was "
        "changed; 'overlay revert' takes out what it can prove to be ours. Otherwise: "
        f"{reinstall()}"
    )


def _ledger(document: dict[str, Any]) -> Ledger:
    record = document["record"]
    return Ledger(
        overlay=require_text(document["overlay"]),
        release=require_text(document["release"]),
        features=tuple(
            LedgerFeature(
                require_text(one["digest"]),
                require_text(one["origin"]),
                _feature(one),
                None if one.get("source") is None else _sha(one["source"]),
            )
            for one in document["features"]
        ),
        entries=tuple(_entry(one) for one in document["entries"]),
        folders=tuple(inside(one) for one in document["folders"]),
        record=None
        if record is None
        else RecordEntry(inside(record["path"]), _sha(record["before"]), _sha(record["after"])),
    )


def _entry(one: dict[str, Any]) -> Entry:
    before = None if one["before"] is None else _sha(one["before"])
    path = inside(one["path"])
    if not path.startswith("vllm/"):
        raise ValueError(f"path {path!r} is not inside vllm/")
    return Entry(path, before, _sha(one["after"]), int(one["mode"]) & 0o7777, int(one["size"]))


def _feature(one: dict[str, Any]) -> FeatureResult:
    return FeatureResult(
        feature=require_text(one["feature"]),
        state=State(one["state"]),
        files=tuple(_file(file) for file in one["files"]),
        reason=_reason(one),
        untested=bool(one["untested"]),
    )


def _file(one: dict[str, Any]) -> FileResult:
    hunks = tuple(
        HunkResult(
            scope=require_text(hunk["scope"]),
            state=State(hunk["state"]),
            line=hunk["line"],
            reason=_reason(hunk),
            candidates=tuple(hunk["candidates"]),
        )
        for hunk in one["hunks"]
    )
    return FileResult(inside(one["path"]), State(one["state"]), one["patch"], hunks, _reason(one))


def _reason(one: dict[str, Any]) -> Reason | None:
    if "why" in one:  # schema 1 put what to do behind a mark
        text, _, next_step = (one["why"] or "").partition("; next: ")
        return Reason(text, next_step or None) if text else None
    known = one["reason"]
    if known is None:
        return None
    next_step = known["next_step"]
    return Reason(
        require_text(known["text"]), None if next_step is None else require_text(next_step)
    )


def _sha(value: object) -> str:
    text = require_text(value)
    if len(text) != 64 or not _HEX.issuperset(text):
        raise ValueError(f"{text!r} is no sha256")
    return text
