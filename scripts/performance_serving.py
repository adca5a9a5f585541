"""Servers asked by vLLM's own client, as ``overlay bench --json`` told of them: tables for people.

Each file ``bench/results/*-bench-*.json`` is one sitting: the command's answer under ``bench``, and
what is known of it beside. A cell is what all its engines gave with so many requests at a time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STOCK, OVERLAY, V2 = "stock V1", "overlay", "V2"
HEAD = ["vLLM", "GPU", "shape", "requests at a time", STOCK, OVERLAY, V2]
HEAD += ["overlay / stock V1", "overlay / V2", "file"]


class Cell(NamedTuple):
    """Output tokens a second of the engines of one sitting.

    :ivar gpu: as PyTorch names it; :ivar shape: of the models.
    :ivar options: those of vLLM's engine, as the command line had them behind ``--``.
    :ivar requests: at a time; :ivar runs: those that count, by engine.
    :ivar date: of the sitting, as ISO 8601; :ivar file: its name, without ``.json``.
    """

    release: str
    gpu: str
    shape: str
    options: str
    requests: int
    runs: Mapping[str, tuple[float, ...]]
    date: str
    file: str

    @property
    def setting(self) -> tuple[str, tuple[int, ...], str, str, int]:
        """What two sittings of the same have in common; sorts as people count."""
        release = tuple(int(part) for part in self.release.split("."))
        return self.shape, release, self.options, self.gpu, self.requests

    @property
    def row(self) -> list[str]:
        """Its row of the table; see ``HEAD``."""
        gpu = self.gpu.removeprefix("NVIDIA ").partition(" ")[0]
        at_a_time = f"{self.requests}, `{self.options}`" if self.options else str(self.requests)
        answered = [shown(self.runs.get(engine, ())) for engine in (STOCK, OVERLAY, V2)]
        ours = self.runs.get(OVERLAY, ())
        ratios = [compared(ours, self.runs.get(other, ())) for other in (STOCK, V2)]
        return [self.release, gpu, self.shape, at_a_time, *answered, *ratios, f"`{self.file}`"]


def cells_of(document: Mapping[str, Any], file: str) -> list[Cell]:
    """The cells of one sitting.

    :param document: what its file says; :param file: its name, without ``.json``.
    """
    runs: dict[int, dict[str, tuple[float, ...]]] = {}
    for engine in document["bench"]["serving"]:
        for cell in engine["concurrency"]:
            values = tuple(map(float, cell["output_tokens_per_s"]))
            runs.setdefault(cell["requests"], {})[engine["engine"]] = values
    options = document["command"].partition(" -- ")[2]
    shape = document["bench"]["shape"]
    about = (document["release"], document["gpu"], shape, options)
    return [Cell(*about, size, each, document["date"], file) for size, each in runs.items()]


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Every sitting of a folder, the oldest first, by the name of its file without ``.json``."""
    files = folder.glob("*-bench-*.json")
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return dict(sorted(found.items(), key=lambda each: (each[1]["date"], each[0])))


def newest(cells: Iterable[Cell]) -> list[Cell]:
    """The newest cell of each setting, in the order of the settings."""
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in sorted(cells, key=lambda each: each.date):
        found[cell.setting] = cell
    return [found[setting] for setting in sorted(found)]


def shown(runs: Sequence[float]) -> str:
    """The median of runs and their range; empty where there are none."""
    if not runs:
        return ""
    middle = f"{statistics.median(runs):,.0f}"
    if len(runs) == 1:
        return f"{middle} (one run)"
    return f"{middle} ({min(runs):,.0f} to {max(runs):,.0f}; {len(runs)} runs)"


def compared(ours: Sequence[float], others: Sequence[float]) -> str:
    """The ratio of two medians; behind "≈" where the ranges overlap, or one run has none."""
    if not ours or not others:
        return ""
    ratio = f"{statistics.median(ours) / statistics.median(others):.2f}"
    apart = min(ours) > max(others) or max(ours) < min(others)
    return ratio if apart and min(len(ours), len(others)) > 1 else f"≈ {ratio}"


def notes(sittings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is to be known of each sitting, a line each."""
    return [f"- `{file}`: {each['note']}." for file, each in sittings.items() if each.get("note")]
