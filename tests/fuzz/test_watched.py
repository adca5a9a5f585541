"""How the watch notes what an engine does, with doubles of an engine's parts."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fuzz.watched import MOST_IDLE, Watch


def idle_watch() -> Any:
    """A watch without an engine."""
    watch: Any = Watch.__new__(Watch)
    watch.steps, watch.now, watch.loads = [], {}, 0
    return watch


def test_rows_are_noted_as_the_drafter_gets_them() -> None:
    computed = array("i", [5, 9, 3])  # sliced and listed as numpy's

    def propose(k: int) -> list[list[int]]:
        for row in range(2):
            computed[row] += k - 1  # as upstream's later passes do until 0.29
        return [[7, 8]]

    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_computed_tokens_cpu=computed, num_reqs=2),
        drafter=SimpleNamespace(propose=propose),
    )
    watch = idle_watch()
    watch._watch_drafter(runner)
    assert runner.drafter.propose(k=4) == [[7, 8]]
    assert computed[0] == 8
    assert watch.now == {"rows": [[5, 9]], "drafts": [[[7, 8]]]}


class Engine:
    """What serves one request in a number of steps; some of them do nothing.

    :ivar steps: of each, whether something is scheduled.
    """

    def __init__(self, watch: Any, steps: list[bool]) -> None:
        self.watch, self.left = watch, steps
        self.output_processor = SimpleNamespace(request_states={"1.r0": None})
        self.added = False

    def has_unfinished_requests(self) -> bool:
        return self.added and bool(self.left)

    def abort_request(self, _: list[str]) -> None:
        self.added = True  # an event that wants nothing of vLLM

    def step(self) -> list[Any]:
        self.watch._note("scheduled", [["1.r0", 1, 0]] if self.left.pop(0) else [])
        return []


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([True, *[False] * MOST_IDLE] * 3, None),
        ([True, *[False] * 1000], "requests are left"),
        ([True] * 5000, "did not end"),
    ],
    ids=["moves", "stands", "goes on for ever"],
)
def test_a_load_ends_where_the_engine_stands_still(steps: list[bool], error: str | None) -> None:
    watch = idle_watch()
    watch.engine = Engine(watch, list(steps))
    outcome = watch.serve([{"at": 0, "do": "abort", "id": "r0"}], None)
    assert (error or "") in (outcome["error"] or "")
    assert (outcome["error"] is None) == (error is None)
    # Where it stands, it costs little to say so.
    assert len(outcome["steps"]) <= (MOST_IDLE + 2 if error == "requests are left" else 4001)
