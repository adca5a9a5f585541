#!/usr/bin/env python3
"""Time stock V1, patched V1 and V2 beside each other in one sitting on one GPU host.

Takes two folders of the same vLLM release, one pristine and one that ``overlay apply`` patched,
and starts ``step_time.py`` once for each engine and cell.  On one GPU they run one after the
other.  On several (``--gpus``) the engines of a cell run side by side, each on GPUs and CPU cores
of its own, and measure at the same time, so that all of them meet the same noise.  With
``--in-turn`` that many engines start together on the same GPUs and measure one after the other,
each while the others are stopped.  Every result goes into one JSON file with the release, the GPU,
the modes and the date; nothing is compared across sittings.

    compare.py --stock /site --patched /patched --out result.json --cells 1b:3:FULL_AND_PIECEWISE
    compare.py ... --gpus 0,1,2,3 --rotate --cells 1b:3:FULL_AND_PIECEWISE 8b:3:FULL_AND_PIECEWISE:2
    compare.py ... --in-turn 4 --more '--engine {"kv_cache_memory_bytes":4e9}' --cells ...
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meeting
from children import run_child
from turns import Turns

HERE = Path(__file__).resolve().parent
_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0", "OVERLAY": "off"}

#: Engine name -> (which folder, environment).
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "stock-v1": ("stock", _V1),
    "patched-step": ("patched", _V1 | {"OVERLAY_DRAFT_GRAPHS": "step"}),
    "patched-loop": ("patched", _V1 | {"OVERLAY_DRAFT_GRAPHS": "loop"}),
    "patched-loop-unsteady": (
        "patched",
        _V1 | {"OVERLAY_DRAFT_GRAPHS": "loop", "OVERLAY_STEADY_INPUTS": "off"},
    ),
    # Pristine files, patched in memory by the plugin that --overlay-site holds.
    "auto-loop": ("auto", _V1 | {"OVERLAY": "auto", "OVERLAY_DRAFT_GRAPHS": "loop"}),
    "v2": ("stock", {"VLLM_USE_V2_MODEL_RUNNER": "1", "OVERLAY": "off"}),
}


@dataclass(frozen=True)
class Cell:
    """``shape:K:mode[:tensor parallel]``."""

    shape: str
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
            raise argparse.ArgumentTypeError(f"{text} is not SHAPE:K:MODE[:TP]")
        return cls(parts[0], parts[1], parts[2], int(parts[3]) if parts[3:] else 1, text)


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
    """The cores that this process may use; threads of one physical core stand side by side."""

    def place(core: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            return package, int((topology / "core_id").read_text()), core
        except (OSError, ValueError):  # not told: as numbered
            return 0, core, core

    return sorted(os.sched_getaffinity(0), key=place)


class Sitting:
    """Everything that the engines of one call have in common."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.logs: Path = args.out.parent / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.results: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._groups = 0

    def python_path(self, folder: str) -> str:
        """``PYTHONPATH`` of an engine."""
        args = self.args
        parts = [args.patched if folder == "patched" else args.stock, args.site]
        if folder == "auto":
            parts.insert(0, args.overlay_site)
        return ":".join(str(part) for part in parts if part)

    def cache(self, parties: list[Party], number: int) -> Path:
        """Where one of several engines keeps what it compiles.

        Engines that start at the same time share nothing, unless asked to; a later one uses what
        an earlier one has left.
        """
        if len(parties) == 1 or self.args.shared_cache:
            return Path(self.args.cache_root, "shared")
        engine = parties[number].engine
        before = sum(party.engine == engine for party in parties[:number])
        return Path(self.args.cache_root, f"{engine}-{before}")

    def environment(self, engine: str, place: Place, cache: Path) -> dict[str, str]:
        """Environment of an engine."""
        folder, own = ENGINES[engine]
        found = os.environ | own | {"PYTHONPATH": self.python_path(folder)}
        found |= {"VLLM_CACHE_ROOT": str(cache), "OVERLAY_CACHE": str(cache / "overlay")}
        # Each takes whatever port the kernel gives it, so that none takes another's.
        found.pop("VLLM_PORT", None)
        if place.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
        return found

    def command(self, party: Party, cache: Path) -> list[str]:
        """Command line of an engine."""
        args, cell = self.args, party.cell
        made: list[str] = [
            sys.executable,
            str(HERE / "step_time.py"),
            "--shape",
            cell.shape,
            "--k",
            cell.k,
        ]
        made += ["--mode", cell.mode, "--batch", args.batch, "--repeats", str(args.repeats)]
        made += ["--tensor-parallel", str(cell.tensor_parallel)]
        made += ["--configs", str(cache / "configs")]
        if args.sample_dir:
            args.sample_dir.mkdir(parents=True, exist_ok=True)
            made += ["--sample", str(args.sample_dir / f"{party.title}.stacks")]
        if args.trace_dir:
            args.trace_dir.mkdir(parents=True, exist_ok=True)
            made += ["--trace", str(args.trace_dir / f"{party.title}.json.gz")]
        if party.place.cores:
            made += ["--cores", ",".join(str(core) for core in party.place.cores)]
        made += args.more.split()
        return made

    def run(self, parties: list[Party], round_: int, *, in_turn: bool = False) -> None:
        """Run engines at the same time and keep their results; a failure is a result too.

        :param in_turn: they measure one after the other, else side by side.
        """
        with (
            tempfile.TemporaryDirectory() as folder,
            ThreadPoolExecutor(len(parties) + 1) as pool,
        ):
            meet = Path(folder)
            turns = Turns(meet, len(parties)) if in_turn else None
            jobs = [
                pool.submit(self._run_one, parties, number, meet, turns)
                for number in range(len(parties))
            ]
            conducted = None if turns is None else pool.submit(turns.conduct, self._all_started)
            for job in jobs:
                self._keep(job.result() | {"round": round_})
            if conducted is not None:
                conducted.result()

    def _all_started(self) -> None:
        """Wait for the engines of the calls beside this one, if there are such calls."""
        self._groups += 1
        self.args.beside.wait(f"group-{self._groups}", self.args.timeout)

    def _run_one(
        self, parties: list[Party], number: int, meet: Path, turns: Turns | None
    ) -> dict[str, Any]:
        party, together = parties[number], len(parties)
        cache = self.cache(parties, number)
        command = self.command(party, cache)
        told: Callable[[int], None] | None = None
        if turns is not None:
            command += ["--meet", str(meet), "--party", str(number)]
            command += ["--turns", str(self.args.turns)]
            told = functools.partial(turns.begun, number)
        elif together > 1:
            command += ["--meet", str(meet), "--party", str(number), "--parties", str(together)]
        log = self.logs / f"{party.title}.log"
        environment = self.environment(party.engine, party.place, cache)
        begun = time.monotonic()
        try:
            found = run_child(command, environment, log, self.args.timeout, told)
        finally:
            meeting.leave(meet, number)
        return found | {
            "engine": party.engine,
            "cell": party.cell.name,
            "gpus": list(party.place.gpus),
            "core_list": list(party.place.cores),
            "side_by_side": 1 if turns else together,
            "in_turn": together if turns else 1,
            "turns": self.args.turns if turns else 1,
            "wall_s": round(time.monotonic() - begun, 1),
        }

    def _keep(self, found: dict[str, Any]) -> None:
        with self._lock:
            self.results.append(found)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            document = {"date": date, "results": self.results}
            self.args.out.write_text(json.dumps(document, indent=1) + "\n")
        shown = {key: value for key, value in found.items() if key != "sampled"}
        print(json.dumps(shown), flush=True)


def beside(text: str) -> meeting.Meeting:
    """Read from the command line where several calls of this script meet.

    :raises argparse.ArgumentTypeError: if it is not ``FOLDER:NUMBER:COUNT``.
    """
    folder, *numbers = text.rsplit(":", 2)
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not FOLDER:NUMBER:COUNT")
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    return meeting.Meeting(where, int(numbers[0]), int(numbers[1]))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="folder with vLLM's dependencies, if apart")
    parser.add_argument("--overlay-site", type=Path, help="folder with the overlay (auto-loop)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--cells", nargs="+", required=True, metavar="SHAPE:K:MODE[:TP]", type=Cell.parse
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, help="default: all there are")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1, help="go through the cells that often")
    parser.add_argument("--gpus", help="indices, separated by commas: engines run side by side")
    parser.add_argument("--rotate", action="store_true", help="engines move on, cell by cell")
    parser.add_argument(
        "--in-turn",
        type=int,
        metavar="N",
        help="so many engines start together on the same GPUs and measure one after the other",
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of each, with --in-turn")
    parser.add_argument(
        "--beside",
        type=beside,
        default=meeting.Meeting(None, 0, 1),
        metavar="FOLDER:NUMBER:COUNT",
        help="calls with --in-turn on other GPUs of this host: none measures before all started",
    )
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one engine")
    parser.add_argument(
        "--cache-root", type=Path, default=Path(tempfile.gettempdir(), "overlay-bench-cache")
    )
    parser.add_argument(
        "--shared-cache", action="store_true", help="one cache for engines side by side"
    )
    parser.add_argument("--sample-dir", type=Path, help="sample stacks into this folder")
    parser.add_argument("--trace-dir", type=Path, help="keep traces of the GPU in this folder")
    parser.add_argument("--more", default="", help="further arguments of step_time.py")
    args = parser.parse_args()
    if args.engines is None:
        args.engines = [name for name in ENGINES if name != "auto-loop" or args.overlay_site]
    if "auto-loop" in args.engines and not args.overlay_site:
        parser.error("auto-loop wants --overlay-site")
    gpus = args.gpus.split(",") if args.gpus else []
    for cell in args.cells:
        if gpus and cell.tensor_parallel > len(gpus):
            parser.error(f"{cell.name} wants {cell.tensor_parallel} GPUs, --gpus has {len(gpus)}")
    return args


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
        found = waves(args.engines, where, turn + number * args.rotate)
        groups += [[Party(engine, cell, place) for engine, place in wave] for wave in found]
    return groups


def main() -> int:
    """Run every engine in every cell and write the results after each; 1 if any failed."""
    args = arguments()
    sitting = Sitting(args)
    for round_ in range(args.rounds):
        turn = round_ * len(args.cells) * args.rotate
        groups = in_turn(args, turn) if args.in_turn else side_by_side(args, turn)
        for parties in groups:
            sitting.run(parties, round_, in_turn=bool(args.in_turn))
    args.beside.leave()
    return int(any("failed" in found for found in sitting.results))


if __name__ == "__main__":
    raise SystemExit(main())
