"""The type that all reports have in common, and the report of a command that was stopped.

Each other report stands beside its command.

What a report concludes (a code, a sentence, and the exit status that goes with the code) is
computed once, by the function of ``overlay.report`` that words it; text and JSON are readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import BLANK, STOPPED, Line, Span, labelled

if TYPE_CHECKING:
    from overlay.report.model import TargetReport


def plain(value: Any) -> Any:
    """A value as JSON has it: an object of its fields where it has any, in their order.

    A type whose JSON is not just its fields says so by a method ``plain`` of its own, which may
    begin with ``by_fields``.  What is neither (a path, a version) is the text of it.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "plain"):
        return value.plain()
    if hasattr(value, "_fields") or is_dataclass(value):
        return by_fields(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(entry) for entry in value]
    return str(value)


def by_fields(value: Any, *without: str) -> dict[str, Any]:
    """The fields of a named tuple or a data class as JSON has them.

    :param without: the fields that the JSON does not have.
    """
    is_tuple = hasattr(value, "_fields")
    names = value._fields if is_tuple else [field.name for field in fields(value)]
    return {name: plain(getattr(value, name)) for name in names if name not in without}


class Cell(NamedTuple):
    """A cell of a table.

    :ivar text: what stands in it; :ivar style: how, as a ``Span`` has it.
    :ivar title: what a pointer shows.
    """

    text: str
    style: str
    title: str


class Table(NamedTuple):
    """What a report shows as a table on a page of HTML.

    :ivar corner: the title of its first column, which names the rows; :ivar columns: the others'.
    :ivar rows: name -> its cells, one a column.
    :ivar legend: text of a cell -> what it means.
    :ivar notes: what is to be said below.
    """

    corner: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]
    legend: dict[str, str]
    notes: tuple[Line, ...]


@dataclass(frozen=True)
class Report:
    """Answer of a command; the base of one type for each question.

    :ivar conclusion: what follows from it, by ``overlay.report.wording``.
    """

    _command: ClassVar[str] = "overlay"
    #: The key of the JSON under which its own fields stand; ``None`` where none do.
    _key: ClassVar[str | None] = None
    conclusion: Verdict

    @property
    def command(self) -> str:
        """The command that it answers."""
        return self._command

    @property
    def verdict(self) -> str:
        """One sentence that agrees with ``exit``; the last line for people."""
        return self.conclusion.text

    @property
    def code(self) -> Code:
        """What the command concluded, for programs."""
        return self.conclusion.code

    @property
    def exit(self) -> Exit:
        """Exit status: 0 nothing needs the user, 1 something does, 2 usage or environment."""
        return self.code.exit

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The targets that it speaks of."""
        return ()

    @property
    def error(self) -> str | None:
        """Why the command could not answer, where ``exit`` is 2."""
        return None

    @property
    def body(self) -> bytes | None:
        """What goes to standard output as it is; ``None`` where the text of the report does."""
        return None

    def lines(self, *, verbose: bool = False) -> tuple[Line, ...]:
        """The report for people; the last line is the verdict.

        :param verbose: whether to show everything.
        """
        lines = [*self.first_lines()]
        if self.targets:
            # Imported only here: `overlay list` speaks of no target.
            from overlay.report.target_text import target_lines

            lines += target_lines(self.targets, verbose=verbose)
        lines += self.own_lines(verbose=verbose)
        lines += self.error_lines()
        if lines and lines[-1] != BLANK:
            lines.append(BLANK)
        style = "good" if self.exit is Exit.OK else "bad"
        return (*lines, Line((), (Span(self.verdict, style),)))

    def error_lines(self) -> Iterable[Line]:
        """The lines for people of ``error``."""
        if self.error is not None:
            first, *rest = self.error.splitlines() or [""]
            yield labelled(0, "error: ", first, "bad")
            for text in rest:
                yield labelled(0, "       ", text)

    def first_lines(self) -> Iterable[Line]:
        """The lines for people that come before those of the targets."""
        return ()

    def own_lines(self, *, verbose: bool = False) -> Iterable[Line]:  # noqa: ARG002 - for others
        """The lines for people of a report that speaks of more than targets.

        Each such type brings them itself, so that no command imports the reports of others.

        :param verbose: whether to show everything.
        """
        return ()

    def table(self) -> Table | None:
        """The table that stands in the place of the lines on a page of HTML, where it has one."""
        return None

    def own_data(self) -> dict[str, Any]:
        """The same for JSON: what is added to the keys that every report has."""
        return {} if self._key is None else {self._key: self.plain()}

    def plain(self) -> dict[str, Any]:
        """Its own fields as JSON has them."""
        return by_fields(self, "conclusion")


@dataclass(frozen=True)
class NamedReport(Report):
    """The report of a command that is known by its name alone.

    :ivar name: the command, or ``overlay`` where it is not known.
    """

    name: str

    @property
    def command(self) -> str:
        """The command that it is of."""
        return self.name


@dataclass(frozen=True)
class FailureReport(NamedReport):
    """A command that usage or the environment stopped.

    :ivar problem: why, in one or several lines.
    """

    problem: str

    @property
    def error(self) -> str:
        """Why it was stopped."""
        return self.problem


@dataclass(frozen=True)
class TextReport(NamedReport):
    """The text of a command that answers a shell or a person, where JSON is asked for."""

    text: str

    def own_data(self) -> dict[str, Any]:
        """The text."""
        return {"text": self.text}


def failure(command: str, error: str, code: Code = Code.ENVIRONMENT) -> FailureReport:
    """The report of a command that usage or the environment stopped.

    :param command: its name, or ``overlay`` where it is not known.
    """
    name = command if command == "overlay" else f"overlay {command}"
    return FailureReport(Verdict(code, f"{name} {STOPPED}"), command, error)
