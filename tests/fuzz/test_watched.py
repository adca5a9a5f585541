"""How the watch notes what an engine does, with doubles of an engine's parts."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from tests.fuzz.watched import Watch


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
