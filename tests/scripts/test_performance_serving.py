"""The tables of servers: what is shown follows from the runs alone."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof.commands.bench_report import DEFAULT, OVERLAY, OVERLAY_V1, PLAIN, STOCK, V2
from overlay.proof.repeats import Sample
from scripts.performance_serving import (
    ENGINES,
    cells_of,
    compared,
    engines_of,
    head,
    newest,
    of_models,
    of_shapes,
    ratio_rows,
    ratios_head,
    shown,
)

RUNS = st.lists(st.floats(100, 50_000), min_size=1, max_size=6)


def sitting(date: str, ours: list[float], others: list[float], **more: Any) -> dict[str, Any]:
    return timed(date, {OVERLAY: ours, V2: others}, **more)


def timed(date: str, engines_: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    engines = [
        {"engine": name, "concurrency": [{"requests": 64, "output_tokens_per_s": runs}]}
        for name, runs in engines_.items()
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
    named = {
        "file": sitting("2026-11-25", [2.0, 2.2], [1.0, 1.1]),
        "v1": timed("2026-11-24", {STOCK: [1.0, 1.1]}),
    }
    cells = cells_of(named)
    engines = engines_of(cells)
    row = dict(zip(head(engines), cells[0].row(engines), strict=True))
    assert row["stock V1"] == row["overlay / stock V1"] == ""
    assert (row["overlay / V2"], row["GPU"], row["file"]) == ("2.00", "H100", "`file`")


@given(names=st.sets(st.sampled_from(ENGINES), min_size=1))
def test_every_engine_has_its_column_and_is_compared_with_the_overlay_beside_it(
    names: set[str],
) -> None:
    """Of as many drafts, and on V1 beside stock V1 where the overlay ran there, too."""
    tokens = {name: 1.0 + ENGINES.index(name) for name in ENGINES}
    cells = cells_of({"file": timed("2026-11-26", {name: [tokens[name]] * 2 for name in names})})
    engines = engines_of(cells)
    assert set(engines) == names
    row = dict(zip(head(engines), cells[0].row(engines), strict=True))
    for name in names:
        base, plain = name.removesuffix(PLAIN), PLAIN if name.endswith(PLAIN) else ""
        assert row[name].startswith(f"{tokens[name]:.0f} (")
        if base in (OVERLAY, OVERLAY_V1):
            assert f"overlay / {name}" not in row
            continue
        ours = OVERLAY_V1 if base == STOCK and f"{OVERLAY_V1}{plain}" in names else OVERLAY
        ours = f"{ours}{plain}"
        ratio = f"{tokens[ours] / tokens[name]:.2f}" if ours in names else ""
        # Both runs of an engine are equal, so that ranges of different engines never overlap.
        assert row[f"overlay / {name}"] == ratio


def test_what_a_release_chooses_is_compared_in_both_tables() -> None:
    cells = cells_of({"file": timed("2026-11-26", {DEFAULT: [1.0, 1.0], OVERLAY: [2.0, 2.0]})})
    engines = engines_of(cells)
    assert ratios_head(engines) == ["vLLM, GPU, shape", "over stock, by requests at a time"]
    assert ratio_rows(cells, engines) == [["0.26.0, H100, 1b", "64: 2.00"]]
    with pytest.raises(ValueError, match="strange"):
        engines_of(cells_of({"file": timed("2026-11-26", {"strange": [1.0]})}))


def test_the_newest_sitting_of_a_setting_is_shown() -> None:
    old = sitting("2026-11-24T10:00", [1.0, 1.0], [1.0, 1.0])
    new = sitting("2026-11-25T09:00", [2.0, 2.0], [1.0, 1.0])
    other = sitting("2026-11-23T09:00", [3.0, 3.0], [1.0, 1.0], command="bench -- --x 1")
    early = sitting("2026-11-22T09:00", [3.0, 3.0], [1.0, 1.0], release="0.9.0")
    named = {"new": new, "old": old, "other": other, "early": early}
    cells = cells_of(named)
    assert [cell.file for cell in newest(cells)] == ["early", "new", "other"]
    assert "64, `--x 1`" in newest(cells)[-1].row([])


def test_a_model_has_a_table_of_its_own() -> None:
    document = timed("2026-11-27", {STOCK: [1.0, 1.2], OVERLAY: [2.2, 2.2]}, model="small")
    for served in document["bench"]["serving"]:
        served |= {"accepted_by_position": [0.75, 0.5], "first_token_ms": [10.0, 30.0]}
    document["bench"]["engines"] = [
        {
            "engine": name,
            "runner": "v1",
            "batches": [{"requests": 64, "ms_per_step": [step, step + 1, step + 3]}],
        }
        for name, step in ((STOCK, 4.0), (OVERLAY, 2.0))
    ]
    named = {"model": document, "shape": timed("2026-11-26", {STOCK: [1.0, 1.1]})}
    assert list(of_shapes(named)) == ["shape"]
    assert [cell.shape for cell in cells_of(named)] == ["small", "1b"]
    head, stock, ours = of_models(named)
    assert head[-2:] == ["64 requests", "first token"]
    assert stock == ["0.26.0, H100, small", "V1", "0.75, 0.50", "5.00 ms; 1", "20 ms"]
    assert ours == [stock[0], "V1 overlay", stock[2], "3.00 ms; 2 (2.00)", stock[4]]
