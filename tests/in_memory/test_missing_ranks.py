"""Ranks that never say what they run are waited for once, and all of them are named."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from overlay.in_memory import ranks
from tests.support.process_records import rank_report


def test_missing_ranks_share_one_bound_and_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are missing, the wait ends about ``TIMEOUT`` seconds after it began."""
    now, waits = [0.0], []
    said: dict[str, bytes] = {}

    class Store:
        def set(self, key: str, value: str) -> None:
            said[key] = value.encode()

        def wait(self, keys: list[str], limit: timedelta) -> None:
            if keys[0] not in said:
                waits.append(limit.total_seconds())
                now[0] += waits[-1]
                raise RuntimeError("time is up")

        def get(self, key: str) -> bytes:
            return said[key]

    monkeypatch.setattr("overlay.in_memory.ranks.time.monotonic", lambda: now[0])
    mine = rank_report(9)
    said["vllm-overlay/4"] = json.dumps(mine._replace(rank=4)._asdict()).encode()
    with pytest.raises(ranks.RanksDiffer) as stopped:
        ranks._require_all(mine, Store(), 10)
    assert "rank 0, 1, 2, 3, 5, 6, 7, 8 did not say" in str(stopped.value)
    assert waits[0] == ranks.TIMEOUT
    assert sum(waits) <= ranks.TIMEOUT + 1
