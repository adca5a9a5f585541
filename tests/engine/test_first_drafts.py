"""Upstream's drafts share slots where the scheduler gives first drafts no room; the hook mends it.

No overlay takes part: that is why some cells of ``tests/gpu`` use the hook on releases up to 0.22.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.engine_launch import launch
from tests.engine.engine_spec import EngineSpec, make_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
NO_ROOM = "tests.engine.scheduler_hooks:no_room_for_first_drafts"
ROOM = "tests.engine.scheduler_hooks:room_for_first_drafts"
#: All prompts end one token before a block does.
PROMPTS = make_requests(8, tokens=24, lengths=(31, 31))


@pytest.mark.parametrize(
    ("pre", "faults"),
    [((NO_ROOM,), ["two tokens go to one slot"]), ((ROOM, NO_ROOM), [])],
    ids=["no room", "room"],
)
def test_first_drafts_without_room_may_share_a_slot(
    pre: tuple[str, ...], faults: list[str], engine_python: Path, tiny_models: Path
) -> None:
    spec = EngineSpec(
        str(tiny_models),
        "eagle3hid",
        5,
        PROMPTS,
        block_size=16,
        pre=(
            "tests.support.rested_collector:rest",
            "tests.draft_graphs.graph_safe_attention:register",
            *pre,
        ),
        finish=("tests.engine.scheduler_hooks:faults",),
        packages=(TESTS,),
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    result = launch(engine_python, spec, env={"OVERLAY": "off"})
    assert result["hooks"]["scheduler_hooks:faults"] == faults
