"""Keep a foreign change that lands on no release as a feature of its own text, to place by hand.

A session of `overlay import --onto` is one of `overlay port`: what waits is carried from the text
that the change was made on to the release that was named.  That text belongs to no release, so the
session's folder holds it (``.base/``), and the change as a feature that serves ``OWN_TEXT`` alone
(``.import/<id>/``).  When the session ends, the edited files are what a new feature is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature, Hunk
from overlay.authoring import disk
from overlay.authoring.building import (
    EditedFile,
    Prepared,
    TwoTexts,
    Words,
    build,
    change_of,
    derived_tests,
    topic_name,
)
from overlay.authoring.composing import NotComposable, compose_file
from overlay.authoring.incoming import IncomingFile
from overlay.authoring.locating import Base, Origin, ReleaseTexts, locate, replay
from overlay.authoring.ports import OWN_TEXT, FeaturePort
from overlay.authoring.session import BASE, IMPORT, Session
from overlay.authoring.writing import FeatureFolder, FeatureText, render_patch, write_folder
from overlay.errors import UsageError
from overlay.package import ReleaseRange, Tree
from overlay.planning.scopes import Syntax
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import Outcome

#: The file of a feature that has the bytes which it was read from.
ORIGIN = "origin/01.patch"

#: How many lines around the likeliest place of a hunk are compared with it.
_AROUND = 12


@dataclass(frozen=True)
class OwnTexts:
    """The files of the text that a change was made on; satisfies ``Tree``."""

    session: Session

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, ``None`` where the change does not edit it."""
        return self.session.now(f"{BASE}/{path}")


@dataclass(frozen=True)
class TextsOf:
    """The same before there is a session."""

    bases: Sequence[Base]

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, ``None`` where the change does not edit it."""
        return next((base.before for base in self.bases if base.path == path), None)


# Of which text the change is


def text_before(
    path: str,
    parts: Sequence[IncomingFile],
    texts: ReleaseTexts,
    release: str,
    checkout: Origin | None,
) -> Base | None:
    """The text that an edited file's change was made on, and what it made of it.

    Where nobody has that text, it is the release's with the hunks' own lines in the places that are
    likest to them; of a file that the release lacks, the newest release's that has it.

    :returns: ``None`` where no release has the file, or the hunks contradict each other.
    :raises OverlayError: if a release cannot be read.
    """
    base = locate(parts[0], texts, checkout, parts[1:])
    if base is not None and (after := _with_parts(base.after, parts[1:])) is not None:
        return replace(base, after=after)
    names = [release, *reversed(texts.names)]
    data = next((each for name in names if (each := texts.read(name, path)) is not None), None)
    before = None if data is None else own_text(data, parts[0].hunks)
    after = None if before is None else _with_parts(before, parts)
    return None if before is None or after is None else Base(path, None, before, after, False)


def _with_parts(data: bytes, parts: Sequence[IncomingFile]) -> bytes | None:
    """A text with the changes of a file on it, one after the other."""
    after: bytes | None = data
    for part in parts:
        after = None if after is None else replay(after, part.hunks)
    return after


def own_text(data: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """A text in which every hunk fits: the lines that are likest to a hunk's become its own.

    :returns: ``None`` where that cannot be done, as where two hunks are likest to the same lines.
    """
    try:
        source = SourceText.from_bytes(data)
    except TextError:
        return None
    splices = [
        Edit(place.start, place.stop, hunk.pre)
        for hunk in hunks
        for place in [_likest(source.lines, hunk)]
    ]
    splices.sort(key=lambda edit: edit.start)
    if any(edit.stop > other.start for edit, other in pairwise(splices)):
        return None
    try:
        return source.splice(splices).to_bytes()
    except TextError:
        return None


def _likest(lines: Sequence[str], hunk: Hunk) -> range:
    """The lines that are likest to a hunk's pre-image; an empty range where none is."""
    pre, near = hunk.pre, max(hunk.source_line - 1, 0)
    weights = {text: 1.0 / (1 + lines.count(text)) for text in pre if text.strip()}

    def alike(at: int) -> tuple[float, int]:
        window = lines[at : at + len(pre)]
        same = sum(weights.get(a, 0) for a, b in zip(pre, window, strict=False) if a == b)
        return same, -abs(at - near)

    best = max(range(max(1, len(lines) - len(pre) + 1)), key=alike)
    first, last = max(0, best - _AROUND), min(len(lines), best + len(pre) + _AROUND)
    matcher = SequenceMatcher(None, pre, lines[first:last], autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if not blocks:
        at = min(near, len(lines))
        return range(at, at)
    return range(first + blocks[0].b, first + blocks[-1].b + blocks[-1].size)


def own_feature(
    topics: Sequence[EditedFile], added: Mapping[str, bytes], words: Words, verbatim: bytes
) -> FeatureFolder:
    """The change as a feature that serves the text that it was made on, and nothing else."""
    own = Version(OWN_TEXT)
    span = ReleaseRange(own, own)
    headers = {**words.headers(), "Base": OWN_TEXT}
    files = {f"files/{path}": data for path, data in added.items()}
    for number, topic in enumerate(topics, 1):
        name = f"{topic_name(number, topic.base.path)}/{span}.patch"
        text = render_patch(headers, topic.base.path, topic.hunks)
        files[name] = text.encode("utf-8", "surrogateescape")
    text_of = FeatureText(
        words.id,
        words.title,
        words.why,
        span,
        words.upstream,
        None,
        derived_tests((t.base.before, t.base.path, t.hunks) for t in topics),
        words.package,
    )
    return FeatureFolder(text_of, {**files, ORIGIN: verbatim})


def topics_of(bases: Sequence[Base]) -> Iterator[EditedFile]:
    """The edited files in hunks.

    :raises UsageError: if one cannot be said in hunks.
    """
    for base in bases:
        try:
            yield EditedFile(base, compose_file(base.path, base.before, base.after))
        except NotComposable as error:
            raise UsageError(
                f"{error}; leave it out with --partial, or edit a copy of it"
            ) from error


# In a session


def change_in(session: Session) -> Feature | None:
    """The change that a session places; ``None`` where it is about features that there are.

    :raises PatchFormatErrors: if somebody edited it.
    """
    if not session.places_import:
        return None
    (feature,) = load([session.folder / IMPORT])
    return feature


def with_own_text(texts: ReleaseTexts, own: Tree) -> ReleaseTexts:
    """The releases, and the text that a change was made on, which comes first."""
    return ReleaseTexts(
        (OWN_TEXT, *texts.names), lambda name: own if name == OWN_TEXT else texts.open(name)
    )


def verbatim_of(session: Session) -> bytes:
    """The bytes that a session's change was read from."""
    (id_,) = session.features
    return session.now(f"{IMPORT}/{id_}/{ORIGIN}") or b""


def feature_at(
    port: FeaturePort,
    notes: Mapping[str, str],
    texts: ReleaseTexts,
    verbatim: bytes,
    syntax: Syntax,
) -> Prepared:
    """The new feature that a change makes, placed on a release, tried on every other.

    :param notes: those of its session.
    """
    feature = port.feature
    files = [
        TwoTexts(topic.path, topic.before, topic.after)
        for topic in port.topics
        if topic.new_hunks is not None and topic.before != topic.after
    ]
    files += [
        TwoTexts(module.path, None, module.content)
        for module, outcome in zip(feature.added, port.modules, strict=True)
        if outcome is not Outcome.UPSTREAM
    ]
    words = Words(
        feature.id,
        feature.title,
        feature.why,
        feature.upstream,
        notes["origin"],
        notes["author"],
        notes["date"],
        feature.package,
    )
    return build(change_of(files, port.release, syntax), words, texts, {ORIGIN: verbatim}, syntax)


def write_once(folder: FeatureFolder, notes: Mapping[str, str]) -> Path:
    """Write a feature that a session made, unless it is there as it would be written.

    :raises UsageError: if there is another one of its id, which is not to be replaced.
    :raises OSError: if it cannot be written.
    """
    patches = Path(notes["patches"])
    place = patches / folder.text.id
    if place.is_dir() and disk.contents(place) == folder.all_files():
        return place  # a command that was killed wrote it
    return write_folder(folder, patches, update=bool(notes["update"]))
