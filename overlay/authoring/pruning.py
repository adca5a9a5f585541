"""Propose what a folder of patches no longer needs, with evidence, and prove that nothing changes.

A proposal is kept only if planning the features with it and without it gives the same states and
the same bytes on every release that is still served.  That something does not apply is never a
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import pairwise

from packaging.version import Version

from overlay._features.model import Feature, Variant, paths_of
from overlay.authoring.landing import names_from
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import not_needed
from overlay.authoring.variants import patch_file, with_base_has, with_merged, with_releases
from overlay.authoring.writing import check_files, patch_bytes
from overlay.errors import PatchFormatErrors, UsageError, command
from overlay.package import ReleaseRange
from overlay.planning.attempt import Texts, attempt
from overlay.planning.planner import below
from overlay.planning.scopes import Syntax
from overlay.planning.upstream import obsolete_by
from overlay.report import by_fields
from overlay.results import Change, Plan, State

#: Path below a feature's folder -> its bytes; ``None``: the file goes.
Files = Mapping[str, bytes | None]


class Prune(Enum):
    """What a proposal does."""

    FEATURE = "remove the feature"
    MERGED = "note the merge"
    OBSOLETE = "end the range"
    VARIANTS = "remove variants"
    UNITE = "unite variants"


@dataclass(frozen=True)
class Proposal:
    """One thing that a folder of patches no longer needs.

    :ivar text: what is done; :ivar evidence: why nothing is lost by it.
    :ivar files: what changes in the feature's folder; ``None``: the whole folder goes.
    """

    feature: str
    kind: Prune
    text: str
    evidence: str
    files: Files | None

    def plain(self) -> dict[str, object]:
        """The fields of the JSON."""
        return by_fields(self, "files")


@dataclass(frozen=True)
class ServedFeature:
    """A feature with the files of its folder.

    :ivar files: path below its folder -> bytes; ``None`` for a feature of another folder, which is
        planned with the others and never changed.
    """

    feature: Feature
    files: Mapping[str, bytes] | None = None


#: Makes the proposals of one kind for a feature.
_Maker = Callable[[ServedFeature], Iterator[Proposal]]


@dataclass
class Pruner:
    """Proposes what can go while a range of releases is served.

    :param names: those that are still served, oldest first.
    """

    texts: ReleaseTexts
    names: Sequence[str]
    syntax: Syntax = field(default_factory=Syntax)
    #: Feature -> why what no release needs stays, where it does.
    holds: dict[str, str] = field(default_factory=dict)
    #: By the identity of features, which are kept beside their plan, and the release.
    _plans: dict[tuple[tuple[int, ...], str], tuple[tuple[Feature, ...], Plan]] = field(
        default_factory=dict
    )

    def propose(
        self, served: Sequence[ServedFeature], step: Callable[[], None] = lambda: None
    ) -> tuple[Proposal, ...]:
        """Everything that can go, in an order in which it can be done."""
        present = list(served)
        before = dict(self._answers(present))
        accepted: list[Proposal] = []
        for entry in served:
            if entry.files is None:
                continue
            makers = (self._feature, self._merged, self._obsolete, self._variants, self._unite)
            for make in makers:
                while (
                    proposal := self._first(make, entry.feature.id, present, before)
                ) is not None:
                    accepted.append(proposal)
                    present = _after(present, proposal)
            step()
        return tuple(accepted)

    def _first(
        self,
        make: _Maker,
        id_: str,
        present: Sequence[ServedFeature],
        before: Mapping[str, _Answer],
    ) -> Proposal | None:
        """The first proposal of a kind under which nothing changes."""
        entry = next((each for each in present if each.feature.id == id_), None)
        if entry is None:
            return None
        try:
            for proposal in make(entry):
                try:
                    after = _after(present, proposal)
                except PatchFormatErrors:
                    continue  # it would leave a hole
                healed = id_ if proposal.kind is Prune.MERGED else None
                if all(before[name].kept_by(then, healed) for name, then in self._answers(after)):
                    return proposal
        except UsageError as error:  # its feature.toml has no line of its own for that
            self.holds[id_] = str(error)
        return None

    # What is compared

    def _answers(self, present: Sequence[ServedFeature]) -> Iterator[tuple[str, _Answer]]:
        """What features do on each release, one after the other."""
        groups = groups_of([entry.feature for entry in present])
        for name in self.names:
            yield name, self._answer(groups, name)

    def _answer(self, groups: Sequence[tuple[Feature, ...]], release: str) -> _Answer:
        """What groups of features do that have no file in common: each group is planned alone."""
        features = [feature for group in groups for feature in group]
        joint = [self._plan_once(group, release) for group in groups]
        alone = {feature.id: self._plan_once((feature,), release) for feature in features}
        return _Answer(
            {result.feature: result.state for each in joint for result in each.features},
            frozenset(change for each in joint for change in each.changes),
            {id_: (each.features[0].state, each.changes) for id_, each in alone.items()},
            frozenset(each.id for each in features if self._why_obsolete(each, release)),
        )

    def _plan_once(self, features: tuple[Feature, ...], release: str) -> Plan:
        """A plan, made once: a proposal changes one feature of a hundred."""
        key = tuple(map(id, features)), release
        if key not in self._plans:
            self._plans[key] = features, self.texts.plan(features, release, self.syntax)
        return self._plans[key][1]

    def _why_obsolete(self, feature: Feature, release: str) -> str | None:
        """What a release has no more that a feature is for; ``None`` where it is there.

        A release below the feature's range may not have it yet.
        """
        if below(Version(release), feature.releases):
            return None
        read, record = partial(self.texts.read, release), self.texts.record(release)
        return obsolete_by(feature, Version(release), read, record)

    def _takes_a_part(self, feature: Feature, release: str) -> bool:
        """Whether a release would take a feature, a file of it or a hunk, or lies before it."""
        (result,) = self._plan_once((feature,), release).features
        states = [hunk.state for file in result.files for hunk in file.hunks]
        states += [result.state, *(file.state for file in result.files)]
        return State.PRISTINE in states or result.state is State.INAPPLICABLE

    def _not_needing(self, feature: Feature) -> list[str]:
        """The releases of which a person said that they do not need a feature, or a part of it."""
        return [name for name in self.names if not_needed(feature, Version(name))]

    def _states(self, feature: Feature) -> dict[str, State]:
        return {name: self._plan_once((feature,), name).features[0].state for name in self.names}

    # Proposals

    def _feature(self, entry: ServedFeature) -> Iterator[Proposal]:
        """A feature that every release has, or for which none leaves anything to do."""
        feature, span = entry.feature, f"{self.names[0]}..{self.names[-1]}"
        states = self._states(feature)
        why = {name: text for name in self.names if (text := self._why_obsolete(feature, name))}
        if any(states[name] is not State.UPSTREAMED and name not in why for name in self.names):
            return
        evidence = f"upstream has it in every release of {span}"
        text = "" if set(states.values()) <= {State.UPSTREAMED} else next(iter(why.values()))
        if not text and (idle := self._not_needing(feature)):
            text = str(self._plan_once((feature,), idle[0]).features[0].reason)
        if text:
            evidence = f"no release of {span} leaves it anything to do: {text}"
        yield Proposal(feature.id, Prune.FEATURE, f"remove {feature.id}", evidence, None)

    def _obsolete(self, entry: ServedFeature) -> Iterator[Proposal]:
        """A feature for which every release from one on has nothing to do: its range ends there."""
        feature, files = entry.feature, entry.files
        serving = [name for name in self.names if self._why_obsolete(feature, name) is None]
        if files is None or not serving:
            return
        since, last = names_from(self.names, serving[-1])[1:], Version(serving[-1])
        if not since or not feature.releases.first <= last < feature.releases.last:
            return
        span = feature.releases._replace(last=last)
        clipped = clip(feature, files, span, self._rebased)
        if clipped is not None:
            files_after = {**clipped, "feature.toml": with_releases(files["feature.toml"], span)}
            evidence = f"{self._why_obsolete(feature, since[0])}, from {since[0]} up to {since[-1]}"
            yield Proposal(
                feature.id, Prune.OBSOLETE, f"end its range at {last}", evidence, files_after
            )

    def _merged(self, entry: ServedFeature) -> Iterator[Proposal]:
        """A feature that every release from one on has: it is remembered, and its range ends.

        Once upstreamed, upstreamed in every later release, whatever became of its lines there; but
        where it would be applied again, upstream took it back.
        """
        feature, files = entry.feature, entry.files
        if feature.merged is not None or files is None:
            return
        states = self._states(feature)
        idle = self._not_needing(feature)
        has = [n for n in self.names if states[n] is State.UPSTREAMED and n not in idle]
        again = [name for name in self.names if self._takes_a_part(feature, name)]
        since = next(
            (name for name in has if not any(Version(name) < Version(each) for each in again)), None
        )
        before = [name for name in self.names if since is None or Version(name) < Version(since)]
        if since is None or not before:
            return
        evidence = f"{since} and every later release up to {self.names[-1]} has it"
        if has != list(names_from(self.names, since)):
            evidence = f"{since} has it, and no later release up to {self.names[-1]} would take it"
        noted = with_merged(files["feature.toml"], since)
        text = f'note merged = "{since}"'
        last = min(feature.releases.last, Version(before[-1]))
        if last < feature.releases.last and last >= feature.releases.first:
            span = feature.releases._replace(last=last)
            clipped = clip(feature, files, span, self._rebased)
            if clipped is not None:
                files_after = {**clipped, "feature.toml": with_releases(noted, span)}
                ends = f"{text}, and end its range at {last}"
                yield Proposal(feature.id, Prune.MERGED, ends, evidence, files_after)
        yield Proposal(feature.id, Prune.MERGED, text, evidence, {"feature.toml": noted})

    def _variants(self, entry: ServedFeature) -> Iterator[Proposal]:
        feature, files = entry.feature, entry.files
        oldest = Version(self.names[0])
        old = [
            variant
            for topic in feature.topics
            for variant in topic.variants
            if variant.releases.last < oldest
        ]
        if not old or files is None:
            return
        if feature.releases.last < oldest:
            states = self._states(feature)
            lands = [name for name, state in states.items() if state is State.PRISTINE]
            if lands or all(state.needs_attention for state in states.values()):
                step = command("port", feature.id, "--releases", (lands or self.names)[0])
                where = f"it lands on {lands[0]} untested" if lands else "no later release takes it"
                self.holds[feature.id] = (
                    f"its range, {feature.releases}, ends before {oldest}, and {where}: "
                    f"{step} carries it there; or remove its folder"
                )
            return
        span = feature.releases._replace(first=max(feature.releases.first, oldest))
        clipped = clip(feature, files, span, self._rebased)
        if clipped is None:
            self.holds[feature.id] = self._holding(feature, span)
            return
        toml = with_releases(files["feature.toml"], span)
        spans = sorted({str(variant.releases) for variant in old})
        yield Proposal(
            feature.id,
            Prune.VARIANTS,
            f"remove {len(old)} {'variant' if len(old) == 1 else 'variants'} ({', '.join(spans)}), "
            f"and begin its range at {span.first}",
            f"no release from {oldest} on uses them",
            {**clipped, "feature.toml": toml},
        )

    def _holding(self, feature: Feature, span: ReleaseRange) -> str:
        """Which variant keeps a feature from beginning with a range, and why."""
        for topic in feature.topics:
            for variant in topic.variants:
                base, part = variant.patch.headers.get("Base"), variant.releases.within(span)
                inside = variant.releases.overlaps(span) and base is not None
                lost = inside and not part.first <= Version(str(base)) <= part.last
                if lost and self._rebased(variant, part) is None:
                    return (
                        f"{patch_file(variant)} is made on {base}, and its hunks do not "
                        f"land by themselves on a release of {part}"
                    )
        return ""

    def _rebased(self, variant: Variant, span: ReleaseRange) -> bytes | None:
        """A variant's file with the first release of a range as its base; ``None`` without one.

        Where its hunks land it says the same; that every release gets the same is compared anyhow.
        """
        patch, texts = variant.patch, Texts(self.syntax)
        for name in self.names:
            before = self.texts.read(name, patch.path) if Version(name) in span else None
            if before is None or attempt(patch, before, texts).after is None:
                continue
            lines = [texts.match(hunk, before).line for hunk in patch.hunks]
            hunks = tuple(
                hunk._replace(source_line=line or hunk.source_line)
                for hunk, line in zip(patch.hunks, lines, strict=True)
            )
            headers = with_base_has({**patch.headers, "Base": name}, patch.hunks, before)
            return patch_bytes(headers, patch.path, hunks)
        return None

    def _unite(self, entry: ServedFeature) -> Iterator[Proposal]:
        """Neighbouring variants of a topic of which one can serve both ranges."""
        feature, files = entry.feature, entry.files
        if files is None:
            return
        for topic in feature.topics:
            for older, newer in pairwise(topic.variants):
                if not self._adjacent(older, newer):
                    continue
                span = older.releases._replace(last=newer.releases.last)
                for variant in (newer, older):
                    yield Proposal(
                        feature.id,
                        Prune.UNITE,
                        f"unite {topic.name} {older.releases} and {newer.releases}",
                        "both leave the same text on every release that is served",
                        {
                            patch_file(older): None,
                            patch_file(newer): None,
                            f"{topic.name}/{span}.patch": files[patch_file(variant)],
                        },
                    )

    def _adjacent(self, older: Variant, newer: Variant) -> bool:
        """Whether both are served, no known release is between them, and neither is retired."""
        if older.patch.retired or newer.patch.retired:
            return False
        for variant in (older, newer):
            inside = {name for name in self.texts.names if Version(name) in variant.releases}
            if not inside or not inside <= set(self.names):
                return False
        first, last = older.releases.last, newer.releases.first
        return not any(first < Version(name) < last for name in self.texts.names)


@dataclass(frozen=True)
class _Answer:
    """What features do on one release: all together, and each alone.

    :ivar obsolete: the ids of those that are for nothing there.
    """

    states: Mapping[str, State]
    changes: frozenset[Change]
    alone: Mapping[str, tuple[State, tuple[Change, ...]]]
    obsolete: frozenset[str]

    def kept_by(self, after: _Answer, healed: str | None = None) -> bool:
        """Whether nothing changes but that features which need nobody there are not named."""
        missing_ids = self.states.keys() - after.states.keys()
        if healed is not None and healed in after.states:
            alone, then = self.alone[healed][0], after.alone[healed][0]
            if alone.needs_attention and then is State.UPSTREAMED:  # by what is remembered
                return self._without(healed) == after._without(healed)
        return (
            all(self.states[id_] is State.UPSTREAMED or id_ in self.obsolete for id_ in missing_ids)
            and all(after.states[id_] is self.states[id_] for id_ in after.states)
            and all(after.alone[id_] == self.alone[id_] for id_ in after.alone)
            and after.changes == self.changes
        )

    def _without(self, id_: str) -> Mapping[str, tuple[State, tuple[Change, ...]]]:
        return {other: result for other, result in self.alone.items() if other != id_}


def groups_of(features: Sequence[Feature]) -> list[tuple[Feature, ...]]:
    """Features in groups of which no two have a file in common, each in the given order."""
    groups: list[tuple[set[str], list[int]]] = []
    for number, feature in enumerate(features):
        paths, members = set(paths_of([feature])), [number]
        for other in [group for group in groups if group[0] & paths]:
            groups.remove(other)
            paths |= other[0]
            members += other[1]
        groups.append((paths, members))
    return [tuple(features[at] for at in sorted(members)) for _, members in groups]


def _after(present: Sequence[ServedFeature], proposal: Proposal) -> list[ServedFeature]:
    result: list[ServedFeature] = []
    for entry in present:
        if entry.feature.id != proposal.feature:
            result.append(entry)
        elif proposal.files is not None:
            files_after = {**(entry.files or {}), **proposal.files}
            files = {path: data for path, data in files_after.items() if data is not None}
            feature = check_files(entry.feature.id, files, shared=entry.feature.shared_modules())
            result.append(ServedFeature(feature, files))
    return result


def clip(
    feature: Feature,
    files: Mapping[str, bytes],
    span: ReleaseRange,
    rebased: Callable[[Variant, ReleaseRange], bytes | None] = lambda *_: None,
) -> Files | None:
    """The patch files once no variant reaches out of a range.

    :param rebased: gives a variant's file with a base in a range, where that is possible.
    :returns: ``None`` where a variant would lose the release that its text was made on.
    """
    result: dict[str, bytes | None] = {}
    for topic in feature.topics:
        for variant in topic.variants:
            inside, part = variant.releases.overlaps(span), variant.releases.within(span)
            base = variant.patch.headers.get("Base")
            if inside and part == variant.releases:
                continue
            result[patch_file(variant)] = None
            if not inside:
                continue
            data: bytes | None = files[patch_file(variant)]
            if base is not None and not part.first <= Version(base) <= part.last:
                data = rebased(variant, part)
            if data is None:
                return None
            result[f"{topic.name}/{part}.patch"] = data
    return result
