"""``overlay import --release RELEASE``: a change that lands on no release is placed by hand.

It waits in a session of ``overlay port``: what waits is carried from the text that the change was
made on to the release that was named.  That text belongs to no release, so the session's folder
holds it (``.base/``), and the change as a feature that serves ``OWN_TEXT`` alone
(``.import/<id>/``).  When the session ends, the edited files are what a new feature is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature, Hunk
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.building import (
    EditedFile,
    Prepared,
    TwoTexts,
    Words,
    build,
    change_of,
    topic_name,
)
from overlay.authoring.commands.port import ForeignChange, create, expect_no_session, session_folder
from overlay.authoring.commands.port_report import PortReport, concluded, placed
from overlay.authoring.composing import NotComposable, compose_file
from overlay.authoring.importing import words_of
from overlay.authoring.incoming import IncomingFile, read_changes
from overlay.authoring.locating import Base, Origin, ReadBy, ReleaseTexts, locate, replay
from overlay.authoring.mailbox import described
from overlay.authoring.porting import OWN_TEXT, FeaturePort, Porter
from overlay.authoring.session import IMPORT, Session
from overlay.authoring.sources import ChangeSource
from overlay.authoring.triage import added_content, sort_files
from overlay.authoring.writing import FeatureFolder, check_folder, patch_bytes, today, write_folder
from overlay.errors import UsageError, told_once
from overlay.package import Package, ReleaseRange
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.planning.text import Edit, SourceText, TextError
from overlay.report.codes import Code, Verdict
from overlay.results import Outcome

#: The file of a feature that has the bytes which it was read from.
ORIGIN = "origin/01.patch"

#: How many lines around the likeliest place of a hunk are compared with it.
_AROUND = 12


def open_onto(
    source: ChangeSource,
    id_: str,
    onto: str,
    texts: ReleaseTexts,
    patches: Path,
    package: Package,
    *,
    checkout: Origin | None,
    partial: bool,
    update: bool,
) -> PortReport:
    """Open a session in which a change is placed on a release, or write it where nothing waits.

    :param onto: the release, as ``--release`` takes it.
    """
    own, names = package_releases.names_in(onto, package)
    if own.name != package.name or len(names) != 1:
        raise UsageError(
            f"--release {onto}: expected one release of {package.title}, such as 0.26.0"
        )
    (release,) = names
    texts = texts.with_name(release)
    place = session_folder(release, package)
    expect_no_session(place)
    edits, added, _ = sort_files(source.commits, partial, package)
    placeables = {path: placeable(path, edits[path], texts, release, checkout) for path in edits}
    files = [file for file in placeables.values() if file is not None]
    if len(files) < len(placeables):
        raise UsageError("\n".join(told_once(_problems(edits, placeables))))
    bases = [file.base for file in files]
    stuck = {file.base.path: file.text for file in files if file.text is not None}
    words = words_of(source.commits, id_, source.name, today(), source.upstream, package)
    contents = {path: added_content(file) for path, file in added.items()}
    topics = [EditedFile(base, compose_file(base.path, base.before, base.after)) for base in bases]
    folder = own_feature(topics, contents, words, source.data)
    notes = {
        "origin": words.origin,
        "author": words.author,
        "date": words.date,
        "patches": str(patches.absolute()),
        "update": "yes" if update else "",
    }
    syntax = Memo()
    own_texts = {base.path: base.before for base in bases}
    porter = Porter(with_own_text(texts, own_texts.get), syntax)
    port = porter.port(check_folder(folder, syntax), release)
    if port.idle:
        text = (
            f"Nothing was written: {release} has {id_} already ({port.evidence or port.obsolete})."
        )
        return PortReport(Verdict(Code.NOT_IMPORTED, text), (port,))
    why = "no merge can place all of its hunks: they stand between markers"
    port = replace(
        port, topics=tuple(replace(t, problem=why) if t.path in stuck else t for t in port.topics)
    )
    if not (port.conflicts or port.review):
        prepared = feature_at(port, notes, texts, source.data, syntax)
        if prepared.folder is not None:
            written = write_once(prepared.folder, notes)
            return PortReport(placed(written, prepared.summary.releases, None), (port,))
    notes |= {f"stuck {path}": "yes" for path in stuck}
    change = ForeignChange(
        notes,
        {f"{IMPORT}/{id_}/{name}": data for name, data in folder.all_files().items()},
        own_texts,
        stuck,
    )
    folders = [str(patches)] if patches.is_dir() else []
    session = create(place, release, [port], folders, package, change)
    return PortReport(concluded((port,), [release], session, write=True), (port,), session)


def _problems(
    edits: Mapping[str, Sequence[IncomingFile]], placeables: Mapping[str, Placeable | None]
) -> Iterator[tuple[str, str]]:
    """Why each file that has no text to be placed in has none."""
    for path, parts in edits.items():
        if placeables[path] is None:
            why = (
                f"{parts[0].place}: expected {path} in a release, as Python, found none: give the "
                "text that it was made on with --base, or leave it out of the diff"
            )
            yield path, why


# Of which text the change is


class Placeable(NamedTuple):
    """An edited file of a change, as far as it can be carried by its hunks.

    :ivar text: the file to edit, where a hunk has no place that a text could be made of; it stands
        there between markers.  ``None`` where every hunk has one.
    """

    base: Base
    text: bytes | None = None


def placeable(
    path: str,
    parts: Sequence[IncomingFile],
    texts: ReleaseTexts,
    release: str,
    checkout: Origin | None,
) -> Placeable | None:
    """The text that an edited file's change was made on, and what it made of it.

    Where nobody has that text, it is the release's with the hunks' own lines in the places that are
    likest to them; of a file that the release lacks, the newest release's that has it.

    :returns: ``None`` where no release has the file as Python.
    """
    base = locate(parts[0], texts, checkout, parts[1:])
    if base is not None and (after := _with_parts(base.after, parts[1:])) is not None:
        base = replace(base, after=after)
        if _in_hunks(base):
            return Placeable(base)
    names = [release, *reversed(texts.names)]
    data = next((each for name in names if (each := texts.read(name, path)) is not None), None)
    if data is None:
        return None
    before = own_text(data, parts[0].hunks)
    after = None if before is None else _with_parts(before, parts)
    if before is not None and after is not None:
        base = Base(path, None, before, after, by_id=False)
        if _in_hunks(base):
            return Placeable(base)
    # No text is Python with the hunks' lines in it: they wait between markers, and a comment waits
    # in their place, since a feature without a hunk is none.
    try:
        source = SourceText.from_bytes(data)
    except TextError:
        return None
    note = Edit(len(source.lines), len(source.lines), ("# To be placed by hand.",))
    base = Base(path, None, data, source.splice([note]).to_bytes(), by_id=False)
    hunks = [hunk for part in parts for hunk in part.hunks]
    return Placeable(base, _with_markers(source, hunks)) if _in_hunks(base) else None


def _in_hunks(base: Base) -> bool:
    try:
        return bool(compose_file(base.path, base.before, base.after))
    except NotComposable:
        return False


def _with_markers(source: SourceText, hunks: Sequence[Hunk]) -> bytes:
    edits = []
    for hunk, place in zip(hunks, _places(source.lines, hunks), strict=True):
        lines = (
            f"<<<<<<< yours (line {hunk.patch_line} of the change)",
            *hunk.post,
            "||||||| the change's own text",
            *hunk.pre,
            "=======",
            *source.lines[place.start : place.stop],
            ">>>>>>> the release",
        )
        edits.append(Edit(place.start, place.stop, lines))
    return source.splice(edits).to_bytes()


def _with_parts(data: bytes, parts: Sequence[IncomingFile]) -> bytes | None:
    after: bytes | None = data
    for part in parts:
        after = None if after is None else replay(after, part.hunks)
    return after


def own_text(data: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """A text in which every hunk fits: the lines that are likest to a hunk's become its own.

    :returns: ``None`` where it cannot be read.
    """
    try:
        source = SourceText.from_bytes(data)
        places = _places(source.lines, hunks)
        edits = [Edit(at.start, at.stop, h.pre) for at, h in zip(places, hunks, strict=True)]
        return source.splice(edits).to_bytes()
    except TextError:
        return None


def _places(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[range]:
    """The lines that are likest to each hunk's pre-image, behind those of the hunk before."""
    places: list[range] = []
    first = 0
    for hunk in hunks:
        places.append(_likest(lines, hunk, first))
        first = places[-1].stop
    return places


def _likest(lines: Sequence[str], hunk: Hunk, first: int) -> range:
    """The lines, from one on, that are likest to a hunk's pre-image; empty where none is."""
    pre, near = hunk.pre, max(hunk.source_line - 1, 0)
    weights = {text: 1.0 / (1 + lines.count(text)) for text in pre if text.strip()}

    def alike(at: int) -> tuple[float, int]:
        window = lines[at : at + len(pre)]
        same = sum(weights.get(a, 0) for a, b in zip(pre, window, strict=False) if a == b)
        return same, -abs(at - near)

    best = max(range(first, max(first + 1, len(lines) - len(pre) + 1)), key=alike)
    begin, end = max(first, best - _AROUND), min(len(lines), best + len(pre) + _AROUND)
    matcher = SequenceMatcher(None, pre, lines[begin:end], autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if not blocks:
        at = max(first, min(near, len(lines)))
        return range(at, at)
    return range(begin + blocks[0].b, begin + blocks[-1].b + blocks[-1].size)


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
        files[name] = patch_bytes(headers, topic.base.path, topic.hunks)
    return FeatureFolder(words.text(span, None, topics), {**files, ORIGIN: verbatim})


# In a session


def change_in(session: Session) -> Feature | None:
    """The change that a session places; ``None`` where it is about features that there are."""
    if not session.places_import:
        return None
    place = session.folder / IMPORT
    features = [each for each in load([place]) if each.id in session.features]
    if len(features) != 1:
        raise UsageError(
            f"{place}: expected the change that the session places, found {len(features)} of it; "
            "copy your edits, then --abort and import again"
        )
    return features[0]


def with_own_text(texts: ReleaseTexts, own: Callable[[str], bytes | None]) -> ReleaseTexts:
    """The releases, and the text that a change was made on, which comes first."""
    tree = ReadBy(own)
    return ReleaseTexts(
        (OWN_TEXT, *texts.names), lambda name: tree if name == OWN_TEXT else texts.open(name)
    )


def verbatim_of(session: Session) -> bytes:
    """The bytes that a session's change was read from."""
    names = (f"{IMPORT}/{id_}/{ORIGIN}" for id_ in session.features)
    return b"".join(session.now(name) or b"" for name in names)


def feature_at(
    port: FeaturePort,
    notes: Mapping[str, str],
    texts: ReleaseTexts,
    verbatim: bytes,
    syntax: Syntax,
) -> Prepared:
    """The new feature that a change makes, placed on a release, tried on every other."""
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
    mailed = described(read_changes(verbatim, ORIGIN)[0].message)
    words = Words(
        feature.id,
        feature.title,
        feature.why,
        feature.upstream,
        notes["origin"],
        notes["author"],
        notes["date"],
        feature.package,
        mailed.keys,
        mailed.headers,
    )
    return build(change_of(files, port.release, syntax), words, texts, {ORIGIN: verbatim}, syntax)


def write_once(folder: FeatureFolder, notes: Mapping[str, str]) -> Path:
    """Write a feature that a session made, unless it is there as it would be written."""
    patches = Path(notes["patches"])
    place = patches / folder.text.id
    if place.is_dir() and disk.contents(place) == folder.all_files():
        return place  # a command that was killed wrote it
    return write_folder(folder, patches, update=bool(notes["update"]))
