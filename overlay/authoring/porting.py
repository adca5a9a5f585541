"""Plan a port: carry each topic of a feature to a release, from the variant nearest to it.

Nothing is written here.  Every release is answered from the variants that the feature has, never
from the result for another release, so that the answers do not depend on the order of ports.  The
text that a topic meets is the release's own with the topics before it, and, where a feature was
made on top of others, with those too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from packaging.version import Version

from overlay._features.model import Feature, Hunk, PortedWay, Topic, Variant
from overlay.authoring.carry import Carried, CarriedHunk, all_as, carry
from overlay.authoring.composing import CONTEXT, NotComposable, compose, contexts_from
from overlay.authoring.following import Moved, follow, follow_each
from overlay.authoring.locating import OWN_BASE, ReadBy, ReleaseTexts
from overlay.authoring.port_warnings import port_warnings
from overlay.errors import command
from overlay.package import is_module
from overlay.planning.attempt import Texts, attempt
from overlay.planning.planner import Stack
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import context_of
from overlay.planning.text import TextError
from overlay.planning.upstream import (
    by_distance,
    evidence,
    module_outcome,
    obsolete_by,
    remembers,
)
from overlay.report import plain
from overlay.report.lines import enumeration
from overlay.results import Outcome, State, whole_outcome
from overlay.settings import in_home
from overlay.untrusted import read_below

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


@dataclass
class Porter:
    """Ports features to releases.

    :param context: how many lines of context merged hunks keep; ``None``: as many as the hunks
        have that they are made of.
    """

    texts: ReleaseTexts
    syntax: Syntax = field(default_factory=Syntax)
    context: int | None = None

    def __post_init__(self) -> None:
        self._answers = Texts(self.syntax)
        self._carried: dict[tuple[bytes, tuple[Hunk, ...], bytes | None], Carried] = {}
        # By identity: features are large, and two of one id may differ.  `_alive` keeps
        # them, so that no other feature gets their identity.
        self._ports: dict[tuple[int, ...], dict[str, FeaturePort]] = {}
        self._alive: list[Feature] = []
        self._stacks: dict[tuple[object, ...], Stack] = {}

    def port(self, feature: Feature, release: str, earlier: Sequence[Feature] = ()) -> FeaturePort:
        """Carry a feature to a release; the second time the answer is the first one's."""
        key = (id(feature), *map(id, earlier))
        if key not in self._ports:
            self._alive += (feature, *earlier)
            self._ports[key] = {}
        ports = self._ports[key]
        if release not in ports:
            ports[release] = self._port(feature, release, earlier)
        return ports[release]

    def _port(self, feature: Feature, release: str, earlier: Sequence[Feature]) -> FeaturePort:
        version = Version(release)
        covered = self._covers(feature, version)
        proof, obsolete = self._idle(feature, release, covered=covered)
        if proof or obsolete or covered:
            return FeaturePort(feature, release, covered=covered, evidence=proof, obsolete=obsolete)
        topics: list[TopicPort] = []
        patched_texts: dict[str, bytes] = {}
        for topic in feature.topics:
            ported = self._topic(feature, topic, release, earlier, patched_texts)
            topics.append(ported)
            if ported.after is not None:
                patched_texts[ported.path] = ported.after
        hunks = [hunk for topic in topics for hunk in topic.hunks]
        modules = tuple(
            module_outcome(added, partial(self.texts.read, release)) for added in feature.added
        )
        at = dict(zip((added.path for added in feature.added), modules, strict=True))
        conflicting = [path for path, outcome in at.items() if outcome is Outcome.CONFLICT]
        lacking = [path for path, outcome in at.items() if outcome is not Outcome.UPSTREAM]
        proof, problem = "", None
        if conflicting:
            hidden = self.texts.read(release, conflicting[0]) is None
            what = (
                "a package of that name, which hides it" if hidden else "another file of that name"
            )
            problem = f"{conflicting[0]}: the release has {what}"
        if all(hunk.outcome is Outcome.UPSTREAM for hunk in hunks) and (hunks or feature.added):
            if not lacking and not_needed(feature, version):
                proof, problem = self._evidence_by_plan(feature, release), None
            elif not lacking:
                what = f"{len(hunks)} hunks" if hunks else "of its modules"
                proof, problem = f"all {what} are in it", None
            elif hunks and problem is None:
                problem = (
                    f"{lacking[0]}: the release has all {len(hunks)} hunks, and not this module: "
                    "where it does not need it, retire the feature there (`merged`)"
                )
        if not proof and any(hunk.outcome is not Outcome.EXACT for hunk in hunks):
            # A base that lacks the file has nothing to carry, whatever the release has.
            proof = self._evidence_by_plan(feature, release)
            problem = None if proof else problem
        return FeaturePort(
            feature, release, tuple(topics), modules=modules, evidence=proof, problem=problem
        )

    def _idle(self, feature: Feature, release: str, *, covered: bool) -> tuple[str, str]:
        """What shows that a release has a feature, and what it has no more that the feature is for.

        :param covered: the release is in its range: then the answer is that of a plan.
        :returns: both empty where there may be something to port.
        """
        version, record = Version(release), self.texts.record(release)
        answer = evidence(feature, version, lambda path, scope: self._lines(release, path, scope))
        if answer.merged:
            return answer.text, ""
        if reason := obsolete_by(feature, version, partial(self.texts.read, release), record):
            return "", reason
        return (self._evidence_by_plan(feature, release) if covered else ""), ""

    def _evidence_by_plan(self, feature: Feature, release: str) -> str:
        """What shows a plan that a release has a feature; empty where it does not say so."""
        (result,) = self.texts.plan([feature], release, self.syntax).features
        if result.state is not State.UPSTREAMED:
            return ""
        return result.reason.text if result.reason else "the release has all of it"

    def texts_given(
        self, feature: Feature, topic: Topic, release: str, earlier: Sequence[Feature]
    ) -> tuple[bytes, ...]:
        """What a feature makes of a topic's file on a release that it serves, up to that topic.

        :returns: the text on the release alone, and that on top of the features before it; a topic
            that upstream has there leaves both as they are.
        """
        path = topic.variants[0].patch.path
        bases = (self.texts.read(release, path), self._below(earlier, release, path))
        origins = (self._series(feature, topic, release, base) for base in dict.fromkeys(bases))
        texts = (self._apply(topic, release, path, data) for data in origins)
        return tuple(data for data in texts if data is not None)

    def upstreams(self, port: FeaturePort) -> FeaturePort:
        """A port by which one release has the feature itself, and no other: topic by topic."""
        feature, release = port.feature, port.release
        topics: list[TopicPort] = []
        for topic in feature.topics:
            own = next((v for v in topic.variants if Version(release) in v.releases), None)
            if own is not None:
                topics.append(self._covered(topic, own, release, {}))
                continue
            nearest = min(topic.variants, key=lambda v: self._distance(v, release))
            there = self.texts.read(release, nearest.patch.path)
            hunks = all_as(Outcome.UPSTREAM, nearest.patch.hunks)
            base = self._nearest(nearest, release)
            topics.append(TopicPort(topic.name, nearest, base, hunks, None, there, there))
        return FeaturePort(feature, release, tuple(topics))

    def _covers(self, feature: Feature, release: Version) -> bool:
        return release in feature.releases and all(
            any(release in variant.releases for variant in topic.variants)
            for topic in feature.topics
        )

    def _lines(self, release: str, path: str, scope: str) -> list[Sequence[str]]:
        """The lines of each place that a scope has in a release's own file."""
        data = self.texts.read(release, path)
        try:
            places = () if data is None else self._answers.scopes(data).get(scope, ())
            lines = () if data is None else self._answers.source(data).lines
        except (TextError, UnparsableError):
            return []
        return [lines[place.start : place.stop] for place in places]

    # One topic

    def _topic(
        self,
        feature: Feature,
        topic: Topic,
        release: str,
        earlier: Sequence[Feature],
        patched_texts: Mapping[str, bytes],
    ) -> TopicPort:
        own = next((v for v in topic.variants if Version(release) in v.releases), None)
        if own is not None:
            return self._covered(topic, own, release, patched_texts)
        ports: list[TopicPort] = []
        for variant in sorted(topic.variants, key=lambda v: self._distance(v, release)):
            ports.append(self._from(feature, topic, variant, release, earlier, patched_texts))
            if ports[-1].outcome is Outcome.EXACT:
                break
        best = min(ports, key=_rank)
        warnings = list(best.warnings)
        for other in ports:
            clean = not other.conflicts and other.outcome is not Outcome.UPSTREAM
            if clean and other.before == best.before and other.after != best.after:
                warnings.append(
                    f"{other.variant.patch.name} gives another text here "
                    f"({other.outcome.value}): compare both"
                )
        return replace(best, warnings=tuple(warnings))

    def _covered(
        self, topic: Topic, variant: Variant, release: str, patched_texts: Mapping[str, bytes]
    ) -> TopicPort:
        """A topic that has a variant for the release already."""
        patch = variant.patch
        before = patched_texts.get(patch.path, self.texts.read(release, patch.path))
        after = None if variant.patch.retired else attempt(patch, before, self._answers).after
        hunks = all_as(Outcome.UPSTREAM if patch.retired else Outcome.EXACT, patch.hunks)
        new_hunks = None if patch.retired else patch.hunks
        return TopicPort(
            topic.name,
            variant,
            release,
            hunks,
            before=before,
            after=after or before,
            new_hunks=new_hunks,
            covered=True,
        )

    def _from(
        self,
        feature: Feature,
        topic: Topic,
        variant: Variant,
        release: str,
        earlier: Sequence[Feature],
        patched_texts: Mapping[str, bytes],
    ) -> TopicPort:
        patch = variant.patch
        base = self._nearest(variant, release)
        pristine = self.texts.read(release, patch.path)
        before = patched_texts.get(patch.path, pristine)
        if patch.retired:
            hunks = all_as(Outcome.UPSTREAM, patch.hunks)
            return TopicPort(topic.name, variant, base, hunks, None, before, before)
        origin, stacked = self.text_for(feature, topic, variant, base, earlier)
        if stacked:  # it was made on top of other features: so it is carried on top of them
            before = patched_texts.get(patch.path, self._below(earlier, release, patch.path))
        if origin is None:
            hunks = all_as(Outcome.MISSING, patch.hunks)
            return TopicPort(topic.name, variant, base, hunks, None, before, before)
        port = self._carry(topic, variant, base, origin, before)
        lost = [hunk for hunk in port.hunks if hunk.outcome is Outcome.MISSING]
        if len(lost) != len(port.hunks) or stacked:
            return port
        return self._followed(feature, topic, port, origin, release)

    def _followed(
        self, feature: Feature, topic: Topic, lost: TopicPort, origin: bytes, release: str
    ) -> TopicPort:
        """A topic carried to the file to which upstream moved what it changes, if that is found."""
        variant, base = lost.variant, lost.base
        patch = variant.patch
        moved = Moved(patch.path, base, origin, patch.hunks)
        texts = self._texts_with(feature, base, patch.path)
        place = follow(moved, release, texts, self.syntax, everywhere=True)
        if place is None:
            files = follow_each(moved, release, texts, self.syntax, everywhere=True)
            if not files:
                return lost
            options = [word for path in dict.fromkeys(files.values()) for word in ("--file", path)]
            step = command("edit", feature.id, "--release", release, *options)
            there = enumeration([f"{scope} to {path}" for scope, path in files.items()])
            warning = (
                f"{patch.path}: upstream moved {there}, and a patch is of one file: make the "
                f"change there with {step}, and leave the release's text in this one"
            )
            return replace(lost, warnings=(warning, *lost.warnings))
        there_too = variant._replace(patch=patch._replace(path=place.path))
        port = self._written(topic, there_too, base, origin, place.before, place.carried)
        warning = f"{patch.path}: upstream moved what it changes to {place.path}"
        return replace(port, warnings=(warning, *port.warnings))

    def text_for(
        self,
        feature: Feature,
        topic: Topic,
        variant: Variant,
        release: str,
        earlier: Sequence[Feature],
    ) -> tuple[bytes | None, bool]:
        """The text that a variant meets on a release of its range, where it lands on one.

        :returns: that, and whether it has the features before it, too.
        """
        patch = variant.patch
        origin = self._series(feature, topic, release, self._text_of(feature, release, patch.path))
        if attempt(patch, origin, self._answers).after is None and earlier:
            below = self._below(earlier, release, patch.path)
            text = self._series(feature, topic, release, below)
            if attempt(patch, text, self._answers).after is not None:
                return text, True
        return origin, False

    def _carry(
        self, topic: Topic, variant: Variant, base: str, origin: bytes, before: bytes | None
    ) -> TopicPort:
        """What becomes of a variant's hunks, made on ``origin``, in the text ``before``."""
        hunks = variant.patch.hunks
        key = origin, hunks, before
        if key not in self._carried:
            self._carried[key] = carry(origin, hunks, before, self.syntax, less=True)
        carried = self._carried[key]
        if any(hunk.whole is not None for hunk in hunks):
            own = hunks if carried.outcome is Outcome.EXACT else None
            after = before if own is None else carried.after
            return TopicPort(
                topic.name, variant, base, carried.hunks, origin, before, after, new_hunks=own
            )
        return self._written(topic, variant, base, origin, before, carried)

    def _written(
        self,
        topic: Topic,
        variant: Variant,
        base: str,
        origin: bytes,
        before: bytes | None,
        carried: Carried,
    ) -> TopicPort:
        """A carried topic with the hunks that it gets for the release."""
        hunks = variant.patch.hunks
        port = TopicPort(
            topic.name,
            variant,
            base,
            carried.hunks,
            origin,
            before,
            carried.after,
            problem=carried.problem,
        )
        if port.conflicts or before is None or carried.after is None:
            return port
        warnings = port_warnings(origin, before, carried.hunks, self._answers)
        port = replace(port, warnings=warnings)
        exact = tuple(hunk.hunk for hunk in carried.hunks if hunk.outcome is Outcome.EXACT)
        if not port.review:
            return replace(port, new_hunks=exact or None)
        try:
            is_data = not is_module(variant.patch.path)
            contexts = contexts_from(self._context(hunks))
            new_hunks = compose(before, carried.after, contexts, is_data=is_data)
        except NotComposable as error:
            return replace(port, problem=f"the merged text cannot be written as hunks: {error}")
        again = attempt(variant.patch._replace(hunks=new_hunks), before, self._answers)
        if again.after != carried.after:
            return replace(port, problem="the merged text cannot be written as hunks")
        return replace(port, new_hunks=new_hunks)

    def _context(self, hunks: Sequence[Hunk]) -> int:
        """How much context merged hunks get: what was asked for, or no more than these have.

        Another number of lines would make the ranges depend on the order of ports.
        """
        if self.context is not None:
            return self.context
        widest = max(side for hunk in hunks for side in context_of(hunk))
        return min(max(1, widest), CONTEXT[0])

    # Texts

    def _text_of(self, feature: Feature, base: str, path: str) -> bytes | None:
        """The text that a variant was made on: a release's, or what its folder keeps of a build."""
        own = self._own_text(feature, base, path)
        return self.texts.read(base, path) if own is None else own

    def _own_text(self, feature: Feature, base: str, path: str) -> bytes | None:
        """What the folder of a feature keeps of the build that it was made on."""
        if base in self.texts.names or feature.shipped:
            return None
        return read_below(in_home(feature.origin).resolve(), f"{feature.id}/{OWN_BASE}/{path}")

    def _texts_with(self, feature: Feature, base: str, path: str) -> ReleaseTexts:
        """The releases, among them a build of which a feature's folder keeps the one file."""
        own = self._own_text(feature, base, path)
        if own is None:
            return self.texts
        build = ReadBy({path: own}.get)
        return ReleaseTexts(
            self.texts.names, lambda name: build if name == base else self.texts.open(name)
        )

    def _below(self, earlier: Sequence[Feature], release: str, path: str) -> bytes | None:
        """A release's file with the features on it that serve the release, as a check has them."""
        key = release, *map(id, earlier)
        if key not in self._stacks:
            self._alive += earlier
            serving = [each for each in earlier if Version(release) in each.releases]
            self._stacks[key] = self.texts.lay(serving, release, self.syntax)
        return self._stacks[key].tree.current(path)

    def _series(
        self, feature: Feature, topic: Topic, release: str, data: bytes | None
    ) -> bytes | None:
        """A text with the topics of a feature that come before one."""
        for before in feature.topics:
            if before.name == topic.name:
                break
            data = self._apply(before, release, topic.variants[0].patch.path, data)
        return data

    def _apply(self, topic: Topic, release: str, path: str, data: bytes | None) -> bytes | None:
        for variant in topic.variants:
            patch = variant.patch
            if patch.path == path and Version(release) in variant.releases and not patch.retired:
                return attempt(patch, data, self._answers).after or data
        return data

    def _nearest(self, variant: Variant, release: str) -> str:
        """The release of a variant's range that is nearest to another one."""
        inside = [name for name in self.texts.names if Version(name) in variant.releases]
        if not inside:
            return str(variant.releases.last)
        return inside[-1] if Version(release) > variant.releases.last else inside[0]

    def _distance(self, variant: Variant, release: str) -> tuple[int, int]:
        """How far a variant is from a release; of two as far, the older one first."""
        names = self.texts.names
        near = self._nearest(variant, release)
        steps = abs(_place(names, near) - _place(names, release))
        return steps, _place(names, near)


def not_needed(feature: Feature, release: Version) -> bool:
    """Whether a person said that a release needs no hunk of a topic; it has it not for that."""
    nearest = [by_distance(topic.variants, release)[0].patch for topic in feature.topics]
    return not remembers(feature, release) and any(
        patch.ported is PortedWay.NOT_NEEDED for patch in nearest
    )


def _place(names: Sequence[str], release: str) -> int:
    version = Version(release)
    return sum(Version(name) < version for name in names)


def _rank(port: TopicPort) -> tuple[bool, bool, bool]:
    exact, conflicts = port.outcome is Outcome.EXACT, port.conflicts
    return not exact, conflicts, port.review and not conflicts
