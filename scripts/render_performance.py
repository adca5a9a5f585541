#!/usr/bin/env python3
"""Write what bench/results/ says: tables of pages, plots, and the appendices of measurements.

render_performance.py            rewrite tables, plots and appendices in place
render_performance.py --check    exit with 1 if one of them is not what the JSON says

A page has a table between the markers ``NAME: begin`` and ``NAME: end``; ``tables`` has the names.
Only plots need matplotlib (the extra ``bench``), and only where their data have changed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import (
    default_runner,
    performance_host,
    performance_paired,
    performance_plot,
    performance_real,
    performance_serving,
)
from scripts.performance_data import (
    BATCHES,
    Row,
    Sitting,
    digest,
    newest,
    ratio,
    read_sittings,
    summary,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/performance.md"
README = ROOT / "README.md"
APPENDIX = ROOT / "docs/appendix"
PLOT = ROOT / "docs/performance-step-time.svg"
SUMMARY_PLOT = ROOT / "docs/performance.svg"
GIB, MIB = 1 << 30, 1 << 20
#: The first line of each page that is written whole.
WRITTEN = "<!-- Written by scripts/render_performance.py from bench/results/; a test compares. -->"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def head_of(sitting: Sitting) -> str:
    """One line that says where figures are from."""
    how = "one engine at a time"
    if sitting.side_by_side > 1:
        how = f"{sitting.side_by_side} engines side by side"
    if sitting.in_turn > 1:
        times = "one turn" if sitting.turns == 1 else f"{sitting.turns} turns"
        how = f"engines in turn on the same GPUs, {times} each, the others stopped meanwhile"
    words = sitting.setting.words
    where = f"{sitting.gpu}, {sitting.date[:16]} UTC, {how}, `{sitting.file}`"
    return f"**vLLM {words}**: {where}{'; ' if sitting.note else ''}{sitting.note}"


# ---- acceptance


def _verdict(cell: dict[str, Any]) -> str:
    """``oracle``, ``itself``, or why it is neither."""
    equals = cell.get("equals")
    if cell["mode"] == "off" and equals == "itself without graphs":  # of earlier scripts
        return "compared with itself only"
    if cell["ok"]:
        return "oracle" if equals == "oracle" else "itself"
    if cell.get("why"):
        return str(cell["why"])
    return "the engine failed" if "failed" in cell else "unequal or not judged"


def acceptance_table(files: list[Path]) -> list[str]:
    """A line per file: cells, what they were equal to, and replays by role."""
    rows, notes = [], []
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        cells: list[dict[str, Any]] = document["cells"]
        replays: dict[str, int] = {}
        for cell in cells:
            for role, count in ((cell.get("ran") or {}).get("replays") or {}).items():
                replays[role] = replays.get(role, 0) + count
        verdicts = [_verdict(cell) for cell in cells]
        others: dict[str, list[str]] = {}
        for cell, verdict in zip(cells, verdicts, strict=True):
            if verdict not in ("oracle", "itself"):
                others.setdefault(verdict, []).append(f"{cell['cell']} {cell['mode']}")
        listed = "; ".join(f"{why}: {', '.join(names)}" for why, names in sorted(others.items()))
        rows.append(
            [
                str(document["release"]),
                f"`{file.name}`",
                str(len(cells)),
                str(verdicts.count("oracle")),
                str(verdicts.count("itself")),
                listed or "none",
                ", ".join(f"{role} {count}" for role, count in sorted(replays.items())),
            ]
        )
        if document.get("note"):
            notes.append(f"- `{file.name}`: {document['note']}.")
    head = ["release", "file", "cells", "equal the oracle", "equal the engine without graphs"]
    lines = table([*head, "others", "replays"], rows)
    return [*lines, "", *notes] if notes else lines


# ---- step times


def _shown(row: Row, batch: int) -> str:
    times = row.times.get(batch)
    if times is None:
        return "" if row.last("failed") is None else "failed"
    spread = 50 * (times.high - times.low) / times.median
    return f"{times.median:.2f} ms ± {spread:.0f} %"


def _number(value: float | None, form: str, unit: str) -> str:
    return "" if value is None else f"{value:{form}} {unit}"


def step_time_table(sitting: Sitting) -> list[str]:
    """One sitting: a line per engine, milliseconds per engine step and the repeats' spread."""
    head = ["engine", *(f"batch {batch}" for batch in BATCHES), "`propose`, host", "GPU busy"]
    rows = [
        [
            row.engine,
            *(_shown(row, batch) for batch in BATCHES),
            _number(row.propose_ms, ".2f", "ms"),
            _number(None if row.gpu_share is None else 100 * row.gpu_share, ".0f", "%"),
        ]
        for row in sitting.rows
    ]
    return [head_of(sitting), "", *table(head, rows)]


def _against(ours: Row | None, other: Row | None, batch: int) -> str:
    """How long the overlay's step takes compared with another's."""
    if ours is None or other is None or batch not in ours.times or batch not in other.times:
        return ""
    mine, its = ours.times[batch], other.times[batch]
    surely = "" if mine.apart(its) else " (repeats overlap)"
    return f"{mine.median / its.median:.2f}{surely}"


def comparison_table(sittings: list[Sitting]) -> list[str]:
    """The patched engine's step over stock's and V2's, in the newest sitting of each setting."""
    head = ["setting", "engine"]
    for other in ("stock V1", "V2"):
        head += [f"over {other}, batch {batch}" for batch in BATCHES]
    rows = []
    for sitting in sittings:
        stock, second = sitting.engine("stock-v1"), sitting.engine("v2")
        for name in ("patched-loop", "auto-loop", "patched-step"):
            ours = sitting.engine(name)
            if ours is not None:
                ratios = [_against(ours, stock, batch) for batch in BATCHES]
                ratios += [_against(ours, second, batch) for batch in BATCHES]
                rows.append([sitting.setting.words, name, *ratios])
    return table(head, rows)


# ---- memory


def _bytes(worker: dict[str, Any], name: str, unit: int) -> str:
    value = worker.get(name)
    return "" if value is None else f"{value / unit:,.{0 if unit == MIB else 2}f}"


def memory_table(sittings: list[Sitting]) -> list[str]:
    """What the graphs and the KV cache take on the first rank, where it was asked."""
    head = ["setting", "engine", "graphs taken", "estimated", "graph pools (MiB)"]
    head += [
        "KV blocks announced",
        "held",
        "KV cache granted",
        "held (GiB)",
        "reserved (GiB)",
        "file",
    ]
    rows = []
    for sitting in sittings:
        for row in sitting.rows:
            memory = row.last("memory")
            if memory is None:
                continue
            workers = memory["workers"]
            cells = [sitting.setting.words, row.engine]
            cells += [
                _bytes(workers[0], name, MIB)
                for name in ("graphs_taken", "graphs_estimated", "graph_pools")
            ]
            cells += [
                str(memory["kv_blocks_announced"]),
                str(min(worker["kv_blocks"] for worker in workers)),
            ]
            names = ("kv_available", "kv_held", "reserved")
            sizes = [_bytes(workers[0], name, GIB) for name in names]
            rows.append([*cells, *sizes, f"`{sitting.file}`"])
    return table(head, rows) if rows else []


# ---- the summary


def summary_table(sittings: list[Sitting]) -> list[str]:
    """Step time of V1 with the overlay over stock V1's and V2's, a line for each target model.

    :param sittings: the newest sitting of each setting.
    """
    head = ["target model", "vLLM", "over stock V1, 1 request", "32 requests"]
    head += ["over V2, 1 request", "32 requests"]
    rows = []
    for name, group in summary(sittings).items():
        releases = ", ".join(sitting.setting.release for sitting in group)
        ratios = [ratio(group, other, batch) for other in ("stock-v1", "v2") for batch in (1, 32)]
        rows.append([name, releases, *("" if each is None else str(each) for each in ratios)])
    return table(head, rows)


# ---- pages


def step_times(sittings: list[Sitting]) -> str:
    """The appendix of step times, the newest sitting of each setting first."""
    now, older = newest(sittings)
    parts = [f"![Step time and GPU-busy share](../{PLOT.name})", "", STEP_TIMES_TOP, ""]
    parts += comparison_table(now)
    for sitting in now:
        parts += ["", *step_time_table(sitting)]
    weighed, _ = newest(
        sitting for sitting in sittings if any(row.last("memory") for row in sitting.rows)
    )
    if memory := memory_table(weighed):
        parts += ["", "## Memory", "", *memory]
    if older:
        parts += ["", "## Older sittings", "", "A newer one of the same setting replaces each."]
        for sitting in older:
            parts += ["", *step_time_table(sitting)]
    return "\n".join(parts)


STEP_TIMES_TOP = """\
Step time with the overlay over step time without it (`bench/compare.py`); below 1 the overlay is
faster. A figure is the median of the repeats, \u00b1 half of their range. *GPU busy*: GPU time of a
step, from a trace, over the time of a step that is not traced, so that it can be over 100 %.
*`propose`, host*: median time that the host spends in the drafter, batch 1. *Graphs taken*: by how
much the capture lowered the free memory of the device; *graph pools*: what PyTorch's allocator
holds for graphs."""


def appendices(sittings: list[Sitting]) -> dict[Path, str]:
    """The pages that hold every sitting and every cell, by their path."""
    served = performance_serving.documents(RESULTS)
    cells = performance_serving.cells_of(served)
    engines = performance_serving.engines_of(cells)
    servers = [cell.row(engines) for cell in cells]
    paired = [cell.row for cell in performance_paired.cells_of(RESULTS)]
    acceptance = acceptance_table(sorted(RESULTS.glob("*-acceptance-*.json")))
    bodies = {
        "acceptance": ("Acceptance: every file of cells", [ACCEPTANCE_TOP, "", *acceptance]),
        "step-times": (
            "Step times and memory: every sitting",
            [STEPS_TOP, "", step_times(sittings)],
        ),
        "servers": (
            "Servers: every sitting of `overlay bench`",
            [
                SERVERS_TOP,
                "",
                *table(performance_serving.head(engines), servers),
                "",
                *performance_serving.notes(served),
            ],
        ),
        "paired-loads": (
            "Engines in turn: every sitting of `bench/paired_load.py`",
            [
                PAIRED_TOP,
                "",
                *table(performance_paired.HEAD, paired),
                "",
                *performance_paired.notes(RESULTS),
            ],
        ),
        "host-costs": (
            "What features cost the host",
            [HOST_TOP, "", *table(performance_host.HEAD, performance_host.rows(RESULTS))],
        ),
        "real-text": (
            "Real text: every sitting of `bench/real_text.py`",
            [TEXT_TOP, "", *table(performance_real.HEAD, performance_real.rows(RESULTS))],
        ),
    }
    return {
        APPENDIX / f"{name}.md": "\n".join([WRITTEN, "", f"# {title}", "", *body, ""])
        for name, (title, body) in bodies.items()
    }


ACCEPTANCE_TOP = """\
Tiny models whose tokens and accepted drafts are known exactly, the oracle
(`tests/gpu/acceptance.py`). A cell must equal the oracle or, where vLLM itself leaves it, the
engine without graphs in the same cell. Replays are counted on the first rank."""


STEPS_TOP = """\
What a step of an engine takes with dummy weights, and what graphs take of the memory
([how](../performance.md#model-runner-v1))."""


SERVERS_TOP = """\
Output tokens a second of servers asked by vLLM's own client: the median of runs, in brackets the
least and the most. Behind \u2248 ranges overlap."""


TEXT_TOP = """\
Trained weights and held-out prompts ([the models](../performance.md#real-weights-and-real-text));
ratios as in [engines in turn](paired-loads.md)."""


PAIRED_TOP = """\
*At once*: so many requests of one length. *In flight*: three times as many, so many at a time,
whose answers have different lengths. Ratios are of the same round: their median, in brackets the
least, the largest, and in how many rounds they were above 1."""


HOST_TOP = """\
Microseconds on one core of a busy CPU, of vLLM's own functions and of the feature's in their place
(`bench/steady_scheduler.py`, `bench/held_slots.py`, `bench/batched_bookkeeping.py`). No model ran:
nothing about serving follows."""


def tables(sittings: list[Sitting]) -> dict[str, str]:
    """The tables that pages may show, by name."""
    benches = performance_serving.documents(RESULTS)
    served = performance_serving.cells_of(performance_serving.of_shapes(benches))
    models = performance_serving.of_models(benches)
    gains = performance_paired.gains(performance_paired.cells_of(RESULTS))
    engines = performance_serving.engines_of(served)
    ratios = performance_serving.ratio_rows(performance_serving.newest(served), engines)
    real = performance_real.gains(RESULTS)
    client = performance_paired.served(RESULTS)
    drawn = {
        "default": table(default_runner.HEAD, default_runner.rows(RESULTS)),
        "gains": table(gains[0], gains[1:]),
        "summary": summary_table(newest(sittings)[0]),
        "servers": table(performance_serving.ratios_head(engines), ratios),
        "real": table(real[0], real[1:]),
        "client": table(client[0], client[1:]),
        "models": table(models[0], models[1:]),
    }
    return {name: "\n".join(lines) for name, lines in drawn.items()}


def between(page: str, name: str, text: str) -> str:
    """A page with ``text`` between its markers ``NAME: begin`` and ``NAME: end``.

    :raises ValueError: if the page does not have these markers exactly once.
    """
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def filled(page: str, drawn: dict[str, str]) -> str:
    """A page with each table for which it has markers."""
    for name, text in drawn.items():
        if re.search(f"<!-- {name}: (begin|end) -->", page):
            page = between(page, name, text)
    return page


def pages(sittings: list[Sitting]) -> dict[Path, str]:
    """Every page that shows results, by its path, with the tables that the JSON gives."""
    drawn = tables(sittings)
    drawn["default"] = "\n".join(table(default_runner.HEAD, default_runner.rows(RESULTS)))
    shown = {page: filled(page.read_text(encoding="utf-8"), drawn) for page in (PAGE, README)}
    return shown | appendices(sittings)


def stale_plots(sittings: list[Sitting]) -> list[Path]:
    """The plots that were not drawn from what the JSON says now."""
    now = newest(sittings)[0]
    summarized = [sitting for group in summary(now).values() for sitting in group]
    stale = []
    for plot, shown in ((SUMMARY_PLOT, summarized), (PLOT, now)):
        there = plot.read_text(encoding="utf-8") if plot.exists() else ""
        if performance_plot.digest_in(there) != digest(shown):
            stale.append(plot)
    return stale


def main() -> int:
    """Rewrite or check pages and plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    parser.add_argument("--redraw", action="store_true", help="draw also plots that are current")
    arguments = parser.parse_args()
    sittings = read_sittings(RESULTS)
    written = pages(sittings)
    stale = [PLOT, SUMMARY_PLOT] if arguments.redraw else stale_plots(sittings)
    if arguments.check:
        current = all(
            path.is_file() and path.read_text(encoding="utf-8") == text
            for path, text in written.items()
        )
        return int(not current or bool(stale))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    now = newest(sittings)[0]
    try:
        for plot in stale:
            drawn = (
                performance_plot.draw(now)
                if plot == PLOT
                else performance_plot.draw_summary(summary(now))
            )
            plot.write_text(drawn, encoding="utf-8")
    except ModuleNotFoundError as error:
        names = ", ".join(plot.name for plot in stale)
        print(f"out of date: {names}: {error}; install the extra `bench`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
