"""Which engines run when, and where: what ``compare.py`` does, before it does it.

Pure but for :func:`cores_by_neighbour`, which asks the host.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from bench.profiling.drafters import DRAFTERS

_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0", "OVERLAY": "off"}
_V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", "OVERLAY": "off"}
#: The plugin is on.
_PLUGIN = {"OVERLAY": "auto", "OVERLAY_DRAFT_GRAPHS": "loop"}

#: Engine name -> (which folder, environment).
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "stock-v1": ("stock", _V1),
    "patched-step": ("patched", _V1 | {"OVERLAY_DRAFT_GRAPHS": "step"}),
    "patched-loop": ("patched", _V1 | {"OVERLAY_DRAFT_GRAPHS": "loop"}),
    "patched-loop-unsteady": (
        "patched",
        _V1 | {"OVERLAY_DRAFT_GRAPHS": "loop", "OVERLAY_STEADY_INPUTS": "off"},
    ),
    "patched-loop-unbatched": (
        "patched",
        _V1 | {"OVERLAY_DRAFT_GRAPHS": "loop", "OVERLAY_BATCHED_BOOKKEEPING": "off"},
    ),
    # The same files with the plugin that --overlay-site holds: the overlay's metrics are on.
    "patched-loop-metrics": ("patched", _V1 | _PLUGIN),
    # Pristine files, patched in memory by that plugin.
    "auto-loop": ("stock", _V1 | _PLUGIN),
    "v2": ("stock", _V2),
    # Patched files, with graphs of mixed batches where an engine gets them, and without.
    "patched-v2": ("patched", _V2),
    "patched-v2-decodes": ("patched", _V2 | {"OVERLAY_DECODE_GRAPH_SIZES": "decodes"}),
}


def has_plugin(engine: str) -> bool:
    """Whether an engine loads the overlay's plugin."""
    return ENGINES[engine][1]["OVERLAY"] != "off"


@dataclass(frozen=True)
class Cell:
    """``shape[+drafter]:K:mode[:tensor parallel]``."""

    shape: str
    drafter: str
    k: str
    mode: str
    tensor_parallel: int
    name: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read one from the command line.

        :raises argparse.ArgumentTypeError: if it is none.
        """
        parts = text.split(":")
        if len(parts) not in (3, 4) or not all(part.isdigit() for part in (parts[1], *parts[3:])):
            raise argparse.ArgumentTypeError(f"{text} is not SHAPE[+DRAFTER]:K:MODE[:TP]")
        shape, _, drafter = parts[0].partition("+")
        drafter = drafter or "eagle3"
        if drafter not in DRAFTERS:
            known = ", ".join(DRAFTERS)
            raise argparse.ArgumentTypeError(f"{text}: {drafter} is none of the drafters: {known}")
        parallel = int(parts[3]) if parts[3:] else 1
        return cls(shape, drafter, parts[1], parts[2], parallel, text)


@dataclass(frozen=True)
class Place:
    """Where one engine runs.

    :ivar gpus: their indices; empty for whatever the process sees.
    :ivar cores: CPU cores of its own; empty for all.
    """

    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()


def places(gpus: list[str], tensor_parallel: int, cores: list[int]) -> list[Place]:
    """Disjoint groups of GPUs, each with its own share of the cores."""
    count = len(gpus) // tensor_parallel
    share = len(cores) // count if count else 0
    return [
        Place(
            tuple(gpus[index * tensor_parallel : (index + 1) * tensor_parallel]),
            tuple(cores[index * share : (index + 1) * share]),
        )
        for index in range(count)
    ]


@dataclass(frozen=True)
class Party:
    """One engine of those that run at the same time."""

    engine: str
    cell: Cell
    place: Place

    @property
    def title(self) -> str:
        """Name of its files."""
        return f"{self.engine}-{self.cell.name.replace(':', '-')}"


def waves(engines: list[str], where: list[Place], turn: int) -> list[list[tuple[str, Place]]]:
    """Engines that run at the same time, each with its place.

    Where the last wave leaves places free, engines of the wave before run again, so that all meet
    a host that is equally busy.

    :param turn: by how many places the engines move on, so that none keeps the best one.
    """
    size = min(len(where), len(engines))
    made = []
    for begun in range(0, len(engines), size):
        first = min(begun, len(engines) - size)
        made.append(
            [
                (engine, where[(number + turn) % len(where)])
                for number, engine in enumerate(engines[first : first + size])
            ]
        )
    return made


def cores_by_neighbour() -> list[int]:
    """List the cores that this process may use; threads of one physical core side by side."""

    def place(core: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            return package, int((topology / "core_id").read_text()), core
        except (OSError, ValueError):  # not told: as numbered
            return 0, core, core

    return sorted(os.sched_getaffinity(0), key=place)


def in_turn(args: argparse.Namespace, turn: int) -> list[list[Party]]:
    """Groups of engines, of whichever cell, that start together and measure one after the other.

    :param turn: by how many places the engines of a cell move on in their order.
    """
    parties: list[Party] = []
    for number, cell in enumerate(args.cells):
        gpus = args.gpus.split(",")[: cell.tensor_parallel] if args.gpus else []
        place = Place(tuple(gpus))
        first = (turn + number * args.rotate) % len(args.engines)
        order = args.engines[first:] + args.engines[:first]
        parties += [Party(engine, cell, place) for engine in order]
    size: int = args.in_turn
    return [parties[begun : begun + size] for begun in range(0, len(parties), size)]


def side_by_side(args: argparse.Namespace, turn: int) -> list[list[Party]]:
    """Groups of engines of one cell that measure at the same time, each in a place of its own.

    :param turn: by how many places the engines move on.
    """
    groups: list[list[Party]] = []
    for number, cell in enumerate(args.cells):
        where = [Place()]
        if args.gpus:
            where = places(args.gpus.split(","), cell.tensor_parallel, cores_by_neighbour())
        together = waves(args.engines, where, turn + number * args.rotate)
        groups += [[Party(engine, cell, place) for engine, place in wave] for wave in together]
    return groups
