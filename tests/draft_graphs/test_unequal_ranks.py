"""Tensor-parallel ranks that would not draft alike all stop, before one of them captures.

A rank that captured alone would wait in its first collective for ranks that enter none.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.draft_graphs.added_modules import added

same_settings: Any = added("same_settings")

SCRIPT = Path(__file__).with_name("unequal_ranks.py")
#: Seconds for all cases: of two ranks that never end this one must tell.
DEADLINE = 300

SETTINGS = st.dictionaries(
    st.sampled_from(["OVERLAY_DRAFT_GRAPHS", "patches", "vLLM"]),
    st.sampled_from(["a", "bb", "c d"]),
)


@given(st.dictionaries(st.integers(0, 99), SETTINGS, min_size=1, max_size=5))
def test_the_table_has_what_differs_and_nothing_else(by_rank: Mapping[int, Any]) -> None:
    lines = same_settings.differences(by_rank)
    names = {name for each in by_rank.values() for name in each}
    unequal = {n for n in names if len({each.get(n) for each in by_rank.values()}) > 1}
    if not unequal:
        assert lines == []
        return
    head, *rows = lines
    assert head.split() == ["rank", *sorted(unequal)]
    assert [int(row.split()[0]) for row in rows] == sorted(by_rank)
    for row, (_, each) in zip(rows, sorted(by_rank.items()), strict=True):
        for name in sorted(unequal):
            at = head.index(name)
            assert row[at:].startswith(each.get(name, "-"))


class Store:
    """A store in which one rank has said how it drafts, and that fails for any other."""

    def __init__(self) -> None:
        self.patience: list[float] = []

    def wait(self, keys: list[str], patience: timedelta) -> None:
        self.patience.append(patience.total_seconds())
        if not keys[0].endswith("/1"):
            raise RuntimeError(f"no {keys[0]}")

    def get(self, key: str) -> bytes:
        return b'{"host": "here", "settings": {}}'


def test_ranks_that_say_nothing_come_with_the_error_of_the_store() -> None:
    store = Store()
    rows, silent = same_settings._read(store, 4, [0, 1, 2])
    assert rows == {1: {"host": "here", "settings": {}}}
    assert silent == {rank: f"no vllm-overlay/draft-graphs/4/{rank}" for rank in (0, 2)}
    # Once one was too late, the others have had the same time.
    assert store.patience == [same_settings.PATIENCE, 1.0, 1.0]


@pytest.fixture(scope="module")
def outcomes(patched_python: Path) -> dict[str, list[dict[str, Any]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(
        [str(patched_python), str(SCRIPT), port],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("RANK ")]
    return {
        case: sorted(
            (each for each in lines if each["case"] == case), key=lambda each: each["rank"]
        )
        for case in {each["case"] for each in lines}
    }


engine_test = [pytest.mark.engine, pytest.mark.slow]


class TestTwoRanks:
    pytestmark = engine_test

    @pytest.mark.parametrize("case", ["equal", "default and the same value", "former spelling"])
    def test_that_draft_alike_start(
        self, outcomes: dict[str, list[dict[str, Any]]], case: str
    ) -> None:
        assert [each["error"] for each in outcomes[case]] == ["", ""]

    @pytest.mark.parametrize(
        ("case", "name", "values"),
        [
            ("one is off", "OVERLAY_DRAFT_GRAPHS", ("auto", "off")),
            ("another mode", "OVERLAY_DRAFT_GRAPHS", ("step", "loop")),
            ("another grant", "OVERLAY_DRAFT_GRAPHS_UNTRIED", ("off", "on")),
            ("another device", "drafts", ("in graphs", "as upstream: it has no graphs")),
            ("another vLLM", "vLLM", ("0.32.0", "0.31.0")),
            ("other patches", "patches", (None, "0123456789ab")),
        ],
    )
    def test_that_differ_both_stop_with_a_table(
        self,
        outcomes: dict[str, list[dict[str, Any]]],
        case: str,
        name: str,
        values: tuple[str | None, str],
    ) -> None:
        first, second = (each["error"] for each in outcomes[case])
        assert first == second
        assert first.startswith("RanksDiffer: Draft graphs: tensor-parallel ranks differ")
        head, *rows = [line for line in first.splitlines() if line.startswith("  ")]
        assert name in head.split()
        assert [row.split()[0] for row in rows] == ["0", "1"]
        for row, value in zip(rows, values, strict=True):
            assert value is None or value in row
        assert "equal on every node" in first

    def test_one_that_says_nothing_is_named_in_time(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        speaker, silent = outcomes["one is silent"]
        assert speaker["error"].startswith(
            "RanksDiffer: Draft graphs: tensor-parallel rank 1 did not say within 6 s how it drafts"
        )
        assert 6 <= speaker["seconds"] < 12
        assert silent["error"] == ""
