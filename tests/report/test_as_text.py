"""What people read: every problem with why and what next, the worst first, the verdict last."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay._features.folder import Hole
from overlay.commands.check import CheckReport
from overlay.commands.list_ import ListReport
from overlay.commands.status import StatusReport
from overlay.package import VLLM
from overlay.planning import advice
from overlay.report import Report, failure
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import Line, Span, aligned, paint
from overlay.report.model import TargetReport
from overlay.report.problems import ProblemPlace, problems
from overlay.report.wording import checked
from overlay.results import FeatureResult, FileResult, HunkResult, Notice, Reason, State, combine
from tests.report.test_model import listed_feature

states = st.sampled_from(list(State))


@st.composite
def features(draw: st.DrawFn, name: str = "f") -> FeatureResult:
    files = []
    for number in range(draw(st.integers(0, 3))):
        hunks = tuple(
            HunkResult(f"Scope{number}.m{index}", state, line=draw(st.integers(1, 99)))
            for index, state in enumerate(draw(st.lists(states, max_size=3)))
        )
        state = combine(hunk.state for hunk in hunks) if hunks else draw(states)
        files.append(FileResult(f"vllm/m{number}.py", state, "a.patch", hunks))
    state = combine(file.state for file in files) if files else draw(states)
    return FeatureResult(name, state, tuple(files))


@st.composite
def targets(draw: st.DrawFn) -> TargetReport:
    found = tuple(draw(features(f"feature-{index}")) for index in range(draw(st.integers(1, 3))))
    name = draw(st.sampled_from(["0.20.0", "0.26.0", "0.33.0"]))
    root = draw(st.sampled_from([None, Path("/opt/site-packages")]))
    return TargetReport(name, name, root, found)


def text(report: Report, *, verbose: bool = False) -> str:
    return "\n".join(str(line) for line in report.lines(verbose=verbose))


@given(st.lists(targets(), min_size=1, max_size=4), st.booleans())
def test_the_last_line_is_the_verdict_and_every_problem_is_there(
    found: list[TargetReport], verbose: bool
) -> None:
    report = CheckReport(checked(found), tuple(found))
    verdict = report.verdict
    shown = text(report, verbose=verbose)
    assert shown.splitlines()[-1] == verdict
    assert verdict.endswith(".")
    assert "\n" not in verdict
    needy = any(target.state.needs_attention for target in found)
    assert report.exit is (Exit.ATTENTION if needy else Exit.OK)
    for target in found:
        for problem in problems(target):
            assert problem.reason.text in shown
            assert problem.reason.next_step
            assert problem.reason.next_step in shown
            assert f"! {problem.state.value}: " in shown
            for place in problem.places[:5]:
                assert place.path in shown


def test_an_installation_and_a_release_with_one_cause_are_told_what_to_do_each() -> None:
    """``revert`` is for the installation: a release has no folder."""
    hunks = (HunkResult("Scope.m", State.PARTIAL, line=1),)
    file = FileResult("vllm/m.py", State.PARTIAL, "a.patch", hunks)
    partial = (FeatureResult("f", State.PARTIAL, (file,)),)
    site = Path("/opt/site-packages")
    found = tuple(
        TargetReport(name, name, root, partial)
        for name, root in (("0.20.0", None), ("0.26.0", None), ("0.33.0", site))
    )
    shown = text(CheckReport(checked(found), found))
    assert [line for line in shown.splitlines() if line.startswith("  on: ")] == [
        "  on:    0.20.0 and 0.26.0",
        "  on:    0.33.0",
    ]
    assert shown.count("next: ") == 2


@given(targets())
def test_a_target_has_problems_just_where_it_needs_attention(target: TargetReport) -> None:
    assert bool(problems(target)) == target.state.needs_attention
    needy = {feature.feature for feature in target.features if feature.state.needs_attention}
    assert {name for problem in problems(target) for name in problem.features} == needy


@given(targets())
def test_the_worst_feature_comes_first_and_last_what_is_not_for_the_release(
    target: TargetReport,
) -> None:
    """So that the table of ``apply`` has the order of the one that ``check`` showed."""
    report = CheckReport(Verdict(Code.CAN_BE_APPLIED, "."), (target,))
    shown = [line.split() for line in text(report).splitlines() if line.startswith("  feature-")]
    states = [State(words[1]) for words in shown]
    idle = [state for state in states if state in (State.UPSTREAMED, State.INAPPLICABLE)]
    rest = states[: len(states) - len(idle)]
    for part in (idle, rest):
        assert part == sorted(part, key=lambda state: state.rank, reverse=True)
    assert [*rest, *idle] == states
    assert len(states) == len(target.features)


def drifted(name: str, root: Path | None = None) -> TargetReport:
    hunk = HunkResult("A.b", State.DRIFTED, reason=Reason("line 3 of the pre-image is not there"))
    file = FileResult("vllm/a.py", State.DRIFTED, "f/10-a/x.patch", (hunk,))
    feature = FeatureResult("f", State.DRIFTED, (file,))
    return TargetReport(name, name, root, (feature,), (Notice(None, "a warning"),))


def test_details_on_request() -> None:
    hunk = HunkResult("A.b", State.PRISTINE, line=571)
    file = FileResult("vllm/a.py", State.PRISTINE, "f/10-a/x.patch", (hunk,))
    feature = FeatureResult("f", State.PRISTINE, (file,))
    target = TargetReport("0.26.0", "0.26.0", None, (feature,))
    report = CheckReport(Verdict(Code.CAN_BE_APPLIED, "Fine."), (target,))
    assert "571" not in text(report)
    assert "line 571  A.b" in text(report, verbose=True)
    assert "f/10-a/x.patch" in text(report, verbose=True)


def test_a_matrix_marks_the_worst_and_says_a_shared_problem_once() -> None:
    good = TargetReport("0.25.0", "0.25.0", None, (FeatureResult("f", State.PRISTINE),))
    found = (good, drifted("0.26.0"), drifted("0.27.0"))
    lines = text(CheckReport(Verdict(Code.NEEDS_ATTENTION, "Two."), found)).splitlines()
    assert lines[:4] == [
        "release  f",
        "0.25.0   pristine",
        "0.26.0   drifted !",
        "0.27.0   drifted !",
    ]
    assert sum("line 3 of the pre-image" in line for line in lines) == 1
    assert "  on:    0.26.0 and 0.27.0" in lines
    assert "warning: 0.26.0 and 0.27.0: a warning" in lines


def test_what_to_do_next_depends_on_whether_it_can_be_written() -> None:
    assert "reinstall" in str(problems(drifted("0.26.0", root=Path("/opt")))[0].reason.next_step)
    assert "reinstall" not in str(problems(drifted("0.26.0"))[0].reason)


def test_a_missing_file_is_said_once_and_not_for_each_hunk() -> None:
    reason = Reason("expected the file vllm/a.py, found none")
    hunks = tuple(HunkResult(f"A.m{index}", State.MISSING, reason=reason) for index in range(3))
    file = FileResult("vllm/a.py", State.MISSING, "p", hunks, reason)
    feature = FeatureResult("f", State.MISSING, (file,))
    target = TargetReport("0.26.0", "0.26.0", None, (feature,))
    (problem,) = problems(target)
    assert problem.reason.text == reason.text
    assert problem.places == (ProblemPlace("vllm/a.py", None, "p"),)


def test_candidates_are_listed() -> None:
    hunk = HunkResult("A.b", State.AMBIGUOUS, candidates=(3, 17))
    file = FileResult("vllm/a.py", State.AMBIGUOUS, "p", (hunk,))
    feature = FeatureResult("f", State.AMBIGUOUS, (file,))
    target = TargetReport("0.26.0", "0.26.0", None, (feature,))
    assert "lines: 3 and 17" in text(CheckReport(Verdict(Code.NEEDS_ATTENTION, "."), (target,)))


def test_a_partial_feature_says_which_files_stand_where() -> None:
    files = (FileResult("vllm/a.py", State.APPLIED), FileResult("vllm/b.py", State.PRISTINE))
    feature = FeatureResult("f", State.PARTIAL, files)
    target = TargetReport("x", "0.26.0", Path("/opt"), (feature,))
    (problem,) = problems(target)
    assert problem.reason.text == "applied: vllm/a.py; pristine: vllm/b.py"


def test_holes_are_named() -> None:
    holes = [("f", Hole("10-proposer", release)) for release in ("0.23.0", "0.24.0")]
    shown = text(ListReport(Verdict(Code.HOLES, "One."), (listed_feature(),), (*holes,)))
    assert "10-proposer has no variant for 0.23.0 and 0.24.0" in shown


def test_an_error_comes_before_the_verdict() -> None:
    assert text(failure("check", "no vLLM\nInstall one")).splitlines() == [
        "error: no vLLM",
        "       Install one",
        "",
        "overlay check stopped: see the error.",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LONG = (
    Line((Span("  why:   ", "muted"),), (Span("word " * 40),)),
    Line((), (Span("End.", "bad"),)),
)


def test_a_terminal_gets_colour_and_wrapped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    paint(LONG, stream)
    assert "\x1b[" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    paint(LONG, stream)
    lines = stream.getvalue().splitlines()
    assert not any("\x1b[3" in line or "\x1b[9" in line for line in lines)  # no colour, bold may be
    plain = [
        line.replace("\x1b[2m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines
    ]
    assert all(len(line) <= 60 for line in plain)
    assert plain[0].startswith("  why:   word")
    assert plain[1].startswith("         word")
    assert plain[-1] == "End."


def test_a_pipe_gets_plain_unwrapped_lines() -> None:
    stream = io.StringIO()
    paint(LONG, stream)
    assert stream.getvalue() == "  why:   " + ("word " * 40).rstrip() + "\nEnd.\n"


def unrecorded(paths: list[str], feature: str = "f") -> FeatureResult:
    """A feature whose changes are in the files, without a ledger."""
    files = tuple(
        FileResult(
            path, State.DRIFTED, "p", (HunkResult("g", State.DRIFTED, 3, advice.unrecorded(VLLM)),)
        )
        for path in paths
    )
    return FeatureResult(feature, State.DRIFTED, files)


def test_one_cause_is_told_once_with_its_files_counted() -> None:
    found = (
        unrecorded([f"vllm/m{number}.py" for number in range(24)]),
        unrecorded(["vllm/m3.py", "vllm/n.py"], "other"),
    )
    target = TargetReport("x", "0.26.0", Path("/opt"), found)
    (problem,) = problems(target)
    assert (problem.features, len(problem.paths)) == (("f", "other"), 25)
    report = StatusReport(Verdict(Code.NEEDS_ATTENTION, "."), target)
    shown = text(report)
    assert shown.count("overlay revert") == 1
    assert "! drifted: 25 files" in shown
    assert "vllm/m0.py, vllm/m1.py, vllm/m2.py, vllm/m3.py, vllm/m4.py and 20 others" in shown
    assert "vllm/m23.py" in text(report, verbose=True)


def test_a_feature_without_a_patch_is_not_told_beside_the_real_problem() -> None:
    hunk = HunkResult("g", State.DRIFTED, reason=Reason("expected 'x' in g"))
    expected = FeatureResult(
        "expected", State.DRIFTED, (FileResult("vllm/a.py", State.DRIFTED, None, (hunk,)),)
    )
    alone = TargetReport("0.26.0", "0.26.0", None, (expected,))
    assert [problem.features for problem in problems(alone)] == [("expected",)]
    beside = TargetReport("0.26.0", "0.26.0", None, (*drifted("0.26.0").features, expected))
    assert [problem.features for problem in problems(beside)] == [("f",)]
    assert checked([beside]).text == "Action needed: f has drifted on vLLM 0.26.0."


def test_columns_are_as_wide_as_their_widest_cell_is_shown() -> None:
    rows = [["a", "b", "c"], ["long", "\x1b"], ["", "x", "end"]]
    lines = aligned([[Span(cell) for cell in row] for row in rows], indent=2)
    assert [str(line) for line in lines] == [
        "  a     b     c",
        "  long  \\x1b",
        "        x     end",
    ]
