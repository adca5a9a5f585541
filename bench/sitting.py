"""Start the engines of one sitting, let them meet, and keep what each of them found."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import meeting
from bench.children import run_child
from bench.plan import ENGINES, Party, Place, has_plugin
from bench.turns import Turns
from overlay.proof.engine_pool import Watchdog, append_path, link_packages


class Sitting:
    """Everything that the engines of one call have in common."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.logs: Path = args.out.parent / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.results: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._groups = 0
        self._beside: bool | None = None
        self._watchdog = Watchdog()
        self._work = tempfile.TemporaryDirectory(prefix="sitting-")
        self._code = link_packages(Path(self._work.name, "code"), [Path(__file__).resolve().parent])

    def python_path(self, engine: str) -> str:
        """``PYTHONPATH`` of an engine."""
        args = self.args
        parts = [args.patched if ENGINES[engine][0] == "patched" else args.stock, args.site]
        if has_plugin(engine):
            parts.insert(0, args.overlay_site)
        return ":".join(str(part) for part in parts if part)

    def cache(self, parties: list[Party], number: int) -> Path:
        """Where one of several engines keeps what it compiles.

        Engines that start at the same time share nothing, unless asked to; a later one uses what
        an earlier one has left.  Calls beside each other name a ``--cache-root`` each.
        """
        if len(parties) == 1 or self.args.shared_cache:
            return Path(self.args.cache_root, "shared")
        engine = parties[number].engine
        before = sum(party.engine == engine for party in parties[:number])
        return Path(self.args.cache_root, f"{engine}-{before}")

    def environment(self, engine: str, place: Place, cache: Path) -> dict[str, str]:
        """Environment of an engine."""
        own = ENGINES[engine][1]
        variables = os.environ | own | {"PYTHONPATH": self.python_path(engine)}
        variables = append_path(variables, self._code)
        variables |= {"VLLM_CACHE_ROOT": str(cache), "OVERLAY_CACHE": str(cache / "overlay")}
        # Each takes whatever port the kernel gives it, so that none takes another's.
        variables.pop("VLLM_PORT", None)
        if place.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
        return variables

    def command(self, party: Party, cache: Path) -> list[str]:
        """Command line of an engine."""
        args, cell = self.args, party.cell
        made: list[str] = [
            sys.executable,
            "-m",
            "bench.profiling.step_time",
            "--shape",
            cell.shape,
            "--drafter",
            cell.drafter,
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

    def close(self) -> None:
        """Leave nothing behind."""
        self.args.beside.leave()
        self._watchdog.close()
        self._work.cleanup()

    def run(self, parties: list[Party], round_: int) -> None:
        """Run engines at the same time and keep their results; a failure is a result too.

        They measure side by side, or with ``--in-turn`` one after the other.
        """
        with (
            tempfile.TemporaryDirectory() as folder,
            ThreadPoolExecutor(len(parties) + 1) as pool,
        ):
            meet = Path(folder)
            turns = Turns(meet, len(parties)) if self.args.in_turn else None
            jobs = [
                pool.submit(self._run_one, parties, number, meet, turns)
                for number in range(len(parties))
            ]
            conducted = None if turns is None else pool.submit(turns.conduct, self._all_started)
            for job in jobs:
                self._keep(job.result() | {"round": round_, "beside_started": self._beside})
            if conducted is not None:
                conducted.result()

    def _all_started(self) -> None:
        """Wait for the engines of the calls beside this one, if there are such calls."""
        self._groups += 1
        self._beside = self.args.beside.wait(f"group-{self._groups}", self.args.timeout)

    def _run_one(
        self, parties: list[Party], number: int, meet: Path, turns: Turns | None
    ) -> dict[str, Any]:
        party, begun = parties[number], time.monotonic()

        def begin(group: int) -> None:
            if turns is not None:
                turns.begin(number, group)

        try:
            cache = self.cache(parties, number)
            command = self.command(party, cache) + self.meeting_arguments(parties, number, meet)
            environment = self.environment(party.engine, party.place, cache)
            log = self.logs / f"{party.title}.log"
            result = run_child(command, environment, log, self.args.timeout, self._watchdog, begin)
        finally:
            meeting.leave(meet, number)  # whatever happened: nobody may wait for it
        together = len(parties)
        return result | {
            "engine": party.engine,
            "cell": party.cell.name,
            "gpus": list(party.place.gpus),
            "core_list": list(party.place.cores),
            "side_by_side": 1 if turns else together,
            "in_turn": together if turns else 1,
            "turns": self.args.turns if turns else 1,
            "more": self.args.more,
            "wall_s": round(time.monotonic() - begun, 1),
        }

    def meeting_arguments(self, parties: list[Party], number: int, meet: Path) -> list[str]:
        """What tells an engine how it meets the others."""
        mine = ["--meet", str(meet), "--party", str(number)]
        if self.args.in_turn:
            return [*mine, "--turns", str(self.args.turns)]
        return [*mine, "--parties", str(len(parties))] if len(parties) > 1 else []

    def _keep(self, result: dict[str, Any]) -> None:
        with self._lock:
            self.results.append(result)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            document = {"date": date, "results": self.results}
            self.args.out.write_text(json.dumps(document, indent=1) + "\n")
        shown = {key: value for key, value in result.items() if key != "sampled"}
        print(json.dumps(shown), flush=True)
