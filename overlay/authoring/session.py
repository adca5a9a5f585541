"""Keep an edit or a port of features as a folder that survives everything but ``--abort``.

A session's folder holds the files to edit below ``vllm/`` (or the folder of another package), the
texts that they are compared with below ``.base/``, and ``session.toml``: whose session it is, for
which release, and the hash of each text.  So nothing but this folder is needed to go on: the
release may have left the index, and the process that began it may have been killed.  The folder
comes and goes by one rename each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from overlay.authoring import disk
from overlay.authoring.session_document import (
    DOCUMENT,
    Kind,
    head,
    package_of,
    read_document,
    read_file,
    release_of,
    require_own,
    text_of,
)
from overlay.authoring.writing import toml_string
from overlay.errors import UsageError
from overlay.package import VLLM, Package, path_problem, require_id, require_text
from overlay.untrusted import sha256

#: The folder of the texts that the files are compared with.
BASE = ".base"


class SessionFile(NamedTuple):
    """One file of a session, by the sha256 of its texts.

    :ivar base: the text without what the session is about; ``None`` where there is no such file.
    :ivar laid: the text that the session laid out to be edited; ``None`` where it laid none.
    """

    base: str | None
    laid: str | None


@dataclass(frozen=True)
class Session:
    """What a session is about.

    :ivar folder: its folder.
    :ivar features: id of each feature that it is about -> fingerprint of that feature's folder when
        it began; empty for a feature that was not there yet.
    :ivar below: the same of the features on whose text it was made.
    :ivar release: the release whose files it holds.
    :ivar patches: the folder of patches that its features are written to.
    :ivar files: path (``vllm/...``) -> hashes of its texts.
    :ivar notes: further facts of one kind of session, as texts.
    :ivar package: whose release it is.
    """

    folder: Path
    kind: Kind
    features: Mapping[str, str]
    release: str
    patches: Path
    files: Mapping[str, SessionFile]
    below: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    package: Package = VLLM

    def now(self, path: str) -> bytes | None:
        """The present bytes of a file; ``None`` where it was removed.

        :raises UsageError: if something other than a plain file is there.
        """
        return read_file(self.folder, path)

    def base(self, path: str) -> bytes | None:
        """The text that a file is compared with; ``None`` where there is none.

        :raises UsageError: if it is no longer the one that the session began with.
        """
        wanted = self.files[path].base if path in self.files else None
        if wanted is None:
            return None
        data = read_file(self.folder, f"{BASE}/{path}")
        if data is None or sha256(data) != wanted:
            found = "nothing is there" if data is None else "it was edited"
            raise UsageError(
                f"{self.folder / BASE / path}: expected the text that the session began with, but "
                f"{found}. Nothing was written and the session is as it was; put that text back, "
                f"or begin another session and copy {path} there"
            )
        return data

    def present(self) -> tuple[str, ...]:
        """The paths of the package's files that lie there now, in order; bytecode is left out.

        :raises UsageError: if something other than plain files and folders lies there.
        """
        found: list[str] = []
        for place, folders, names in os.walk(self.folder / self.package.name):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in (*folders, *names):
                if os.path.islink(os.path.join(place, name)):
                    raise UsageError(
                        f"{os.path.join(place, name)}: expected a plain file or folder, found a "
                        "symbolic link; put a copy there"
                    )
            below = os.path.relpath(place, self.folder).replace(os.sep, "/")
            found += [f"{below}/{name}" for name in names]
        return tuple(sorted(found))

    def untouched(self) -> bool:
        """Whether every file is as the session laid it, and no other is there."""
        now = {path: _hash(self.now(path)) for path in {*self.files, *self.present()}}
        return now == {path: self.files[path].laid if path in self.files else None for path in now}


def begin(
    session: Session,
    laid: Mapping[str, bytes],
    base: Mapping[str, bytes],
    beside: Mapping[str, bytes] | None = None,
) -> Session:
    """Make a session's folder, whole or not at all.

    :param session: its ``files`` are worked out here; :param laid: path -> the text to edit.
    :param base: path -> the text that it is compared with.
    :param beside: further files of the folder, for people, by their path in it.
    :returns: the session with its files.
    :raises UsageError: if something lies at its folder already.
    :raises NotPrivate: if its features are written where somebody else could write them too.
    :raises OSError: if it cannot be written; nothing is there then.
    """
    require_own(session.patches)
    made = replace(session, files=_files(laid, base, session.package))
    contents = {
        **laid,
        **{f"{BASE}/{path}": data for path, data in base.items()},
        **(beside or {}),
        DOCUMENT: render(made).encode(),
    }
    try:
        disk.appear(session.folder, contents)
    except FileExistsError as error:
        command = f"overlay {session.kind.value}"
        raise UsageError(
            f"{session.folder}: expected nothing there, for a new session; found a file or folder. "
            f"Where it is a session, go on in it (`{command}` ends it with --abort); otherwise "
            "move it away"
        ) from error
    return made


def revise(
    session: Session,
    laid: Mapping[str, bytes] | None = None,
    base: Mapping[str, bytes] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Session:
    """Lay further files into a session, or replace what it notes.

    The document is written last, so that whenever this is killed the session is as before, with
    perhaps a file more.

    :param laid: path -> the text to edit; :param base: path -> the text that it is compared with.
    :param notes: all notes from now on; ``None``: those that there are.
    :raises UsageError: if that would write over an edit.
    :raises OSError: if it cannot be written.
    """
    laid, base = laid or {}, base or {}
    for path, data in laid.items():
        now = session.now(path)
        known = session.files[path].laid if path in session.files else None
        if now is not None and now != data and _hash(now) != known:
            raise UsageError(
                f"{session.folder / path}: expected the text that the session laid there or none, "
                "found an edited file, which is not written over; move it away"
            )
    for path, data in base.items():
        if path in session.files and session.files[path].base != _hash(data):
            raise ValueError(f"{path}: the base of a file of a session does not change")
    made = replace(
        session,
        files={**session.files, **_files(laid, base, session.package)},
        notes=session.notes if notes is None else notes,
    )
    contents = {
        **{f"{BASE}/{path}": data for path, data in base.items()},
        **dict(laid),
        DOCUMENT: render(made).encode(),
    }
    for name, data in contents.items():
        disk.write_below(session.folder, name, data)
    return made


def end(session: Session) -> None:
    """Remove a session's folder with all that is in it.

    :raises OSError: if it cannot be removed.
    """
    disk.vanish(session.folder)


def _files(
    laid: Mapping[str, bytes], base: Mapping[str, bytes], package: Package
) -> dict[str, SessionFile]:
    for path in (*laid, *base):
        if problem := path_problem(path, package):
            raise ValueError(problem)
    return {
        path: SessionFile(_hash(base.get(path)), _hash(laid.get(path)))
        for path in sorted({*laid, *base})
    }


def _hash(data: bytes | None) -> str | None:
    return None if data is None else sha256(data)


# The document


def render(session: Session) -> str:
    """``session.toml`` of a session."""
    lines = [
        *head(session.kind, session.release, session.package),
        f"patches = {toml_string(str(session.patches))}",
    ]
    for title, table in (
        ("features", session.features),
        ("below", session.below),
        ("notes", session.notes),
    ):
        lines += ["", f"[{title}]"]
        lines += [f"{toml_string(key)} = {toml_string(value)}" for key, value in table.items()]
    lines += ["", "[files]"]
    for path, file in session.files.items():
        base, laid = (toml_string(value or "") for value in file)
        lines.append(f"{toml_string(path)} = {{ base = {base}, laid = {laid} }}")
    return "\n".join(lines) + "\n"


def read(folder: Path, kind: Kind) -> Session:
    """The session in a folder.

    :raises UsageError: if there is none, it is damaged, or another command's.
    :raises NotPrivate: if somebody else could have written it, or the patches that it names.
    """
    session = read_document(folder, kind, lambda table: _session(folder, kind, table))
    require_own(session.patches)
    return session


def _session(folder: Path, kind: Kind, table: dict[str, Any]) -> Session:
    files = {}
    package = package_of(table)
    for path, entry in table["files"].items():
        if problem := path_problem(path, package):
            raise ValueError(problem)
        files[path] = SessionFile(*(require_text(entry[key]) or None for key in ("base", "laid")))
    features = _features(table["features"])
    if len(features) != 1:
        raise ValueError(f"it is of {len(features)} features, expected one")
    return Session(
        folder=folder,
        kind=kind,
        features=features,
        release=release_of(table),
        patches=Path(text_of(table["patches"])),
        files=files,
        below=_features(table["below"]),
        notes=dict(_texts(table["notes"])),
        package=package,
    )


def _features(table: Mapping[str, object]) -> dict[str, str]:
    return {require_id(key): text for key, text in _texts(table)}


def _texts(table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        yield key, text_of(value)
