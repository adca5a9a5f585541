"""What needs action in a target: why, and what to do, each cause told once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlay.package import package_named
from overlay.planning.advice import another_variant
from overlay.report.lines import enumeration
from overlay.report.model import TargetReport
from overlay.results import Clash, FeatureResult, FileResult, Reason, State, Unusable

_WHY = {
    State.PARTIAL: "one part is patched, another is not",
    State.DRIFTED: "the lines that the patch expects are not there",
    State.AMBIGUOUS: "the lines that the patch expects are there more than once",
    State.MISSING: "the file or the scope that the patch is for is not there",
}


#: What features that change the same lines have.
CLASH = "clash"

#: What a feature is whose files cannot be used.
MALFORMED = "malformed"


def word(feature: FeatureResult) -> str:
    """The state of a feature in a word: a clash where nothing else is wrong with it."""
    if isinstance(feature.reason, Unusable):
        return MALFORMED
    reasons = [
        reason
        for file in feature.files
        if file.state.needs_attention
        for reason in (
            [hunk.reason for hunk in file.hunks if hunk.state.needs_attention] or [file.reason]
        )
    ]
    clash = bool(reasons) and all(isinstance(reason, Clash) for reason in reasons)
    return CLASH if clash else feature.state.value


class ProblemPlace(NamedTuple):
    """The place of a problem.

    :ivar scope: the scope of the hunk, or ``None`` where the file as a whole is meant.
    :ivar patch: the patch that it stops; ``None`` for an added module.
    :ivar candidates: 1-based lines where the hunk could land, where there are several.
    """

    path: str
    scope: str | None = None
    patch: str | None = None
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One cause that needs the user, told once for all the places that have it.

    :ivar features: ids of the features that it stops.
    :ivar reason: why, and always what to do.
    :ivar places: empty where the features as a whole are meant.
    """

    features: tuple[str, ...]
    state: State
    reason: Reason
    places: tuple[ProblemPlace, ...] = ()

    @property
    def word(self) -> str:
        """What it is called: its state, but for a clash, which is one of features, not of lines."""
        if isinstance(self.reason, Unusable):
            return MALFORMED
        return CLASH if isinstance(self.reason, Clash) else self.state.value

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that have it, each once."""
        return tuple(dict.fromkeys(place.path for place in self.places))

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches that it stops, each once."""
        return tuple(dict.fromkeys(place.patch for place in self.places if place.patch))


def explained(state: State, reason: Reason | None, steps: Mapping[State, str]) -> Reason | None:
    """The reason of a state with what to do about it; ``None`` where there is none.

    :param steps: those of the target, as ``next_steps`` gives them.
    """
    return _with_step(state, reason, steps) if state.needs_attention else reason


def _with_step(state: State, reason: Reason | None, steps: Mapping[State, str]) -> Reason:
    explanation = reason or Reason(_WHY[state])
    return explanation._replace(next_step=explanation.next_step or steps[state])


def problems(target: TargetReport) -> tuple[Problem, ...]:
    """Everything in a target that needs the user: each cause once, the worst feature's first."""
    steps = next_steps(target)
    ordered = sorted(target.features, key=lambda feature: -feature.state.rank)
    single = [problem for feature in ordered for problem in _of_feature(feature, steps)]
    return _merged(_own(single, target))


def next_steps(target: TargetReport) -> Mapping[State, str]:
    """What to do about each state of a feature in a target; names the package to reinstall.

    A target without a root is none that the user could edit or reinstall.
    """
    port = another_variant(target.command("list", "-v"))
    context = "give the hunk more context lines, so that its scope has them once"
    if target.root is None:
        return {
            State.PARTIAL: f"this release has a part of the change: {port}",
            State.DRIFTED: port,
            State.AMBIGUOUS: context,
            State.MISSING: port,
        }
    again = f"reinstall {package_named(target.package).title}"
    return {
        State.PARTIAL: f"run {target.command('revert')}, then {target.command('apply')}; where "
        f"revert refuses, {again} and apply again",
        State.DRIFTED: f"if somebody edited this file, {again}; otherwise {port}",
        State.AMBIGUOUS: f"if somebody edited this file, {again}; otherwise {context}",
        State.MISSING: f"if the installation is incomplete, {again}; otherwise {port}",
    }


def same_cause(problem: Problem) -> tuple[object, ...]:
    """What is equal of one cause on different releases, whatever its line numbers and variants."""
    places = tuple((place.path, place.scope) for place in problem.places)
    return problem.features, problem.state, problem.reason.common, places


def _own(single: Sequence[Problem], target: TargetReport) -> list[Problem]:
    """The problems without those that follow from another's.

    A feature without a patch only expects what the release has.  Where its file is a problem of
    another feature, that is the cause.
    """
    patchless = {
        feature.feature
        for feature in target.features
        if feature.files and all(file.patch is None and file.hunks for file in feature.files)
    }
    causes = {
        place.path
        for problem in single
        if not patchless.issuperset(problem.features)
        for place in problem.places
    }
    own = [
        problem
        for problem in single
        if not patchless.issuperset(problem.features) or causes.isdisjoint(problem.paths)
    ]
    return own or list(single)


def _merged(single: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems with one cause as one, with every place and every feature that has it."""
    merged: dict[tuple[State, Reason], Problem] = {}
    for problem in single:
        key = (problem.state, problem.reason)
        earlier = merged.get(key)
        merged[key] = (
            problem
            if earlier is None
            else replace(
                earlier,
                features=tuple(dict.fromkeys((*earlier.features, *problem.features))),
                places=tuple(dict.fromkeys((*earlier.places, *problem.places))),
            )
        )
    return tuple(merged.values())


def _of_feature(feature: FeatureResult, steps: Mapping[State, str]) -> Iterator[Problem]:
    if not feature.state.needs_attention:
        return
    parts = [file for file in feature.files if file.state.needs_attention]
    for file in parts:
        yield from _of_file(feature.feature, file, steps)
    # A feature can need the user although none of its files does by itself: some files are
    # patched and others not, or two features are in each other's way.
    if not parts:
        reason = feature.reason or Reason(_mixture(feature))
        reason = _with_step(feature.state, reason, steps)
        yield Problem((feature.feature,), feature.state, reason)


def _of_file(feature: str, file: FileResult, steps: Mapping[State, str]) -> Iterator[Problem]:
    hunks = [hunk for hunk in file.hunks if hunk.state.needs_attention]
    for hunk in hunks:
        # What is wrong with the whole file is said once, not once for each of its hunks.
        if hunk.reason is not None and hunk.reason == file.reason:
            continue
        place = ProblemPlace(file.path, hunk.scope, file.patch, hunk.candidates)
        yield Problem((feature,), hunk.state, _with_step(hunk.state, hunk.reason, steps), (place,))
    if not hunks or file.reason is not None:
        place = ProblemPlace(file.path, None, file.patch)
        yield Problem((feature,), file.state, _with_step(file.state, file.reason, steps), (place,))


def _mixture(feature: FeatureResult) -> str:
    by_state: dict[State, dict[str, None]] = {}
    for file in feature.files:
        by_state.setdefault(file.state, {})[file.path] = None
    if len(by_state) < 2:
        return _WHY[feature.state]
    return "; ".join(
        f"{state.value}: {enumeration(list(paths))}" for state, paths in by_state.items()
    )
