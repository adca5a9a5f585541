"""``Report`` -> lines for people to read.  Nothing here prints; ``overlay.report.lines`` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from overlay.package import package_named
from overlay.report.codes import Exit
from overlay.report.lines import BLANK, MARK, Line, Span, labelled
from overlay.report.model import (
    CacheReport,
    CheckReport,
    DoctorReport,
    FeatureEntry,
    ListReport,
    Obstacle,
    ProcessesReport,
    ReleaseEntry,
    Report,
    StatusReport,
    TargetReport,
)
from overlay.report.problems import Problem, problems, same_cause
from overlay.report.words import count, enumeration, megabytes
from overlay.results import FeatureResult, FileResult, Notice, State

#: How many files or patches of one problem are named, unless all are asked for.
_MOST_NAMES = 6

#: Why a feature is kept as a patch, in words.
_REASONS = {
    "waiting": "waiting for upstream to take it",
    "local": "local: for this site alone",
    "never": "never: upstream will not take it",
}


def render(report: Report, *, verbose: bool = False) -> tuple[Line, ...]:
    """The report as lines; the last one is the verdict."""
    lines: list[Line] = []
    matrix = isinstance(report, CheckReport) and len({t.target for t in report.targets}) > 1
    if isinstance(report, DoctorReport):
        from overlay.report.doctor_text import doctor

        lines += doctor(report.facts)
    if isinstance(report, ListReport):
        lines += _catalogue(report.features, verbose)
        lines += _releases(report.releases or (), verbose)
    if matrix:
        lines += _matrix(report.targets)
    if matrix and not verbose:
        lines += _shared_problems(report.targets)
    else:
        lines += [BLANK] if matrix else []
        ordered = sorted(report.targets, key=lambda target: -target.state.rank)
        width = _name_width(report.targets)
        for target in ordered:
            lines += _target(target, width, verbose)
            lines.append(BLANK)
    if isinstance(report, StatusReport) and verbose:
        lines += [labelled(0, "patches: ", folder) for folder in ("shipped", *report.patches)]
    if isinstance(report, ProcessesReport | DoctorReport):
        from overlay.report.doctor_text import processes

        lines += processes(report.processes, verbose=verbose)
    if isinstance(report, DoctorReport):
        from overlay.report.doctor_text import problems as needy

        lines += needy(report.facts, report.problems)
    if isinstance(report, CacheReport) and not report.path_only:
        lines += _cache(report)
    lines += report.own_lines()
    if report.error is not None:
        first, *others = report.error.splitlines() or [""]
        lines.append(labelled(0, "error: ", first, "bad"))
        lines += [labelled(0, "       ", text) for text in others]
    if lines and lines[-1] != BLANK:
        lines.append(BLANK)
    style = "good" if report.exit is Exit.OK else "bad"
    return (*lines, Line((), (Span(report.verdict, style),)))


def _cache(report: CacheReport) -> Iterator[Line]:
    for part in report.parts:
        held = f"{count(part.entries, 'entry', 'entries')}, {megabytes(part.size)}"
        yield Line((Span(f"{part.name:<10}"),), (Span(held), Span(f"  {part.contents}", "muted")))


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
            Span(f"{target.state.value} {MARK}  ", target.state.value)
            if target.state.needs_attention
            else Span(""),
        ),
        (Span(place, "muted"),),
    )
    for feature in sorted(target.features, key=lambda feature: -feature.state.rank):
        yield Line(
            (
                Span(f"  {feature.feature:<{width}}  "),
                Span(f"{_cell(feature):<12}  ", feature.state.value),
            ),
            (Span(_summary(feature), "muted"),),
        )
        if verbose:
            yield from _files(feature)
    for problem in problems(target):
        yield from _problem(problem, 2, verbose=verbose)
    for obstacle in target.obstacles:
        yield from _obstacle(obstacle)
    if target.left_out:
        words = " ".join(f"--without {name}" for name in target.left_out)
        yield labelled(2, "go on: ", f"`overlay apply {words}` applies the others")
    if target.in_memory:
        text = (
            f"{enumeration(target.in_memory)}: the plugin adds what is not on disk to each vLLM "
            "process that starts, unless OVERLAY=disk or OVERLAY_FEATURES says otherwise"
        )
        yield labelled(2, "in memory: ", text)
    for notice in target.notices:
        yield labelled(2, "warning: ", str(notice), "warning")


def _cell(feature: FeatureResult) -> str:
    mark = f" {MARK}" if feature.state.needs_attention else ""
    return f"{feature.state.value}{mark}"


def _summary(feature: FeatureResult) -> str:
    """What a feature's state means here, in a few words."""
    hunks = [hunk for file in feature.files for hunk in file.hunks]
    patched = len({file.path for file in feature.files if file.patch is not None})
    added = sum(file.patch is None and not file.hunks for file in feature.files)
    parts = []
    if feature.state.needs_attention:
        bad = sum(hunk.state.needs_attention for hunk in hunks)
        if bad:
            parts.append(f"{bad} of {count(len(hunks), 'hunk')}")
    elif feature.state is State.UPSTREAMED:
        return "vLLM has it already"
    elif feature.state is State.INAPPLICABLE:
        return str(feature.reason or "not made for this release")
    else:
        if hunks:
            parts.append(f"{count(len(hunks), 'hunk')} in {count(patched, 'file')}")
        elif patched:
            parts.append(count(patched, "file"))
        if added:
            parts.append(count(added, "added module"))
    if feature.reason:
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
    return file.patch or ("(expected of the release)" if file.hunks else "(added module)")


def _problem(
    problem: Problem, indent: int, *, where: str = "", verbose: bool = False
) -> Iterator[Line]:
    inner = indent + 2
    yield Line(
        (Span(" " * indent), Span(f"{MARK} {problem.state.value}: ", problem.state.value)),
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
    """Where a problem is: the place, or how many there are."""
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
    title = "release" if plain else "target"
    first = max([len(title), *(len(target.target) for target in targets)])
    cells = [
        {entry.feature: _matrix_cell(entry) for entry in target.features} for target in targets
    ]
    widths = [
        max([len(name), *(len(row[name][0]) for row in cells if name in row)]) for name in features
    ]
    header = [Span(f"{title:<{first}}", "heading")]
    header += [
        Span(f"  {name:<{width}}", "heading") for name, width in zip(features, widths, strict=True)
    ]
    yield Line(tuple(header))
    for target, row in zip(targets, cells, strict=True):
        spans = [Span(f"{target.target:<{first}}")]
        for name, width in zip(features, widths, strict=True):
            text, style = row.get(name, ("", ""))
            spans.append(Span(f"  {text:<{width}}", style))
        yield Line(tuple(spans))


def _matrix_cell(feature: FeatureResult) -> tuple[str, str]:
    note = " (untested)" if feature.untested else ""
    return _cell(feature) + note, feature.state.value


def _shared_problems(targets: tuple[TargetReport, ...]) -> Iterator[Line]:
    """Each problem once, with the releases that have it; the same for the warnings."""
    found: dict[tuple[object, ...], list[tuple[str, Problem]]] = {}
    warned: dict[Notice, list[str]] = {}
    for target in targets:
        for problem in problems(target):
            found.setdefault(same_cause(problem), []).append((target.target, problem))
        for notice in target.notices:
            warned.setdefault(notice, []).append(target.target)
    if found or warned:
        yield BLANK
    for group in sorted(found.values(), key=lambda group: -group[0][1].state.rank):
        names = [name for name, _ in group]
        yield from _problem(_shown(group), 0, where=enumeration(names, most=20))
    for notice, names in warned.items():
        yield labelled(0, "warning: ", f"{enumeration(names, most=20)}: {notice}", "warning")


def _shown(group: Sequence[tuple[str, Problem]]) -> Problem:
    """One problem for those of one cause on several targets: that of the last, the newest."""
    name, newest = group[-1]
    if len({problem for _, problem in group}) == 1:
        return newest
    reason, steps = newest.reason, {problem.reason.next_step for _, problem in group}
    if len({problem.reason.text for _, problem in group}) > 1:
        reason = reason._replace(text=f"{reason.text} (lines of {name})")
    if len(steps) > 1:
        reason = reason._replace(next_step=f"{reason.next_step}; the same for the others")
    return replace(newest, reason=reason)


def _releases(entries: tuple[ReleaseEntry, ...], verbose: bool) -> Iterator[Line]:
    """The releases of the index: what is new or withdrawn, and all of them where that is asked."""
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


def _catalogue(entries: tuple[FeatureEntry, ...], verbose: bool) -> Iterator[Line]:
    for entry in entries:
        yield Line(
            (Span(entry.feature, "heading"), Span("  "), Span(entry.releases), Span("  ")),
            (Span(entry.title, "muted"),),
        )
        if verbose:
            # Its lines are those of feature.toml; they wrap where the terminal ends.
            yield labelled(2, "why:      ", " ".join(entry.why.split()))
            for need in entry.needs:
                yield labelled(2, "needs:    ", need)
        upstream = entry.upstream or "never proposed"
        reason = f"  ({_REASONS[entry.reason]})" if entry.reason in _REASONS else ""
        yield labelled(2, "upstream: ", f"{upstream}{reason}")
        for number, sentence in enumerate(entry.retires):
            yield labelled(2, "     and: " if number else "retires:  ", sentence)
        width = max((len(topic.name) for topic in entry.topics), default=0)
        for topic in entry.topics:
            yield Line(
                (Span(f"  {topic.name:<{width}}  "),),
                (Span(" ".join(topic.variants) or "no variant", "muted"),),
            )
            if topic.holes:
                yield labelled(
                    2,
                    f"{MARK} hole:   ",
                    f"{topic.name} has no variant for {enumeration(topic.holes, most=20)}; "
                    "give it one, or narrow the releases in the feature's feature.toml",
                    "missing",
                )
        if verbose:
            for path in entry.added:
                yield labelled(2, "adds:     ", path)
            yield labelled(2, "from:     ", entry.origin)
            yield labelled(2, "digest:   ", entry.digest)
        for warning in entry.warnings:
            yield labelled(2, "warning: ", warning, "warning")
        yield BLANK
