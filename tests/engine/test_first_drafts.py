"""Upstream's drafts share slots where the scheduler gives first drafts no room; the hook mends it.

No overlay takes part: that is why some cells of ``tests/gpu`` use the hook on releases up to 0.22.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.engine_spec import QUICKEST, EngineSpec, make_requests
from tests.engine.forked_engines import launch_forked

#: Of a hook for old releases on a GPU: no code of the overlay's is asked.
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]

ATTENTION = "tests.draft_graphs.graph_safe_attention"
NO_ROOM = "tests.engine.scheduler_hooks:no_room_for_first_drafts"
ROOM = "tests.engine.scheduler_hooks:room_for_first_drafts"
#: All prompts end one token before a block does.
PROMPTS = make_requests(8, tokens=24, lengths=(31, 31))


#: By name, what is done to the scheduler before the engine starts.
CASES = {"no room": (NO_ROOM,), "room": (ROOM, NO_ROOM)}


@pytest.fixture(scope="module")
def faults(engine_python: Path, tiny_models: Path) -> dict[str, list[str]]:
    """What the attention of each engine saw."""
    specs = [
        EngineSpec(
            str(tiny_models),
            "eagle3hid",
            5,
            PROMPTS,
            block_size=16,
            pre=(f"{ATTENTION}:register", f"{ATTENTION}:watch_null_block", *hooks),
            finish=("tests.engine.scheduler_hooks:faults",),
            engine=QUICKEST,
        )
        for hooks in CASES.values()
    ]
    results = launch_forked(engine_python, specs, env={"OVERLAY": "off"})
    names = (result["hooks"]["scheduler_hooks:faults"] for result in results)
    return dict(zip(CASES, names, strict=True))


@pytest.mark.parametrize(
    ("name", "seen"), [("no room", ["two tokens go to one slot"]), ("room", [])], ids=CASES
)
def test_first_drafts_without_room_may_share_a_slot(
    faults: dict[str, list[str]], name: str, seen: list[str]
) -> None:
    assert faults[name] == seen
