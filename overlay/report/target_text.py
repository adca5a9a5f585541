"""Targets as lines for people to read: one by one, or several as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from overlay.errors import command
from overlay.package import is_module, package_named
from overlay.report.lines import (
    BLANK,
    MARK,
    Line,
    Span,
    aligned,
    count,
    enumeration,
    labelled,
    vllm,
)
from overlay.report.model import Obstacle, TargetReport
from overlay.report.problems import Problem, problems, same_cause, word
from overlay.results import Clash, FeatureResult, FileResult, Notice, Reason, State

#: How many files or patches of one problem are named, unless all are asked for.
_MOST_NAMES = 6


#: The most files beside modules that the text names one by one; the JSON has all of them.
_MOST_BESIDE = 200


def target_lines(targets: tuple[TargetReport, ...], *, verbose: bool = False) -> Iterator[Line]:
    """The lines of targets; several share a table and tell the problems that they share once.

    :param verbose: whether each target is shown with every file and hunk instead.
    """
    several = len({target.target for target in targets}) > 1
    if several:
        yield from _matrix(targets)
    if several and not verbose:
        yield from _shared_problems(targets)
        return
    if several:
        yield BLANK
    width = _name_width(targets)
    for target in sorted(targets, key=lambda target: -target.state.rank):
        yield from _target(target, width, verbose)
        yield BLANK


def _name_width(targets: Iterable[TargetReport]) -> int:
    names = [len(feature.feature) for target in targets for feature in target.features]
    return max(names, default=0)


def _target(target: TargetReport, width: int, verbose: bool) -> Iterator[Line]:
    place = target.target if target.root is None else str(target.root)
    place = "" if place == target.vllm else place
    title = package_named(target.package).title
    release = f"{title} {target.vllm or 'of an unknown release'}"
    yield Line(
        (
            Span(release, "heading"),
            Span("  "),
            # A state of the whole says less than its features', unless it needs somebody.
            Span(f"{_worst(target)} {MARK}  ", target.state.value)
            if target.state.needs_attention
            else Span(""),
        ),
        (Span(place, "muted"),),
    )
    if not target.features:
        yield Line((Span("  no patches applied", "muted"),))
    for feature in sorted(target.features, key=_place):
        yield Line(
            (
                Span(f"  {feature.feature:<{width}}  "),
                Span(f"{_cell(feature):<12}  ", feature.state.value),
            ),
            (Span(_summary(feature, title), "muted"),),
        )
        if verbose:
            yield from _files(feature)
    for problem in problems(target):
        yield from _problem(problem, 2, verbose=verbose)
    for obstacle in target.obstacles:
        yield from _obstacle(obstacle)
    if target.left_out and not all(
        isinstance(problem.reason, Clash) for problem in problems(target)
    ):  # a clash names its ways itself
        words = [word for name in target.left_out for word in ("--without", name)]
        step = target.command("apply", *words)
        yield labelled(2, "go on: ", f"{step} applies the others")
    if target.in_memory:
        text = (
            f"{enumeration(target.in_memory)}: the plugin adds what is not on disk to each vLLM "
            "process that starts, unless OVERLAY=disk or OVERLAY_FEATURES says otherwise"
        )
        yield labelled(2, "in memory: ", text)
    for name, why in target.early:
        yield labelled(2, "in memory: ", f"{name} is left out: {why}")
    for name, symptom in target.faults:
        yield labelled(2, "fault: ", f"{symptom} ({name} mends it: {command('show', name)})")
    if target.runner is not None and target.runner.text:
        yield labelled(2, "note: ", f"{vllm(target)} {target.runner.text}")
    for notice in target.notices:
        yield labelled(2, "warning: ", str(notice), "warning")


def _worst(target: TargetReport) -> str:
    """The state of a target in a word."""
    words = {word(feature) for feature in target.features if feature.state is target.state}
    return words.pop() if len(words) == 1 else target.state.value


def _place(feature: FeatureResult) -> tuple[bool, int]:
    """Where a feature stands in the table: the worst first, last what is not for this release."""
    nothing_to_do = feature.state in (State.UPSTREAMED, State.INAPPLICABLE)
    return nothing_to_do, -feature.state.rank


def _cell(feature: FeatureResult) -> str:
    mark = f" {MARK}" if feature.state.needs_attention else ""
    return f"{word(feature)}{mark}"


def _summary(feature: FeatureResult, title: str) -> str:
    """What a feature's state means here, in a few words.

    :param title: what messages call the package.
    """
    hunks = [hunk for file in feature.files for hunk in file.hunks]
    patched = len({file.path for file in feature.files if file.patch is not None})
    added = [file for file in feature.files if file.patch is None and not file.hunks]
    of_modules = all(is_module(file.path) for file in added)
    parts = []
    if feature.state.needs_attention:
        bad = sum(hunk.state.needs_attention for hunk in hunks)
        if bad:
            parts.append(f"{bad} of {count(len(hunks), 'hunk')}")
    elif feature.state is State.UPSTREAMED:
        return f"{title} has it already"
    elif feature.state is State.INAPPLICABLE:
        return str(feature.reason or "not made for this release")
    else:
        if hunks:
            parts.append(f"{count(len(hunks), 'hunk')} in {count(patched, 'file')}")
        elif patched:
            parts.append(count(patched, "file"))
        if added:
            parts.append(count(len(added), "added module" if of_modules else "added file"))
    is_problem = feature.state.needs_attention and not any(
        file.state.needs_attention for file in feature.files
    )  # as a problem of its own, below
    if feature.reason and not is_problem:
        parts.append(str(feature.reason))
    elif feature.untested:
        parts.append("untested on this release")
    return ", ".join(parts)


def _files(feature: FeatureResult) -> Iterator[Line]:
    if feature.reason and feature.state is State.UPSTREAMED:
        yield labelled(4, "", str(feature.reason))
    for file in feature.files:
        yield Line(
            (Span("    "), Span(f"{file.state.value:<12}  ", file.state.value)),
            (Span(file.path), Span(f"  {_origin(file)}", "muted")),
        )
        for hunk in file.hunks:
            where = f"line {hunk.line}  " if hunk.line is not None else ""
            yield Line(
                (Span("      "), Span(f"{hunk.state.value:<12}  ", hunk.state.value)),
                (
                    Span(f"{where}{hunk.scope}"),
                    Span(f"  {hunk.reason}" if hunk.reason else "", "muted"),
                ),
            )


def _origin(file: FileResult) -> str:
    added = "(added module)" if is_module(file.path) else "(added file)"
    return file.patch or ("(expected of the release)" if file.hunks else added)


def _problem(
    problem: Problem, indent: int, *, where: str = "", verbose: bool = False
) -> Iterator[Line]:
    inner = indent + 2
    yield Line(
        (Span(" " * indent), Span(f"{MARK} {problem.word}: ", problem.state.value)),
        (Span(_places(problem)),),
    )
    most = len(problem.places) + 1 if verbose else _MOST_NAMES
    if where:
        yield labelled(inner, "on:    ", where)
    yield labelled(inner, "why:   ", problem.reason.text)
    if len(problem.places) > 1:
        yield labelled(inner, "files: ", enumeration(problem.paths, most=most))
    candidates = {line for place in problem.places for line in place.candidates}
    if candidates:
        lines = enumeration([str(line) for line in sorted(candidates)], most=12)
        yield labelled(inner, "lines: ", lines)
    if problem.patches:
        yield labelled(inner, "patch: ", enumeration(problem.patches, most=most))
    yield labelled(inner, "next:  ", problem.reason.next_step or "")


def _places(problem: Problem) -> str:
    """The place of a problem, or how many there are."""
    if not problem.places:
        return ", ".join(problem.features)
    if len(problem.places) > 1:
        files = count(len(problem.paths), "file")
        if len(problem.paths) == len(problem.places):
            return files
        if len(problem.paths) > 1:
            return f"{count(len(problem.places), 'place')} in {files}"
    if len(problem.paths) == 1 and len(problem.places) > 1:
        scopes = [place.scope for place in problem.places if place.scope]
        return f"{problem.paths[0]} in {enumeration(scopes)}" if scopes else problem.paths[0]
    (place,) = problem.places
    return place.path if place.scope is None else f"{place.path} in {place.scope}"


def _obstacle(obstacle: Obstacle) -> Iterator[Line]:
    yield Line((Span(f"  {MARK} ", "bad"),), (Span(obstacle.summary),))
    yield labelled(4, "why:   ", obstacle.reason.text)
    if obstacle.reason.next_step is not None:
        yield labelled(4, "next:  ", obstacle.reason.next_step)


def _matrix(targets: tuple[TargetReport, ...]) -> Iterator[Line]:
    """One row a target, one column a feature; what needs attention is marked."""
    features = list(dict.fromkeys(entry.feature for target in targets for entry in target.features))
    plain = all(target.target == target.vllm for target in targets)
    header = ["release" if plain else "target", *features]
    rows = [[Span(name, "heading") for name in header]]
    for target in targets:
        cells = {entry.feature: _matrix_cell(entry) for entry in target.features}
        rows.append([Span(target.target), *(cells.get(name, Span("")) for name in features)])
    return aligned(rows)


def _matrix_cell(feature: FeatureResult) -> Span:
    note = " (untested)" if feature.untested else ""
    return Span(_cell(feature) + note, feature.state.value)


def _shared_problems(targets: tuple[TargetReport, ...]) -> Iterator[Line]:
    """Each problem once, with the releases that have it; the same for notes and warnings."""
    groups: dict[tuple[object, ...], list[tuple[str, Problem]]] = {}
    noted: dict[str, list[str]] = {}
    warned: dict[Notice, list[str]] = {}
    for target in targets:
        for problem in problems(target):
            # What is done about it differs where there is nothing to be edited or reinstalled.
            cause = (target.root is None, *same_cause(problem))
            groups.setdefault(cause, []).append((target.target, problem))
        for notice in target.notices:
            warned.setdefault(notice, []).append(target.target)
        if target.runner is not None and target.runner.short:
            noted.setdefault(f"vLLM {target.runner.short}", []).append(target.target)
        for name, why in target.early:
            text = f"{name} cannot be patched in memory: {why}"
            noted.setdefault(text, []).append(target.target)
    if groups or noted or warned:
        yield BLANK
    for group in sorted(groups.values(), key=lambda group: -group[0][1].state.rank):
        names = [name for name, _ in group]
        yield from _problem(_newest_problem(group), 0, where=enumeration(names, most=20))
    for text, names in noted.items():
        yield labelled(0, "note: ", f"{enumeration(names, most=20)}: {text}")
    for notice, names in warned.items():
        yield labelled(0, "warning: ", f"{enumeration(names, most=20)}: {notice}", "warning")


def _newest_problem(group: Sequence[tuple[str, Problem]]) -> Problem:
    """One problem for those of one cause on several targets: that of the last, the newest."""
    newest = group[-1][1]
    if len({problem for _, problem in group}) == 1:
        return newest
    return replace(newest, reason=newest_reason([(name, each.reason) for name, each in group]))


def newest_reason(group: Sequence[tuple[str, Reason]]) -> Reason:
    """One reason for those of one cause on several targets: that of the last, the newest."""
    name, reason = group[-1]
    steps = {each.next_step for _, each in group}
    if len({each.text for _, each in group}) > 1:
        reason = reason._replace(text=f"{reason.text} (lines of {name})")
    if len(steps) > 1:
        reason = reason._replace(next_step=f"{reason.next_step}; the same for the others")
    return reason


def beside_lines(beside: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """The changed files that are not modules: a line each, at most so many."""
    for path, what in beside[:_MOST_BESIDE]:
        lost = what.startswith(State.MISSING.value)
        why = "lost, unless you say that it was removed" if lost else "no feature carries it"
        yield Line((Span("! ", "bad"),), (Span(f"{path} ({what}): {why}"),))
    if len(beside) > _MOST_BESIDE:
        yield Line(
            (Span("! ", "bad"),), (Span(f"{len(beside) - _MOST_BESIDE} others of that kind"),)
        )
