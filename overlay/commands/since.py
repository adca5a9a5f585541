"""``overlay check --since`` and ``--output-format``: what changed, and what CI shows of it.

Without an earlier check, all that needs somebody is new.  Annotations of GitHub stand each at the
line of the patch that needs somebody.  A hunk that has drifted on many releases is told once, with
the releases: of one step GitHub shows ten annotations.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from overlay._features import sources
from overlay._features.model import Feature, Patch
from overlay._features.patch_headers import author, last_update
from overlay.commands.check import CheckReport
from overlay.errors import UsageError, command, described
from overlay.report import plain
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import Line, Span, count, enumeration, labelled
from overlay.report.model import TargetReport
from overlay.report.problems import explained, next_steps, word
from overlay.report.target_text import newest_reason
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State
from overlay.untrusted import parse_json, printable, read_regular

#: The most bytes of an earlier report: a hundred features on all releases are a tenth of it.
MAX_REPORT = 128 * 1024 * 1024

#: A target, the package, and a feature; empty for the target itself.
Key = tuple[str, str, str]


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


def _cells(targets: Sequence[TargetReport]) -> Iterator[tuple[Key, _Cell]]:
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


def _earlier(place: Path) -> dict[Key, _Cell]:
    """What an earlier report said.

    :raises UsageError: if it is not the JSON of a check.
    """
    try:
        data = read_regular(place, MAX_REPORT)
        if data is not None:
            return dict(_cells_of(parse_json(data)))
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


def _cells_of(document: Mapping[str, Any]) -> Iterator[tuple[Key, _Cell]]:
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


class Turn(Enum):
    """What a change means for whoever keeps the features."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"


class Ownership(NamedTuple):
    """Whose a feature is, and since when it is carried.

    :ivar owner: the author of its newest patch; empty where none says.
    :ivar since: the day of its oldest patch, ``YYYY-MM-DD``; empty where none says.
    """

    owner: str = ""
    since: str = ""

    def age(self, today: date) -> int | None:
        """For how many days it is carried; ``None`` where that is not known."""
        return (today - date.fromisoformat(self.since)).days if self.since else None

    def words(self, today: date) -> str:
        """Both in words; empty where nothing is known."""
        age = self.age(today)
        days = "" if age is None else f"since {self.since}, {count(age, 'day')}"
        return ", ".join(text for text in (self.owner, days) if text)


#: Of a feature that says neither.
NOBODY = Ownership()


class StateChange(NamedTuple):
    """A feature on a target whose state is another one than it was.

    :ivar target: as the user named it; :ivar package: whose release it is.
    :ivar feature: empty where it is about the target itself.
    :ivar before: its state then; ``None`` where it was not asked about.
    :ivar now: its state; ``None`` where it is not asked about any more.
    :ivar reason: why it is so now, and what to do.
    """

    target: str
    package: str
    feature: str
    before: str | None
    now: str | None
    turn: Turn
    reason: Reason | None = None
    upkeep: Ownership = NOBODY

    @property
    def words(self) -> str:
        """From which state to which."""
        return f"{self.before or 'not asked about'} -> {self.now or 'not asked about'}"

    def data(self, today: date) -> dict[str, Any]:
        """The fields of the JSON."""
        return {
            "target": self.target,
            "package": self.package,
            "feature": self.feature or None,
            "before": self.before,
            "now": self.now,
            "turn": self.turn.value,
            "reason": None if self.reason is None else self.reason.text,
            "next": None if self.reason is None else self.reason.next_step,
            "owner": self.upkeep.owner or None,
            "since": self.upkeep.since or None,
            "days": self.upkeep.age(today),
        }


@dataclass(frozen=True)
class SinceReport(CheckReport):
    """What changed between an earlier check and this one.

    :ivar earlier: the file of the earlier one; empty where there was none.
    :ivar form: ``markdown``, ``junit`` or ``github``, else text.
    :ivar today: the day of this check.
    :ivar annotations: the commands of GitHub's runner, where these were asked for.
    """

    earlier: str = ""
    differences: tuple[StateChange, ...] = ()
    today: date = date.min
    form: str = "text"
    annotations: str = ""

    @property
    def body(self) -> bytes | None:
        """The Markdown, the XML of JUnit or the annotations, where these were asked for."""
        if self.form == "text":
            return None
        text = self.annotations
        if self.form != "github":
            text = self._markdown() if self.form == "markdown" else self._junit()
        return text.encode("utf-8", "backslashreplace")

    def lines(self, *, verbose: bool = False) -> tuple[Line, ...]:
        """What changed, and not the table of all targets, unless ``verbose``."""
        if verbose or self.exit is Exit.ERROR:
            return super().lines(verbose=verbose)
        style = "good" if self.exit is Exit.OK else "bad"
        changes = self.own_lines() if self.earlier else ()
        return (*changes, Line((), (Span(self.verdict, style),)))

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """Each change, the worst first, of one cause on several targets once."""
        for group in self._by_cause():
            each = group[-1]
            targets = enumeration([change.target for change in group], most=20)
            name = f"{targets}  {each.feature or each.package}  "
            yield Line((Span(name, "heading"),), (Span(f"{each.turn.value}: {each.words}"),))
            reasons = [(of.target, of.reason) for of in group if of.reason is not None]
            if reasons and each.turn is Turn.WORSE:
                reason = newest_reason(reasons)
                yield labelled(2, "why:   ", reason.text)
                if reason.next_step is not None:
                    yield labelled(2, "next:  ", reason.next_step)
            if words := each.upkeep.words(self.today):
                yield labelled(2, "owner: ", words)
        if self.differences:
            yield Line(())

    def own_data(self) -> dict[str, Any]:
        """The changes, under ``since``."""
        changes = [each.data(self.today) for each in self.differences]
        return {"since": {"report": self.earlier, "changes": plain(changes)}}

    def _by_cause(self) -> list[list[StateChange]]:
        """The changes, those of one cause together."""
        groups: dict[tuple[object, ...], list[StateChange]] = {}
        for each in (change for turn in Turn for change in self._of(turn)):
            cause = each.reason and each.reason.common
            key = (each.package, each.feature, each.turn, each.words, cause, each.upkeep)
            groups.setdefault(key, []).append(each)
        return list(groups.values())

    def _of(self, turn: Turn) -> list[StateChange]:
        return [each for each in self.differences if each.turn is turn]

    def _markdown(self) -> str:
        """A table for each kind of change, below the verdict; of a check alone what needs you."""
        text = f"**{_cell(self.verdict)}**\n"
        text += "".join(f"\n- {_cell(failure.error)}\n" for failure in self.failures)
        for turn in Turn if self.earlier else (Turn.WORSE,):
            if rows := self._of(turn):
                text += f"\n### {turn.value.capitalize() if self.earlier else 'Needs you'}\n\n"
                how = "change" if self.earlier else "state"
                text += f"| target | feature | {how} | why | owner |\n|---|---|---|---|---|\n"
            for each in rows:
                why = "" if each.reason is None else str(each.reason)
                cells = [each.target, each.feature or each.package, self._words(each), why]
                text += _row(*cells, each.upkeep.words(self.today))
        return text if self.earlier else text + self._settled()

    def _settled(self) -> str:
        """A table of what does not need you, a line for each state of a feature."""
        targets: dict[tuple[str, str], list[str]] = {}
        for each in self._of(Turn.OTHER):
            targets.setdefault((each.feature, str(each.now)), []).append(each.target)
        if not targets:
            return ""
        text = "\n### Nothing to do\n\n| feature | state | targets |\n|---|---|---|\n"
        return text + "".join(_row(*key, enumeration(names)) for key, names in targets.items())

    def _words(self, change: StateChange) -> str:
        """From which state to which, or the state where there was no earlier check."""
        return change.words if self.earlier else str(change.now)

    def _junit(self) -> str:
        """A test case for each feature on each target, of which those fail that got worse."""
        cases = [case for target in self.checked for case in self._cases(target)]
        cases += [
            _case(str(failure.target), "target", "error", failure.error)
            for failure in self.failures
        ]
        failed = len(self._of(Turn.WORSE))
        head = (
            f'<testsuite name="overlay check" tests="{len(cases)}" failures="{failed}" '
            f'errors="{len(self.failures)}" skipped="0" time="0" hostname="localhost" '
            f'timestamp="{self.today}T00:00:00">\n  <properties/>'
        )
        end = "  <system-out/>\n  <system-err/>\n</testsuite>\n"
        return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, end])

    def _cases(self, target: TargetReport) -> Iterator[str]:
        worse = {(each.target, each.package, each.feature): each for each in self._of(Turn.WORSE)}
        for name in ("", *(feature.feature for feature in target.features)):
            each = worse.get((target.target, target.package, name))
            if each is None:
                if name:
                    yield _case(f"{target.package} {target.target}", name)
                continue
            why = "" if each.reason is None else str(each.reason)
            owner = each.upkeep.words(self.today)
            text = f"{self._words(each)}: {why}" + (f" ({owner})" if owner else "")
            yield _case(f"{target.package} {target.target}", name or "target", "failure", text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _cell(text: str) -> str:
    """A text as a cell of a table in Markdown: nothing in it is markup."""
    escaped = printable(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in "|*_`[]#~!" else letter for letter in escaped)


def _case(suite: str, name: str, fate: str = "", text: str = "") -> str:
    """A test case of JUnit.

    :param fate: ``failure`` or ``error``; empty where it passes.
    """
    head = f'<testcase classname="{_xml(suite)}" name="{_xml(name)}" time="0"'
    if not fate:
        return f"  {head}/>"
    return f'  {head}><{fate} type="overlay" message="{_xml(text)}"/></testcase>'


def _xml(text: str) -> str:
    """A text as a value of an attribute: XML has no character for controls and lone surrogates."""
    return escape(printable(text), {'"': "&quot;"})


def changed_since(differences: Sequence[StateChange], checked: Verdict, earlier: str) -> Verdict:
    """The verdict of ``check --since``.

    :param checked: that of the check alone, which stands where a target could not be read.
    :param earlier: the file of the earlier one.
    """
    if checked.code.exit is Exit.ERROR:
        return checked
    worse = [each for each in differences if each.turn is Turn.WORSE]
    if worse:
        names = list(dict.fromkeys(each.feature or each.target for each in worse))
        text = f"Worse since {earlier}: {enumeration(names)}, in {count(len(worse), 'place')}."
        return Verdict(Code.GOT_WORSE, text)
    other = count(len(differences), "change") if differences else "nothing changed"
    needy = "" if checked.code.exit is Exit.OK else "; what needed you then still does"
    return Verdict(Code.NOTHING_WORSE, f"Nothing got worse since {earlier}: {other}{needy}.")
