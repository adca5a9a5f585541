"""Steady steps, greedy verification and batched bookkeeping in an engine: the oracle's drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_fixtures import overlay, private_vllm
from tests.engine.engine_launch import launch
from tests.engine.engine_spec import QUICKEST, EngineSpec, make_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
SPEC = EngineSpec(
    "",
    "eagle3hid",
    3,
    make_requests(10, tokens=40, wave=3, steps_between=6),
    block_size=32,
    engine=QUICKEST,
    env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    async_scheduling=True,
    pre=("tests.engine.steady_hooks:schedule_asynchronously",),
    post_load=("tests.engine.steady_hooks:watch",),
    finish=(
        "tests.engine.steady_hooks:steps",
        "tests.engine.steady_hooks:bookkeeping",
        "tests.engine.steady_hooks:scheduling",
    ),
    packages=(TESTS,),
)


#: Off, vLLM's own code runs, as in `test_engine_unchanged.py`.
OFF = pytest.param("off", marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=["on", OFF])
def ran(
    request: pytest.FixtureRequest,
    engine_python: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The features' switch, and what an engine gave with it."""
    spec = replace(SPEC, models=str(tiny_models))
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("steady")):
        overlay("apply", copy.site)
        switches = (
            "OVERLAY_STEADY_INPUTS",
            "OVERLAY_GREEDY_VERIFICATION",
            "OVERLAY_BATCHED_BOOKKEEPING",
            "OVERLAY_STEADY_SCHEDULER",
        )
        yield request.param, launch(copy.python, spec, env=dict.fromkeys(switches, request.param))


def test_drafts_are_those_of_the_oracle(ran: tuple[str, dict[str, Any]]) -> None:
    assert ran[1]["ok"]


def test_many_steps_are_steady_where_it_is_on(ran: tuple[str, dict[str, Any]]) -> None:
    switch, result = ran
    counts = result["hooks"]["steady_hooks:steps"]
    if switch == "off":
        assert "steady" not in counts
    else:
        assert counts["all"] / 3 < counts["steady"] < counts["all"]


def test_drafts_are_verified_greedily_where_it_is_on(ran: tuple[str, dict[str, Any]]) -> None:
    switch, result = ran
    counts = result["hooks"]["steady_hooks:steps"]
    way, other = "verified greedily", "verified upstream's way"
    if switch == "off":
        way, other = other, way
    assert counts[way] > counts["all"] / 3
    assert other not in counts


def test_the_bookkeeping_is_done_together_where_it_is_on(ran: tuple[str, dict[str, Any]]) -> None:
    switch, result = ran
    told = result["hooks"]["steady_hooks:bookkeeping"]
    if switch == "off":
        assert told["state"] == "idle"
        assert not told["counts"]
    else:
        assert told["state"] == "active"
        steps = result["hooks"]["steady_hooks:steps"]["all"]
        assert told["counts"]["steps whose placeholders were written together"] > steps / 3
        assert told["counts"]["outputs listed together"] > steps / 3
        assert told["counts"]["steps whose requests went on together"] > steps / 3
        assert told["counts"]["steps whose rejected drafts were taken off together"] > steps / 3
        assert told["counts"]["steps whose last tokens were listed together"] > steps / 3
        assert told["counts"]["steps whose drafts were counted together"] > 3
        # Those of steady steps are copied as they are; the others are filled here.
        assert told["counts"]["steps whose input ids were filled together"] > 3


def test_steps_are_taken_as_one_where_it_is_on(ran: tuple[str, dict[str, Any]]) -> None:
    switch, result = ran
    report = result["hooks"]["steady_hooks:scheduling"]
    if switch == "off":
        assert report["state"] == "idle"
        way = "schedulers that allocate upstream's way: OVERLAY_STEADY_SCHEDULER=off"
        assert report["counts"] == {way: 1}
    else:
        assert report["state"] == "active"
        counts = report["counts"]
        assert counts["schedulers that ask which requests hold their slots"] == 1
        steps = result["hooks"]["steady_hooks:steps"]["all"]
        names = ("steps scheduled together", "steps scheduled in part")
        assert sum(counts.get(name, 0) for name in names) > steps / 3
        names = ("outputs noted together", "outputs noted in part")
        assert sum(counts.get(name, 0) for name in names) > steps / 3
