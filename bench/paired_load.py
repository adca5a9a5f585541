#!/usr/bin/env python3
"""Load several engines of one GPU in turn, round by round, and compare each with the first.

Each engine has a process, an environment and options of its own. They start together, and then
take turns: in each round every engine serves the same load once, the order turned each round, the
others idle. What counts is the ratio to the first engine in the same round: its median, and in how
many rounds it was above 1. ``uniform`` is so many equal requests at once, ``mixed`` three times as
many with answers of different lengths, of which so many are in flight.  One request alone gets an
answer of four times the tokens, since a fifth of a second says little.

    paired_load.py --out result.json --rounds 8 --requests 256,64,1
        --party 'stock;PYTHONPATH=/site' --party 'overlay;PYTHONPATH=/patched'
        --party 'sizes;PYTHONPATH=/site;{"max_cudagraph_capture_size": 1024}'

A party is NAME;VARIABLE=VALUE ...;options of the engine, JSON; with ``"peer": "sglang"`` among them
the engine is SGLang's (``peer_engine.py``), where its environment has that. An engine that dies is
named with its last lines, and the others go on.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

UNIFORM, MIXED = "uniform", "mixed"
#: In the place of a kind: the uniform load once more, under the profiler.
PROFILED = "profiled"

#: Lines of a start that go into the result: what graphs took, and what is left for the cache.
NOTED = (
    "Graph capturing finished",
    "Decode graph sizes",
    "GPU KV cache size",
    "Available KV cache",
)


class Party(NamedTuple):
    """One of the engines.

    :ivar variables: of its environment.
    :ivar options: of the engine, beside those that all have.
    """

    name: str
    variables: dict[str, str]
    options: dict[str, Any]


def party(text: str) -> Party:
    """Read a party from the command line.

    :raises argparse.ArgumentTypeError: if it is none.
    """
    name, _, rest = text.partition(";")
    variables, _, options = rest.partition(";")
    try:
        own = {each[: each.index("=")]: each[each.index("=") + 1 :] for each in variables.split()}
        return Party(name, own, json.loads(options or "{}"))
    except ValueError as error:
        message = f"{text} is not NAME;VARIABLE=VALUE ...;JSON: {error}"
        raise argparse.ArgumentTypeError(message) from error


# -- an engine's own process


def serve(args: argparse.Namespace) -> None:
    """Start an engine; for each line that comes, serve a load and print what it took."""
    from bench.load_engine import Load, add_engine_options, start

    own = argparse.ArgumentParser()
    add_engine_options(own)
    given = json.loads(args.serve)
    engine = own.parse_args(given["arguments"])
    engine.concurrency = given["most"]
    if given["fused"]:
        from bench.fused_drafts import fuse

        fuse()
    llm, told = start(engine, own_process=given["own_process"])
    print("STARTED " + json.dumps(told), flush=True)
    for line in sys.stdin:
        kind, number, prompt, answer = json.loads(line)
        spread = 0.5 if kind == MIXED else 0.0
        load = Load(llm, number, prompt, answer, spread)
        if kind == PROFILED:
            llm.collective_rpc("bench_profile")
            load.step()
            load.finish()
            figures = llm.collective_rpc("bench_profiled", args=(1.0, None))[0]
            print("PROFILED " + json.dumps(figures), flush=True)
            continue
        began = time.perf_counter()
        if kind == MIXED:
            load.run(3 * number)
        load.step()
        load.finish()
        taken = time.perf_counter() - began
        print("TOOK " + json.dumps([load.produced, round(taken, 4)]), flush=True)


def command_of(which: Party, args: argparse.Namespace, log: Path) -> list[str]:
    """Arguments of the Python that serves a party's loads."""
    options = {**json.loads(args.engine), **which.options}
    drafts = options.pop("k", args.k)
    if which.options.get("peer"):
        own = {name: value for name, value in which.options.items() if name not in ("peer", "k")}
        peer = {"shape": args.shape, "k": drafts, "accept": args.accept, "options": own}
        peer["most"] = max(args.requests)
        return [str(HERE.with_name("peer_engine.py")), json.dumps(peer)]
    if not drafts:
        options["speculative_config"] = None
    request = {
        "fused": options.pop("fused", False),
        "arguments": [
            *("--shape", args.shape, "--k", str(max(drafts, 1)), "--accept", str(args.accept)),
            *("--drafter", args.drafter, "--mode", options.pop("mode", args.mode)),
            *("--engine", json.dumps(options), "--configs", str(log.with_suffix(".configs"))),
        ],
        "most": max(args.requests),
        "own_process": args.own_process,
    }
    return [str(HERE), "--serve", json.dumps(request)]


class Engine:
    """One engine's process, as its parent sees it.

    :param command: arguments of its Python, which answers each line with a line.
    """

    def __init__(self, which: Party, command: list[str], log: Path) -> None:
        self.party, self._log = which, log
        root = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, (which.variables.get("PYTHONPATH"), root)))
        environment = {**os.environ, **which.variables, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=environment,
            text=True,
        )
        self.told: dict[str, Any] = {}
        self.failed = ""
        self.noted: list[str] = []
        # An engine's own lines must never fill the pipe while another one is asked.
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._last: collections.deque[str] = collections.deque(maxlen=60)
        threading.Thread(target=self._read, daemon=True).start()

    def described(self) -> dict[str, Any]:
        """What a result says of the engine."""
        return {
            "variables": self.party.variables,
            "options": self.party.options,
            "engine": self.told,
            "failed": self.failed,
        }

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last.append(line.rstrip())
            if any(words in line for words in NOTED):
                self.noted.append(line.rstrip()[-300:])
            self._lines.put(line)
        self._lines.put(None)

    def answer(self, word: str, seconds: float) -> Any:
        """What a line says that begins with a word; None where the process has ended."""
        last = time.monotonic() + seconds
        try:
            while (line := self._lines.get(timeout=max(last - time.monotonic(), 0.0))) is not None:
                if line.startswith(word + " "):
                    return json.loads(line[len(word) :])
            why = f"it ended with {self._process.wait()}"
        except queue.Empty:
            why = f"nothing within {seconds:.0f} s"
            self._process.kill()
        lines = self._log.read_text(errors="replace").splitlines()[-60:]
        self.failed = "\n".join([why, *self._last, *lines])
        return None

    def serve(self, load: tuple[str, int, int, int], seconds: float) -> float | None:
        """Output tokens a second of a load; None where the engine is gone."""
        answer = self.ask(load, "TOOK", seconds)
        return None if answer is None else round(answer[0] / answer[1], 1)

    def ask(self, question: Any, word: str, seconds: float) -> Any:
        """What the process answers to a line, as :meth:`answer`; None where it is gone."""
        if self.failed or self._process.stdin is None:
            return None
        with contextlib.suppress(OSError):  # its last lines say why
            print(json.dumps(question), file=self._process.stdin, flush=True)
        return self.answer(word, seconds)

    def stop(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# -- all of them


def numbers(text: str) -> list[int]:
    """Whole numbers between commas, as the command line has them."""
    return [int(each) for each in text.split(",")]


def start_all(
    parties: list[Party], command: Callable[[Party, Path], list[str]], seconds: float
) -> list[Engine]:
    """Start the engines of all parties together; each is up, or has said why it failed.

    :param command: arguments of a party's Python, given its log, too; :param seconds: of a start.
    """
    work = Path(tempfile.mkdtemp(prefix="paired-"))
    logs = {each.name: work / f"{each.name}.log" for each in parties}
    engines = [Engine(each, command(each, logs[each.name]), logs[each.name]) for each in parties]
    for each in engines:
        each.told = each.answer("STARTED", seconds) or {}
        print(each.party.name, json.dumps(each.told), each.failed, flush=True)
    return engines


def in_turn(engines: list[Engine], round_: int) -> list[Engine]:
    """The engines in the order of a round, which turns by one."""
    first = round_ % len(engines)
    return engines[first:] + engines[:first]


def compared(rates: dict[str, list[float | None]], unit: str = "tokens_per_s") -> dict[str, Any]:
    """Rates of each engine, and its ratios to the first one's of the same round."""
    first = next(iter(rates.values()))
    result: dict[str, Any] = {}
    for name, each in rates.items():
        ratios = [
            round(own / other, 4)
            for own, other in zip(each, first, strict=True)
            if own is not None and other is not None
        ]
        result[name] = {unit: each}
        if each is not first and ratios:
            result[name] |= {
                "ratios": ratios,
                "median_ratio": round(statistics.median(ratios), 4),
                "above_1": f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
            }
    return result


def measure(
    engines: list[Engine], args: argparse.Namespace, keep: Callable[..., None]
) -> dict[str, dict[str, list[float | None]]]:
    """Serve all loads in rounds, as long as there is time; rates by load and engine."""
    last = time.monotonic() + args.seconds
    loads = [
        (kind, number, args.prompt, args.answer * (1 if number > 1 else 4))
        for number in args.requests
        for kind in args.kinds
        if kind == UNIFORM or number > 1
    ]
    rates: dict[str, dict[str, list[float | None]]] = {
        f"{number} {kind}": {each.party.name: [] for each in engines} for kind, number, *_ in loads
    }
    for round_ in range(args.rounds + 1):  # the first is not counted
        for load in loads:
            found: dict[str, float | None] = {}
            for each in in_turn(engines, round_):
                found[each.party.name] = each.serve(load, args.timeout)
            if round_:
                cell = rates[f"{load[1]} {load[0]}"]
                for name, rate in found.items():
                    cell[name].append(rate)
            print(round_, load[:2], json.dumps(found), flush=True)
        keep(rates)
        if time.monotonic() > last:
            break
    return rates


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file for the result, JSON")
    parser.add_argument("--party", type=party, action="append", default=[], dest="parties")
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--drafter", default="eagle3")
    parser.add_argument("--k", type=int, default=3, help="drafts; 0 for none")
    parser.add_argument("--accept", type=float, default=2.5)
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE")
    parser.add_argument("--engine", default="{}", help="options of all engines, JSON")
    parser.add_argument(
        "--requests",
        type=numbers,
        default=[256, 64, 1],
    )
    parser.add_argument("--kinds", nargs="+", default=[UNIFORM, MIXED], choices=(UNIFORM, MIXED))
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--answer", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=400, help="no round begins after that")
    parser.add_argument("--timeout", type=float, default=300, help="for a start, or for a load")
    parser.add_argument("--own-process", action="store_true", help="engines as servers have them")
    parser.add_argument(
        "--profile",
        type=int,
        metavar="REQUESTS",
        help="in the end, so many at once again: kernels and pauses of the GPU, of the whole load",
    )
    args = parser.parse_args()
    if args.serve is None and (args.out is None or len(args.parties) < 1):
        parser.error("expected --out and a --party at least")
    return args


def main() -> int:
    """Start all engines, measure, write the result; 1 if one died."""
    args = arguments()
    if args.serve is not None:
        serve(args)
        return 0
    began = time.monotonic()
    engines = start_all(args.parties, lambda each, log: command_of(each, args, log), args.timeout)
    started = round(time.monotonic() - began, 1)

    profiles: dict[str, Any] = {}

    def keep(rates: dict[str, dict[str, list[float | None]]]) -> None:
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        document = {
            "what": "output tokens a second of engines that served the same loads in turn; "
            "ratios to the first engine, round by round",
            "date": date,
            "started_s": started,
            **{name: getattr(args, name) for name in ("shape", "drafter", "k", "accept", "mode")},
            **{name: getattr(args, name) for name in ("prompt", "answer", "own_process")},
            "engine": json.loads(args.engine),
            "parties": {
                each.party.name: {**each.described(), "noted": each.noted} for each in engines
            },
            "loads": {name: compared(cell) for name, cell in rates.items()},
        }
        if profiles:
            document["profiles"] = profiles
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    try:
        rates = measure(engines, args, keep)
        if args.profile:
            load = (PROFILED, args.profile, args.prompt, args.answer)
            for each in engines:
                profiles[each.party.name] = each.ask(load, "PROFILED", args.timeout)
                keep(rates)
    finally:
        for each in engines:
            each.stop()
    return int(any(each.failed for each in engines))


if __name__ == "__main__":
    raise SystemExit(main())
