"""What needs action in a target: why, and what to do, each cause told once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from overlay.report.model import TargetReport
from overlay.report.words import enumeration
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State

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


def explained(state: State, reason: Reason | None, *, writable: bool) -> Reason | None:
    """The reason of a state with what to do about it; ``None`` where nothing is to be told.

    :param writable: whether the target is one that the user could edit or reinstall.
    """
    if not state.needs_attention:
        return reason
    steps = _NEXT_WRITABLE if writable else _NEXT_READ_ONLY
    text, next_step = (_WHY[state], None) if reason is None else reason
    return Reason(text, next_step or steps[state])


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
