"""The performance page, its plots, README's table and the appendices are those of the JSON."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import (
    performance_data,
    performance_host,
    performance_plot,
    performance_real,
    render_performance,
)
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


@pytest.mark.parametrize("name", ["PAGE", "README"])
def test_a_figure_that_was_changed_by_hand_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = getattr(render_performance, name).read_text(encoding="utf-8")
    figure = re.search(r": begin -->.*?\b(\d\.\d\d)\b(?!\.)", text, re.DOTALL)
    assert figure
    changed = tmp_path / name
    changed.write_text(f"{text[: figure.start(1)]}9.99{text[figure.end(1) :]}", encoding="utf-8")
    monkeypatch.setattr(render_performance, name, changed)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert render_performance.main() == 1


def test_a_page_shows_the_tables_for_which_it_has_markers() -> None:
    page = "<!-- a: begin -->\nold\n<!-- a: end -->\n"
    filled = render_performance.filled(page, {"a": "new", "b": "other"})
    assert filled == page.replace("old", "new")
    with pytest.raises(ValueError, match=r"."):
        render_performance.filled(page.replace("end", "and"), {"a": "new"})


def test_an_appendix_that_lacks_a_sitting_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_performance, "APPENDIX", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert render_performance.main() == 1
    written = render_performance.appendices(
        performance_data.read_sittings(render_performance.RESULTS)
    )
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    assert render_performance.main() == 0
    path.write_text(text.replace("| 0.26.0 |", "| 0.26.1 |", 1), encoding="utf-8")
    assert render_performance.main() == 1


def test_the_prose_has_the_figures_of_the_json() -> None:
    page = " ".join(render_performance.PAGE.read_text(encoding="utf-8").split())
    training = render_performance.RESULTS / "h200-real-pair-training-2026-11-26.json"
    figures = json.loads(training.read_text(encoding="utf-8"))
    shares = ", ".join(f"{share:.2f}" for share in figures["accepted"][:3])
    assert f"continued {shares} and {figures['accepted'][3]:.2f} rightly" in page
    assert f"{figures['answers']['trained_on']:,} answers" in page
    assert f"{figures['curve'][-1]['update']:,} updates" in page
    widest = performance_real.widest(render_performance.RESULTS)
    assert f"never more than {widest:.2f} apart" in page


def ratios(file: str, load: str) -> dict[str, str]:
    """The median ratio of each engine of a sitting at a load, as pages write it."""
    cells = read(file)["loads"][load].items()
    return {name: f"{cell['median_ratio']:.2f}" for name, cell in cells if "ratios" in cell}


def prose(name: str) -> str:
    return " ".join((render_performance.ROOT / "docs" / name).read_text("utf-8").split())


def test_pages_of_features_have_the_figures_of_the_json() -> None:
    sizes = prose("decode-graph-sizes.md")
    at_once = ratios("h200-decode-graph-sizes-0.33.0-2026-11-26", "256 uniform")
    in_flight = ratios("h200-decode-graph-sizes-0.33.0-2026-11-26", "256 mixed")
    assert f"[{at_once['sizes']} times the tokens]" in sizes
    assert f"and {in_flight['sizes']} with prefills among them" in sizes
    sittings = {
        "h200-mixed-batches-0.33.0-2026-11-26": "mixed",
        "h200-default-engine-0.33.0-2026-11-26": "overlay",
        "h200-default-engine-0.33.0-own-process-2026-11-26": "overlay",
    }
    mixed = sorted(ratios(file, "256 mixed")[engine] for file, engine in sittings.items())
    without = ratios("h200-mixed-batches-0.33.0-2026-11-26", "256 mixed")["on"]
    assert f"gave {mixed[0]} to {mixed[-1]} times [the tokens]" in sizes
    short = ratios("h200-default-engine-0.33.0-own-process-2026-11-27", "256 mixed")["overlay"]
    assert f"three sittings instead of {without} ({short} with short answers), and" in sizes
    heavy = ratios("h200-default-engine-0.33.0-8b-2026-11-26", "64 uniform")["overlay"]
    experts = ratios("h200-default-engine-0.33.0-moe-2026-11-26", "256 uniform")["overlay"]
    alone = {load: ratios(NO_DRAFTS, load) for load in ("256 mixed", "64 uniform")}
    flight, narrow = (alone[load] for load in ("256 mixed", "64 uniform"))
    assert (
        f"flight gave {flight['overlay mixed']} times stock's tokens instead of "
        f"{flight['overlay']}; in decodes alone fewer than 256 requests gain less (64: "
        f"{narrow['overlay mixed']} instead of {narrow['overlay']})."
    ) in sizes
    beside = read("h200-decode-graphs-0.33.0-2026-11-27")["loads"]
    gains = [
        statistics.median(
            one / other
            for one, other in zip(
                beside[load]["overlay, decode graphs beside"]["tokens_per_s"],
                beside[load]["overlay"]["tokens_per_s"],
                strict=True,
            )
        )
        for load in ("256 uniform", "64 uniform")
    ]
    of_one = {
        part["engine"]: f"{part['gpu_ms_per_step']:.2f}"
        for part in read("h200-steps-in-turn-0.33.0-2026-11-27")["results"]
        if part["k"] == 3
    }
    assert (
        f"({gains[0]:.2f} and {gains[1]:.2f}); one request takes the GPU "
        f"[{of_one['patched-v2']} ms in either kind]"
    ) in sizes
    assert f"({of_one['patched-v2-decodes']} in one of decodes)." in sizes
    soaks = [read(f"h200-soak-0.33.0-no-drafts-2026-11-27-{part}") for part in "cd"]
    assert f"[{sum(soak['taken'] for soak in soaks):,} steps]" in sizes
    assert all(engine["ok"] for soak in soaks for engine in soak["engines"])
    assert f"64 decodes of 8B had {heavy} of stock vLLM's tokens" in sizes
    file = "h200-default-engine-0.33.0-8b-2026-11-27"
    decodes = sorted(ratios(file, load)["overlay"] for load in read(file)["loads"])
    has = f"a mixture of experts {experts}; without them 8B has {decodes[0]} to {decodes[-1]}."
    assert has in sizes
    soak = read("h200-soak-0.33.0-2026-11-26")
    on_v2 = [engine for engine in soak["engines"] if "V2" in str(engine["spec"]["runner"]).upper()]
    assert f"[{soak['taken']:,}]" in sizes
    assert len(on_v2) == 5
    assert all(engine["ok"] for engine in on_v2)
    steps = sum(count for kind, count in soak["steps"].items() if kind.startswith("mixed"))
    assert steps > soak["taken"] / 2
    newest_soak = read("h200-soak-0.33.0-2026-11-27-b")
    assert f"[{newest_soak['taken']:,} steps]" in sizes
    assert all(engine["ok"] for engine in newest_soak["engines"])
    steps = sum(count for kind, count in newest_soak["steps"].items() if kind.startswith("mixed"))
    assert steps > newest_soak["taken"] / 2
    _assert_of_two_ranks(sizes)
    text = ratios("h200-real-text-0.33.0-2026-11-26", "256 requests")
    later = ratios("h200-real-text-0.33.0-2026-11-26-b", "256 requests")["V2 overlay"]
    expected = f"{text['V2 overlay']} to {later} instead of {text['V2 overlay, decodes']}."
    assert expected in sizes
    steady = prose("steady-scheduler.md")
    file = "h200-steady-scheduler-0.26.0-2026-11-26"
    once, flight = (ratios(file, f"256 {how}")["sched"] for how in ("uniform", "mixed"))
    assert f"gave {once} times the tokens at once and {flight} times in flight" in steady
    file = "h200-default-runner-0.33.0-no-drafts-2026-11-26"
    once, flight = (ratios(file, f"256 {how}")["overlay"] for how in ("uniform", "mixed"))
    assert f"without drafts {once} and {flight} times" in steady


def _assert_of_two_ranks(sizes: str) -> None:
    soak = read("h200-soak-0.33.0-two-ranks-2026-11-27")
    assert f"right in [{soak['taken']:,} steps]" in sizes
    assert all(engine["ok"] for engine in soak["engines"])
    assert all(
        rank["graphs"]["a graph of mixed batches"] for e in soak["engines"] for rank in e["ranks"]
    )
    loads = read("h200-default-engine-0.33.0-8b-two-ranks-2026-11-27-c")["loads"]
    gains = {
        load: statistics.median(
            one / other
            for one, other in zip(
                loads[load]["overlay mixed"]["tokens_per_s"],
                loads[load]["overlay"]["tokens_per_s"],
                strict=True,
            )
        )
        for load in loads
    }
    flight = {f"{gains[load]:.2f}" for load in ("256 mixed", "64 mixed")}
    once = sorted(f"{gains[load]:.2f}" for load in ("256 uniform", "64 uniform"))
    assert flight == {"1.04"}
    beside = "had 1.04 of the tokens [beside prefills](appendix/paired-loads.md)"
    assert f"{beside}, {once[0]} to {once[1]} in decodes alone" in sizes


def test_what_verifying_greedily_gives_and_how_a_peer_compares() -> None:
    page, file = prose("greedy-verification.md"), "h200-greedy-verification-0.33.0-2026-11-27"
    shown = {load: ratios(file, load)["overlay"] for load in read(file)["loads"]}
    above = {load: cell["overlay"]["above_1"] for load, cell in read(file)["loads"].items()}
    assert f"[{shown['64 mixed']} times the tokens](../bench/results/{file}.json)" in page
    assert f"in flight ({above['64 mixed']} rounds above 1), {shown['64 uniform']} at once" in page
    assert f"({above['64 uniform']}), with 256 about {shown['256 mixed']}" in page
    soak = read("h200-soak-0.33.0-2026-11-27")
    assert all(engine["ok"] for engine in soak["engines"])
    counts = (engine["greedy_verification"]["counts"] for engine in soak["engines"])
    verified = sum(each["batches verified from one argmax"] for each in counts)
    assert f"a soak that verified {verified:,} batches" in page.replace("[", "").replace(
        "](../bench/results/h200-soak-0.33.0-2026-11-27.json)", ""
    )
    loads = read("h200-default-engine-0.33.0-own-process-2026-11-27-b")["loads"]

    def over(load: str, ours: str = "overlay", theirs: str = "SGLang") -> str:
        pairs = zip(*(loads[load][name]["tokens_per_s"] for name in (ours, theirs)), strict=True)
        return f"{statistics.median(one / another for one, another in pairs):.2f}"

    page = prose("performance.md")
    flight, fewer, one = over("256 mixed"), over("64 mixed"), over("1 uniform")
    assert f"has {flight} of its tokens with 256 in flight, {fewer} with 64, {one} with one" in page
    assert f"and {over('256 uniform')} (0 of 7 above 1) with 256 at once" in page
    splits = {load: over(load, "overlay, one split", "overlay") for load in loads}
    alone = splits.pop("1 uniform")
    given = f"give {min(splits.values())} to {max(splits.values())} with 64 and 256 requests"
    assert f"{given}, {alone} with one." in page
    early = ratios("h200-default-engine-0.26.0-2026-11-27-b", "256 mixed")["overlay"]
    assert f"(0.26.0 has {early} with 256 in flight)" in page


def test_the_front_page_has_the_steps_and_the_tokens_of_real_text() -> None:
    bench = read("h200-bench-0.33.0-real-pair-2026-11-27")["bench"]
    accepted = {f"{engine['tokens_per_step']:.2f}" for engine in bench["serving"]}
    steps, rates = (
        [
            statistics.median(cell[figures])
            for engine in bench[part]
            for cell in engine[cells]
            if cell["requests"] == 256
        ]
        for part, cells, figures in (
            ("engines", "batches", "ms_per_step"),
            ("serving", "concurrency", "output_tokens_per_s"),
        )
    )
    page = " ".join(render_performance.README.read_text(encoding="utf-8").split())
    assert len(accepted) == 1
    assert (
        f"{accepted.pop()} tokens a step; 256 requests had steps of {steps[1]:.1f} ms for "
        f"{steps[0]:.1f}, served {rates[1]:,.0f} tokens a second for {rates[0]:,.0f}."
    ) in page


def test_steps_of_eight_and_of_thirty_two_requests_are_level_with_v2() -> None:
    file = "h200-steps-in-turn-0.32.0-2026-11-27"
    engines = {result["engine"]: result for result in read(file)["results"]}
    over = {
        batch: [
            ours / theirs
            for ours, theirs in zip(
                *(engines[name][batch]["repeats_ms_per_step"] for name in ("patched-loop", "v2")),
                strict=True,
            )
        ]
        for batch in ("batch8", "batch32")
    }
    eight, more = (f"{statistics.median(ratios):.2f}" for ratios in over.values())
    shorter = [sum(ratio < 1 for ratio in ratios) for ratios in over.values()]
    assert {len(ratios) for ratios in over.values()} == {9}
    assert (
        f"a step of 8 requests took {eight} of V2's (shorter in {shorter[0]}), one of 32 {more} "
        f"(in {shorter[1]})."
    ) in prose("performance.md")


NO_DRAFTS = "h200-default-engine-0.33.0-no-drafts-2026-11-27-c"


def read(file: str) -> Any:
    return json.loads((render_performance.RESULTS / f"{file}.json").read_text("utf-8"))


def test_pages_of_commands_have_the_figures_of_the_json() -> None:
    cost = read("h200-metrics-cost-0.26.0-2026-11-25")
    difference = cost["difference"]
    low, high = f"{-difference['low']:.2f} % less", f"{difference['high']:.2f} % more"
    metrics = prose("metrics.md")
    assert f"steps of {cost['step_ms']['on']:.2f} ms" in metrics
    assert f"counting took {difference['median']:.2f} % more" in metrics
    assert f"interval (95 %) from {low} to {high}" in metrics
    verify = prose("verify.md")
    for date in ("2026-11-25", "2026-11-23"):
        file = f"h200-verify-tiny-0.26.0-{date}"
        assert f"[{read(file)['seconds']:.0f}" in verify
    put_in = [
        run["mutation"]
        for run in read("h200-verify-mutations-0.26.0-2026-11-23")["runs"]
        if run["mutation"] != "as it is"
    ]
    assert len(set(put_in)) == 10
    assert "each of [ten bugs]" in verify


def test_prompts_that_mode_full_computes_wrongly_are_those_of_the_json() -> None:
    sizes = prose("decode-graph-sizes.md")
    wrong = {
        release: len(read(f"h200-full-mode-{release}-2026-11-26")["different"]["FULL"])
        for release in ("0.26.0", "0.33.0")
    }
    assert wrong == {"0.26.0": 6, "0.33.0": 0}
    named = (
        "On [0.26.0](../bench/results/h200-full-mode-0.26.0-2026-11-26.json) six of sixteen prompts"
    )
    assert named in sizes


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("steady-scheduler.md", "`cpu-steady-scheduler-0.32.0-2026-11-26`"),
        ("batched-bookkeeping.md", "`cpu-batched-bookkeeping-0.26.0-2026-11-24`"),
    ],
)
def test_pages_have_the_range_of_what_the_host_saves(page: str, file: str) -> None:
    rows = performance_host.rows(render_performance.RESULTS)
    saved = [row[5] for row in rows if row[6] == file and row[2] == "256"]
    assert f"{min(saved)} to {max(saved)} of" in prose(page)


def test_a_steps_parts_are_added(tmp_path: Path) -> None:
    cells = {"1": {"upstream": [3.0, 1.0], "together": [2.0, 1.0]}}
    document = {"vllm": "0.33.0", "microseconds": {"a case": cells}}
    (tmp_path / "cpu-x.json").write_text(json.dumps(document))
    (tmp_path / "cpu-y.json").write_text('{"vllm": "0.33.0"}')
    row = ["0.33.0", "a case", "1", "4.0", "3.0", "0.75", "`cpu-x`"]
    assert performance_host.rows(tmp_path) == [row]


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
    text = render_performance.step_times(found)
    assert "| v2 | 5 |" in text.partition("## Memory")[2]


def test_the_gpus_share_is_of_a_step_that_nothing_traces() -> None:
    one = result("v2", gpu_busy=0.3, gpu_ms_per_step=1.5)
    assert sittings_of("f", document(one))[0].rows[0].gpu_share == 0.75
    assert sittings_of("f", document(result("v2", gpu_busy=0.3)))[0].rows[0].gpu_share == 0.3


def test_only_the_newest_sitting_of_a_setting_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    text = render_performance.step_times(performance_data.read_sittings(tmp_path))
    before, _, after = text.partition("## Older sittings")
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


def test_memory_is_shown_where_it_was_taken() -> None:
    worker = {"graphs_taken": 300 << 20, "graphs_estimated": 310 << 20, "graph_pools": 200 << 20}
    worker |= {"kv_blocks": 99, "kv_available": 3 << 30, "kv_held": 2 << 30, "reserved": 5 << 30}
    memory = {"kv_blocks_announced": 100, "workers": [worker, worker | {"kv_blocks": 98}]}
    found = sittings_of("f", document(result("v2", memory=memory)))
    line = render_performance.memory_table(found)[-1]
    assert "| v2 | 300 | 310 | 200 | 100 | 98 | 3.00 | 2.00 | 5.00 |" in line


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
