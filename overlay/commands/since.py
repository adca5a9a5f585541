"""``overlay check --since`` and ``--output-format``: what changed, and what CI shows of it.

Without an earlier check, all that needs somebody is new.  Annotations of GitHub stand each at the
line of the patch that needs somebody.  A hunk that has drifted on many releases is told once, with
the releases: of one step GitHub shows ten annotations.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overlay._features import sources
from overlay._features.model import Feature, Patch
from overlay._features.patch_headers import author, last_update
from overlay.errors import UsageError, described
from overlay.report.model import TargetReport
from overlay.report.problems import explained, next_steps, word
from overlay.report.since import Ownership, SinceReport, StateChange, Turn, changed_since
from overlay.report.targets import CheckReport
from overlay.report.words import enumeration
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State
from overlay.results.invocation import command
from overlay.untrusted import parse_json, printable, read_regular

if TYPE_CHECKING:
    from overlay.report.model import TargetReport


#: The most bytes of an earlier report: a hundred features on all releases are a tenth of it.
MAX_REPORT = 128 * 1024 * 1024

#: A target, the package, and a feature; or nothing for the target itself.
_Key = tuple[str, str, str]


class _Cell(NamedTuple):
    """What a check says of a feature on a target, or of the target itself.

    :ivar state: a state, or the code of an obstacle; :ivar reason: why, where that is told.
    """

    state: str
    needs_attention: bool
    reason: Reason | None = None


def since(
    report: CheckReport, earlier: Path | None, features: Sequence[Feature], form: str = "text"
) -> SinceReport:
    """What changed between an earlier report and this one.

    :param earlier: what ``overlay check --json`` wrote; ``None`` where there is none.
    :param features: those at hand; :param form: ``text``, ``markdown``, ``junit`` or ``github``.
    :raises UsageError: if that is no such report.
    """
    before = {} if earlier is None else _earlier(earlier)
    now = dict(_cells(report.checked))
    targets_now = {target.target for target in report.checked}
    upkeeps = {feature.id: upkeep(feature) for feature in features}
    differences = []
    for key in dict.fromkeys((*now, *before)):
        turn = _turn(before.get(key), now.get(key))
        if turn is not None and not (key not in now and key[0] not in targets_now):
            old, new = before.get(key), now.get(key)
            differences.append(
                StateChange(
                    *key,
                    None if old is None else old.state,
                    None if new is None else new.state,
                    turn,
                    None if new is None else new.reason,
                    upkeeps.get(key[2], Ownership()),
                )
            )
    own = {each.name: getattr(report, each.name) for each in fields(report)}
    name = "" if earlier is None else str(earlier)
    if earlier is not None:
        own["conclusion"] = changed_since(differences, report.conclusion, name)
    worse = {(*change[:3],) for change in differences if change.turn is Turn.WORSE}
    today = datetime.now().astimezone().date()
    return SinceReport(
        **own,
        earlier=name,
        differences=tuple(differences),
        today=today,
        form=form,
        annotations=runner_commands(report, features, worse) if form == "github" else "",
    )


def upkeep(feature: Feature) -> Ownership:
    """Whose a feature is and since when, by the headers of its patches."""
    patches = [
        variant.patch
        for topic in feature.topics
        for variant in sorted(topic.variants, key=lambda each: each.releases)
    ]
    days = sorted(filter(None, (last_update(patch.headers) for patch in patches)))
    owners = [name for patch in patches if (name := author(patch.headers))]
    return Ownership(owners[-1] if owners else "", days[0] if days else "")


def _turn(before: _Cell | None, now: _Cell | None) -> Turn | None:
    """What a change means; ``None`` where there is none.

    Worse is what needs somebody and did not, what needs somebody more, and what was carried and is
    so no more without a word: out of its range, or not applied any longer.
    """
    if now is None:
        return Turn.OTHER
    if before is None:
        return Turn.WORSE if now.needs_attention else Turn.OTHER
    if before.state == now.state:
        return None
    if now.needs_attention or before.needs_attention:
        worse = now.needs_attention and (
            not before.needs_attention or _rank(now.state) > _rank(before.state)
        )
        return Turn.WORSE if worse else Turn.BETTER
    carried = (State.APPLIED.value, State.PRISTINE.value)
    lost = before.state in carried and now.state == State.INAPPLICABLE.value
    undone = before.state == State.APPLIED.value and now.state == State.PRISTINE.value
    return Turn.WORSE if lost or undone else Turn.OTHER


def _rank(state: str) -> int:
    """Where a state is in the order from best to worst; an obstacle is the worst."""
    return next((each.rank for each in State if each.value == state), len(State))


def _cells(targets: Sequence[TargetReport]) -> Iterator[tuple[_Key, _Cell]]:
    for target in targets:
        place = target.target, target.package
        for each in target.features:
            yield (
                (*place, each.feature),
                _Cell(each.state.value, each.state.needs_attention, _reason(each)),
            )
        codes = [each.code.value for each in target.obstacles]
        codes += ["interrupted"] if target.interrupted else []
        if codes:
            reason = target.obstacles[0].reason if target.obstacles else None
            yield (*place, ""), _Cell(", ".join(codes), True, reason)


def _reason(result: FeatureResult) -> Reason | None:
    """Why a feature is in its state: the first reason of the smallest thing that needs somebody."""
    for file in result.files:
        for hunk in file.hunks:
            if hunk.state.needs_attention and hunk.reason is not None:
                return hunk.reason
        if file.state.needs_attention and file.reason is not None:
            return file.reason
    return result.reason


def _earlier(place: Path) -> dict[_Key, _Cell]:
    """What an earlier report said.

    :raises UsageError: if it is not the JSON of a check.
    """
    try:
        data = read_regular(place, MAX_REPORT)
        document = None if data is None else parse_json(data)
        if document is not None:
            return dict(_cells_of(document))
        problem = "found no such file"
    except OSError as error:
        problem = described(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "found something else"
    step = command("check", "--releases", "all", "--json")
    raise UsageError(
        f"--since {place}: expected what {step} wrote, {printable(problem)}; write one with "
        f"{step} > REPORT.json"
    )


def _cells_of(document: Mapping[str, Any]) -> Iterator[tuple[_Key, _Cell]]:
    """The same of the JSON of a check.

    :raises ValueError, KeyError, TypeError, AttributeError: if it is something else.
    """
    if document["schema"] != 2 or document["command"] != "check":
        raise ValueError("not a check")
    for target in document["targets"]:
        place = _text(target["target"]), _text(target["package"])
        for each in target["features"]:
            state = State(each["state"])
            yield (*place, _text(each["feature"])), _Cell(state.value, state.needs_attention)
        codes = [_text(each["code"]) for each in target.get("obstacles", ())]
        codes += ["interrupted"] if target["interrupted"] else []
        if codes:
            yield (*place, ""), _Cell(", ".join(codes), True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


#: A target, the package, and a feature; empty for the target itself.
Key = tuple[str, str, str]


class Annotation(NamedTuple):
    """Something that needs somebody.

    :ivar file: the patch, or the ``feature.toml``; ``None`` where no file is to blame.
    :ivar line: 1-based; :ivar title: what it is, in a few words.
    """

    file: Path | None
    line: int
    title: str
    reason: Reason

    def command(self, targets: list[str]) -> str:
        """The command of GitHub's runner that shows it, with the targets that have it."""
        properties = [f"title={_escaped(self.title, in_property=True)}"]
        if self.file is not None:
            place = _escaped(_relative(self.file), in_property=True)
            properties = [f"file={place}", f"line={self.line}", *properties]
        text = f"on {enumeration(targets)}: {self.reason}"
        return f"::error {','.join(properties)}::{_escaped(text)}"


def runner_commands(report: CheckReport, features: Iterable[Feature], keys: Collection[Key]) -> str:
    """The commands of GitHub's runner, a line each.

    :param features: those at hand; :param keys: what is told, of all that needs somebody.
    """
    by_id = {feature.id: feature for feature in features}
    places: dict[Annotation, list[str]] = {}
    for target in report.checked:
        for each in _of_target(target, by_id, keys):
            cause = next((first for first in places if _same_cause(first, each)), each)
            places.setdefault(cause, []).append(target.target)
    lines = [cause.command(names) for cause, names in places.items()]
    lines += [f"::error title=overlay check::{_escaped(each.error)}" for each in report.failures]
    return "".join(f"{line}\n" for line in lines)


def _same_cause(first: Annotation, second: Annotation) -> bool:
    """Whether both tell of the same, but for the lines of a release's file."""
    return first[:3] == second[:3] and first.reason.common == second.reason.common


def _of_target(
    target: TargetReport, features: Mapping[str, Feature], keys: Collection[Key]
) -> Iterator[Annotation]:
    if (target.target, target.package, "") in keys:
        for obstacle in target.obstacles:
            yield Annotation(None, 1, obstacle.summary, obstacle.reason)
        if target.interrupted:
            step = f"run {target.command('apply')} or {target.command('revert')}"
            yield Annotation(None, 1, "interrupted", Reason("a transaction has not ended", step))
    steps = next_steps(target)
    for result in target.features:
        if (target.target, target.package, result.feature) in keys:
            yield from _of_feature(result, features.get(result.feature), steps)


def _of_feature(
    result: FeatureResult, feature: Feature | None, steps: Mapping[State, str]
) -> Iterator[Annotation]:
    """One for each hunk, or else file, that needs somebody; or else one for the feature."""
    title = f"{result.feature}: {word(result)}"
    files = [file for file in result.files if file.state.needs_attention]
    for file in files:
        place, patch = _patch(feature, file)
        numbers = [n for n, hunk in enumerate(file.hunks) if hunk.state.needs_attention]
        for number in numbers:
            hunk = file.hunks[number]
            reason = explained(hunk.state, hunk.reason or file.reason, steps)
            if reason is not None:
                line = _line(patch, file.hunks, number)
                yield Annotation(place, line, f"{title} in {hunk.scope}", reason)
        reason = explained(file.state, file.reason, steps)
        if not numbers and reason is not None:
            yield Annotation(place, 1, f"{title}, {file.path}", reason)
    reason = explained(result.state, result.reason, steps)
    if not files and reason is not None:
        yield Annotation(_patch(feature, None)[0], 1, title, reason)


def _patch(feature: Feature | None, file: FileResult | None) -> tuple[Path | None, Patch | None]:
    """The patch of a file of a feature and where it lies, or else its ``feature.toml``."""
    if feature is None or not feature.origin:
        return None, None
    folder = sources.shipped_folder() if feature.shipped else Path(feature.origin)
    for patch in feature.patches:
        if file is not None and patch.name == file.patch:
            return folder / patch.name, patch
    return folder / feature.id / "feature.toml", None


def _line(patch: Patch | None, hunks: tuple[HunkResult, ...], number: int) -> int:
    """The line of a hunk in its patch."""
    if patch is None:
        return 1
    scopes = [hunk.scope for hunk in patch.hunks]
    if scopes == [hunk.scope for hunk in hunks]:
        return patch.hunks[number].patch_line
    at = scopes.index(hunks[number].scope) if hunks[number].scope in scopes else 0
    return patch.hunks[at].patch_line


def _relative(file: Path) -> str:
    """A path as GitHub's runner takes it: below the checkout, where it lies there."""
    start = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    relative = os.path.relpath(file, start)
    return os.path.abspath(file) if relative.startswith("..") else relative


def _escaped(text: str, *, in_property: bool = False) -> str:
    """A text of which nothing is read as another command, or as another property."""
    escaped = printable(text, lines=True)
    letters = "%\r\n:," if in_property else "%\r\n"
    return "".join(f"%{ord(each):02X}" if each in letters else each for each in escaped)
