"""What features cost the host, as the scripts that time them alone on a CPU tell: a table.

A file ``bench/results/cpu-*.json`` with ``microseconds`` has, for each case and number of requests,
those of upstream's code and those of the feature's in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = ["vLLM", "case", "requests", "upstream", "with the feature", "ratio", "file"]


def rows(results: Path) -> list[list[str]]:
    """A row for each case and number of requests of all files, microseconds; see ``HEAD``."""
    return [
        row
        for file in sorted(results.glob("cpu-*.json"))
        for row in _rows(json.loads(file.read_text(encoding="utf-8")), file.stem)
    ]


def _rows(document: dict[str, Any], file: str) -> Iterator[list[str]]:
    for case, sizes in document.get("microseconds", {}).items():
        for requests, cell in sizes.items():
            upstream = total(cell["upstream"])
            other = total(next(cell[name] for name in cell if name != "upstream"))
            times = [requests, f"{upstream:,.1f}", f"{other:,.1f}", f"{other / upstream:.2f}"]
            yield [document["vllm"], case, *times, f"`{file}`"]


def total(time: float | list[float]) -> float:
    """A time, or the sum of the times of a step's parts."""
    return sum(time) if isinstance(time, list) else time
