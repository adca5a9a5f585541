"""The performance page, its plots and README's table are those of the committed JSON."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import performance_data, performance_plot, render_performance
from scripts.performance_data import Times, digest, newest, sittings_of

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/render_performance.py"


def test_the_page_shows_what_the_json_says() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run scripts/render_performance.py"


def test_the_plots_were_drawn_from_the_json() -> None:
    found = performance_data.read_sittings(render_performance.RESULTS)
    assert render_performance.stale_plots(found) == [], "run scripts/render_performance.py"


def test_a_plot_of_other_data_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = performance_data.read_sittings(render_performance.RESULTS)
    summary = tmp_path / "summary.svg"
    monkeypatch.setattr(render_performance, "SUMMARY_PLOT", summary)
    assert render_performance.stale_plots(found) == [summary]
    # The other plot shows other sittings.
    summary.write_bytes(render_performance.PLOT.read_bytes())
    assert render_performance.stale_plots(found) == [summary]
    summary.write_bytes((render_performance.ROOT / "docs/performance.svg").read_bytes())
    assert render_performance.stale_plots(found) == []


@pytest.mark.parametrize(
    ("name", "marker", "figure"), [("PAGE", "summary", "0.72"), ("README", "default", "2.12")]
)
def test_a_figure_that_was_changed_by_hand_is_noticed(
    name: str, marker: str, figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = getattr(render_performance, name).read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {marker}: begin -->")
    assert figure in rest
    changed = tmp_path / name
    changed.write_text(before + begin + rest.replace(figure, "9.99", 1), encoding="utf-8")
    monkeypatch.setattr(render_performance, name, changed)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert render_performance.main() == 1


def result(engine: str, ms: float = 2.0, **more: Any) -> dict[str, Any]:
    times = {"ms_per_step": ms, "spread": 0.2, "propose_host_ms": 0.1}
    return {
        "vllm": "0.26.0",
        "gpu": "a GPU",
        "engine": engine,
        "cell": "1b:3:FULL",
        "batch1": times,
        "batch8": times,
        "batch32": times,
    } | more


def document(*results: dict[str, Any], date: str = "2026-11-20T20:00:00+00:00") -> dict[str, Any]:
    return {"date": date, "results": list(results)}


def test_rounds_of_one_engine_are_taken_together() -> None:
    first = result("v2") | {
        "batch1": {"ms_per_step": 2, "spread": 1, "repeats_ms_per_step": [1, 2]}
    }
    second = result("v2") | {"batch1": {"ms_per_step": 6, "spread": 1, "repeats_ms_per_step": [6]}}
    [sitting] = sittings_of("f", document(first, second))
    [row] = sitting.rows
    assert row.times[1] == Times(2, 1, 6)


def test_without_repeats_the_spread_stands_for_them() -> None:
    [sitting] = sittings_of("f", document(result("v2")))
    assert sitting.rows[0].times[1] == Times(2.0, 1.8, 2.2)


def test_an_engine_that_failed_stands_there_as_failed() -> None:
    failed = {"engine": "stock-v1", "cell": "1b:3:FULL", "failed": 1}
    [sitting] = sittings_of("f", document(failed, result("v2")))
    assert sitting.setting.release == "0.26.0"
    lines = render_performance.step_time_table(sitting)
    assert "| stock-v1 | failed | failed | failed |  |  |" in lines


def test_a_batch_that_was_not_asked_for_did_not_fail() -> None:
    [sitting] = sittings_of("f", document(result("v2")) | {"note": "of one batch"})
    lines = render_performance.step_time_table(sitting)
    assert lines[0].endswith("`f`; of one batch")
    assert not any("failed" in line for line in lines)
    assert render_performance.comparison_table([sitting])[2:] == []


def test_a_sitting_says_how_its_engines_ran() -> None:
    for more, words in (
        ({}, "one engine at a time"),
        ({"side_by_side": 4}, "4 engines side by side"),
        ({"in_turn": 4}, "engines in turn on the same GPUs, one turn each"),
        ({"in_turn": 4, "turns": 3}, "3 turns each"),
    ):
        [sitting] = sittings_of("f", document(result("v2", **more)))
        assert words in render_performance.head_of(sitting)


def test_memory_stands_there_of_the_last_sitting_that_looked() -> None:
    worker = {"kv_blocks": 77, "graphs_taken": 5 << 20}
    memory = {"kv_blocks_announced": 77, "workers": [worker]}
    old = document(result("v2", memory=memory), date="2026-11-19T20:00:00+00:00")
    found = sittings_of("new", document(result("v2"))) + sittings_of("old", old)
    text = render_performance.tables(found)
    assert "| v2 | 5 |" in text.partition("## Log: memory")[2]


def test_the_gpus_share_is_of_a_step_that_nothing_traces() -> None:
    one = result("v2", gpu_busy=0.3, gpu_ms_per_step=1.5)
    assert sittings_of("f", document(one))[0].rows[0].gpu_share == 0.75
    assert sittings_of("f", document(result("v2", gpu_busy=0.3)))[0].rows[0].gpu_share == 0.3


def test_only_the_newest_sitting_of_a_setting_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    for name, date, results in (
        ("a", "2026-11-20T20:00:00+00:00", (result("v2"), result("v2", cell="8b:3:FULL:2"))),
        ("b", "2026-11-20T21:00:00+00:00", (result("v2", 3.0),)),
    ):
        text = json.dumps(document(*results, date=date))
        (tmp_path / f"h200-step-time-{name}.json").write_text(text)
    now, older = newest(performance_data.read_sittings(tmp_path))
    assert [(one.file[-6:], one.setting.cell) for one in now] == [
        ("b.json", "1b:3:FULL"),
        ("a.json", "8b:3:FULL:2"),
    ]
    assert [one.file[-6:] for one in older] == ["a.json"]
    monkeypatch.setattr(render_performance, "RESULTS", tmp_path)
    text = render_performance.tables(performance_data.read_sittings(tmp_path))
    before, _, after = text.partition("## Log: older sittings")
    assert "3.00 ms" in before
    assert "2.00 ms" in after
    assert "0.26.0, 8b, K 3, FULL, tensor parallel 2" in before


def test_what_overlaps_is_said_to_overlap() -> None:
    near = document(result("stock-v1", 4.0), result("patched-loop", 2.0), result("v2", 2.1))
    [line] = render_performance.comparison_table(sittings_of("f", near))[2:]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1:] == ["patched-loop", *["0.50"] * 3, *["0.95 (repeats overlap)"] * 3]


def of_cell(cell: str, release: str, **ms: float) -> list[performance_data.Sitting]:
    """A sitting of one setting in which a step of each engine takes so long at every batch."""
    rows = [
        result(name.replace("_", "-"), time, cell=cell, vllm=release) for name, time in ms.items()
    ]
    return sittings_of("f", document(*rows))


def test_the_summary_has_the_range_over_the_releases() -> None:
    found = [
        *of_cell("1b:3:FULL_AND_PIECEWISE", "0.20.2", patched_loop=2.0, stock_v1=4.0, v2=5.0),
        *of_cell("1b:3:FULL_AND_PIECEWISE", "0.26.0", patched_loop=3.0, stock_v1=4.0, v2=3.1),
        *of_cell("8b:3:FULL_AND_PIECEWISE:4", "0.26.0", patched_loop=1.0, stock_v1=2.0),
        # Neither of the settings that the summary is about.
        *of_cell("1b:5:FULL_AND_PIECEWISE", "0.26.0", patched_loop=1.0, stock_v1=2.0),
        *of_cell("1b:3:FULL_DECODE_ONLY", "0.26.0", patched_loop=1.0, stock_v1=2.0),
        *of_cell("8b:3:FULL_AND_PIECEWISE", "0.26.0", stock_v1=2.0, v2=1.0),
    ]
    rows = render_performance.summary_table(found)[2:]
    assert rows == [
        (
            "| 1B | 0.20.2, 0.26.0 | 0.50 to 0.75 | 0.50 to 0.75 "
            "| \u2248 0.40 to 0.97 | \u2248 0.40 to 0.97 |"
        ),
        "| 8B, tensor parallel 4 | 0.26.0 | 0.50 | 0.50 |  |  |",
    ]


def test_the_digest_is_of_what_is_drawn() -> None:
    one = sittings_of("f", document(result("v2")))
    assert digest(one) == digest(sittings_of("g", document(result("v2", start_s=3))))
    for other in (result("v2", 2.5), result("stock-v1"), result("v2", gpu_busy=0.1)):
        assert digest(one) != digest(sittings_of("f", document(other)))


def test_memory_and_profile_are_shown_where_they_were_taken() -> None:
    worker = {"graphs_taken": 300 << 20, "graphs_estimated": 310 << 20, "graph_pools": 200 << 20}
    worker |= {"kv_blocks": 99, "kv_available": 3 << 30, "kv_held": 2 << 30, "reserved": 5 << 30}
    memory = {"kv_blocks_announced": 100, "workers": [worker, worker | {"kv_blocks": 98}]}
    sampled = {
        "samples": 40,
        "sampler": "py-spy",
        "ms_per_step": 2.0,
        "self_ms": {"torch/ops.py:call": 0.5},
        "cumulative_ms": {"main.py:main": 2.0, "vllm/v1/worker/runner.py:execute": 1.25},
    }
    found = sittings_of("f", document(result("v2", memory=memory, sampled=sampled)))
    line = render_performance.memory_table(found)[-1]
    assert "| v2 | 300 | 310 | 200 | 100 | 98 | 3.00 | 2.00 | 5.00 |" in line
    text = "\n".join(render_performance.profile_tables(found))
    assert "| `vllm/v1/worker/runner.py:execute` | 1.250 |  |" in text
    assert "| `torch/ops.py:call` |  | 0.500 |" in text
    assert "main.py:main" not in text
    assert text.count("<details>") == text.count("</details>") == 1


def test_no_engine_counts_as_equal_to_itself() -> None:
    cell = {"cell": "c", "mode": "off", "ok": True, "equals": "itself without graphs"}
    assert render_performance._verdict(cell) == "compared with itself only"
    assert render_performance._verdict(cell | {"mode": "loop"}) == "itself"
    assert render_performance._verdict(cell | {"equals": "oracle"}) == "oracle"
    assert render_performance._verdict(cell | {"mode": "loop", "ok": False, "why": "x"}) == "x"


def test_plots_are_the_same_whenever_they_are_drawn() -> None:
    pytest.importorskip("matplotlib", reason="the extra bench")
    found = sittings_of("f", document(result("stock-v1", 4.0), result("v2", gpu_busy=0.5)))
    picture = performance_plot.draw(found)
    assert picture == performance_plot.draw(found)
    assert performance_plot.digest_in(picture) == digest(found)
    assert re.search(r">\s*stock-v1\s*<", picture)
    models = {"1B": found}
    summary = performance_plot.draw_summary(models)
    assert summary == performance_plot.draw_summary(models)
    assert performance_plot.digest_in(summary) == digest(found)
    assert "V1 with the overlay" in summary
