"""``overlay list``: features, their releases, and what upstream did; ``overlay show``: one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from packaging.version import Version

from overlay._features.folder import Hole, holes
from overlay._features.model import Fault, Feature, Group, Topic, UpstreamPlan, UpstreamTest
from overlay.commands.request import Request
from overlay.errors import PackageIndexError, UsageError, command
from overlay.package import VLLM, Package, package_of_distribution
from overlay.report import Report, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, count, enumeration, is_are, labelled

#: Why a feature is kept as a patch, in words.
REASONS = {
    UpstreamPlan.WAITING: "waiting for upstream to take it",
    UpstreamPlan.LOCAL: "local: for this site alone",
    UpstreamPlan.NEVER: "never: upstream will not take it",
}

_GROUPS = {
    Group.FASTER: "Faster:",
    Group.MENDED: "Mended, what a stock release does wrong:",
    None: "Others:",
}


class ReleaseEntry(NamedTuple):
    """A release as ``list --releases`` shows it.

    :ivar known: whether the shipped features are made and tested for it.
    :ivar yanked: whether the index has withdrawn it.
    :ivar prerelease: whether it is a pre-release.
    """

    release: str
    known: bool
    yanked: bool = False
    prerelease: bool = False


@dataclass(frozen=True)
class ListReport(Report):
    """The features at hand.

    :ivar holes: ids of features, each with a known release that a topic of it has no variant for.
    :ivar releases: those of the package index, oldest first; ``None`` where nobody asked.
    """

    _command: ClassVar[str] = "list"
    features: tuple[Feature, ...]
    holes: tuple[tuple[str, Hole], ...] = ()
    releases: tuple[ReleaseEntry, ...] | None = None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The features by what they are good for, and then the releases."""
        groups = [*Group, None]
        for group in groups:
            features = [feature for feature in self.features if feature.group is group]
            if features and any(feature.group for feature in self.features):
                yield Line((Span(_GROUPS[group], "heading"),))
                yield BLANK
            for feature in features:
                yield from self._feature(feature, verbose)
        yield from _releases(self.releases or (), verbose)

    def own_data(self) -> dict[str, Any]:
        """The features under ``features``; the releases, if they were asked for."""
        data: dict[str, Any] = {"features": [self._data(feature) for feature in self.features]}
        if self.releases is not None:
            data["releases"] = plain(self.releases)
        return data

    def _holes(self, feature: Feature, topic: Topic) -> list[str]:
        """The releases for which a topic has no variant."""
        return [
            hole.release
            for id_, hole in self.holes
            if id_ == feature.id and hole.topic == topic.name
        ]

    def _feature(self, entry: Feature, verbose: bool) -> Iterator[Line]:
        yield Line(
            (Span(entry.id, "heading"), Span("  "), Span(_range(entry)), Span("  ")),
            (Span(entry.title, "muted"),),
        )
        if entry.malformed:
            for problem in entry.malformed:
                yield labelled(2, f"{MARK} malformed: ", problem, "missing")
            yield BLANK
            return
        if verbose:
            # Its lines are those of feature.toml; they wrap where the terminal ends.
            yield labelled(2, "why:      ", " ".join(entry.why.split()))
            for need in entry.needs:
                yield labelled(2, "needs:    ", need)
        upstream = entry.upstream or "none named"
        reason = "" if entry.reason is None else f"  ({REASONS[entry.reason]})"
        yield labelled(2, "upstream: ", f"{upstream}{reason}")
        for number, sentence in enumerate(retires(entry)):
            yield labelled(2, "     and: " if number else "retires:  ", sentence)
        yield from self._topics(entry)
        if verbose:
            for added in entry.added:
                yield labelled(2, "adds:     ", added.path)
            yield labelled(2, "from:     ", entry.origin)
            yield labelled(2, "digest:   ", entry.digest)
        for warning in _warnings(entry):
            yield labelled(2, "warning: ", warning, "warning")
        yield BLANK

    def _topics(self, entry: Feature) -> Iterator[Line]:
        width = max((len(topic.name) for topic in entry.topics), default=0)
        for topic in entry.topics:
            variants = " ".join(map(str, _variants(topic))) or "no variant"
            yield Line((Span(f"  {topic.name:<{width}}  "),), (Span(variants, "muted"),))
            if holes := self._holes(entry, topic):
                text = (
                    f"{topic.name} has no variant for {enumeration(holes, most=20)}; "
                    "give it one, or narrow the releases in the feature's feature.toml"
                )
                yield labelled(2, f"{MARK} hole:   ", text, "missing")

    def _data(self, feature: Feature) -> dict[str, Any]:
        data = {
            "feature": feature.id,
            "title": feature.title,
            "why": feature.why,
            "releases": _range(feature),
            "upstream": feature.upstream,
            "retires": () if feature.malformed else retires(feature),
            "topics": [
                {
                    "topic": topic.name,
                    "variants": _variants(topic),
                    "holes": self._holes(feature, topic),
                }
                for topic in feature.topics
            ],
            "needs": feature.needs,
            "added": [added.path for added in feature.added],
            "origin": feature.origin,
            "digest": feature.digest,
            "reason": feature.reason,
            "group": feature.group,
            "fault": feature.fault,
            "warnings": feature.malformed or tuple(_warnings(feature)),
        }
        if feature.package != VLLM:
            data["package"] = feature.package.name
        return dict(plain(data))


def list_(
    request: Request, *, releases: bool = False, pre: bool = False, package: str | None = None
) -> ListReport:
    """Describe every feature, and the releases of the package index; a hole needs the user.

    :param releases: ask the index for its releases; :param pre: for pre-releases as well.
    :param package: show the features of this package only, and its releases; default: every
        feature, and the releases of vLLM.
    :raises UsageError: if that cannot be a package.
    :raises PatchFormatErrors: if nothing in a folder of patches is a feature.
    :raises PackageIndexError: if the index is asked and does not answer.
    """
    index_package = VLLM if package is None else _package(package)
    offered = _offered(pre, index_package) if releases else None

    features = tuple(
        feature
        for feature in request.at_hand()
        if package is None or feature.package == index_package or feature.malformed
    )
    missing = tuple((feature.id, hole) for feature in features for hole in holes(feature))
    gaps = [*dict.fromkeys((id_, hole.topic) for id_, hole in missing)]
    unknown = [entry.release for entry in offered or () if not entry.known and not entry.yanked]
    malformed = [feature.id for feature in features if feature.malformed]
    verdict = listed(gaps, len(features), unknown, malformed)
    return ListReport(verdict, features, missing, offered)


def _package(name: str) -> Package:
    """The package with an import name, or with that of its distribution.

    :raises UsageError: if the text is neither.
    """
    package = package_of_distribution(name)
    if package is None:
        raise UsageError(
            f"--package {name}: expected the name of a package that features patch, such as "
            "vllm-ascend"
        )
    return package


def _offered(pre: bool, package: Package) -> tuple[ReleaseEntry, ...]:
    """The releases on the index from the oldest known one on, oldest first."""
    from overlay.targets.fetch import offered_releases

    releases = package.releases
    try:
        offered = offered_releases(package, pre=pre)
    except PackageIndexError as error:
        if not releases:
            raise
        oldest, newest = releases[0], releases[-1]
        raise PackageIndexError(
            f"{error}. Without the index only the releases are known that this overlay was made "
            f"for: {oldest}..{newest}"
        ) from error
    return tuple(
        ReleaseEntry(
            str(entry.version),
            str(entry.version) in releases,
            entry.yanked,
            entry.version.is_prerelease,
        )
        for entry in offered
        if not releases or entry.version >= Version(releases[0])
    )


def _range(feature: Feature) -> str:
    """The releases that a feature is for; of a malformed one nothing is known."""
    return "" if feature.malformed else str(feature.releases)


def _variants(topic: Topic) -> list[str]:
    """The closed ranges that a topic has a variant for, oldest first."""
    return [str(variant.releases) for variant in topic.variants]


def retires(feature: Feature) -> tuple[str, ...]:
    """What shows that a release has a feature itself, in words; all of them must hold.

    The last sentence also names the files without which there is nothing to do.
    """
    whole = tuple(_has_it(feature)) or (
        "once a release has all of its changes itself, told by their lines",
    )
    of_topics = (
        f"{topic.name} {sentence}"
        for topic in feature.topics
        for sentence in _tested(topic.upstream_tests)
    )
    *first, last = (*of_topics, *whole)
    if feature.obsolete_without:
        last += f"; or where a release has no {' or no '.join(feature.obsolete_without)} any more"
    return (*first, last)


def _has_it(feature: Feature) -> Iterator[str]:
    """What shows that a release has a feature itself, by its memory and its tests."""
    if feature.merged is not None:
        yield f"from {feature.merged} on, where upstream merged it" + (
            "; where the release is not known, by the tests in its feature.toml"
            if feature.upstream_tests
            else ""
        )
        return
    yield from _tested(feature.upstream_tests)


def _tested(tests: Sequence[UpstreamTest]) -> Iterator[str]:
    """What tests look for, in words."""
    for test in tests:
        if test.contains:
            yield f"once a release has {test.contains.strip()!r} in {test.scope} of {test.path}"
    lined = [test for test in tests if test.lines]
    if lined:
        number = sum(len(test.lines) for test in lined)
        share = min(test.share for test in lined)  # as it is judged: of the lines of all scopes
        lines = "new line" if number == 1 else f"{number} new lines"
        scopes = ", ".join(dict.fromkeys(test.scope for test in lined))
        every = "its" if number == 1 else "all of its"
        share_note = f" (from {share:.0%} of them on you are asked)" if share < 1 < number else ""
        yield f"once a release has {every} {lines} in {scopes}{share_note}"


def _warnings(feature: Feature) -> Iterator[str]:
    """What the user should know about a feature's folder."""
    if feature.reason is UpstreamPlan.WAITING and not feature.upstream:
        yield (
            "it waits for upstream, and no upstream URL says for what: add upstream to its "
            "feature.toml, or give it the reason local"
        )
    yield from (str(notice) for notice in feature.notices)


def listed(
    holes: Sequence[tuple[str, str]],
    features: int,
    unknown: Sequence[str] = (),
    malformed: Sequence[str] = (),
) -> Verdict:
    """The verdict of ``list``.

    :param holes: feature and topic of each topic that has holes.
    :param unknown: releases of the index that this overlay does not know.
    :param malformed: the features whose files cannot be used.
    """
    if malformed:
        text = f"Action needed: correct the files of {enumeration(list(malformed))}."
        return Verdict(Code.NEEDS_ATTENTION, text)
    if holes:
        names = enumeration([f"{topic} of {feature}" for feature, topic in holes])
        return Verdict(Code.HOLES, f"{count(len(holes), 'topic')} with holes: {names}.")
    if not features:
        return Verdict(Code.LISTED, "There are no features.")
    text = f"{count(features, 'feature')}, no holes."
    if unknown:
        text = (
            f"{text[:-1]}; {enumeration(unknown)} {is_are(unknown)} newer "
            f"than this overlay: {command('check', '--releases', 'new')} says what fits."
        )
    return Verdict(Code.LISTED, text)


def _releases(entries: tuple[ReleaseEntry, ...], verbose: bool) -> Iterator[Line]:
    """The releases of the index: new and withdrawn ones; all of them where ``verbose``."""
    names = [entry.release for entry in entries if entry.known and not entry.yanked]
    if names:
        span = f"{names[0]}..{names[-1]}, {count(len(names), 'release')} that this overlay knows"
        yield labelled(0, "releases: ", enumeration(names, most=99) if verbose else span)
    for entry in entries:
        if entry.known and not entry.yanked:
            continue
        notes = [] if entry.known else ["new: not tested with this overlay"]
        notes += ["a pre-release"] if entry.prerelease else []
        notes += ["yanked from the index"] if entry.yanked else []
        style = "warning" if entry.yanked else "heading"
        yield Line((Span(f"  {entry.release:<10}", style),), (Span("; ".join(notes)),))
    if entries:
        yield BLANK


@dataclass(frozen=True)
class ShowReport(Report):
    """One feature, as its folder describes it."""

    _command: ClassVar[str] = "show"
    _key: ClassVar[str | None] = "shown_feature"
    feature: Feature

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """Title, fault, reason, releases, evidence and switches; all changed files if verbose."""
        feature = self.feature
        yield Line((Span(feature.id, "heading"), Span("  "), Span(feature.title)))
        if feature.fault is not None:
            yield from _fault(feature.fault)
        yield labelled(2, "why:      ", " ".join(feature.why.split()))
        yield labelled(2, "releases: ", f"{feature.releases} of {feature.package.title}")
        for need in feature.needs:
            yield labelled(2, "needs:    ", need)
        for switch in feature.switches:
            values = "|".join(switch.values) or "TEXT"
            text = f"{switch.name}={values} (default: {switch.default}): {switch.text}"
            yield labelled(2, "switch:   ", text)
        reason = "" if feature.reason is None else f"  ({REASONS[feature.reason]})"
        yield labelled(2, "upstream: ", f"{feature.upstream or 'none named'}{reason}")
        for sentence in retires(feature):
            yield labelled(2, "retires:  ", sentence)
        changes = enumeration(sorted(feature.patched_paths), most=99 if verbose else 4) or "no file"
        added = count(len(feature.added), "module")
        yield labelled(2, "changes:  ", f"{changes}; adds {added}")
        yield labelled(2, "from:     ", feature.origin)

    def own_data(self) -> dict[str, Any]:
        """The same as ``list`` has of a feature, with its switches, under ``shown_feature``."""
        feature = self.feature
        data = {
            "feature": feature.id,
            "title": feature.title,
            "why": feature.why,
            "group": feature.group,
            "fault": feature.fault,
            "releases": str(feature.releases),
            "needs": feature.needs,
            "switches": feature.switches,
            "upstream": feature.upstream,
            "reason": feature.reason,
            "retires": retires(feature),
            "changes": sorted(feature.patched_paths),
            "added": [added.path for added in feature.added],
            "origin": feature.origin,
        }
        if feature.package != VLLM:
            data["package"] = feature.package.name
        return {"shown_feature": plain(data)}


def _fault(fault: Fault) -> Iterator[Line]:
    """The lines about what is wrong without a feature."""
    yield labelled(2, "fault:    ", fault.symptom)
    yield labelled(2, "affects:  ", fault.affects)
    if fault.reports:
        yield labelled(2, "reports:  ", ", ".join(fault.reports))
    yield labelled(2, "evidence: ", fault.evidence)
    if fault.page:
        yield labelled(2, "page:     ", fault.page)


def show(request: Request, name: str) -> ShowReport:
    """Describe one feature, a shipped one or one of the folders that are named.

    :raises UsageError: if there is none of that id, or its files cannot be used.
    :raises PatchFormatErrors: if nothing in a folder of patches is a feature.
    """
    request = request.of_ids((name,))
    (feature,) = request.select(request.at_hand())
    if feature.malformed:
        raise UsageError(f"{name}: its files cannot be used: {'; '.join(feature.malformed)}")
    text = f"{feature.id}: {feature.title}."
    return ShowReport(Verdict(Code.LISTED, text), feature)
