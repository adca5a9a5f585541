"""Ranks that would not draft alike all stop, before one of them captures; no wait is without end.

A rank that captured alone would wait in its first collective for ranks that enter none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.draft_graphs.added_modules import added
from tests.draft_graphs.dp_client import free_ports
from tests.draft_graphs.forked_modules import ForkedModules

same_settings: Any = added("same_settings")

SCRIPT = "tests.draft_graphs.unequal_ranks"

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


#: As in `unequal_ranks.py`, which needs vLLM.
PATIENCE, SCENARIOS, DATA_PARALLEL = 4.0, 5, "data-parallel: "


class Store:
    """A store in which rank 1 has said how it drafts; asked for rank 2 it is gone."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, keys: list[str]) -> bool:
        self.asked += keys
        if keys[0].endswith("/2"):
            raise RuntimeError("connection closed")
        return keys[0].endswith("/1")

    def get(self, key: str) -> bytes:
        return b'{"host": "here", "settings": {}}'


def test_all_silent_ranks_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(same_settings, "time", clock)
    store = Store()
    rows, silent = same_settings._read(store, 4, [0, 1, 2, 3])
    assert rows == {1: {"host": "here", "settings": {}}}
    nothing = "it has said nothing"
    assert silent == {0: nothing, 2: "connection closed", 3: nothing}
    assert same_settings.PATIENCE <= now[0] < same_settings.PATIENCE + 1
    assert store.asked[-1] == "vllm-overlay/draft-graphs/4/3"


@pytest.mark.parametrize(
    ("by_rank", "stop"),
    [
        (("auto", "in graphs"), False),
        (("off", "in graphs"), True),
        # The other data-parallel ranks have another device: all of them draft as upstream.
        (("auto", "as upstream: no graphs"), False),
    ],
)
def test_only_what_a_user_sets_stops_data_parallel_ranks(
    by_rank: tuple[str, str], stop: bool
) -> None:
    mine = {"OVERLAY_DRAFT_GRAPHS": "auto", "drafts": "in graphs"}
    theirs = dict(zip(mine, by_rank, strict=True))
    rows = {0: mine, 1: mine, 2: theirs, 3: theirs}
    assert same_settings._differ(rows, [[0, 1], [2, 3]]) is stop
    # Within a tensor-parallel group all of it must be equal.
    assert same_settings._differ(rows, [[0, 2], [1, 3]]) is (theirs != mine)


@pytest.fixture(scope="module")
def outcomes(forks: ForkedModules) -> dict[str, list[dict[str, Any]]]:
    done = forks.run(SCRIPT, *map(str, free_ports(SCENARIOS)))
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

    @pytest.mark.parametrize("prefix", ["", DATA_PARALLEL])
    @pytest.mark.parametrize("case", ["equal", "default and the same value", "former spelling"])
    def test_that_draft_alike_start(
        self, outcomes: dict[str, list[dict[str, Any]]], case: str, prefix: str
    ) -> None:
        assert [each["error"] for each in outcomes[prefix + case]] == ["", ""]
        assert [each["result"] for each in outcomes[prefix + case]] == ["graphs", "graphs"]

    @pytest.mark.parametrize("prefix", ["", DATA_PARALLEL])
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
        prefix: str,
        case: str,
        name: str,
        values: tuple[str | None, str],
    ) -> None:
        if prefix and case == "another device":
            return  # what they do instead is the next test's
        first, second = (each["error"] for each in outcomes[prefix + case])
        assert first == second
        kind = "ranks" if prefix else "tensor-parallel ranks"
        assert first.startswith(f"RanksDiffer: Draft graphs: {kind} differ")
        head, *rows = [line for line in first.splitlines() if line.startswith("  ")]
        assert name in head.split()
        assert [row.split()[0] for row in rows] == ["0", "1"]
        for row, value in zip(rows, values, strict=True):
            assert value is None or value in row
        assert "equal on every node" in first
        (equal,) = [line for line in first.splitlines() if line.startswith("Equal on all of them")]
        for each in ("OVERLAY_DRAFT_GRAPHS_CHECK", "OVERLAY_DRAFT_GRAPHS_UNTRIED", "vLLM"):
            assert (f" {each} " in equal) is (each not in head.split())

    def test_data_parallel_ranks_of_other_devices_all_draft_as_upstream(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        first, second = outcomes[f"{DATA_PARALLEL}another device"]
        assert first["error"] == second["error"] == ""
        assert "another data-parallel rank drafts as upstream" in first["result"]
        assert "it has no graphs" in second["result"]

    def test_one_that_says_nothing_is_named_in_time(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        speaker, silent = outcomes["one is silent"]
        assert speaker["error"].startswith(
            f"RanksDiffer: Draft graphs: tensor-parallel rank 1 did not say within {PATIENCE:.0f} s"
        )
        assert PATIENCE <= speaker["seconds"] < 3 * PATIENCE
        assert silent["error"] == ""

    def test_a_data_parallel_rank_without_patches_is_named_and_does_not_hang(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        """It waits in vLLM's own agreement, until the others have ended."""
        patched, unpatched = outcomes["unpatched"]
        assert patched["error"].startswith(
            f"RanksDiffer: Draft graphs: rank 1 did not say within {PATIENCE:.0f} s how it drafts"
        )
        for part in ("OVERLAY=off", "OVERLAY_DRAFT_GRAPHS auto", "patches ", "vLLM 0.32.0"):
            assert part in patched["error"]
        assert PATIENCE <= patched["seconds"] < 3 * PATIENCE
        assert "closed" in unpatched["error"].lower()
        assert unpatched["seconds"] < 4 * PATIENCE

    def test_a_rank_that_is_killed_while_all_capture_ends_the_vote_of_the_others(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        assert [each["result"] for each in outcomes["dies"]] == [True, True]
        (left,) = outcomes["dies at the second graph"]
        assert "One has died" in left["error"]
        assert left["seconds"] < PATIENCE

    def test_a_rank_that_fails_in_a_warm_up_does_not_wait_for_ever_for_the_others(
        self, outcomes: dict[str, list[dict[str, Any]]]
    ) -> None:
        failed, waiting = outcomes["warm-up"]
        assert "others wait there for its rows" in failed["error"]
        assert PATIENCE <= failed["seconds"] < 3 * PATIENCE
        assert "closed" in waiting["error"].lower()
        assert waiting["seconds"] < 4 * PATIENCE
