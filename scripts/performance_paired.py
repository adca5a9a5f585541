"""Engines that served the same loads in turn, as ``bench/paired_load.py`` tells: tables for people.

A sitting's ratios are of the same round: an engine's output tokens a second over the first one's.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.performance_data import short_gpu

#: The module of model runner V2, as an engine names its own.
V2 = "vllm.v1.worker.gpu.model_runner"
#: The load as the script names it -> as people read it.
LOADS = {"uniform": "at once", "mixed": "in flight"}
HEAD = [
    "vLLM",
    "GPU",
    "shape",
    "drafts",
    "requests",
    "engine",
    "output tokens a second",
    "over the first",
]
HEAD += ["file"]
#: The variable of decode-graph-sizes, and the first release that has graphs of mixed batches.
SIZES, MIXED_FROM = "OVERLAY_DECODE_GRAPH_SIZES", (0, 31, 0)
#: Features that are always active beside drafts, and change nothing that is timed.
MENDS = ("draft-weights",)
#: The shapes with too many weights for such graphs, unless they are asked for.
HEAVY = ("8b", "moe")
GAINS_HEAD = ["vLLM, GPU, shape, drafts", "active"]


class Cell(NamedTuple):
    """An engine at one load of one sitting.

    :ivar drafts: of a step, by whom; :ivar requests: so many, and how they come.
    :ivar active: the overlay's features that were, with variables that were set; empty for stock.
    :ivar ratios: over the first engine, by round; none of that one itself.
    :ivar default: whether the first engine is stock, on model runner V2, without options, and this
        one is no experiment with a change that was not kept.
    """

    release: str
    gpu: str
    shape: str
    drafts: str
    requests: str
    engine: str
    active: str
    rates: tuple[float, ...]
    ratios: tuple[float, ...]
    default: bool
    date: str
    file: str

    @property
    def version(self) -> tuple[int, ...]:
        """The release, for sorting."""
        return _version(self.release)

    @property
    def row(self) -> list[str]:
        """Its row of the appendix; see ``HEAD``."""
        rate = f"{statistics.median(self.rates):,.0f} "
        rate += f"({min(self.rates):,.0f} to {max(self.rates):,.0f}; {len(self.rates)} rounds)"
        about = [self.release, self.gpu, self.shape, self.drafts, self.requests]
        name = f"{self.engine}: {self.active}" if self.active else self.engine
        return [*about, name, rate, over(self.ratios), f"`{self.file}`"]


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def over(ratios: Iterable[float]) -> str:
    """The median of ratios by round, the least and the largest, and of how many rounds above 1."""
    values = tuple(ratios)
    if not values:
        return ""
    above = sum(value > 1 for value in values)
    span = f"{min(values):.2f} to {max(values):.2f}"
    return f"{statistics.median(values):.2f} ({span}; {above} of {len(values)})"


def brief(ratios: Iterable[float]) -> str:
    """The median of ratios by round, and of how many rounds above 1."""
    values = tuple(ratios)
    above = sum(value > 1 for value in values)
    return f"{statistics.median(values):.2f} ({above} of {len(values)})" if values else ""


def cells_of(results: Path) -> list[Cell]:
    """The cells of all sittings of a folder, the oldest first."""
    sittings = [
        (file.stem, document)
        for file in results.glob("*.json")
        if is_paired(document := json.loads(file.read_text(encoding="utf-8")))
    ]
    sittings.sort(key=lambda each: (each[1]["date"], each[0]))
    return [cell for file, document in sittings for cell in _cells(document, file)]


def is_paired(document: Any) -> bool:
    """Whether a result is one of ``bench/paired_load.py``; engines of real text have no shape."""
    return isinstance(document, dict) and {"parties", "loads", "drafter"} <= document.keys()


def served(results: Path) -> list[list[str]]:
    """A table of ``bench/paired_servers.py``: servers over the first one, by load.

    :returns: its head, and a row for each server but the first of each sitting, the newest first.
    """
    documents = (json.loads(file.read_text(encoding="utf-8")) for file in results.glob("*.json"))
    sittings = [each for each in documents if isinstance(each, dict) and "rate" in each]
    sittings.sort(key=_when, reverse=True)
    loads = list(dict.fromkeys(load for sitting in sittings for load in sitting["loads"]))
    rows = []
    for sitting in sittings:
        first, *others = sitting["parties"]
        about = sitting["parties"][first]["engine"]
        drafts = f"eagle3, K = {sitting['k']}" if sitting["k"] else "no drafts"
        name = f"{about['vllm']}, {short_gpu(about['gpu'])}, {sitting['shape']}, {drafts}"
        for other in others:
            cells = (sitting["loads"].get(load, {}).get(other, {}) for load in loads)
            rows.append(
                [name, f"{other} / {first}", *(brief(cell.get("ratios", ())) for cell in cells)]
            )
    return [["vLLM, GPU, shape, drafts", "servers", *loads], *rows]


def _when(sitting: Mapping[str, Any]) -> str:
    return str(sitting["date"])


def _cells(sitting: Mapping[str, Any], file: str) -> list[Cell]:
    cells = []
    for load, engines in sitting["loads"].items():
        requests, _, kind = load.partition(" ")
        first = next(iter(engines))
        for name, cell in engines.items():
            about = sitting["parties"][name]["engine"]
            rates = tuple(float(rate) for rate in cell["tokens_per_s"] if rate is not None)
            ratios = tuple(float(ratio) for ratio in cell.get("ratios", ()))
            if not rates:
                continue
            gpu = short_gpu(about["gpu"])
            cells.append(
                Cell(
                    about.get("vllm") or f"SGLang {about['sglang']}",
                    gpu,
                    sitting["shape"],
                    _drafts(sitting, name),
                    f"{requests} {LOADS.get(kind, kind)}",
                    name,
                    _active(sitting["parties"][name], sitting["shape"]),
                    rates,
                    ratios,
                    _is_default(sitting["parties"][first], sitting["shape"])
                    and "experiment" not in sitting["parties"][name],
                    sitting["date"],
                    file,
                )
            )
    return cells


def _drafts(sitting: Mapping[str, Any], name: str) -> str:
    """``K = 3`` of a method's drafts; an engine may have another number than its sitting."""
    number = sitting["parties"][name].get("options", {}).get("k", sitting["k"])
    return f"{sitting['drafter']}, K = {number}" if number else "no drafts"


def _active(party: Mapping[str, Any], shape: str) -> str:
    """The features that an engine reported as active, but for mends, and the overlay's variables.

    Which engines have graphs of mixed batches by default has changed: the variable is left out
    where an engine had what it has today, and said where it had not.
    """
    effects = party["engine"].get("effects") or {}
    active = {
        name: text
        for name, text in effects.items()
        if text.startswith("active") and name not in MENDS
    }
    variables = {
        name: value for name, value in party["variables"].items() if name.startswith("OVERLAY")
    }
    text = effects.get("decode-graph-sizes", "")
    chosen = text and variables.get(SIZES) != "off"
    if chosen and _version(party["engine"]["vllm"]) >= MIXED_FROM:
        value = "mixed" if "FULL, for mixed batches" in text else "decodes"
        variables.pop(SIZES, None)
        if value != ("decodes" if shape.partition(" ")[0] in HEAVY else "mixed"):
            variables[SIZES] = value
    names = [*active, *(f"`{name}={value}`" for name, value in variables.items())]
    return ", ".join([*names, *filter(None, [party.get("experiment")])])


def _is_default(party: Mapping[str, Any], shape: str) -> bool:
    if party["engine"]["runner"] != V2 or party.get("options"):
        return False
    return not _active(party, shape)


def gains(cells: Iterable[Cell]) -> list[list[str]]:
    """A table of what the newest release gains over its default: the newest cell of each setting.

    :param cells: of any sittings; those without stock V2 in them say nothing here.
    :returns: its head, with a column for each load, and a row for each engine, the newest first.
    """
    against = sorted((cell for cell in cells if cell.default and cell.active), key=_by_date)
    last = max((cell.version for cell in against), default=())
    newest = [cell for cell in against if cell.version == last]
    loads = list(dict.fromkeys(cell.requests for cell in newest))
    engines: dict[tuple[str, str], dict[str, str]] = {}
    for cell in newest:
        about = f"{cell.release}, {cell.gpu}, {cell.shape}, {cell.drafts}"
        engines.setdefault((about, cell.active), {})[cell.requests] = brief(cell.ratios)
    rows = reversed(engines.items())
    head = [*GAINS_HEAD, *loads]
    return [head, *([*key, *(at.get(load, "") for load in loads)] for key, at in rows)]


def _by_date(cell: Cell) -> str:
    return cell.date


def notes(results: Path) -> list[str]:
    """What is to be known of sittings, a line each."""
    documents = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(results.glob("*.json"))
    }
    return [
        f"- `{file}`: {document['note'].rstrip('.')}."
        for file, document in documents.items()
        if is_paired(document) and document.get("note")
    ]
