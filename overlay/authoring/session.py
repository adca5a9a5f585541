"""Keep an edit or a port of features as a folder that survives everything but ``--abort``.

A session's folder holds the files to edit and ``session.toml``: whose session it is, for which
release, and where features are written.  An edit has its files below ``vllm/`` (or the folder of
another package), the texts that they are compared with below ``.base/``, and the hash of each text
in its document, so that nothing but this folder is needed to go on: the release may have left the
index, and the process that began it may have been killed.  A port has them below
``<feature>/<topic>/``: everything else is worked out again from patches and releases.  The folder
comes and goes by one rename each.

What is read of a session has to belong to this user or to root, as a project's file and the cache
have to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from overlay._features.sources import stray
from overlay.authoring import disk
from overlay.authoring.writing import toml_string
from overlay.errors import UsageError, did_you_mean
from overlay.package import (
    VLLM,
    Package,
    file_problem,
    package_named,
    parse_release,
    require_id,
    require_text,
)
from overlay.untrusted import parse_toml, read_below, require_own_name, require_private, sha256

DOCUMENT = "session.toml"

#: The folder of a change that a port places: a folder of patches with one feature.
IMPORT = ".import"

#: What a session says of the feature that such a change becomes.
NOTES_OF_IMPORT = {"origin", "author", "date", "patches", "update"}

SCHEMA = 1

#: The folder of the texts that the files are compared with.
BASE = ".base"

#: The most characters of what is wrong with a document, which may quote it.
_MAX_WHY = 400


class SessionKind(Enum):
    """The command that began a session, and that ends it."""

    EDIT = "edit"
    PORT = "port"


class SessionFile(NamedTuple):
    """One file of an edit, by the sha256 of its texts.

    :ivar base: the text without what the session is about; ``None`` where there is no such file.
    :ivar laid: the text that the session laid out to be edited; ``None`` where it laid none.
    """

    base: str | None
    laid: str | None


class Waiting(NamedTuple):
    """One topic of a port that waits for a person.

    :ivar digest: of its feature when the session began.
    :ivar path: the file of the package; :ivar base: the release that its variant was made on.
    :ivar laid: sha256 of the text that was laid out; empty where the release has no such file.
    """

    feature: str
    digest: str
    topic: str
    path: str
    base: str
    laid: str

    @property
    def name(self) -> str:
        """The file to edit, below the session's folder."""
        return f"{self.feature}/{self.topic}/{self.path}"


@dataclass(frozen=True)
class Session:
    """What a session is about.

    :ivar features: id of each feature that it is about -> fingerprint of that feature's folder when
        it began; empty for a feature that was not there yet.
    :ivar below: the same of the features on whose text an edit was made.
    :ivar patches: of an edit the folder that its feature is written to; of a port those that were
        named beside the shipped one.
    :ivar files: path (``vllm/...``) -> hashes of its texts, of an edit.
    :ivar notes: further facts of an edit, or of a port that places a foreign change, as texts.
    :ivar waiting: what a port waits for, in the order of the series.
    """

    folder: Path
    kind: SessionKind
    features: Mapping[str, str]
    release: str
    patches: tuple[Path, ...]
    files: Mapping[str, SessionFile] = field(default_factory=dict)
    below: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    package: Package = VLLM
    waiting: tuple[Waiting, ...] = ()

    @property
    def places_import(self) -> tuple[str, ...]:
        """The patches folder of a port of a foreign change, which it keeps itself; else none."""
        is_port = self.kind is SessionKind.PORT and bool(self.notes)
        return (self.notes["patches"],) if is_port else ()

    def now(self, name: str) -> bytes | None:
        """The present bytes of a file; ``None`` where it was removed."""
        return _read_file(self.folder, name)

    def base(self, path: str) -> bytes | None:
        """The text that a file is compared with; ``None`` where there is none."""
        expected = self.files[path].base if path in self.files else None
        if expected is None:
            return None
        data = self.now(f"{BASE}/{path}")
        if data is None or sha256(data) != expected:
            what = "nothing is there" if data is None else "it was edited"
            raise UsageError(
                f"{self.folder / BASE / path}: expected the text that the session began with, but "
                f"{what}. Nothing was written and the session is as it was; put that text back, "
                f"or begin another session and copy {path} there"
            )
        return data

    def present(self) -> tuple[str, ...]:
        """The paths of the package's files that lie there now, in order; bytecode is left out."""
        paths: list[str] = []
        for place, folders, names in os.walk(self.folder / self.package.name):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in (*folders, *names):
                if os.path.islink(os.path.join(place, name)):
                    raise UsageError(
                        f"{os.path.join(place, name)}: expected a plain file or folder, found a "
                        "symbolic link; put a copy there"
                    )
            below = os.path.relpath(place, self.folder).replace(os.sep, "/")
            paths += [f"{below}/{name}" for name in names]
        return tuple(sorted(paths))

    def untouched(self) -> bool:
        """Whether every file is as the session laid it, and no other is there."""
        present = (path for path in self.present() if not stray(path.rpartition("/")[2]))
        now = {path: _hash(self.now(path)) for path in {*self.files, *present}}
        return now == {path: self.files[path].laid if path in self.files else None for path in now}


def features_of(waiting: Iterable[Waiting]) -> dict[str, str]:
    """The features that a port waits for, with the fingerprint that each had."""
    return {entry.feature: entry.digest for entry in waiting}


def begin(session: Session, texts: Mapping[str, bytes], base: Mapping[str, bytes]) -> Session:
    """Make a session's folder, whole or not at all.

    :returns: the session with its files.
    :raises OSError: if it cannot be written; nothing is there then.
    """
    for place in session.patches:
        _require_own(place)
    if session.kind is SessionKind.EDIT:
        session = replace(session, files=_files(texts, base, session.package))
    try:
        disk.create_folder(session.folder, _contents(session, texts, base))
    except FileExistsError as error:
        require_own_name(session.folder)
        command = f"overlay {session.kind.value}"
        raise UsageError(
            f"{session.folder}: expected nothing there, for a new session; found a file or folder. "
            f"Where it is a session, go on in it (`{command}` ends it with --abort); otherwise "
            "move it away"
        ) from error
    return session


def revise(session: Session, texts: Mapping[str, bytes], base: Mapping[str, bytes]) -> Session:
    """Lay further files into an edit.

    The document is written last, so that whenever this is killed the session is as before, with
    perhaps a file more.

    :param texts: path -> the text to edit, of files that are not in the session yet.
    """
    for path, data in texts.items():
        if session.now(path) not in (None, data):
            raise UsageError(
                f"{session.folder / path}: expected no file there, found one, which is not written "
                "over; move it away"
            )
    files = {**session.files, **_files(texts, base, session.package)}
    session = replace(session, files=files)
    for name, data in _contents(session, texts, base).items():
        disk.write_below(session.folder, name, data)
    return session


def without(session: Session, id_: str) -> Session:
    """A port that no longer waits for a feature, whose files are removed."""
    if id_ not in session.features:
        raise UsageError(
            f"{id_}: expected one of {', '.join(session.features) or 'none'}, for which "
            f"{session.folder} waits{did_you_mean([id_], list(session.features))}"
        )
    waiting = tuple(entry for entry in session.waiting if entry.feature != id_)
    rest = replace(session, features=features_of(waiting), waiting=waiting)
    if not waiting:
        finish(session)
        return rest
    names = [entry.name for entry in session.waiting if entry.feature == id_]
    for name in names:
        session.now(name)  # refused now, where a link lies there
    disk.write_below(session.folder, DOCUMENT, render(rest).encode())
    for name in names:
        disk.remove_below(session.folder, name)
    return rest


def finish(session: Session) -> bool:
    """Remove a session that was carried out; files that are not its own stay.

    :returns: whether its folder is gone.
    """
    own = [entry.name for entry in session.waiting]
    if session.kind is SessionKind.EDIT:
        own = [*(f"{BASE}/{path}" for path in session.files), *session.present()]
    if session.places_import:
        own += [
            os.path.relpath(os.path.join(place, name), session.folder)
            for below in (BASE, IMPORT)
            for place, _, names in os.walk(session.folder / below)
            for name in names
        ]
    return disk.remove_session(session.folder, DOCUMENT, own)


def abort(session: Session) -> None:
    """Remove a session's folder with all that is in it."""
    disk.delete_folder(session.folder)


def _contents(
    session: Session, texts: Mapping[str, bytes], base: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Files of a session's folder by their names, the document last."""
    bases = {f"{BASE}/{path}": data for path, data in base.items()}
    return {**bases, **texts, DOCUMENT: render(session).encode()}


def _files(
    texts: Mapping[str, bytes], base: Mapping[str, bytes], package: Package
) -> dict[str, SessionFile]:
    for path in (*texts, *base):
        _expect_path(path, package)
    return {
        path: SessionFile(_hash(base.get(path)), _hash(texts.get(path)))
        for path in sorted({*texts, *base})
    }


def _hash(data: bytes | None) -> str | None:
    return None if data is None else sha256(data)


# Where it lies


def from_anywhere(folder: Path) -> Path:
    """A session's folder as it was named, or by a path that still means it when it has gone.

    Whoever stands in it names it ``.`` or ``..``, and the working folder goes with it.
    """
    if folder.is_absolute():
        return folder
    real, here = os.path.realpath(folder), os.path.realpath(os.curdir)
    return Path(real) if os.path.commonpath((here, real)) == real else folder


def _require_own(folder: Path) -> None:
    """Refuse a folder, by whatever path, that somebody else could have written.

    Of one that is not there nothing is asked: that it is missing is said where it is read.
    """
    real = os.path.realpath(folder)
    if os.path.lexists(real):
        require_own_name(folder)
        require_private(real, allow_group=True)


def _read_file(folder: Path, name: str) -> bytes | None:
    try:
        data = read_below(folder, name)
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}") from error
    if data is not None:
        require_private(folder / name, allow_group=True)
    return data


# The document


def render(session: Session) -> str:
    """``session.toml`` of a session."""
    kind, package = session.kind, session.package
    lines = [
        f"# A session of `overlay {kind.value}`. Edit the files beside this one.",
        f"schema = {SCHEMA}",
        *_pairs({"kind": kind.value, "release": session.release}),
        *([] if package == VLLM else _pairs({"package": package.name})),
    ]
    if kind is SessionKind.PORT:
        lines.append(f"patches = [{', '.join(toml_string(str(p)) for p in session.patches)}]")
        if session.notes:
            notes = {toml_string(key): value for key, value in session.notes.items()}
            lines += ["", "[notes]", *_pairs(notes)]
        for entry in session.waiting:
            lines += ["", "[[waiting]]", *_pairs(entry._asdict())]
        return "\n".join(lines) + "\n"
    (patches,) = session.patches
    lines += _pairs({"patches": str(patches)})
    for title in ("features", "below", "notes"):
        table = {toml_string(key): value for key, value in getattr(session, title).items()}
        lines += ["", f"[{title}]", *_pairs(table)]
    lines += ["", "[files]"]
    for path, file in session.files.items():
        base, text = (toml_string(value or "") for value in file)
        lines.append(f"{toml_string(path)} = {{ base = {base}, laid = {text} }}")
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, str]) -> list[str]:
    return [f"{key} = {toml_string(value)}" for key, value in table.items()]


def read(folder: Path, kind: SessionKind) -> Session:
    """The session in a folder."""
    expected = f"expected a session of `overlay {kind.value}`"
    _require_own(folder)
    data = _read_file(folder, DOCUMENT)
    if data is None:
        raise UsageError(f"{folder}: {expected}, found no {DOCUMENT} there")
    try:
        table = parse_toml(data)
        if table["schema"] != SCHEMA or isinstance(table["schema"], bool):
            raise ValueError(f"schema is {table['schema']!r}, expected {SCHEMA}")
        other = SessionKind(table["kind"])
        session = _session(folder, kind, table) if other is kind else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:_MAX_WHY]
        raise UsageError(
            f"{folder / DOCUMENT}: {expected}, found a damaged one ({why}). Nothing was "
            "changed; your edits are in the files there"
        ) from error
    if session is None:
        raise UsageError(f"{folder}: {expected}, found one of `overlay {other.value}`")
    for place in (*session.patches, *map(Path, session.places_import)):
        _require_own(place)
    return session


def _session(folder: Path, kind: SessionKind, table: dict[str, Any]) -> Session:
    package = package_named(require_text(table.get("package", VLLM.name)))
    release = require_text(table["release"])
    parse_release(release)
    places = [table["patches"]] if kind is SessionKind.EDIT else table["patches"]
    patches = tuple(Path(_text(place)) for place in places)
    if kind is SessionKind.PORT:
        waiting = tuple(_waiting(item, package) for item in table.get("waiting", []))
        features = features_of(waiting)
        session = Session(folder, kind, features, release, patches, package=package)
        notes = dict(_texts(table.get("notes", {})))
        if notes and (len(features) > 1 or not notes.keys() >= NOTES_OF_IMPORT):
            raise ValueError(f"its notes are {', '.join(notes)} for {len(features)} features")
        return replace(session, waiting=waiting, notes=notes)
    files = {}
    for path, entry in table["files"].items():
        _expect_path(path, package)
        files[path] = SessionFile(*(require_text(entry[key]) or None for key in ("base", "laid")))
    features = _features(table["features"])
    if len(features) != 1:
        raise ValueError(f"it is of {len(features)} features, expected one")
    below, notes = _features(table["below"]), dict(_texts(table["notes"]))
    return Session(folder, kind, features, release, patches, files, below, notes, package)


def _waiting(item: Mapping[str, object], package: Package) -> Waiting:
    entry = Waiting(**{key: require_text(value) for key, value in item.items()})
    _expect_path(entry.path, package)
    require_id(entry.feature)
    require_id(entry.topic)  # a topic is named as an id is, with its number first
    return entry


def _expect_path(path: str, package: Package) -> None:
    if problem := file_problem(path, package):
        raise ValueError(problem)


def _features(table: Mapping[str, object]) -> dict[str, str]:
    return {require_id(key): text for key, text in _texts(table)}


def _texts(table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        yield key, _text(value)


def _text(value: object) -> str:
    """A text of a document that may name a file.

    :raises TypeError: if it is not a text; :raises ValueError: if it has a NUL, as no name has.
    """
    text = require_text(value)
    if "\0" in text:
        raise ValueError(f"{text[:40]!r} has a NUL byte in it")
    return text
