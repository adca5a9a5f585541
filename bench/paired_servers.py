#!/usr/bin/env python3
"""Ask several servers of one GPU in turn, round by round, by the client of ``vllm bench serve``.

As ``paired_load.py`` does with engines: all servers start together, in each round each of them is
asked the same, the order turned each round, and what counts is the ratio to the first one in the
same round.  A load is a number of requests at a time, of which output tokens a second are taken;
the last one is a rate of requests, half of what the first server answers at the largest number, and
of it the milliseconds to the first token (median of a run) are taken: there less is better.

    paired_servers.py --out result.json --requests 256,64,1
        --party 'stock;PYTHONPATH=/site' --party 'overlay;PYTHONPATH=/patched'
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from bench.paired_load import Engine, Party, compared, in_turn, numbers, party, start_all
from overlay.proof.serving import half_of, requests_at, requests_of

FIRST_TOKEN = "first token"
_RATE = "--request-rate"


# -- a server's own process


def serve(given: dict[str, Any]) -> None:
    """Start a server; for each line that comes, let the client ask it and print what it took.

    :param given: ``shape``, ``k``, ``accept``, ``most`` requests at a time, ``options`` of the
        engine, tokens of a ``prompt`` and of an ``answer``.
    """
    from vllm.platforms import current_platform

    from overlay.proof import step_time
    from overlay.proof.commands.bench import as_arguments
    from overlay.proof.serving import Client, Server, ServingSpec
    from overlay.proof.shapes import SHAPES, write_tokenizer

    folder = Path(tempfile.mkdtemp(prefix="server-"))
    own = argparse.Namespace(model=None, mode="", speculative="{}", arguments="[]", engine="{}")
    own.configs = folder
    for name in ("shape", "k", "accept"):
        setattr(own, name, given[name])
    options = step_time.llm_arguments(own, [given["most"]]) | given["options"]
    for name in ("skip_tokenizer_init", "worker_extension_cls", "compilation_config"):
        if name not in given["options"]:
            del options[name]
    options["enable_prefix_caching"] = False
    del options["disable_log_stats"]
    model = options.pop("model")
    write_tokenizer(SHAPES[given["shape"]]["vocab_size"], Path(model))
    words = tuple(as_arguments(options))
    spec = ServingSpec(model, words, (), given["prompt"], given["answer"])
    server = Server(spec)
    try:
        client = Client(spec, server, folder)
        server.wait()
        about = {"vllm": server.version(), "gpu": current_platform.get_device_name()}
        print("STARTED " + json.dumps(about), flush=True)
        for line in sys.stdin:
            requests, option, value = json.loads(line)
            result = client.ask(requests, (option, str(value)))
            names = ("output_throughput", "request_throughput", "median_ttft_ms")
            print("TOOK " + json.dumps([round(result[name], 3) for name in names]), flush=True)
        print("ENDED " + json.dumps(server.acceptance()), flush=True)
    finally:
        server.end()


# -- all of them


def command_of(which: Party, args: argparse.Namespace) -> list[str]:
    """Arguments of the Python that serves for a party."""
    options = {**json.loads(args.engine), **which.options}
    given = {"k": options.pop("k", args.k), "most": max(args.requests), "options": options}
    given |= {name: getattr(args, name) for name in ("shape", "accept", "prompt", "answer")}
    return [str(HERE), "--serve", json.dumps(given)]


def measure(engines: list[Engine], args: argparse.Namespace, keep: Any) -> None:
    """Ask all of them in rounds, as long as there is time."""
    last = time.monotonic() + args.seconds
    cells: dict[str, dict[str, list[float | None]]] = {}
    rate = 0.0
    for round_ in range(args.rounds + 1):  # the first is not counted
        turn = in_turn(engines, round_)
        loads = [
            (f"{number} at a time", (requests_of(number), "--max-concurrency", number), 0)
            for number in args.requests
        ]
        if rate:
            loads.append((FIRST_TOKEN, (requests_at(rate), _RATE, rate), 2))
        for name, question, place in loads:
            answers = {each.party.name: each.ask(question, "TOOK", args.timeout) for each in turn}
            if not rate and (stock := answers[engines[0].party.name]):
                rate = half_of(stock[1])
            values = {each: answer and answer[place] for each, answer in answers.items()}
            print(round_, name, json.dumps(values), flush=True)
            if round_:
                cell = cells.setdefault(name, {each.party.name: [] for each in engines})
                for each, value in values.items():
                    cell[each].append(value)
        keep(cells, rate)
        if time.monotonic() > last:
            break


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file for the result, JSON")
    parser.add_argument("--party", type=party, action="append", default=[], dest="parties")
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--k", type=int, default=3, help="drafts; 0 for none")
    parser.add_argument("--accept", type=float, default=2.5)
    parser.add_argument("--engine", default="{}", help="options of all engines, JSON")
    parser.add_argument(
        "--requests",
        type=numbers,
        default=[256, 64, 1],
        help="at a time; the largest first",
    )
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--answer", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=400, help="no round begins after that")
    parser.add_argument("--timeout", type=float, default=300, help="for a start, or for a load")
    args = parser.parse_args()
    if args.serve is None and (args.out is None or not args.parties):
        parser.error("expected --out and a --party at least")
    return args


def main() -> int:
    """Start all servers, measure, write the result; 1 if one died."""
    args = arguments()
    if args.serve is not None:
        serve(json.loads(args.serve))
        return 0
    engines = start_all(args.parties, lambda each, _: command_of(each, args), args.timeout)

    def keep(cells: dict[str, dict[str, list[float | None]]], rate: float) -> None:
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        document = {
            "what": "servers that vLLM's own client asked in turn: output tokens a second by the "
            "number of requests at a time, and the milliseconds to the first token at a rate of "
            "requests; ratios to the first server, round by round",
            "date": date,
            **{name: getattr(args, name) for name in ("shape", "k", "accept", "prompt", "answer")},
            "rate": rate,
            "engine": json.loads(args.engine),
            "parties": {
                each.party.name: {**each.described(), "noted": each.noted} for each in engines
            },
            "loads": {
                name: compared(cell, "ms" if name == FIRST_TOKEN else "tokens_per_s")
                for name, cell in cells.items()
            },
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    try:
        measure(engines, args, keep)
    finally:
        for each in engines:
            each.stop()
    return int(any(each.failed for each in engines))


if __name__ == "__main__":
    raise SystemExit(main())
