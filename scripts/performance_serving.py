"""Servers asked by vLLM's own client, as ``overlay bench --json`` told of them: tables for people.

Each file ``bench/results/*-bench-*.json`` is one sitting: the command's answer under ``bench``, and
what is known of it beside, a ``model`` of its own by name. A cell is what all its engines gave with
so many requests at a time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from overlay.proof.commands.bench_report import DEFAULT, OVERLAY, OVERLAY_V1, PLAIN, STOCK, V2
from overlay.proof.repeats import Sample
from scripts.performance_data import short_gpu

#: Every engine that ``overlay bench`` times, in the order of the columns.
ENGINES = [
    f"{engine}{drafts}"
    for drafts in ("", PLAIN)
    for engine in (DEFAULT, STOCK, OVERLAY, OVERLAY_V1, V2)
]


class Cell(NamedTuple):
    """Output tokens a second of the engines of one sitting.

    :ivar gpu: as PyTorch names it; :ivar shape: of the models, or the model by name.
    :ivar options: those of vLLM's engine, as the command line had them behind ``--``.
    :ivar requests: at a time; :ivar runs: those that count, by engine.
    :ivar date: of the sitting, as ISO 8601; :ivar file: its name, without ``.json``.
    """

    release: str
    gpu: str
    shape: str
    options: str
    requests: int
    runs: Mapping[str, Sample]
    date: str
    file: str

    @property
    def setting(self) -> tuple[str, tuple[int, ...], str, str, int]:
        """What two sittings of the same have in common; sorts as people count."""
        release = tuple(int(part) for part in self.release.split("."))
        return self.shape, release, self.options, self.gpu, self.requests

    def row(self, engines: Sequence[str]) -> list[str]:
        """Its row of the table; see :func:`head`."""
        gpu = short_gpu(self.gpu)
        at_a_time = f"{self.requests}, `{self.options}`" if self.options else str(self.requests)
        answered = [shown(self.runs.get(engine)) for engine in engines]
        ratios = [self.over(other) for other in others(engines)]
        return [self.release, gpu, self.shape, at_a_time, *answered, *ratios, f"`{self.file}`"]

    def over(self, other: str) -> str:
        """The overlay over another engine of as many drafts, on V1 over stock V1 where it ran so.

        Empty where one of the two did not run.
        """
        plain = PLAIN if other.endswith(PLAIN) else ""
        on_v1 = f"{OVERLAY_V1}{plain}"
        beside_v1 = other.removesuffix(PLAIN) == STOCK and on_v1 in self.runs
        ours = on_v1 if beside_v1 else f"{OVERLAY}{plain}"
        return compared(self.runs.get(ours), self.runs.get(other))


def engines_of(cells: Iterable[Cell]) -> list[str]:
    """The engines that some cell has, in the order of the columns.

    :raises ValueError: if ``overlay bench`` times one that the columns do not know.
    """
    return sorted({engine for cell in cells for engine in cell.runs}, key=ENGINES.index)


def others(engines: Iterable[str]) -> list[str]:
    """The engines that the overlay is compared with."""
    return [each for each in engines if each.removesuffix(PLAIN) not in (OVERLAY, OVERLAY_V1)]


def head(engines: Sequence[str]) -> list[str]:
    """The head of the table with a row for each cell."""
    ratios = (f"overlay / {other}" for other in others(engines))
    return ["vLLM", "GPU", "shape", "requests at a time", *engines, *ratios, "file"]


def ratios_head(engines: Sequence[str]) -> list[str]:
    """The head of the table with a row for each release, GPU, shape and options."""
    ratios = [f"over {other}" for other in others(engines)]
    ratios[:1] = [f"{first}, by requests at a time" for first in ratios[:1]]
    return ["vLLM, GPU, shape", *ratios]


def cells_of(sittings: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """The cells of all sittings, in their order.

    :param sittings: what their files say; see :func:`documents`.
    """
    return [cell for file, each in sittings.items() for cell in _cells(each, file)]


def _cells(document: Mapping[str, Any], file: str) -> list[Cell]:
    runs: dict[int, dict[str, Sample]] = {}
    for engine in document["bench"]["serving"]:
        for cell in engine["concurrency"]:
            values = tuple(map(float, cell["output_tokens_per_s"]))
            runs.setdefault(cell["requests"], {})[engine["engine"]] = Sample(values)
    options = document["command"].partition(" -- ")[2]
    shape = document.get("model", document["bench"]["shape"])
    about = (document["release"], document["gpu"], shape, options)
    return [Cell(*about, size, each, document["date"], file) for size, each in runs.items()]


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Every sitting of a folder, the oldest first, by the name of its file without ``.json``."""
    files = folder.glob("*-bench-*.json")
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return dict(sorted(found.items(), key=lambda each: (each[1]["date"], each[0])))


def of_shapes(sittings: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The sittings of random weights, by file; the others are of a model of one's own."""
    return {file: each for file, each in sittings.items() if "model" not in each}


def of_models(sittings: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A table of the sittings of models: each engine's step, and what it served.

    :returns: its head, with a column for each number of requests, and a row for each engine.
    """
    rows = [
        row for file, each in sittings.items() if "model" in each for row in _of_model(each, file)
    ]
    sizes = sorted({size for _, at, _ in rows for size in at})
    words = (f"{size} {'request' if size == 1 else 'requests'}" for size in sizes)
    head = ["vLLM, GPU, model", "engine", "accepted at 1, 2, 3", *words, "first token"]
    return [head, *([*about, *(at.get(n, "") for n in sizes), last] for about, at, last in rows)]


def _of_model(
    sitting: Mapping[str, Any], file: str
) -> Iterator[tuple[list[str], dict[int, str], str]]:
    """Of each engine: its name and acceptance, what it gave by size, and the first token's time."""
    engines = {engine["engine"]: engine for engine in sitting["bench"]["engines"]}
    cells = _cells(sitting, file)
    for served in sitting["bench"]["serving"]:
        name = served["engine"]
        others = [other for other in (DEFAULT, STOCK) if other in engines and other != name]
        at = {}
        for cell in cells:
            (batch,) = (
                each for each in engines[name]["batches"] if each["requests"] == cell.requests
            )
            step, runs = statistics.median(batch["ms_per_step"]), cell.runs[name]
            over = "".join(f" ({compared(runs, cell.runs[other])})" for other in others)
            at[cell.requests] = f"{step:.2f} ms; {runs.median:,.0f}{over}"
        gpu, runner = short_gpu(sitting["gpu"]), engines[name]["runner"].upper()
        about = f"{sitting['release']}, {gpu}, {sitting['model']}"
        accepted = ", ".join(f"{share:.2f}" for share in served["accepted_by_position"])
        first = f"{statistics.median(served['first_token_ms']):.0f} ms"
        yield [about, f"{runner}{' overlay' if others else ''}", accepted], at, first


def newest(cells: Iterable[Cell]) -> list[Cell]:
    """The newest cell of each setting, in the order of the settings."""
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in sorted(cells, key=lambda each: each.date):
        found[cell.setting] = cell
    return [found[setting] for setting in sorted(found)]


def ratio_rows(cells: Iterable[Cell], engines: Sequence[str]) -> list[list[str]]:
    """A row for each release, GPU, shape and options, with the ratios at each load.

    :param cells: the newest of each setting, in the order of the settings.
    :param engines: those of the columns.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        gpu = short_gpu(cell.gpu)
        about = (cell.release, gpu, cell.shape, *([f"`{cell.options}`"] if cell.options else []))
        groups.setdefault(about, []).append(cell)
    return [
        [", ".join(about), *(_ratios(group, other) for other in others(engines))]
        for about, group in groups.items()
    ]


def _ratios(cells: Iterable[Cell], other: str) -> str:
    """``1: 2.55; 16: ≈ 2.16``: each load that has both engines."""
    ratios = {cell.requests: cell.over(other) for cell in cells}
    return "; ".join(f"{requests}: {ratio}" for requests, ratio in ratios.items() if ratio)


def shown(runs: Sample | None) -> str:
    """The median of runs and their range; empty where there are none."""
    if runs is None:
        return ""
    median, values = f"{runs.median:,.0f}", runs.values
    if not runs.repeated:
        return f"{median} (one run)"
    return f"{median} ({min(values):,.0f} to {max(values):,.0f}; {len(values)} runs)"


def compared(ours: Sample | None, others: Sample | None) -> str:
    """The ratio of two medians; behind "≈" where the ranges overlap, or one run has none."""
    if ours is None or others is None:
        return ""
    ratio = f"{ours.median / others.median:.2f}"
    conclusive = ours.repeated and others.repeated and not ours.overlaps(others)
    return ratio if conclusive else f"≈ {ratio}"


def notes(sittings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is to be known of each sitting, a line each."""
    return [f"- `{file}`: {each['note']}." for file, each in sittings.items() if each.get("note")]
