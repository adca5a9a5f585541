"""``overlay show``: one feature on one screen: what it does, and the fault that it mends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from overlay._features.model import Fault, Feature
from overlay.commands.list_ import REASONS, retires
from overlay.commands.request import Request
from overlay.errors import UsageError
from overlay.package import VLLM
from overlay.report.base import Report, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, labelled
from overlay.report.words import count, enumeration


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
