"""Which graph a step of model runner V2 takes, and how it is planned, in engines on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overlay.results import ModelRunner
from tests.engine.engine_spec import QUICKEST, EngineSpec, make_requests
from tests.engine.forked_engines import launch_forked
from tests.engine.graph_doubles import MISTAKE
from tests.engine.test_mends import INTERPRETED

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: Steps of four tokens, so that a prompt may begin with one token beside three decodes.
SPEC = EngineSpec(
    "",
    None,
    0,
    (
        *make_requests(5, tokens=14, lengths=(2, 20)),
        *make_requests(5, tokens=9, lengths=(2, 20), seed=2),
    ),
    block_size=32,
    max_num_seqs=4,
    max_num_batched_tokens=4,
    engine=QUICKEST,
    runner=ModelRunner.V2,
    env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    post_load=("tests.engine.graph_doubles:prepare",),
    finish=("tests.engine.graph_doubles:steps",),
)
DISPATCHED = "runner.cudagraph_manager.overlay_dispatched.uniform_token_count is None"
#: Plans for the other graph of the same tokens and rows.
MISTAKES = (f"_single_tokens|{DISPATCHED}|True", f"_single_tokens|{DISPATCHED}|False")


@pytest.fixture(scope="module")
def results(engine_python: Path, tiny_models: Path) -> list[dict[str, Any]]:
    """What an engine answers as it is, and with each mistake."""
    right = replace(SPEC, models=str(tiny_models))
    wrong = [replace(right, env={**SPEC.env, MISTAKE: mistake}) for mistake in MISTAKES]
    return launch_forked(engine_python, [right, *wrong], env=INTERPRETED)


def test_decodes_take_their_graphs_and_all_tokens_are_right(results: list[dict[str, Any]]) -> None:
    right = results[0]
    assert right["ok"]
    steps = right["hooks"]["graph_doubles:steps"]
    assert set(steps) == {
        "decodes: one token",
        "mixed batches: more tokens",
        # Prompts that begin are in none of decodes.
        "mixed batches: one token",
    }


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_plan_for_the_other_graph_gives_wrong_tokens(
    results: list[dict[str, Any]], number: int
) -> None:
    wrong = results[1 + number]
    assert not all(request["tokens_ok"] for request in wrong["requests"])
