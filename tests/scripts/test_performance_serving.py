"""The tables of servers: what is shown follows from the runs alone."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof.repeats import Sample
from overlay.proof.reports.benched import OVERLAY, V2
from scripts.performance_serving import HEAD, cells_of, compared, newest, shown

RUNS = st.lists(st.floats(100, 50_000), min_size=1, max_size=6)


def sitting(date: str, ours: list[float], others: list[float], **more: Any) -> dict[str, Any]:
    engines = [
        {"engine": name, "concurrency": [{"requests": 64, "output_tokens_per_s": runs}]}
        for name, runs in ((OVERLAY, ours), (V2, others))
    ]
    about = {"date": date, "release": "0.26.0", "gpu": "NVIDIA H100 80GB", "command": "bench"}
    return about | more | {"bench": {"shape": "1b", "serving": engines}}


@given(ours=RUNS, others=RUNS)
def test_nothing_is_concluded_where_ranges_overlap_or_one_run_has_none(
    ours: list[float], others: list[float]
) -> None:
    text = compared(Sample(tuple(ours)), Sample(tuple(others)))
    ratio = statistics.median(ours) / statistics.median(others)
    assert float(text.removeprefix("≈ ")) == pytest.approx(ratio, abs=0.0051)
    overlap = max(min(ours), min(others)) <= min(max(ours), max(others))
    assert text.startswith("≈") == (overlap or len(ours) == 1 or len(others) == 1)


@given(runs=RUNS)
def test_runs_are_shown_with_their_range_and_number(runs: list[float]) -> None:
    text = shown(Sample(tuple(runs)))
    assert text.startswith(f"{statistics.median(runs):,.0f} (")
    if len(runs) == 1:
        assert text.endswith("(one run)")
    else:
        assert f"{min(runs):,.0f} to {max(runs):,.0f}; {len(runs)} runs" in text


def test_what_was_not_measured_is_left_blank() -> None:
    (cell,) = cells_of({"file": sitting("2026-11-25", [2.0, 2.2], [1.0, 1.1])})
    row = dict(zip(HEAD, cell.row, strict=True))
    assert row["stock V1"] == row["overlay / stock V1"] == ""
    assert (row["overlay / V2"], row["GPU"], row["file"]) == ("2.00", "H100", "`file`")


def test_the_newest_sitting_of_a_setting_is_shown() -> None:
    old = sitting("2026-11-24T10:00", [1.0, 1.0], [1.0, 1.0])
    new = sitting("2026-11-25T09:00", [2.0, 2.0], [1.0, 1.0])
    other = sitting("2026-11-23T09:00", [3.0, 3.0], [1.0, 1.0], command="bench -- --x 1")
    early = sitting("2026-11-22T09:00", [3.0, 3.0], [1.0, 1.0], release="0.9.0")
    named = {"new": new, "old": old, "other": other, "early": early}
    cells = cells_of(named)
    assert [cell.file for cell in newest(cells)] == ["early", "new", "other"]
    assert "64, `--x 1`" in newest(cells)[-1].row
