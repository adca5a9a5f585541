"""Serving throughput of stock V1, the overlay and V2, started once side by side on one GPU.

Runs where a patched vLLM can be imported (``PYTHONPATH``), with the release's own files in
``--stock``. Three servers start at the same time and share the GPU's memory; then one at a time is
asked by vLLM's own client, at each number of requests, round after round, in an order that moves on
by one. The first round warms up and is not counted. With ``--rate`` each round also takes the time
to the first token at that number of requests a second. Writes one JSON file after each round.

    serving_table.py --stock FOLDER --out result.json [--shape 1b] [--concurrency 1,16,64,256]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from overlay.commands.bench_engines import Question
from overlay.proof.repeats import order
from overlay.proof.serving import Client, Server, ServingSpec
from overlay.proof.shapes import write_configs, write_tokenizer
from overlay.report.benched import OVERLAY, STOCK, V2

ENGINES = (STOCK, OVERLAY, V2)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stock", type=Path, required=True, help="the release's own files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--concurrency", default="1,16,64,256")
    parser.add_argument("--requests", type=int, default=4, help="for each of a concurrency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: none")
    parser.add_argument("--kv-bytes", type=int, default=10_000_000_000, help="of each server")
    parser.add_argument("--share", default="0.3", help="of the GPU that must be free at a start")
    parser.add_argument("--seconds", type=float, default=540, help="begin no run after so many")
    return parser.parse_args()


def make_spec(args: argparse.Namespace, folder: Path) -> ServingSpec:
    """What each server is started with: as ``overlay bench`` starts it, but for the memory."""
    asked = Question(shape=args.shape)
    target, draft = write_configs(args.shape, folder)
    write_tokenizer(args.shape, target)
    sizes = tuple(int(size) for size in args.concurrency.split(","))
    words = ["--load-format", "dummy", "--max-model-len", "4096"]
    words += ["--max-num-seqs", str(max(256, *sizes)), "--gpu-memory-utilization", args.share]
    words += ["--kv-cache-memory-bytes", str(args.kv_bytes)]
    words += ["--compilation-config", json.dumps({"cudagraph_mode": asked.mode})]
    speculative = {**(asked.speculative or {}), "model": str(draft)}
    words += ["--speculative-config", json.dumps(speculative)]
    return ServingSpec(str(target), tuple(words), sizes, asked.prompt, asked.answer)


@contextlib.contextmanager
def environment(engine: str, stock: Path) -> Iterator[None]:
    """The variables of an engine, while it is started."""
    before = dict(os.environ)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if engine == V2 else "0"
    if engine != OVERLAY:
        os.environ["OVERLAY"] = "off"
        os.environ["PYTHONPATH"] = f"{stock}{os.pathsep}{before.get('PYTHONPATH', '')}"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        # The client must not ask a proxy for this machine.
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"


def measure(args: argparse.Namespace, clients: dict[str, Client], spec: ServingSpec) -> None:
    """Run the rounds, and write what each gives."""
    began = time.monotonic()
    rounds: list[dict[str, Any]] = []
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "shape": args.shape,
        "k": Question().k,
        "accept": Question(shape=args.shape).acceptance,
        "prompt": spec.prompt,
        "answer": spec.answer,
        "rate": args.rate,
        "requests": {size: max(8, args.requests * size) for size in spec.concurrency},
    }
    for number in range(args.rounds + 1):
        found: dict[str, Any] = {"order": order(ENGINES, number), "warm-up": number == 0}
        for size in (*spec.concurrency, 0):
            for engine in order(ENGINES, number):
                if time.monotonic() - began > args.seconds or (size == 0 and not args.rate):
                    continue
                result = asked(clients[engine], size, args)
                found.setdefault(engine, {})[str(size) if size else "first token ms"] = result
                print(number, engine, size, result, flush=True)
        rounds.append(found)
        document = about | {"rounds": rounds, "table": table(rounds, spec)}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def asked(client: Client, size: int, args: argparse.Namespace) -> float:
    """Output tokens a second at a concurrency; or, for 0, the median time to the first token."""
    if size:
        result = client.ask(max(8, args.requests * size), ("--max-concurrency", str(size)))
        return round(float(result["output_throughput"]), 1)
    result = client.ask(max(8, round(args.rate * 6)), ("--request-rate", str(args.rate)))
    return round(float(result["median_ttft_ms"]), 2)


def table(rounds: list[dict[str, Any]], spec: ServingSpec) -> dict[str, Any]:
    """By concurrency: each engine's median and repeats, and the overlay's share of V2's."""
    made: dict[str, Any] = {}
    for name in (*map(str, spec.concurrency), "first token ms"):
        repeats = {
            engine: [found[engine][name] for found in rounds[1:] if name in found.get(engine, {})]
            for engine in ENGINES
        }
        medians = {
            engine: statistics.median(values) for engine, values in repeats.items() if values
        }
        row: dict[str, Any] = {"medians": medians, "repeats": repeats}
        if OVERLAY in medians and V2 in medians:
            row["overlay / V2"] = round(medians[OVERLAY] / medians[V2], 3)
        made[name] = row
    return made


def main() -> None:
    """Start the servers, ask them, end them."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        spec = make_spec(args, Path(folder) / "models")
        servers: dict[str, Server] = {}
        for engine in ENGINES:
            with environment(engine, args.stock):
                servers[engine] = Server(spec)
            stack.callback(servers[engine].end)
        clients: dict[str, Client] = {}
        for engine, server in servers.items():
            place = Path(folder) / engine.replace(" ", "-")
            place.mkdir()
            clients[engine] = Client(spec, server, place)
            server.wait()
            print(engine, "answers", server.version(), flush=True)
        measure(args, clients, spec)
        for engine, server in servers.items():
            print(engine, "tokens a step", server.acceptance(), flush=True)


if __name__ == "__main__":
    main()
