"""Laws of what repeats say, and of the order in which engines are measured."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.proof.commands.bench_report import (
    OVERLAY,
    STOCK,
    V2,
    BenchReport,
    benched,
    first_token_table,
    page,
    step_table,
)
from overlay.proof.repeats import Sample, Served, Timed, order, read, read_served

VALUES = st.lists(st.floats(0.5, 50), min_size=2, max_size=9).map(tuple)


def timed(engine: str, *values: float) -> Timed:
    graphs = {"first": 4, "loop": 4} if engine == OVERLAY else {}
    return Timed(engine, "0.99.0", "FAKE", {1: Sample(values)}, graphs)


@given(VALUES, VALUES)
def test_samples_overlap_or_one_is_below_the_other(
    left: tuple[float, ...], right: tuple[float, ...]
) -> None:
    one, other = Sample(left), Sample(right)
    assert one.overlaps(other) == other.overlaps(one)
    below = all(a < b for a in left for b in right)
    above = all(a > b for a in left for b in right)
    assert one.overlaps(other) == (not below and not above)
    assert one.overlaps(one)


@given(st.integers(1, 5), st.integers(0, 20))
def test_each_engine_begins_equally_often(engines: int, rounds: int) -> None:
    names = [str(number) for number in range(engines)]
    orders = [order(names, number) for number in range(engines * rounds)]
    assert all(sorted(each) == names for each in orders)
    assert set(Counter(each[0] for each in orders).values()) <= {rounds}


@given(VALUES, VALUES)
def test_no_conclusion_is_drawn_where_repeats_overlap(
    stock: tuple[float, ...], ours: tuple[float, ...]
) -> None:
    verdict = benched([timed(STOCK, *stock), timed(OVERLAY, *ours)])
    if min(stock) > max(ours):
        assert verdict.code.exit == 0
        assert verdict.text.startswith("Times as fast as stock V1: ")
    elif max(stock) < min(ours):
        assert (verdict.code.value, verdict.code.exit) == ("slower", 1)
    else:
        assert verdict.code.exit == 0
        assert "no conclusion" in verdict.text


@given(st.floats(0.5, 50), VALUES, st.booleans())
def test_no_conclusion_is_drawn_from_one_repeat(
    once: float, values: tuple[float, ...], of_stock: bool
) -> None:
    stock, ours = ((once,), values) if of_stock else (values, (once,))
    engines = [timed(STOCK, *stock), timed(OVERLAY, *ours)]
    assert [each.conclusive for each in step_table(engines).comparisons] == [False]
    assert benched(engines).text == (
        "The repeats overlap in every cell, or there is one repeat only: no conclusion."
    )
    assert step_table(engines).rows[1][-1] == "one repeat"


def test_an_overlay_without_graphs_needs_you() -> None:
    idle = timed(OVERLAY, 1, 2)._replace(graphs={})
    verdict = benched([timed(STOCK, 3, 4), idle])
    assert (verdict.code.value, verdict.code.exit) == ("no-graphs", 1)


def test_rounds_are_joined() -> None:
    round_ = {
        "vllm": "0.99.0",
        "gpu": "FAKE",
        "draft_graphs": {"keys": {"loop": 4}},
        "batch8": {"repeats_ms_per_step": [2.0, 3.0]},
        "batch1": {"repeats_ms_per_step": [1.0]},
    }
    joined = read(OVERLAY, [round_, round_])
    assert joined.batches == {
        1: Sample((1.0, 1.0), (1, 1)),
        8: Sample((2.0, 3.0, 2.0, 3.0), (2, 2)),
    }
    assert joined.graphs == {"loop": 4}
    with pytest.raises(OverlayError, match="expected the result of a timed engine"):
        read(OVERLAY, [{"batch1": {}}])


def test_rounds_of_a_server_are_joined() -> None:
    cell = {"values": [100.0, 101.0], "runs": 2, "agreed": True}
    round_ = {
        "vllm": "0.99.0",
        "acceptance": 2.5,
        "concurrency": {"16": cell, "1": cell},
        "first_token": {"rate": 2.0, "values": [9.0, 8.0]},
    }
    other = {**round_, "concurrency": {"16": {**cell, "agreed": False}, "1": cell}}
    joined = read_served(OVERLAY, [round_, other])
    values = Sample((100.0, 101.0, 100.0, 101.0), (2, 2))
    assert list(joined.concurrency.items()) == [(1, values), (16, values)]
    assert (joined.unsteady, joined.rate) == ((16,), 2.0)
    assert joined.first_token == Sample((9.0, 8.0, 9.0, 8.0), (2, 2))
    empty = {"rate": 2.0, "values": []}
    assert read_served(OVERLAY, [{**round_, "first_token": empty}]).first_token is None
    with pytest.raises(OverlayError, match="expected the result of a server"):
        read_served(OVERLAY, [{"concurrency": []}])


def test_the_page_shows_every_engine_and_loads_nothing() -> None:
    engines = (timed(STOCK, 4.0, 4.2), timed(OVERLAY, 2.0, 2.1), timed(V2, 2.05, 2.2))
    report = BenchReport(benched(engines), "1b", 3, engines, {"a<b": "\x1b[31mwhy"})
    text = page(report)
    assert all(f"<title>{name}</title></rect>" in text for name in (STOCK, OVERLAY, V2))
    assert "overlap" in text
    assert "http" not in text
    assert "<script" not in text
    assert "\x1b" not in text
    assert "a&lt;b" in text
    assert [(each.other, each.ratio) for each in step_table(engines).comparisons] == [
        (STOCK, 2.0),
        (V2, 1.037),
    ]


def test_the_table_of_the_first_token_names_the_rate_of_requests() -> None:
    first = Sample((8.0, 9.0))
    taken = [Served(each, "0.99.0", {}, (), 5.025, first, 2.5) for each in (STOCK, OVERLAY)]
    missing = Served(V2, "0.99.0", {}, (), None, None, 2.5)
    table = first_token_table((missing, *taken))
    assert table is not None
    head, row = table.rows
    assert (head[0], row[0]) == ("requests/s", "5.025")
    assert (row[1], row[2]) == ("not measured", "8.50 (8.00 to 9.00)")
    assert first_token_table((missing,)).sizes == ()
