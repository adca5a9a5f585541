"""Words for people: what needs action in a target, and the last sentence of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlay.report.model import ATTENTION, OK, TargetReport, enumeration
from overlay.results import Change, FeatureResult, FileResult, HunkResult, Reason, State

_WHY = {
    State.PARTIAL: "one part is patched, another is not",
    State.DRIFTED: "the lines that the patch expects are not there",
    State.AMBIGUOUS: "the lines that the patch expects stand there more than once",
    State.MISSING: "the file or the scope that the patch is for is not there",
}

_PORT = (
    "upgrade vllm-overlay, or give the patch a variant for this release "
    "(`overlay list -v` shows the ranges)"
)

_NEXT_WRITABLE = {
    State.PARTIAL: "run `overlay revert`, then `overlay apply`; where revert refuses, "
    "reinstall vLLM and apply again",
    State.DRIFTED: f"if somebody edited this file, reinstall vLLM; otherwise {_PORT}",
    State.AMBIGUOUS: "if somebody edited this file, reinstall vLLM; otherwise give the hunk more "
    "context lines, so that it stands once in its scope",
    State.MISSING: f"if the installation is incomplete, reinstall vLLM; otherwise {_PORT}",
}

_NEXT_READ_ONLY = {
    State.PARTIAL: f"this release has a part of the change: {_PORT}",
    State.DRIFTED: _PORT,
    State.AMBIGUOUS: "give the hunk more context lines, so that it stands once in its scope",
    State.MISSING: _PORT,
}


@dataclass(frozen=True)
class Problem:
    """One thing that needs the user.

    :ivar path: the file, or ``None`` where the feature as a whole is meant.
    :ivar scope: the scope of the hunk, or ``None`` where the file as a whole is meant.
    :ivar patch: the patch that it stops; several, with commas, where a whole file is meant.
    :ivar candidates: 1-based lines where the hunk could land, where there are several.
    :ivar reason: why, and always what to do.
    """

    feature: str
    state: State
    path: str | None
    scope: str | None
    patch: str | None
    reason: Reason
    candidates: tuple[int, ...]


def problems(target: TargetReport) -> tuple[Problem, ...]:
    """Everything in a target that needs the user, the worst feature first."""
    steps = _NEXT_READ_ONLY if target.root is None else _NEXT_WRITABLE
    ordered = sorted(target.features, key=lambda feature: -feature.state.rank)
    return tuple(problem for feature in ordered for problem in _merged(_of_feature(feature, steps)))


def _merged(found: Iterable[Problem]) -> Iterable[Problem]:
    """What is wrong with a whole file, said once with every patch that it stops."""
    merged: dict[Problem, list[str]] = {}
    for problem in found:
        patches = merged.setdefault(replace(problem, patch=None), [])
        patches += [problem.patch] if problem.patch is not None else []
    return [
        replace(problem, patch=", ".join(dict.fromkeys(patches)) or None)
        for problem, patches in merged.items()
    ]


def _of_feature(feature: FeatureResult, steps: dict[State, str]) -> Iterator[Problem]:
    if not feature.state.needs_attention:
        return
    parts = [file for file in feature.files if file.state.needs_attention]
    for file in parts:
        yield from _of_file(feature.feature, file, steps)
    # A feature can need the user although none of its files does by itself: some files are
    # patched and others not, or two features are in each other's way.
    if not parts:
        reason = feature.reason or Reason(_mixture(feature))
        yield _problem(feature.feature, feature.state, reason, steps)


def _of_file(feature: str, file: FileResult, steps: dict[State, str]) -> Iterator[Problem]:
    hunks = [hunk for hunk in file.hunks if hunk.state.needs_attention]
    for hunk in hunks:
        # What is wrong with the whole file is said once, not once for each of its hunks.
        if hunk.reason is not None and hunk.reason == file.reason:
            continue
        reason = hunk.reason or Reason(_WHY[hunk.state])
        yield _problem(feature, hunk.state, reason, steps, file, hunk)
    if not hunks or file.reason is not None:
        reason = file.reason or Reason(_WHY[file.state])
        yield _problem(feature, file.state, reason, steps, file)


def _problem(
    feature: str,
    state: State,
    reason: Reason,
    steps: dict[State, str],
    file: FileResult | None = None,
    hunk: HunkResult | None = None,
) -> Problem:
    return Problem(
        feature,
        state,
        file.path if file else None,
        hunk.scope if hunk else None,
        file.patch if file else None,
        Reason(reason.text, reason.next_step or steps[state]),
        hunk.candidates if hunk else (),
    )


def _mixture(feature: FeatureResult) -> str:
    by_state: dict[State, dict[str, None]] = {}
    for file in feature.files:
        by_state.setdefault(file.state, {})[file.path] = None
    if len(by_state) < 2:
        return _WHY[feature.state]
    return "; ".join(
        f"{state.value}: {enumeration(list(paths))}" for state, paths in by_state.items()
    )


Verdict = tuple[int, str]


def vllm(target: TargetReport) -> str:
    """What to call a target in a sentence."""
    return f"vLLM {target.vllm}" if target.vllm else f"the vLLM in {target.target}"


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def named(features: Iterable[FeatureResult]) -> str:
    """The ids of features as a list in a sentence."""
    return enumeration([feature.feature for feature in features])


def are(features: Sequence[FeatureResult]) -> str:
    """``is`` or ``are``."""
    return "is" if len(features) == 1 else "are"


def those(target: TargetReport, *states: State) -> list[FeatureResult]:
    """The features of a target that are in one of these states."""
    return [feature for feature in target.features if feature.state in states]


def attention(target: TargetReport) -> str | None:
    """What needs the user: features in their states, and an interruption; or ``None``."""
    bad = [feature for feature in target.features if feature.state.needs_attention]
    said = [f"{feature.feature} is {feature.state.value}" for feature in bad]
    if target.interrupted:
        said.insert(0, "an apply or revert was interrupted")
    return enumeration(said) if said else None


def was_interrupted(action: str, root: Path) -> str:
    """The notice of a transaction that was interrupted, with the commands that end it.

    :param action: ``apply`` or ``revert``.
    """
    return (
        f"an interrupted {action} waits to be ended in {root}, and its files are judged as they "
        "are now: `overlay apply` or `overlay revert` finishes or undoes it first"
    )


def nothing_to_patch(target: TargetReport) -> str:
    """Why there is nothing to patch in a target whose features are all out of the question."""
    reasons = []
    if upstreamed := those(target, State.UPSTREAMED):
        reasons.append(f"it has {named(upstreamed)} already")
    if outside := those(target, State.INAPPLICABLE):
        reasons.append(f"{named(outside)} {are(outside)} not made for it")
    return " and ".join(reasons) or "there are no features"


def checked(targets: Sequence[TargetReport]) -> Verdict:
    """The verdict of ``check``."""
    if len(targets) == 1:
        return _checked_one(targets[0])
    bad = [one.target for one in targets if one.state.needs_attention or one.interrupted]
    if bad:
        verb = "needs" if len(bad) == 1 else "need"
        return ATTENTION, f"{len(bad)} of {len(targets)} targets {verb} you: {enumeration(bad)}."
    tally = Counter(target.state.value for target in targets)
    states = enumeration([f"{number} {state}" for state, number in tally.items()])
    return OK, f"None of the {len(targets)} targets needs you: {states}."


def _checked_one(target: TargetReport) -> Verdict:
    if bad := attention(target):
        return ATTENTION, f"{vllm(target)} needs you: {bad}."
    fits = those(target, State.PRISTINE)
    if untested := [feature for feature in fits if feature.untested]:
        return OK, (
            f"{named(untested)} would fit {vllm(target)}, but nobody tested it there: "
            "apply wants --untested."
        )
    if fits:
        return OK, f"Nothing needs you: {named(fits)} can be applied to {vllm(target)}."
    if applied := those(target, State.APPLIED):
        return OK, f"Nothing needs you: {named(applied)} {are(applied)} applied to {vllm(target)}."
    return OK, f"Nothing to patch in {vllm(target)}: {nothing_to_patch(target)}."


def stands(target: TargetReport) -> Verdict:
    """The verdict of ``status``."""
    if bad := attention(target):
        return ATTENTION, f"{vllm(target)} needs you: {bad}."
    applied = those(target, State.APPLIED)
    waiting = those(target, State.PRISTINE)
    if applied:
        rest = f"; {named(waiting)} {are(waiting)} not" if waiting else ""
        return OK, f"{named(applied)} {are(applied)} applied to {vllm(target)}{rest}."
    if waiting:
        return OK, (
            f"Nothing is applied to {vllm(target)}: `overlay apply` would apply {named(waiting)}."
        )
    return OK, f"Nothing is applied to {vllm(target)}: {nothing_to_patch(target)}."


def not_applied(target: TargetReport) -> str:
    """The verdict of an ``apply`` that something stands in the way of."""
    return f"Nothing was written to {vllm(target)}: {attention(target)}."


def untested_refused(target: TargetReport, features: Sequence[FeatureResult]) -> str:
    """The verdict of an ``apply`` to a release that nobody tested the patches on."""
    return (
        f"Nothing was written: nobody tested {named(features)} on {vllm(target)}; "
        "`overlay apply --untested` applies what matches all the same."
    )


def would_apply(target: TargetReport, changes: Sequence[Change]) -> str:
    """The verdict of ``apply --dry-run``."""
    waiting = those(target, State.PRISTINE, State.PARTIAL)
    if not waiting:
        return f"Nothing was written, and nothing would be{_settled(target)}."
    added = sum(change.before is None for change in changes)
    return (
        f"Nothing was written: apply would put {named(waiting)} into {vllm(target)}, "
        f"{count(len(changes) - added, 'file')} patched and {added} added in all."
    )


def applied(target: TargetReport, changed: int, *, wrote: bool) -> str:
    """The verdict of an ``apply`` that went through.

    :param changed: files of vLLM that were written or removed.
    """
    if not wrote:
        return f"Nothing to do{_settled(target)}."
    standing = those(target, State.APPLIED)
    if not standing:
        return f"The overlay has left {vllm(target)}: {nothing_to_patch(target)}."
    written = f", {count(changed, 'file')} written" if changed else ""
    return f"Applied {named(standing)} to {vllm(target)}{written}."


def reverted(target: TargetReport, restored: int, removed: int, *, wrote: bool) -> Verdict:
    """The verdict of a ``revert`` that went through.

    :param restored: files that have their own bytes again; :param removed: files taken away.
    """
    if not wrote:
        return OK, f"Nothing to revert: the overlay has changed nothing in {vllm(target)}."
    what = f"took {named(target.features)} out, " if target.features else ""
    files = f"{count(restored, 'file')} restored and {removed} removed"
    return OK, f"Reverted {vllm(target)}: {what}{files}."


def differs(target: TargetReport, files: int) -> Verdict:
    """The verdict of ``diff``."""
    if bad := attention(target):
        return ATTENTION, f"There is no diff for {vllm(target)}: {bad}."
    if not files:
        return OK, f"The diff is empty for {vllm(target)}: {nothing_to_patch(target)}."
    fits = those(target, State.PRISTINE)
    return OK, f"The diff puts {named(fits)} into {vllm(target)}, {count(files, 'file')} in all."


def unanswered(errors: int, targets: int) -> str:
    """The verdict of a ``check`` of which some targets could not be read."""
    if targets == 1:
        return "overlay check stopped: see the error."
    return f"{errors} of {targets} targets could not be checked: see the errors."


def _settled(target: TargetReport) -> str:
    """Why there is nothing to do in a target; the end of a sentence."""
    if standing := those(target, State.APPLIED):
        return f": {named(standing)} {are(standing)} applied to {vllm(target)} already"
    return f" in {vllm(target)}: {nothing_to_patch(target)}"


def listed(holes: Sequence[tuple[str, str]], features: int) -> Verdict:
    """The verdict of ``list``.

    :param holes: feature and topic of each topic that has holes.
    """
    if holes:
        names = enumeration([f"{topic} of {feature}" for feature, topic in holes])
        return ATTENTION, f"{count(len(holes), 'topic')} with holes: {names}."
    if not features:
        return OK, "There are no features."
    return OK, f"{count(features, 'feature')}, no holes."
