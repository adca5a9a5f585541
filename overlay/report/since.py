"""What changed since an earlier check, or all that one says, also as Markdown or JUnit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from overlay.report.base import plain
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import Line, Span, labelled
from overlay.report.model import TargetReport
from overlay.report.target_text import newest_reason
from overlay.report.targets import CheckReport
from overlay.report.words import count, enumeration
from overlay.results import Reason
from overlay.untrusted import printable


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
