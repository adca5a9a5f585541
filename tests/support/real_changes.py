"""What releases say about real changes of upstream, and about the shipped features.

A change is imported on the older of two releases, as a diff that git would write, and then every
release is asked about it.  The releases' own texts are the truth: the release that the change was
taken from has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from packaging.version import Version

from bench.real_changes import RealChange, Tree
from overlay._features.folder import load
from overlay._features.model import Feature, Variant, of_package
from overlay._features.sources import shipped_folder
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import FeaturePort, Porter
from overlay.authoring.writing import check_files
from overlay.errors import UsageError
from overlay.package import VLLM, ReleaseRange
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.planning.telling import MIN_DISTINCTIVE
from overlay.planning.text import SourceText
from overlay.results import Outcome, State


class Answer(NamedTuple):
    """What one release says about a change.

    :ivar distance: releases from the one that the change came with; negative before it.
    :ivar state: with what is remembered; :ivar outcome: of the port.
    :ivar has_it: whether the release's text shows, by itself, that it has the change, or it is the
        release that the change came with.
    :ivar twice: whether the port makes the change although the file has its lines.
    """

    release: str
    distance: int
    state: State
    outcome: Outcome
    has_it: bool
    twice: bool

    @property
    def is_early(self) -> bool:
        """Whether a release before the change is said to have it."""
        said = self.state is State.UPSTREAMED or self.outcome is Outcome.UPSTREAM
        return self.distance < 0 and not self.has_it and said


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


def answers(change: RealChange, feature: Feature, porter: Porter) -> Iterator[Answer]:
    """What every release says, oldest first.

    The change is remembered from the first release that is asked, in order, and has it.
    """
    texts = porter.texts
    merged: Version | None = None
    for number, name in enumerate(texts.names):
        version = Version(name)
        if (
            merged is None
            and version > Version(change.older)
            and porter.port(feature, name).evidence
        ):
            merged = version
        known = replace(feature, merged=merged)
        (result,) = plan([known], Tree(texts, name), version, syntax=porter.syntax).features
        port = porter.port(known, name)
        has_it = name == change.newer or _has_it(change, texts.read(name, change.path))
        distance = number - texts.names.index(change.newer)
        yield Answer(name, distance, result.state, port.outcome, has_it, _twice(change, port))


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
    if port.conflicts or port.evidence or port.covered or not port.topics:
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


class Replay(NamedTuple):
    """The shipped hunks, carried from each release to the next.

    :ivar hunks: how many; :ivar stuck: those that do not land, each with its outcome.
    """

    hunks: int
    stuck: list[str]
    warnings: list[str]


def replay(texts: ReleaseTexts, only: Sequence[str] = ()) -> Replay:
    """Carry the shipped hunks from each release to the next; what does not land is named.

    :param only: the newer releases of the steps to take; default: all.
    """
    porter = Porter(texts, Memo())
    hunks, stuck, warnings = 0, list[str](), list[str]()
    for older, newer in zip(texts.names, texts.names[1:], strict=False):
        if only and newer not in only:
            continue
        for feature in of_package(load([shipped_folder()]), VLLM):
            port = porter.port(only_at(feature, older), newer)
            for topic in port.topics:
                label = f"{older} to {newer}: {feature.id}/{topic.topic}"
                hunks += len(topic.hunks)
                stuck += [
                    f"{label} {hunk.scope}: {hunk.outcome.value}"
                    for hunk in topic.hunks
                    if hunk.outcome is not Outcome.EXACT
                ]
                warnings += [f"{label}: {warning}" for warning in topic.warnings]
    return Replay(hunks, stuck, warnings)


def only_at(feature: Feature, release: str) -> Feature:
    """A feature as it would be if it had been made on one release and never ported."""
    span = ReleaseRange(Version(release), Version(release))
    topics = [
        topic._replace(
            variants=tuple(
                Variant(span, variant.patch)
                for variant in topic.variants
                if Version(release) in variant.releases
            ),
        )
        for topic in feature.topics
    ]
    return replace(feature, releases=span, topics=tuple(t for t in topics if t.variants))


def spread(found: Iterator[RealChange]) -> list[RealChange]:
    """A sample in an order in which every beginning of it has changes of many releases."""
    by_step: dict[str, list[RealChange]] = {}
    for change in found:
        by_step.setdefault(change.newer, []).append(change)
    rows = max(map(len, by_step.values()), default=0)
    return [step[row] for row in range(rows) for step in by_step.values() if row < len(step)]
