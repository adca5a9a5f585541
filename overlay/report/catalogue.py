"""The report of ``list``: features, and releases of the package index; for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from overlay.package import VLLM
from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, labelled
from overlay.report.words import count, enumeration
from overlay.results.invocation import command

#: Why a feature is kept as a patch, in words.
_REASONS = {
    "waiting": "waiting for upstream to take it",
    "local": "local: for this site alone",
    "never": "never: upstream will not take it",
}


class TopicEntry(NamedTuple):
    """A topic as ``list`` shows it.

    :ivar variants: the closed ranges that it has a variant for, oldest first.
    :ivar holes: known releases inside the feature's range that no variant covers.
    """

    name: str
    variants: tuple[str, ...]
    holes: tuple[str, ...] = ()


class FeatureEntry(NamedTuple):
    """A feature as ``list`` shows it.

    :ivar upstream: the upstream change it goes back to; empty where there is none.
    :ivar retires: how a release is recognised that has the feature itself, one sentence each.
    :ivar added: the modules that it adds to its package.
    :ivar reason: why it is kept as a patch (``waiting``, ``local`` or ``never``), if it says so.
    :ivar warnings: what the user should know about its folder.
    :ivar needs: what else must hold for it to have an effect, in words.
    :ivar package: the import name of the package that it patches.
    :ivar malformed: whether its files cannot be used, as the warnings say; nothing else is known.
    """

    feature: str
    title: str
    why: str
    releases: str
    upstream: str
    retires: tuple[str, ...]
    topics: tuple[TopicEntry, ...]
    added: tuple[str, ...]
    origin: str
    digest: str
    needs: tuple[str, ...] = ()
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    package: str = "vllm"
    malformed: bool = False


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

    :ivar releases: those of the package index, oldest first; ``None`` where nobody asked.
    """

    _command: ClassVar[str] = "list"
    features: tuple[FeatureEntry, ...]
    releases: tuple[ReleaseEntry, ...] | None = None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The features, and then the releases."""
        for entry in self.features:
            yield from _feature(entry, verbose)
        yield from _releases(self.releases or (), verbose)

    def own_data(self) -> dict[str, Any]:
        """The features under ``features``; the releases, if they were asked for."""
        data: dict[str, Any] = {"features": [_feature_data(entry) for entry in self.features]}
        if self.releases is not None:
            data["releases"] = [entry._asdict() for entry in self.releases]
        return data


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
            f"{text[:-1]}; {enumeration(unknown)} {'is' if len(unknown) == 1 else 'are'} newer "
            f"than this overlay: {command('check', '--releases', 'new')} says what fits."
        )
    return Verdict(Code.LISTED, text)


def _feature(entry: FeatureEntry, verbose: bool) -> Iterator[Line]:
    yield Line(
        (Span(entry.feature, "heading"), Span("  "), Span(entry.releases), Span("  ")),
        (Span(entry.title, "muted"),),
    )
    if entry.malformed:
        for warning in entry.warnings:
            yield labelled(2, f"{MARK} malformed: ", warning, "missing")
        yield BLANK
        return
    if verbose:
        # Its lines are those of feature.toml; they wrap where the terminal ends.
        yield labelled(2, "why:      ", " ".join(entry.why.split()))
        for need in entry.needs:
            yield labelled(2, "needs:    ", need)
    upstream = entry.upstream or "none named"
    reason = f"  ({_REASONS[entry.reason]})" if entry.reason in _REASONS else ""
    yield labelled(2, "upstream: ", f"{upstream}{reason}")
    for number, sentence in enumerate(entry.retires):
        yield labelled(2, "     and: " if number else "retires:  ", sentence)
    yield from _topics(entry)
    if verbose:
        for path in entry.added:
            yield labelled(2, "adds:     ", path)
        yield labelled(2, "from:     ", entry.origin)
        yield labelled(2, "digest:   ", entry.digest)
    for warning in entry.warnings:
        yield labelled(2, "warning: ", warning, "warning")
    yield BLANK


def _topics(entry: FeatureEntry) -> Iterator[Line]:
    width = max((len(topic.name) for topic in entry.topics), default=0)
    for topic in entry.topics:
        variants = " ".join(topic.variants) or "no variant"
        yield Line((Span(f"  {topic.name:<{width}}  "),), (Span(variants, "muted"),))
        if topic.holes:
            text = (
                f"{topic.name} has no variant for {enumeration(topic.holes, most=20)}; "
                "give it one, or narrow the releases in the feature's feature.toml"
            )
            yield labelled(2, f"{MARK} hole:   ", text, "missing")


def _releases(entries: tuple[ReleaseEntry, ...], verbose: bool) -> Iterator[Line]:
    """The releases of the index: new and withdrawn ones; all of them where ``verbose``."""
    known = [entry.release for entry in entries if entry.known and not entry.yanked]
    if known:
        span = f"{known[0]}..{known[-1]}, {count(len(known), 'release')} that this overlay knows"
        yield labelled(0, "releases: ", enumeration(known, most=99) if verbose else span)
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


def _feature_data(entry: FeatureEntry) -> dict[str, Any]:
    topics = [
        {"topic": topic.name, "variants": list(topic.variants), "holes": list(topic.holes)}
        for topic in entry.topics
    ]
    return {
        "feature": entry.feature,
        "title": entry.title,
        "why": entry.why,
        "releases": entry.releases,
        "upstream": entry.upstream,
        "retires": list(entry.retires),
        "topics": topics,
        "needs": list(entry.needs),
        "added": list(entry.added),
        "origin": entry.origin,
        "digest": entry.digest,
        "reason": entry.reason,
        "warnings": list(entry.warnings),
        **({} if entry.package == VLLM.name else {"package": entry.package}),
    }
