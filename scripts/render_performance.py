#!/usr/bin/env python3
"""Draw the tables of docs/performance.md from the JSON under bench/results/.

render_performance.py            rewrite the tables in place
render_performance.py --check    exit with 1 if the page is not what the JSON says
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
BATCHES = ("batch1", "batch8", "batch32")


def step_time_table(file: Path) -> str:
    """One sitting: a line per engine, milliseconds per engine step and the repeats' spread."""
    document = json.loads(file.read_text(encoding="utf-8"))
    rows = document["results"]
    first = rows[0]
    head = f"**vLLM {first['vllm']}**, {first['gpu']}, {document['date'][:16]} UTC, `{file.name}`"
    lines = [
        head,
        "",
        "| engine | shape, K, mode | batch 1 | 8 | 32 | `propose`, host | GPU busy |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["engine"], row["cell"].replace(":", ", ")]
        cells += [
            f"{row[batch]['ms_per_step']:.2f} ms ± {50 * row[batch]['spread']:.0f} %"
            if batch in row
            else "failed"
            for batch in BATCHES
        ]
        host = row.get("batch1", {}).get("propose_host_ms")
        cells.append("" if host is None else f"{host:.2f} ms")
        busy = row.get("gpu_busy")
        cells.append("" if busy is None else f"{100 * busy:.0f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def acceptance_table(files: list[Path]) -> str:
    """A line per release: cells, how many were equal, replays by role."""
    lines = [
        "| release | cells | equal | not judged or unequal | replays |",
        "|---|---|---|---|---|",
    ]
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        cells: list[dict[str, Any]] = document["cells"]
        replays: dict[str, int] = {}
        for cell in cells:
            for role, count in ((cell.get("ran") or {}).get("replays") or {}).items():
                replays[role] = replays.get(role, 0) + count
        others = [f"{cell['cell']} {cell['mode']}" for cell in cells if not cell["ok"]]
        lines.append(
            f"| {document['release']} | {len(cells)} | {sum(cell['ok'] for cell in cells)} "
            f"| {', '.join(others) or 'none'} "
            f"| {', '.join(f'{role} {count}' for role, count in sorted(replays.items()))} |"
        )
    return "\n".join(lines)


def tables() -> str:
    """Everything between the markers."""
    results = ROOT / "bench/results"
    parts = ["### Acceptance", "", acceptance_table(sorted(results.glob("h200-acceptance-*.json")))]
    parts += ["", "### Step time"]
    for file in sorted(results.glob("h200-step-time-*.json")):
        parts += ["", step_time_table(file)]
    return "\n".join(parts)


def main() -> int:
    """Rewrite or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    drawn = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if arguments.check:
        return int(drawn != page)
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
