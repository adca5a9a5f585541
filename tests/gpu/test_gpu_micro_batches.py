"""What `gpu/micro_batches.py` makes of what a cell shows: it can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu import micro_batches
from tests.gpu.dp_judging import RANKS

SERVING = [name for name, cell in micro_batches.CELLS.items() if cell[3] is None]


def ranks(name: str) -> list[dict[str, Any]]:
    """Both ranks of a cell in which all is right."""
    mode, split = micro_batches.CELLS[name][1], micro_batches.is_split(name)
    return [
        {
            "requests": 26,
            "tokens_ok": 26,
            "accepted": [9, 5, 2],
            "oracle": [9, 5, 2],
            "every_step_ok": True,
            "replays": {} if mode == "off" else {"first": 7, mode: 7},
            "asked": 14 if mode == "off" else 0,
            "captured": [{"withdrawn": None}],
            "target": {"ran": 3, "captured": 2, "replayed": 40, "whole": 5} if split else {},
        }
        for _ in range(RANKS)
    ]


@pytest.mark.parametrize("name", SERVING)
def test_what_is_right_is_right(name: str) -> None:
    assert micro_batches.why_wrong(name, ranks(name), double=False) == []


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens_ok": 25}, "tokens"),
        ({"requests": 0, "tokens_ok": 0}, "tokens"),
        ({"accepted": [9, 5, 1]}, "accepted drafts"),
        ({"accepted": [0, 0, 0], "oracle": [0, 0, 0]}, "accepted none"),
        ({"every_step_ok": False}, "accepted drafts"),
        ({"replays": {}}, "replays of draft graphs"),
        ({"replays": {"first": 7, "step": 7}}, "roles"),
        ({"asked": 1}, "asked"),
        ({"captured": [{"withdrawn": "it failed"}]}, "withdrawn"),
        ({"target": {"captured": 2, "replayed": 40}}, "eager micro-batches"),
        ({"target": {"ran": 3, "replayed": 40}}, "captured micro-batches"),
        ({"target": {"ran": 3, "captured": 2}}, "replayed micro-batches"),
    ],
)
def test_what_is_wrong_is_told(rank: int, change: dict[str, Any], said: str) -> None:
    found = ranks("eagle3hid-loop")
    found[rank] |= change
    assert f"rank {rank}: {said}" in micro_batches.why_wrong("eagle3hid-loop", found, double=False)


def test_a_target_that_was_split_is_wrong_where_none_is_to_be() -> None:
    found = ranks("eplb-loop")
    found[0]["target"] = {"ran": 1}
    assert micro_batches.why_wrong("eplb-loop", found, double=False) == [
        "rank 0: eager micro-batches"
    ]


def test_cells_without_a_feature_want_its_error() -> None:
    for name in ("without-dbo-drafts", "without-dbo-eagle3"):
        _, mode, variables, error = micro_batches.CELLS[name]
        assert (mode, list(variables.values())) == ("off", ["off"])
        assert error


@pytest.mark.parametrize("name", micro_batches.CELLS)
def test_the_engine_of_a_cell(name: str) -> None:
    spec = micro_batches.make_spec(Path("models"), name, double=False)
    assert spec.draft == micro_batches.CELLS[name][0]
    assert ("enable_dbo" in spec.engine) != ("enable_eplb" in spec.engine)
    assert spec.engine["data_parallel_size"] == RANKS
