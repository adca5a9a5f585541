"""A report as JSON has it: by its fields, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packaging.version import Version

from overlay.report import Report, by_fields, plain
from overlay.report.codes import Code, Exit, Verdict
from overlay.results import State


class Part(NamedTuple):
    """A part with a field that only people see."""

    path: Path
    state: State
    word: str = ""

    def plain(self) -> dict[str, Any]:
        """All but the word."""
        return by_fields(self, "word")


@dataclass(frozen=True)
class Parts(Report):
    """A report of parts."""

    _key: ClassVar[str | None] = "parts"
    release: Version
    parts: tuple[Part, ...]
    spans: dict[State, tuple[int, ...]]
    first: Part | None = None


def test_a_report_is_its_fields_in_their_order() -> None:
    part = Part(Path("a/b.py"), State.APPLIED, "told")
    report = Parts(
        Verdict(Code.APPLIED, "Done."), Version("1.0.0"), (part,), {State.DRIFTED: (1, 2)}
    )
    assert report.own_data() == {
        "parts": {
            "release": "1.0.0",
            "parts": [{"path": "a/b.py", "state": "applied"}],
            "spans": {"drifted": [1, 2]},
            "first": None,
        }
    }
    assert [*report.own_data()["parts"]] == ["release", "parts", "spans", "first"]


def test_an_enumeration_becomes_its_value_alone() -> None:
    for value, expected in ((State.APPLIED, "applied"), (Exit.ERROR, 2), (True, True)):
        assert plain(value) == expected
        assert type(plain(value)) is type(expected)
