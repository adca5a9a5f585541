"""``vllm/v1/overlay_effects.py``: where patched code reports what it does in its process."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "patches/shared/files/vllm/v1/overlay_effects.py"


@pytest.fixture
def effects() -> Any:
    spec = importlib.util.spec_from_file_location("overlay_effects_under_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_imports_the_standard_library_only() -> None:
    for node in ast.walk(ast.parse(FILE.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def test_states_and_counts(effects: Any) -> None:
    assert effects.effects() == {}
    effects.count("a", "replays of loop")
    effects.active("a", "14 graphs (loop)")
    effects.idle("b", "the platform (cpu) has no graphs")
    effects.count("a", "replays of loop")
    assert effects.effects() == {
        "a": {"state": "active", "text": "14 graphs (loop)", "counts": {"replays of loop": 2}},
        "b": {"state": "idle", "text": "the platform (cpu) has no graphs", "counts": {}},
    }
    effects.idle("a", "withdrawn")
    assert effects.effects()["a"]["state"] == "idle"
    assert effects.counted() == [("a", "replays of loop")]


def test_a_subscriber_hears_of_changes_and_new_counts_only(effects: Any) -> None:
    heard: list[object] = []
    effects.subscribe(lambda: heard.append(effects.effects()))
    assert heard == []
    for _ in range(3):
        effects.active("a", "x")
        effects.count("a", "replays")
    assert len(heard) == 2
    effects.active("a", "y")
    assert len(heard) == 3


def test_a_late_subscriber_hears_of_what_was_reported(effects: Any) -> None:
    effects.idle("a", "x")
    heard: list[int] = []
    effects.subscribe(lambda: heard.append(1))
    assert heard == [1]


def test_what_a_subscriber_raises_reaches_the_patched_code(effects: Any) -> None:
    def refuse() -> None:
        raise RuntimeError("required")

    effects.subscribe(refuse)
    with pytest.raises(RuntimeError, match="required"):
        effects.idle("a", "x")


def test_counts_move_into_the_given_memory(effects: Any) -> None:
    effects.count("a", "x")
    memory = memoryview(bytearray(8 * effects.SLOTS)).cast("Q")
    effects.count_in(memory)
    effects.count("a", "x")
    effects.count("a", "y")
    assert list(memory[:3]) == [2, 1, 0]
    assert effects.effects()["a"]["counts"] == {"x": 2, "y": 1}


def test_more_counts_than_slots_share_the_last(effects: Any) -> None:
    for number in range(2 * effects.SLOTS):
        effects.count("a", f"reason {number}")
    counts = effects.effects()
    assert len(effects.counted()) == effects.SLOTS
    feature, name = effects.REST
    assert counts[feature]["counts"][name] == effects.SLOTS + 1
    assert sum(sum(each["counts"].values()) for each in counts.values()) == 2 * effects.SLOTS


@pytest.mark.parametrize("make", [lambda n: None, lambda n: array("Q", bytes(8 * n))])
def test_no_count_is_lost_between_threads(effects: Any, make: Callable[[int], Any]) -> None:
    memory = make(effects.SLOTS)
    if memory is not None:
        effects.count_in(memory)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [effects.count("a", "x") for _ in range(20_000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert effects.effects()["a"]["counts"] == {"x": 80_000}


def test_a_fork_starts_without_reports_and_does_not_write_to_its_parents_memory(
    effects: Any,
) -> None:
    memory = array("Q", bytes(8 * effects.SLOTS))
    effects.count_in(memory)
    effects.active("a", "x")
    effects.count("a", "n")
    effects._lock.acquire()  # as another thread of the parent may hold it
    try:
        child = os.fork()
        if child == 0:
            kept = effects.effects() == {}
            effects.count("a", "other")
            os._exit(0 if kept and effects.effects()["a"]["counts"] == {"other": 1} else 1)
    finally:
        effects._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert memory[0] == 1


def test_a_gauge_says_its_last_number_and_is_no_count(effects: Any) -> None:
    replays = effects.Meaning("replays", (("graph", "loop"),))
    memory = effects.Meaning("graph_memory_bytes", gauge=True)
    effects.count("a", "replays of loop", replays)
    effects.count("a", "replays of loop", memory)  # the first meaning is kept
    effects.put("a", "bytes", 1 << 40, memory)
    effects.put("a", "bytes", 7, memory)
    effects.count("a", "others")
    assert effects.effects()["a"]["counts"] == {"replays of loop": 2, "others": 1}
    assert effects.counted() == [("a", "replays of loop"), ("a", "bytes"), ("a", "others")]
    assert effects.meanings() == [replays, memory, None]
    numbers = array("Q", bytes(8 * effects.SLOTS))
    effects.count_in(numbers)
    assert list(numbers[:3]) == [2, 7, 1]


def test_a_gauge_without_room_is_left_out_of_the_further_counts(effects: Any) -> None:
    for number in range(effects.SLOTS + 3):
        effects.count("a", str(number))
    before = effects.effects()[effects.REST[0]]["counts"][effects.REST[1]]
    effects.put("a", "bytes", 1 << 40, effects.Meaning("bytes", gauge=True))
    assert effects.effects()[effects.REST[0]]["counts"][effects.REST[1]] == before
    assert len(effects.meanings()) == len(effects.counted())
