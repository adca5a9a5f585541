"""Engines that served real text in turn, as ``bench/real_text.py`` tells: a table for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What the others are compared with beside the first engine, where a sitting has it.
OTHER = "V2"
HEAD = ["vLLM", "GPU", "engine", "in flight", "output tokens a second", "over the first, by round"]
HEAD += [f"over {OTHER}", "accepted at positions 1, 2, 3", "answers as the first's"]


def rows(results: Path) -> list[list[str]]:
    """A row for each engine and load of all sittings; see ``HEAD``."""
    return [
        row
        for file in sorted(results.glob("*-real-text-*.json"))
        for row in _rows(json.loads(file.read_text(encoding="utf-8")))
    ]


def _rows(sitting: Mapping[str, Any]) -> list[list[str]]:
    result = []
    for load, engines in sitting["loads"].items():
        for name, cell in engines.items():
            about = sitting["parties"][name]["engine"]
            rates = [rate for rate in cell["tokens_per_s"] if rate is not None]
            if not rates:
                continue
            gpu = about["gpu"].removeprefix("NVIDIA ").partition(" ")[0]
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
    """Ratios of the rounds: their median, least and largest, and how many are above 1."""
    if cell is other:
        return ""
    pairs = zip(cell["tokens_per_s"], other["tokens_per_s"], strict=True)
    ratios = [own / its for own, its in pairs if own is not None and its is not None]
    if not ratios:
        return ""
    above = sum(ratio > 1 for ratio in ratios)
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"{statistics.median(ratios):.2f} ({span}; {above} of {len(ratios)} above 1)"


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
