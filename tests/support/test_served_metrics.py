"""What the processes of one server counted, among all that `overlay status --live` lists."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay import _processes
from tests.support.process_records import counting
from tests.support.served_metrics import counted_inside, replays_of

COUNTS = st.lists(
    st.fixed_dictionaries(
        {
            "count": st.sampled_from(["replays of loop", "replays of first", "outputs listed"]),
            "number": st.integers(0, 99),
        }
    ),
    max_size=3,
)
PROCESSES = st.fixed_dictionaries(
    {
        "engine": st.integers(1, 3),
        "record": st.none() | st.fixed_dictionaries({"counts": COUNTS}),
    }
)


@given(st.lists(PROCESSES, min_size=1, max_size=6))
def test_each_server_has_its_own_replays_whatever_runs_beside_it(
    processes: list[dict[str, Any]],
) -> None:
    told = 0
    for server in {each["engine"] for each in processes}:
        own = [each for each in processes if each["engine"] == server]
        assert replays_of(processes, server) == replays_of(own, server)
        told += replays_of(processes, server)
    assert told == sum(
        count["number"]
        for each in processes
        for count in (each["record"] or {"counts": []})["counts"]
        if count["count"] != "outputs listed"
    )


def test_a_server_that_is_not_listed_has_not_counted_nothing() -> None:
    with pytest.raises(AssertionError, match="no process of server 5 is listed"):
        replays_of([{"engine": 4, "record": None}], 5)


def test_a_neighbour_is_not_counted_wherever_its_record_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on 2026-11-24 on an H200, where the record of a neighbour lay below ``/tmp``."""
    own = tmp_path / "vllm-overlay"
    shared = Path(tempfile.gettempdir(), f"vllm-overlay-{os.geteuid()}")
    monkeypatch.setattr(_processes, "folders", lambda: (own,))
    with counting("worker", 0) as server, counting("worker", 0) as beside:
        monkeypatch.setattr(_processes, "folders", lambda: (shared,))
        with counting("worker", 0) as elsewhere:
            for each in (server, beside, elsewhere):
                assert counted_inside(tmp_path, each.pid) == 7
