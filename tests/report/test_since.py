"""Laws of ``check --since``: what is worse is told, in every form, and nothing else fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.commands.check import CheckReport
from overlay.commands.since import Ownership, SinceReport, Turn, since
from overlay.errors import UsageError
from overlay.report.as_json import as_json
from overlay.report.codes import Code, Exit
from overlay.report.model import Obstacle, TargetFailure, TargetReport
from overlay.report.wording import checked
from overlay.results import FeatureResult, Reason, State
from overlay.untrusted import printable

NAMES = ("a", "b|<x>&*", "c\x1b]0;x\x07")
STATES = st.sampled_from(list(State))
CHECKS = st.dictionaries(
    st.tuples(st.sampled_from(["0.26.0", "0.27.0"]), st.sampled_from(NAMES)), STATES
)


def report(
    states: dict[tuple[str, str], State], failures: Sequence[TargetFailure] = ()
) -> CheckReport:
    targets = []
    for name in dict.fromkeys(target for target, _ in states):
        features = tuple(
            FeatureResult(feature, state, (), Reason("why | so", "do <this>"))
            for (target, feature), state in states.items()
            if target == name
        )
        targets.append(TargetReport(name, name, None, features))
    return CheckReport(checked(targets, failures), tuple(targets), tuple(failures))


def compared(
    before: dict[tuple[str, str], State],
    now: dict[tuple[str, str], State],
    place: Path,
    form: str = "text",
) -> SinceReport:
    place.write_text(as_json(report(before)))
    return since(report(now), place, (), form)


@given(CHECKS)
def test_nothing_changed_since_the_same_report(
    tmp_path_factory: pytest.TempPathFactory, states: dict[tuple[str, str], State]
) -> None:
    made = compared(states, states, tmp_path_factory.mktemp("a") / "r.json")
    assert (made.differences, made.exit) == ((), Exit.OK)


@given(CHECKS, CHECKS)
def test_every_form_tells_what_got_worse_and_the_exit_agrees(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[tuple[str, str], State],
    now: dict[tuple[str, str], State],
) -> None:
    place = tmp_path_factory.mktemp("a") / "r.json"
    made = compared(before, now, place)
    worse = [each for each in made.differences if each.turn is Turn.WORSE]
    assert made.exit == (Exit.ATTENTION if worse else Exit.OK)
    newly = {
        (*key, state)
        for key, state in now.items()
        if state.needs_attention and (key not in before or before[key].rank < state.rank)
    }
    assert {(each.target, each.feature, State(str(each.now))) for each in worse} >= newly
    text = "\n".join(map(str, made.lines()))
    assert "\x1b" not in text
    heads_of_worse = [line for line in text.splitlines() if "  worse: " in line]
    for each in worse:  # one cause on several targets is told once, with all of them
        head = f"  {printable(each.feature)}  worse: {each.words}"
        heads = [line for line in heads_of_worse if head in line]
        assert sum(each.target in line for line in heads) == 1
    assert len(heads_of_worse) == len({(each.feature, each.words) for each in worse})
    markdown = (compared(before, now, place, "markdown").body or b"").decode()
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    titles = sum(line.startswith("### ") for line in markdown.splitlines())
    assert len(rows) == len(made.differences) + titles
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
    assert not any(text in markdown for text in ("<x>", "\x1b"))
    root = ElementTree.fromstring(compared(before, now, place, "junit").body or b"")
    assert len(root.findall("testcase/failure")) == len(worse) == int(root.get("failures", ""))
    assert len(root.findall("testcase")) == len(now)


@pytest.mark.parametrize(
    ("before", "now", "turn"),
    [
        (State.PRISTINE, State.DRIFTED, Turn.WORSE),
        (State.PARTIAL, State.MISSING, Turn.WORSE),
        (State.MISSING, State.PARTIAL, Turn.BETTER),
        (State.DRIFTED, State.PRISTINE, Turn.BETTER),
        (State.APPLIED, State.PRISTINE, Turn.WORSE),
        (State.PRISTINE, State.INAPPLICABLE, Turn.WORSE),
        (State.PRISTINE, State.UPSTREAMED, Turn.OTHER),
        (State.PRISTINE, State.APPLIED, Turn.OTHER),
    ],
)
def test_what_a_change_means(tmp_path: Path, before: State, now: State, turn: Turn) -> None:
    (each,) = compared(
        {("0.26.0", "a"): before}, {("0.26.0", "a"): now}, tmp_path / "r.json"
    ).differences
    assert each.turn is turn


def test_what_was_not_asked_about_is_not_told(tmp_path: Path) -> None:
    both = {("0.26.0", "a"): State.PRISTINE, ("0.27.0", "a"): State.PRISTINE}
    assert not compared(both, {("0.26.0", "a"): State.PRISTINE}, tmp_path / "r.json").differences


def test_a_feature_that_is_gone_is_told(tmp_path: Path) -> None:
    both = {("0.26.0", "a"): State.PRISTINE, ("0.26.0", "b"): State.PRISTINE}
    (each,) = compared(both, {("0.26.0", "a"): State.PRISTINE}, tmp_path / "r.json").differences
    assert (each.feature, each.now, each.turn) == ("b", None, Turn.OTHER)


def test_an_obstacle_of_a_target_is_worse(tmp_path: Path) -> None:
    states = {("0.26.0", "a"): State.APPLIED}
    place = tmp_path / "r.json"
    place.write_text(as_json(report(states)))
    (target,) = report(states).checked
    obstacle = Obstacle(Code.COPIES_DAMAGED, "copies are damaged", Reason("why", "do"))
    now = TargetReport(target.target, target.vllm, None, target.features, obstacles=(obstacle,))
    made = since(CheckReport(checked([now]), (now,)), place, ())
    assert [(each.feature, each.now) for each in made.differences] == [("", "copies-damaged")]
    assert made.exit is Exit.ATTENTION


def test_a_target_that_cannot_be_read_is_an_error_as_before(tmp_path: Path) -> None:
    place = tmp_path / "r.json"
    place.write_text(as_json(report({("0.26.0", "a"): State.PRISTINE})))
    failure = TargetFailure("0.27.0", "no network <&>")
    made = since(report({("0.26.0", "a"): State.PRISTINE}, [failure]), place, (), "junit")
    assert made.exit is Exit.ERROR
    root = ElementTree.fromstring(made.body or b"")
    assert [error.get("message") for error in root.findall("testcase/error")] == ["no network <&>"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "{", "null", '{"schema": 2, "command": "list", "targets": []}', "[" * 100_000]
    + [
        json.dumps({"schema": 2, "command": "check", "targets": [target]})
        for target in (
            1,
            {"target": None, "package": "vllm", "features": [], "interrupted": True},
            {"target": "x", "package": "vllm", "features": [{}], "interrupted": False},
            {
                "target": "x",
                "package": "vllm",
                "features": [{"feature": "a", "state": "odd"}],
                "interrupted": False,
            },
        )
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    place = tmp_path / "r.json"
    place.write_text(text)
    with pytest.raises(UsageError, match=r"r\.json: expected what .* wrote, found something else"):
        since(report({}), place, ())


def test_a_report_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found no such file"):
        since(report({}), tmp_path / "r.json", ())


def test_owner_and_age_in_words() -> None:
    upkeep = Ownership("Ada <ada@example.org>", "2026-11-01")
    words = upkeep.words(date(2026, 11, 26))
    assert words == "Ada <ada@example.org>, since 2026-11-01, 25 days"
    assert Ownership().words(date(2026, 11, 26)) == ""
