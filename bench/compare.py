#!/usr/bin/env python3
"""Time stock V1, patched V1 and V2 beside each other in one sitting on one GPU host.

Takes two folders of the same vLLM release, one pristine and one that ``overlay apply`` patched,
and starts ``step_time.py`` once for each engine and cell.  On one GPU they run one after the
other.  On several (``--gpus``) the engines of a cell run side by side, each on GPUs and CPU cores
of its own, and measure at the same time, so that all of them meet the same noise.  Every result
goes into one JSON file with the release, the GPU, the modes and the date; nothing is compared
across sittings.

    compare.py --stock /site --patched /patched --out result.json --cells 1b:3:FULL_AND_PIECEWISE
    compare.py ... --gpus 0,1,2,3 --rotate --cells 1b:3:FULL_AND_PIECEWISE 8b:3:FULL_AND_PIECEWISE:2
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meeting

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

    def python_path(self, folder: str) -> str:
        """``PYTHONPATH`` of an engine."""
        args = self.args
        parts = [args.patched if folder == "patched" else args.stock, args.site]
        if folder == "auto":
            parts.insert(0, args.overlay_site)
        return ":".join(str(part) for part in parts if part)

    def environment(self, engine: str, place: Place) -> dict[str, str]:
        """Environment of an engine."""
        args = self.args
        folder, own = ENGINES[engine]
        # Alone, an engine may use what the one before has compiled.
        apart = place.gpus and not args.shared_cache
        cache = args.cache_root / (engine if apart else "shared")
        found = os.environ | own | {"PYTHONPATH": self.python_path(folder)}
        found |= {"VLLM_CACHE_ROOT": str(cache), "OVERLAY_CACHE": str(cache / "overlay")}
        if place.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
            # Each takes whatever port the kernel gives it, so that none takes another's.
            found.pop("VLLM_PORT", None)
        return found

    def command(self, engine: str, cell: Cell, place: Place) -> list[str]:
        """Command line of an engine."""
        args = self.args
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
        if args.sample_dir:
            args.sample_dir.mkdir(parents=True, exist_ok=True)
            made += ["--sample", str(args.sample_dir / f"{title(engine, cell)}.stacks")]
        if args.trace_dir:
            args.trace_dir.mkdir(parents=True, exist_ok=True)
            made += ["--trace", str(args.trace_dir / f"{title(engine, cell)}.json.gz")]
        if place.cores:
            made += ["--cores", ",".join(str(core) for core in place.cores)]
        made += args.more.split()
        return made

    def run(self, cell: Cell, wave: list[tuple[str, Place]], round_: int) -> None:
        """Run engines side by side and keep their results; a failure is a result too."""
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(wave)) as pool:
            meet = Path(folder)
            jobs = [
                pool.submit(self._run_one, cell, wave, number, meet) for number in range(len(wave))
            ]
            for job in jobs:
                self._keep(job.result() | {"round": round_})

    def _run_one(
        self, cell: Cell, wave: list[tuple[str, Place]], number: int, meet: Path
    ) -> dict[str, Any]:
        engine, place = wave[number]
        command = self.command(engine, cell, place)
        if len(wave) > 1:
            command += ["--meet", str(meet), "--party", str(number), "--parties", str(len(wave))]
        log = self.logs / f"{title(engine, cell)}.log"
        begun = time.monotonic()
        try:
            found = run_child(command, self.environment(engine, place), log, self.args.timeout)
        finally:
            meeting.leave(meet, number)
        return found | {
            "engine": engine,
            "cell": cell.name,
            "gpus": list(place.gpus),
            "core_list": list(place.cores),
            "side_by_side": len(wave),
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


def title(engine: str, cell: Cell) -> str:
    """Name of an engine's files."""
    return f"{engine}-{cell.name.replace(':', '-')}"


def run_child(
    command: list[str], environment: dict[str, str], log: Path, seconds: float
) -> dict[str, Any]:
    """Run one engine to its end or for that long; its RESULT, or how it failed.

    It leads a process group, which is killed with all its workers.
    """
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status: int | str = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"not done after {seconds:.0f} s"
        finally:
            end_group(child)
        output.seek(0)
        said = output.read()
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    with log.open("a") as stream:  # vLLM logs to standard output
        stream.write(said)
    if lines:
        found: dict[str, Any] = json.loads(lines[-1][7:])
        return found if status == 0 else found | {"ended": status}
    return {"failed": status, "output": (log.read_text(errors="replace"))[-1500:]}


def end_group(child: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process and of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


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


def main() -> int:
    """Run every engine in every cell and write the results after each; 1 if any failed."""
    args = arguments()
    sitting = Sitting(args)
    gpus = args.gpus.split(",") if args.gpus else []
    turn = 0
    for round_ in range(args.rounds):
        for cell in args.cells:
            where = [Place()]
            if gpus:
                where = places(gpus, cell.tensor_parallel, cores_by_neighbour())
            for wave in waves(args.engines, where, turn):
                sitting.run(cell, wave, round_)
            turn += args.rotate
    return int(any("failed" in found for found in sitting.results))


if __name__ == "__main__":
    raise SystemExit(main())
