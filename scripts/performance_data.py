"""Read the JSON under bench/results/ into what the performance page shows.

Only ``read_sittings`` touches files; nothing here knows Markdown or matplotlib.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BATCHES = (1, 8, 32)
#: The order of engines in every table and plot.
ENGINES = (
    "stock-v1",
    "patched-step",
    "patched-loop",
    "patched-loop-unsteady",
    "patched-loop-unbatched",
    "patched-loop-metrics",
    "auto-loop",
    "v2",
)
#: Shape and tensor-parallel size of a target model -> its name in the summary, in that order.
SUMMARY_MODELS = {
    ("1b", 1): "1B",
    ("8b", 1): "8B",
    ("8b", 2): "8B, tensor parallel 2",
    ("8b", 4): "8B, tensor parallel 4",
    ("moe", 1): "mixture of experts, 30B",
}
#: Number of drafts and cudagraph mode of every setting in the summary: vLLM's default mode.
SUMMARY_DRAFTS, SUMMARY_MODE = 3, "FULL_AND_PIECEWISE"
#: The engine of the summary: the default, ``OVERLAY_DRAFT_GRAPHS=auto``, runs as ``loop`` there.
SUMMARY_ENGINE = "patched-loop"


@dataclass(frozen=True)
class Times:
    """Milliseconds per engine step at one batch size: the median and the range of the repeats."""

    median: float
    low: float
    high: float

    def apart(self, other: Times) -> bool:
        """Whether the repeats of the two do not overlap."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True)
class Row:
    """One engine in one cell of one sitting, all rounds of the sitting taken together.

    :ivar times: by batch size; those that failed are missing.
    :ivar propose_ms: host time inside ``propose``, median, batch 1.
    :ivar gpu_share: share of a step at batch 1 in which the GPU works.
    :ivar results: what ``bench/compare.py`` wrote, for what else is shown.
    """

    engine: str
    times: Mapping[int, Times]
    propose_ms: float | None
    gpu_share: float | None
    results: tuple[Mapping[str, Any], ...] = field(repr=False)

    def last(self, name: str) -> Any:
        """An entry of the last round that has it."""
        entries = [result[name] for result in self.results if result.get(name) is not None]
        return entries[-1] if entries else None


@dataclass(frozen=True)
class Setting:
    """What engines must have in common to be compared: release and cell."""

    release: str
    cell: str

    @property
    def words(self) -> str:
        """``0.26.0, 8b, K 3, FULL, tensor parallel 2``."""
        shape, k, mode, *parallel = self.cell.split(":")
        words = f"{self.release}, {shape}, K {k}, {mode}"
        return f"{words}, tensor parallel {parallel[0]}" if parallel else words

    @property
    def model(self) -> str | None:
        """The target model's name in the summary; ``None`` where the summary leaves it out."""
        shape, drafts, mode, *parallel = self.cell.split(":")
        if (int(drafts), mode) != (SUMMARY_DRAFTS, SUMMARY_MODE):
            return None
        return SUMMARY_MODELS.get((shape, int(parallel[0]) if parallel else 1))

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts by release, then tensor parallel, shape, K and mode."""
        shape, k, mode, *parallel = self.cell.split(":")
        release = tuple(int(part) for part in self.release.split("."))
        shapes = ("1b", "8b", "moe")
        place = shapes.index(shape) if shape in shapes else len(shapes)
        return release, int(parallel[0]) if parallel else 1, place, int(k), mode


@dataclass(frozen=True)
class Sitting:
    """All engines of one setting in one sitting on one machine.

    :ivar side_by_side: how many of them measured at the same time.
    :ivar in_turn: how many started together, to measure one after the other on the same GPUs.
    :ivar turns: in how many turns each of these measured.
    """

    setting: Setting
    file: str
    date: str
    gpu: str
    side_by_side: int
    in_turn: int
    turns: int
    rows: tuple[Row, ...]
    note: str = ""

    def engine(self, name: str) -> Row | None:
        """The row of an engine."""
        return next((row for row in self.rows if row.engine == name), None)


def _times(results: Iterable[Mapping[str, Any]], batch: int) -> Times | None:
    """All rounds' repeats together; in older files, which lack them, the median and its spread."""
    each: list[float] = []
    medians: list[float] = []
    for result in results:
        timed = result.get(f"batch{batch}")
        if timed is None:
            continue
        median, half = timed["ms_per_step"], timed["ms_per_step"] * timed["spread"] / 2
        repeats = timed.get("repeats_ms_per_step")
        each += repeats or [median - half, median + half]
        medians += repeats or [median]
    return Times(statistics.median(medians), min(each), max(each)) if each else None


def _gpu_share(results: Iterable[Mapping[str, Any]]) -> float | None:
    """The GPU's time in a step over the step's; before it was kept apart, the profile's share."""
    shares = [
        result["gpu_ms_per_step"] / result["batch1"]["ms_per_step"]
        if "gpu_ms_per_step" in result and "batch1" in result
        else result["gpu_busy"]
        for result in results
        if "gpu_busy" in result
    ]
    return statistics.median(shares) if shares else None


def _row(engine: str, results: list[Mapping[str, Any]]) -> Row:
    hosts = [
        result["batch1"]["propose_host_ms"]
        for result in results
        if "propose_host_ms" in result.get("batch1", {})
    ]
    times = {batch: _times(results, batch) for batch in BATCHES}
    return Row(
        engine,
        {batch: timed for batch, timed in times.items() if timed is not None},
        statistics.median(hosts) if hosts else None,
        _gpu_share(results),
        tuple(results),
    )


def _place(engine: str) -> tuple[int, str]:
    return (ENGINES.index(engine) if engine in ENGINES else len(ENGINES)), engine


def short_gpu(name: str) -> str:
    """A GPU's name as the tables have it: of ``NVIDIA H100 80GB HBM3``, ``H100``."""
    return name.removeprefix("NVIDIA ").partition(" ")[0]


def sittings_of(file: str, document: Mapping[str, Any]) -> list[Sitting]:
    """The sittings of one file, one for each setting."""
    results: list[Mapping[str, Any]] = document["results"]
    ran = [result for result in results if "vllm" in result]
    made = []
    for cell in dict.fromkeys(result["cell"] for result in results):
        here = [result for result in results if result["cell"] == cell]
        engines = sorted({result["engine"] for result in here}, key=_place)
        release, gpu = (
            next(result[name] for result in (*here, *ran) if name in result)
            for name in ("vllm", "gpu")
        )
        rows = [
            _row(name, [result for result in here if result["engine"] == name]) for name in engines
        ]
        beside, in_turn, turns = (
            max(result.get(name, 1) for result in here)
            for name in ("side_by_side", "in_turn", "turns")
        )
        setting = Setting(release, cell)
        note = document.get("note", "")
        how = (document["date"], gpu, beside, in_turn, turns)
        made.append(Sitting(setting, file, *how, tuple(rows), note))
    return made


def read_sittings(folder: Path) -> list[Sitting]:
    """Every sitting of every file of step times, by setting, and the newest of each first."""
    all_sittings = [
        sitting
        for file in sorted(folder.glob("h200-step-time-*.json"))
        for sitting in sittings_of(file.name, json.loads(file.read_text(encoding="utf-8")))
    ]
    all_sittings.sort(key=lambda sitting: sitting.date, reverse=True)
    return sorted(all_sittings, key=lambda sitting: sitting.setting.order)


def newest(sittings: Iterable[Sitting]) -> tuple[list[Sitting], list[Sitting]]:
    """The newest sitting of each setting, and all others.

    :param sittings: in the order of ``read_sittings``.
    """
    seen: set[Setting] = set()
    first: list[Sitting] = []
    others: list[Sitting] = []
    for sitting in sittings:
        (others if sitting.setting in seen else first).append(sitting)
        seen.add(sitting.setting)
    return first, others


@dataclass(frozen=True)
class Ratio:
    """Step time of one engine over another's: the range over the releases that were measured.

    :ivar overlap: whether the repeats of the two engines overlap in one of these releases.
    """

    low: float
    high: float
    overlap: bool

    def __str__(self) -> str:
        low, high = f"{self.low:.2f}", f"{self.high:.2f}"
        return ("\u2248 " if self.overlap else "") + (low if low == high else f"{low} to {high}")


def summary(sittings: Iterable[Sitting]) -> dict[str, list[Sitting]]:
    """The sittings of the summary by the name of the target model, in the summary's order.

    :param sittings: the newest of each setting.
    """
    models: dict[str, list[Sitting]] = {name: [] for name in SUMMARY_MODELS.values()}
    for sitting in sittings:
        if sitting.setting.model is not None and sitting.engine(SUMMARY_ENGINE) is not None:
            models[sitting.setting.model].append(sitting)
    return {name: group for name, group in models.items() if group}


def ratio(sittings: Iterable[Sitting], other: str, batch: int) -> Ratio | None:
    """A step of ``SUMMARY_ENGINE`` over a step of engine ``other`` at one batch size."""
    pairs = [
        (ours.times[batch], theirs.times[batch])
        for sitting in sittings
        if (ours := sitting.engine(SUMMARY_ENGINE)) is not None
        and (theirs := sitting.engine(other)) is not None
        and batch in ours.times
        and batch in theirs.times
    ]
    if not pairs:
        return None
    quotients = [ours.median / theirs.median for ours, theirs in pairs]
    overlap = any(not ours.apart(theirs) for ours, theirs in pairs)
    return Ratio(min(quotients), max(quotients), overlap)


def digest(sittings: Iterable[Sitting]) -> str:
    """The sha256 of everything that a plot of these sittings shows."""
    drawn = [
        [
            sitting.setting.words,
            sitting.gpu,
            [
                [
                    row.engine,
                    [[batch, *vars(times).values()] for batch, times in row.times.items()],
                    row.gpu_share,
                ]
                for row in sitting.rows
            ],
        ]
        for sitting in sittings
    ]
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()
