"""No control character of a foreign text reaches a terminal or a pipe through a report."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay._features.folder import Hole
from overlay._processes import ProcessRecord
from overlay._processes.live import LiveProcess
from overlay.commands.check import CheckReport
from overlay.commands.list_ import ListReport
from overlay.commands.live import ProcessesReport
from overlay.commands.status import StatusReport
from overlay.report import Report, failure
from overlay.report.as_json import as_json
from overlay.report.codes import Code, Verdict
from overlay.report.lines import paint
from overlay.report.model import Obstacle, TargetReport
from overlay.report.wording import status
from overlay.results import FeatureResult, FileResult, HunkResult, Notice, Reason, State, Way
from tests.commands.conftest import fake_vllm
from tests.report.test_model import listed_feature
from tests.support.cli import Cli

EVIL = "\x1b]0;title\x07\x1b[2J\r\n\x7f\x9b31m\u202e\udcff"
texts = st.text(st.characters(), max_size=8).map(lambda text: f"{text}\x1b[2J") | st.just(EVIL)


def reports(text: str) -> Iterator[Report]:
    """Reports of several kinds that hold a text wherever one can be foreign."""
    reason = Reason(text, text)
    hunk = HunkResult(text, State.DRIFTED, 3, reason, (3, 4))
    file = FileResult(text, State.DRIFTED, text, (hunk,), reason)
    feature = FeatureResult(text, State.DRIFTED, (file,), reason)
    root = Path("/" + text.replace("\0", "0"))
    target = TargetReport(
        text,
        text,
        root,
        (feature, FeatureResult("fits", State.PRISTINE)),
        (Notice(text, text),),
        obstacles=(Obstacle(Code.COPIES_DAMAGED, text, reason),),
        in_memory=(text,),
    )
    other = TargetReport("0.26.0", text, None, (feature,))
    verdict = Verdict(Code.NEEDS_ATTENTION, text)
    yield StatusReport(status(target), target)
    yield CheckReport(verdict, (target, other))
    yield failure("check", text)
    listed = listed_feature(text)
    yield ListReport(verdict, (listed,), ((text, Hole(text, text)),))
    yield ListReport(verdict, (replace(listed, malformed=(text,)),))
    record = ProcessRecord(7, "1", text, text, 0, text, text, Way.MEMORY, text, text)
    yield ProcessesReport(verdict, (LiveProcess(7, text, 7, record, text),))


def is_control(character: str) -> bool:
    """Whether a character could move, clear or reorder what a terminal shows."""
    code = ord(character)
    reorders = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or reorders


def harmless(shown: str) -> None:
    """Demand that a text holds no control character but line feeds."""
    assert {character for character in shown if is_control(character)} <= {"\n"}


@given(texts, st.booleans())
def test_no_control_character_reaches_the_text(text: str, verbose: bool) -> None:
    for report in reports(text):
        stream = io.StringIO()
        paint(report.lines(verbose=verbose), stream)
        harmless(stream.getvalue())
        assert as_json(report).isascii()
        assert not set(as_json(report)) - {chr(code) for code in (*range(0x20, 0x7F), 0x0A)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["40", "80", "140"])
def test_none_reaches_a_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # nothing of rich's own, such as colours
    monkeypatch.setenv("COLUMNS", columns)
    for report in reports(EVIL):
        stream = Terminal()
        paint(report.lines(), stream)
        harmless(stream.getvalue())


def test_a_folder_s_name_cannot_clear_the_screen(cli: Cli, tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "evil\x1b[2J\n\x07")
    for command in ("check", "status", "apply", "revert"):
        answer = cli(command, site)
        harmless(answer.out + answer.err)
        assert "evil\\x1b[2J\\n\\x07" in answer.out
    harmless(cli("check", tmp_path / "none\x1b[2J").err)
