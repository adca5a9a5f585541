"""The types of a port: what became of a feature, and of each of its topics, on one release."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from overlay._features.model import Feature, Hunk, Patch, PortedWay, Variant
from overlay.authoring.carry import CarriedHunk
from overlay.report.base import plain
from overlay.results import Outcome, whole_outcome

#: What the text that a foreign change was made on is called among the releases.
OWN_TEXT = "0.0.0"


def base_name(release: str) -> str:
    """What people call the text that a variant was made on."""
    return "the change's own text" if release == OWN_TEXT else release


@dataclass(frozen=True)
class TopicPort:
    """How one topic is carried to one release.

    :ivar variant: the variant that it is carried from; :ivar base: the release of its text.
    :ivar origin: the text of the base that the hunks are made on.
    :ivar before: the release's text of the file; ``None`` where the release lacks the file.
    :ivar after: that text with every hunk that could be carried.
    :ivar new_hunks: the hunks for the release; ``None`` in a conflict, or where upstream has all.
    :ivar problem: why nothing can be made of it although no hunk conflicts.
    :ivar covered: whether the release lies in the variant's range already.
    :ivar by_hand: whether a person resolved or reviewed it.
    :ivar not_needed: whether a person said that the release does not need its hunks.
    """

    topic: str
    variant: Variant
    base: str
    hunks: tuple[CarriedHunk, ...]
    origin: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    new_hunks: tuple[Hunk, ...] | None = None
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    covered: bool = False
    by_hand: bool = False
    not_needed: bool = False

    @property
    def retired_as(self) -> PortedWay:
        """Why none of its hunks is applied, where that is so."""
        from_such = self.variant.patch.ported is PortedWay.NOT_NEEDED
        return PortedWay.NOT_NEEDED if self.not_needed or from_such else PortedWay.UPSTREAM

    @property
    def way(self) -> PortedWay | None:
        """How the text came about; ``None`` where it is the variant's own, or a part of it."""
        if self.by_hand:
            return PortedWay.BY_HAND
        outcomes = {hunk.outcome for hunk in self.hunks}
        if Outcome.MOVED in outcomes:
            return PortedWay.MOVED
        return PortedWay.MERGED if Outcome.MERGED in outcomes else None

    @property
    def path(self) -> str:
        """The file."""
        return self.variant.patch.path

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole topic."""
        if self.problem is not None:
            return Outcome.CONFLICT
        return whole_outcome(hunk.outcome for hunk in self.hunks)

    @property
    def review(self) -> bool:
        """Whether a person has to look at what was merged."""
        return any(hunk.outcome.wants_review for hunk in self.hunks)

    @property
    def conflicts(self) -> bool:
        """Whether a person has to resolve something."""
        return self.outcome in (Outcome.CONFLICT, Outcome.MISSING)


@dataclass(frozen=True)
class FeaturePort:
    """How one feature is carried to one release.

    :ivar covered: whether the release lies in its range already, so that there is nothing to do.
    :ivar modules: what becomes of the modules that it adds.
    :ivar evidence: what shows that the release has the feature itself; empty where it does not.
    :ivar obsolete: what the release has no more that the feature is for; empty where it is there.
    :ivar problem: why no topic can help, such as an added module whose name is taken.
    :ivar by_hand: whether a person retired it.
    :ivar written: whether its folder serves the release now.
    """

    feature: Feature
    release: str
    topics: tuple[TopicPort, ...] = ()
    covered: bool = False
    modules: tuple[Outcome, ...] = ()
    evidence: str = ""
    obsolete: str = ""
    problem: str | None = None
    by_hand: bool = False
    written: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing is to do: the release has the feature, or not what it is for."""
        return bool(self.evidence or self.obsolete)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole feature."""
        if self.idle:
            return Outcome.UPSTREAM
        if self.problem is not None or any(topic.problem for topic in self.topics):
            return Outcome.CONFLICT
        hunks = [hunk.outcome for topic in self.topics for hunk in topic.hunks]
        return whole_outcome((*self.modules, *hunks))

    @property
    def review(self) -> bool:
        """Whether a person has to look at what was merged."""
        return not self.conflicts and any(topic.review for topic in self.topics)

    @property
    def conflicts(self) -> bool:
        """Whether a person has to resolve something."""
        return not self.idle and (
            self.problem is not None or any(topic.conflicts for topic in self.topics)
        )

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do: it is served, or the release has it."""
        return self.written or self.covered or self.outcome is Outcome.UPSTREAM

    @property
    def bases(self) -> tuple[str, ...]:
        """The releases of the texts that it was carried from."""
        return tuple(dict.fromkeys(topic.base for topic in self.topics))

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many hunks have each outcome, from best to worst."""
        tally = Counter(hunk.outcome for topic in self.topics for hunk in topic.hunks)
        return {outcome: tally[outcome] for outcome in Outcome if tally[outcome]}

    @property
    def to_look_at(self) -> tuple[tuple[TopicPort, CarriedHunk], ...]:
        """The hunks that want a person: merged, moved or in conflict; each with its topic."""
        return tuple(
            (topic, hunk)
            for topic in self.topics
            for hunk in topic.hunks
            if hunk.outcome not in (Outcome.EXACT, Outcome.UPSTREAM) and not self.idle
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should look at."""
        return tuple(dict.fromkeys(text for topic in self.topics for text in topic.warnings))

    @property
    def why(self) -> str | None:
        """Why nothing can be made of it, or of the first of its topics of which that is so."""
        return self.problem or next((t.problem for t in self.topics if t.problem), None)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON."""
        hunks = [
            {
                "topic": topic.topic,
                "path": topic.path,
                "scope": hunk.scope,
                "outcome": hunk.outcome,
                "line": hunk.line,
            }
            for topic, hunk in self.to_look_at
        ]
        fields = {
            "feature": self.feature.id,
            "release": self.release,
            "outcome": self.outcome,
            "base": self.bases,
            "counts": self.counts,
            "hunks": hunks,
            "warnings": self.warnings,
            "shown": self.evidence,
            "obsolete": self.obsolete,
            "covered": self.covered,
            "review": self.review,
            "problem": self.why,
            "written": self.written,
        }
        return {name: plain(value) for name, value in fields.items()}


def as_patch(port: TopicPort) -> Patch:
    """The patch of the hunks that were made for the release.

    :raises ValueError: if none were made.
    """
    if port.new_hunks is None:
        raise ValueError(f"{port.topic}: no hunks were made")
    return port.variant.patch._replace(hunks=port.new_hunks)
