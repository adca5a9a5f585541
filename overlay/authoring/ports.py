"""The types of a port: what became of a feature, and of each of its topics, on one release."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.authoring.carry import CarriedHunk
from overlay.features.model import Feature, Hunk, Patch, Variant, Way
from overlay.results import Outcome, whole_outcome


@dataclass(frozen=True)
class TopicPort:
    """How one topic is carried to one release.

    :ivar variant: the variant that it is carried from; :ivar base: the release of its text.
    :ivar origin: the text of the base that the hunks are made on.
    :ivar before: the release's text of the file; ``None`` where the release lacks the file.
    :ivar after: that text with every hunk that could be carried.
    :ivar made: the hunks for the release; ``None`` where a conflict is left or upstream has all.
    :ivar problem: why nothing can be made of it although no hunk conflicts.
    :ivar covered: whether the release lies in the variant's range already.
    :ivar by_hand: whether a person resolved or reviewed it.
    """

    topic: str
    variant: Variant
    base: str
    hunks: tuple[CarriedHunk, ...]
    origin: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    made: tuple[Hunk, ...] | None = None
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    covered: bool = False
    by_hand: bool = False

    @property
    def way(self) -> Way | None:
        """How the text came about; ``None`` where it is the variant's own, or a part of it."""
        if self.by_hand:
            return Way.BY_HAND
        outcomes = {hunk.outcome for hunk in self.hunks}
        if Outcome.MOVED in outcomes:
            return Way.MOVED
        return Way.MERGED if Outcome.MERGED in outcomes else None

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
    :ivar shown: what shows that the release has the feature itself; empty where it does not.
    :ivar obsolete: what the release has no more that the feature is for; empty where it is there.
    :ivar problem: why no topic can help, such as an added module whose name is taken.
    :ivar by_hand: whether a person retired it.
    """

    feature: Feature
    release: str
    topics: tuple[TopicPort, ...] = ()
    covered: bool = False
    modules: tuple[Outcome, ...] = ()
    shown: str = ""
    obsolete: str = ""
    problem: str | None = None
    by_hand: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing is to do: the release has the feature, or not what it is for."""
        return bool(self.shown or self.obsolete)

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


def as_patch(port: TopicPort) -> Patch:
    """The patch of the hunks that were made for the release.

    :raises ValueError: if none were made.
    """
    if port.made is None:
        raise ValueError(f"{port.topic}: no hunks were made")
    return port.variant.patch._replace(hunks=port.made)
