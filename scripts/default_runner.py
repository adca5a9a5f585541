"""README's table: what the overlay brings against the model runner that a release chooses itself.

A figure is speed with the overlay over speed without it, in one sitting: output tokens a second
where engines served in turn (the median of the rounds' ratios), or else steps a second.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from overlay.results import ModelRunner
from scripts import performance_real
from scripts.performance_data import Row, Sitting, sittings_of

HEAD = ["your vLLM", "your model", "runner", "speed over stock vLLM, H200"]
#: Files of ``bench/results``.
DRAFTS = "h200-default-engine-0.33.0-own-process-2026-11-27-b"
NO_DRAFTS = "h200-default-engine-0.33.0-no-drafts-2026-11-27-c"
DRAFTS_26 = "h200-default-engine-0.26.0-2026-11-27-b"
NO_DRAFTS_26 = "h200-default-engine-0.26.0-no-drafts-2026-11-27"
TEXT_33 = "h200-real-text-0.33.0-2026-11-27"
SERVED_33 = "h200-bench-0.33.0-real-pair-2026-11-27"
RANKS = "h200-data-parallel-time-0.26.0-2026-11-23"
STEPS_26 = "h200-step-time-0.26.0-2026-11-21-e"
STEPS_20 = "h200-step-time-0.20.2-2026-11-21-c"

Documents = Callable[[str], dict[str, Any]]


class Entry(NamedTuple):
    """A row of README's table.

    :ivar releases: first and last minor release, both included.
    :ivar measured: the release that was measured; ``runner`` is what it chooses for the model.
    :ivar text: what was measured; ``{}`` stand for ``figures``.
    """

    releases: tuple[str, str]
    measured: str
    model: str
    runner: ModelRunner
    text: str
    figures: Callable[[Documents], list[float]]


def _dense(
    drafts: str, no_drafts: str, text: str = "", served: str = "", *, alone: str = "overlay"
) -> Callable[[Documents], list[float]]:
    """256 requests of 1B in flight, with drafts and without; then of real text, if measured.

    :param text: a file of ``bench/real_text.py``; :param served: one of ``overlay bench``.
    :param alone: the engine without drafts that is what an engine gets by default.
    """

    def figures(documents: Documents) -> list[float]:
        ratios: list[float] = [
            documents(file)["loads"]["256 mixed"][engine]["median_ratio"]
            for file, engine in ((drafts, "overlay"), (no_drafts, alone))
        ]
        if text:
            ratios.append(_over(documents(text), "256 requests", "V2 overlay"))
        if served:
            compared = documents(served)["bench"]["serving_comparisons"]
            ratios += [each["ratio"] for each in compared if each["batch"] == 256]
        return ratios

    return figures


def _over(sitting: dict[str, Any], load: str, engine: str) -> float:
    """The median of the rounds' ratios of an engine to stock V2."""
    engines = sitting["loads"][load]
    return statistics.median(performance_real.ratios(engines[engine], engines["V2"]))


def _mixtures(documents: Documents) -> list[float]:
    modes = {mode["mode"]: mode["phases"] for mode in documents(RANKS)["modes"]}
    off, loop = (modes[name]["one on each, rank 0"]["step_ms"] for name in ("off", "loop"))
    return [_steps("moe:3:FULL_AND_PIECEWISE", "stock-v1", STEPS_26)(documents)[0], off / loop]


def _steps(cell: str, default: str, file: str) -> Callable[[Documents], list[float]]:
    def figures(documents: Documents) -> list[float]:
        (sitting,) = (each for each in sittings_of(file, documents(file)) if _is(each, cell))
        stock, patched = sitting.engine(default), sitting.engine("patched-loop")
        return [_ms(stock, batch) / _ms(patched, batch) for batch in (1, 32)]

    return figures


def _is(sitting: Sitting, cell: str) -> bool:
    return sitting.setting.cell == cell


def _ms(row: Row | None, batch: int) -> float:
    if row is None:
        raise ValueError("expected an engine that was measured, found none")
    return row.times[batch].median


_DENSE = "256 requests, 1B: **{}** with EAGLE3, **{}** without"
V1, V2 = ModelRunner.V1, ModelRunner.V2
ENTRIES = (
    Entry(
        ("0.31", "0.33"),
        "0.33.0",
        "every model",
        V2,
        _DENSE + "; 135M, real text: **{}**, served **{}**",
        _dense(DRAFTS, NO_DRAFTS, TEXT_33, SERVED_33, alone="overlay mixed"),
    ),
    Entry(
        ("0.25", "0.28"),
        "0.26.0",
        "dense",
        V2,
        _DENSE,
        _dense(DRAFTS_26, NO_DRAFTS_26),
    ),
    Entry(
        ("0.25", "0.28"),
        "0.26.0",
        "most mixtures of experts",
        V1,
        "one request: {}; [experts in the draft](docs/many-gpus.md#experts-in-the-draft): **{}**",
        _mixtures,
    ),
    Entry(
        ("0.20", "0.21"),
        "0.20.2",
        "every model",
        V1,
        "1B, one request: **{}**, 32: **{}**",
        _steps("1b:3:FULL_AND_PIECEWISE", "stock-v1", STEPS_20),
    ),
)


def _filled(entry: Entry, documents: Documents) -> str:
    figures = (f"{value:.2f}" for value in entry.figures(documents))
    return f"{entry.text.format(*figures)} ({entry.measured})"


def rows(results: Path) -> list[list[str]]:
    """A row for each entry, with the figures that the JSON gives; see ``HEAD``."""

    def documents(name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((results / f"{name}.json").read_text("utf-8"))
        return document

    return [
        [
            " to ".join(entry.releases),
            entry.model,
            entry.runner.value.upper(),
            _filled(entry, documents),
        ]
        for entry in ENTRIES
    ]
