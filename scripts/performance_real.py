"""Engines that served real text in turn, as ``bench/real_text.py`` tells: a table for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts import performance_paired
from scripts.performance_data import short_gpu

#: What the others are compared with beside the first engine, where a sitting has it.
OTHER = "V2"
HEAD = ["vLLM", "GPU", "engine", "in flight", "output tokens a second", "over the first, by round"]
HEAD += [f"over {OTHER}", "accepted at positions 1, 2, 3", "answers as the first's"]
#: How a party is called that is the engine of another with the overlay.
OVERLAY = " overlay"
GAINS_HEAD = ["vLLM, GPU", "engines"]


def rows(results: Path) -> list[list[str]]:
    """A row for each engine and load of all sittings; see ``HEAD``."""
    return [
        row
        for file in sorted(results.glob("*-real-text-*.json"))
        for row in _rows(json.loads(file.read_text(encoding="utf-8")))
    ]


def gains(results: Path) -> list[list[str]]:
    """A table of what engines with the overlay gave over stock ones, the newest sitting first.

    :returns: its head, with a column for each load, and a row for each engine and what it is over.
    """
    documents = [
        json.loads(file.read_text(encoding="utf-8")) for file in results.glob("*-real-text-*.json")
    ]
    documents.sort(key=lambda each: each["date"], reverse=True)
    rows = [row for document in documents for row in _gains(document)]
    loads = sorted({load for _, at in rows for load in at}, key=int, reverse=True)
    head = [*GAINS_HEAD, *(f"{load} in flight" for load in loads)]
    return [head, *([*key, *(at.get(load, "") for load in loads)] for key, at in rows)]


def _gains(sitting: Mapping[str, Any]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """An engine over stock ones that were served beside it, by load."""
    for name, party in sitting["parties"].items():
        runner, overlay, _ = name.partition(OVERLAY)
        about = party["engine"]
        gpu = short_gpu(about["gpu"])
        for other in dict.fromkeys((runner, OTHER)) if overlay else ():
            if other in sitting["parties"]:
                at = {
                    load.partition(" ")[0]: performance_paired.brief(
                        ratios(engines[name], engines[other])
                    )
                    for load, engines in sitting["loads"].items()
                }
                if any(at.values()):
                    yield [f"{about['vllm']}, {gpu}", f"{name} / {other}"], at


def _rows(sitting: Mapping[str, Any]) -> list[list[str]]:
    result = []
    for load, engines in sitting["loads"].items():
        for name, cell in engines.items():
            about = sitting["parties"][name]["engine"]
            rates = [rate for rate in cell["tokens_per_s"] if rate is not None]
            if not rates:
                continue
            gpu = short_gpu(about["gpu"])
            first = next(iter(engines.values()))
            rate = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            result.append(
                [
                    *(about["vllm"], gpu, name, load.partition(" ")[0], rate),
                    *(over(cell, first), over(cell, engines.get(OTHER, cell))),
                    *(accepted(cell), equal(cell)),
                ]
            )
    return result


def over(cell: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Ratios of the rounds that both served; see :func:`performance_paired.over`."""
    return performance_paired.over(ratios(cell, other))


def ratios(cell: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """An engine's tokens a second over another's, by round that both served; none of itself."""
    if cell is other:
        return []
    pairs = zip(cell["tokens_per_s"], other["tokens_per_s"], strict=True)
    return [own / its for own, its in pairs if own is not None and its is not None]


def accepted(cell: Mapping[str, Any]) -> str:
    """The median over the rounds of what was accepted at each position."""
    positions = list(zip(*cell["accepted"], strict=True))
    return ", ".join(f"{statistics.median(position):.2f}" for position in positions)


def equal(cell: Mapping[str, Any]) -> str:
    """Between how many and how many answers of a round were the first engine's."""
    counts = [int(text.partition(" ")[0]) for text in cell["equal"]]
    if not counts:
        return ""
    whole = cell["equal"][0].rpartition(" ")[2]
    span = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{span} of {whole}"


def widest(results: Path) -> float:
    """The largest difference between the two likeliest tokens where answers parted."""
    return max(
        (
            parting["apart"]
            for file in results.glob("*-real-text-*.json")
            for load in json.loads(file.read_text(encoding="utf-8"))["loads"].values()
            for cell in load.values()
            for parting in cell["partings"]
            if "apart" in parting
        ),
        default=0.0,
    )
