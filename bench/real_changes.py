"""Real changes: files that upstream changed from one release to the next, each as a feature.

A change is what happened to one file between two neighbouring releases.  It is imported on the
older one, as a diff that git would write, and then every release is asked about it.  The releases'
own texts are the truth: the release that the change was taken from has it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts, blob_id
from overlay.authoring.porting import Porter
from overlay.authoring.ports import FeaturePort
from overlay.authoring.writing import check_files
from overlay.errors import UsageError
from overlay.features.model import Feature, Hunk
from overlay.planning.attempt import Texts
from overlay.planning.planner import plan
from overlay.planning.scopes import UnparsableError
from overlay.planning.telling import MIN_DISTINCTIVE
from overlay.planning.text import SourceText, TextError
from overlay.results import Outcome, State

#: Larger changes and files take long, and say nothing else.
MOST_HUNKS = 8
MOST_LINES = 2500


@dataclass(frozen=True)
class RealChange:
    """What happened to one file from one release to the next.

    :ivar older: the release before; :ivar newer: the first release that has it.
    :ivar hunks: the change in the strict format.
    """

    path: str
    older: str
    newer: str
    before: bytes
    after: bytes
    hunks: tuple[Hunk, ...]

    @property
    def diff(self) -> bytes:
        """The change as git writes it."""
        old, new = (
            text.decode("utf-8").splitlines(keepends=True) for text in (self.before, self.after)
        )
        head = [
            f"diff --git a/{self.path} b/{self.path}\n",
            f"index {blob_id(self.before)[:12]}..{blob_id(self.after)[:12]} 100644\n",
        ]
        body = difflib.unified_diff(old, new, f"a/{self.path}", f"b/{self.path}")
        return "".join([*head, *body]).encode()

    @property
    def plain(self) -> bytes:
        """The change as a diff without the ids of blobs."""
        return plain_diff(self.path, self.before, self.after)


def plain_diff(path: str, before: bytes, after: bytes) -> bytes:
    """A diff without the ids of blobs."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")).encode()


@dataclass(frozen=True)
class Answer:
    """What one release says about a change.

    :ivar state: with what is remembered; :ivar unremembered: by its texts alone.
    :ivar outcome: of the port; :ivar has_it: whether the release's text shows, by itself, that it
        has the change, or it is the release that the change came with.
    :ivar twice: whether the port makes the change although the file has its lines.
    :ivar refused: the outcome of each hunk of which neither image is there, so that images alone
        refuse it; without what is remembered.
    """

    release: str
    state: State
    unremembered: State
    outcome: Outcome
    has_it: bool
    twice: bool
    refused: tuple[Outcome, ...] = ()


def changes(texts: ReleaseTexts, paths: Sequence[Sequence[str]], each: int) -> Iterator[RealChange]:
    """A sample of the changes between neighbouring releases, always the same one.

    :param paths: for each release of ``texts`` the paths of its modules.
    :param each: how many for each step.
    """
    for number, (older, newer) in enumerate(zip(texts.names, texts.names[1:], strict=False)):
        shared = set(paths[number]) & set(paths[number + 1])
        taken = 0
        for path in sorted(shared, key=lambda path: hashlib.sha256(path.encode()).digest()):
            change = change_of(texts, path, older, newer)
            if change is not None:
                taken += 1
                yield change
            if taken == each:
                break


def change_of(texts: ReleaseTexts, path: str, older: str, newer: str) -> RealChange | None:
    """What happened to a file between two releases; ``None`` where it is no such change."""
    before, after = texts.read(older, path), texts.read(newer, path)
    if before is None or after is None or before == after or before.count(b"\n") > MOST_LINES:
        return None
    if path == "vllm/_version.py":  # the build writes it
        return None
    try:
        hunks = compose(before, after)
    except (NotComposable, TextError, UnparsableError):
        return None
    return (
        RealChange(path, older, newer, before, after, hunks) if len(hunks) <= MOST_HUNKS else None
    )


def imported(change: RealChange, texts: ReleaseTexts, id_: str) -> Feature | None:
    """The feature that an import of the change makes, by what the older release knows.

    ``None`` where the import refuses it: a diff of lines cannot say everything.
    """
    known = [name for name in texts.names if Version(name) <= Version(change.older)]
    try:
        prepared = prepare(
            read_changes(change.diff, "change.diff"),
            id_,
            ReleaseTexts(known, lambda name: Tree(texts, name)),
            source="change.diff",
            verbatim=change.diff,
            today="2026-11-22",
        )
    except UsageError:
        return None
    folder = prepared.folder
    return None if folder is None else check_files(id_, folder.all_files())


@dataclass(frozen=True)
class Tree:
    """One release."""

    texts: ReleaseTexts
    release: str

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; see ``overlay.package.Tree``."""
        return self.texts.read(self.release, path)


def answers(change: RealChange, feature: Feature, porter: Porter) -> list[Answer]:
    """What every release says, oldest first.

    The change is remembered from the first release that is asked, in order, and has it.
    """
    texts = porter.texts
    merged: Version | None = None
    images = Texts(porter.syntax)
    given = []
    for name in texts.names:
        plain = porter.port(feature, name)
        version = Version(name)
        if merged is None and version > Version(change.older) and plain.shown:
            merged = version
        known = replace(feature, merged=merged)
        tree = Tree(texts, name)
        remembered, unremembered = (
            plan([entry], tree, version, syntax=porter.syntax).features[0].state
            for entry in (known, feature)
        )
        port = porter.port(known, name)
        has_it = name == change.newer or _has_it(change, texts.read(name, change.path))
        given.append(
            Answer(
                name,
                remembered,
                unremembered,
                port.outcome,
                has_it,
                _twice(change, port),
                tuple(refused_by_images(feature, plain, texts.read(name, change.path), images)),
            )
        )
    return given


def refused_by_images(
    feature: Feature, port: FeaturePort, text: bytes | None, images: Texts
) -> Iterator[Outcome]:
    """The outcome of each hunk that a release's text has neither before nor after the change."""
    (topic,) = feature.topics
    outcomes = [hunk.outcome for part in port.topics for hunk in part.hunks]
    for at, hunk in enumerate(topic.variants[0].patch.hunks):
        state = State.MISSING if text is None else images.match(hunk, text).state
        if state not in (State.PRISTINE, State.UPSTREAMED) and not port.covered:
            yield Outcome.UPSTREAM if port.shown else outcomes[at]


def shares(outcomes: Counter[str]) -> dict[str, Any]:
    """The outcomes of hunks with their number, and the shares placed and shown as upstream's."""
    total = sum(outcomes.values())
    placed = outcomes[Outcome.MERGED.value] + outcomes[Outcome.MOVED.value]
    upstream = outcomes[Outcome.UPSTREAM.value]
    return {
        "hunks": total,
        "placed_for_review": round(placed / total, 4) if total else 0.0,
        "shown_as_upstreams": round(upstream / total, 4) if total else 0.0,
        "outcomes": dict(outcomes),
    }


def _has_it(change: RealChange, text: bytes | None) -> bool:
    """Whether a text shows by itself that it has a change.

    It is the very text that the change left; or the change only removes lines, and the text has
    what it left in the place of each: the lines had not been put in yet.
    """
    if text is None or text == change.after:
        return text is not None
    if any(op == "+" for hunk in change.hunks for op, _ in hunk.lines):
        return False
    return all("\n".join(hunk.post).encode() in text for hunk in change.hunks)


def _twice(change: RealChange, port: FeaturePort) -> bool:
    """Whether a port that lands makes a hunk whose lines are all in the release's file already.

    Lines that the base's file has say nothing, wherever they are.
    """
    if port.conflicts or port.shown or port.covered or not port.topics:
        return False
    there = _lines(port.topics[0].before)
    base = _lines(change.before)
    for hunk in port.topics[0].hunks:
        if hunk.outcome not in (Outcome.EXACT, Outcome.MERGED, Outcome.MOVED):
            continue
        added = {text.strip() for op, text in hunk.hunk.lines if op == "+"} - base
        telling = {line for line in added if len("".join(line.split())) >= MIN_DISTINCTIVE}
        if telling and telling <= there:
            return True
    return False


def _lines(data: bytes | None) -> set[str]:
    if data is None:
        return set()
    return {line.strip() for line in SourceText.from_bytes(data).lines}


def write_figures(figures: Mapping[str, Any], place: Path | None) -> None:
    """Write what was measured as JSON: to a file, or to standard output where none is named."""
    text = json.dumps(figures, indent=1) + "\n"
    if place is None:
        sys.stdout.write(text)
    else:
        place.write_text(text, encoding="utf-8")
