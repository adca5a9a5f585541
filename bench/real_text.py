#!/usr/bin/env python3
"""Serve real text with engines of one GPU in turn: tokens, acceptance, and tokens a second.

Takes what ``real_pair.py`` made: a model, its draft, and prompts that it was not trained on.  As in
``paired_load.py`` each party is an engine of its own; in each round every engine serves the same
requests, the order turned, so many in flight, each to its own end.  Answers are the likeliest
tokens.  The first party is what the others are compared with: rates by the round, and answers token
by token.  Where two answers part, the first engine is asked for what it thinks of both tokens:
real weights round, so a batch of another size may turn a near tie.

    real_text.py --model MODEL --draft DRAFT --prompts prompts.json --out result.json
        --party 'stock;PYTHONPATH=/site VLLM_USE_V2_MODEL_RUNNER=0'
        --party 'loop;PYTHONPATH=/patched VLLM_USE_V2_MODEL_RUNNER=0 OVERLAY_DRAFT_GRAPHS=loop'
        --party 'no draft;PYTHONPATH=/site;{"k": 0}'

A party is NAME;VARIABLE=VALUE ...;options of the engine, JSON, and ``k``, its drafts a step.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from bench.pair.refusal import Refused, ended, require_place
from bench.paired_load import Engine, Party, compared, in_turn, numbers, party

#: Partings of two engines' answers that are looked into, a load.
_PARTINGS = 12
EXTENSION = "overlay.proof.engine_compat.BenchExtension"


class Served(NamedTuple):
    """What an engine made of a load.

    :ivar answers: the ids of each answer.
    :ivar drafts: how often drafts were verified; :ivar accepted: at each position.
    """

    answers: list[list[int]]
    seconds: float
    drafts: int
    accepted: list[int]

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return round(sum(map(len, self.answers)) / self.seconds, 1)

    @property
    def shares(self) -> list[float]:
        """The share of verifications that accepted each position."""
        return [round(each / max(self.drafts, 1), 4) for each in self.accepted]


# -- an engine's own process


class Server:
    """An engine that answers prompts.

    :param given: ``options`` of ``vllm.LLM``, and whether it has its ``own_process``.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(given["own_process"]))
        from vllm import LLM

        self._llm = LLM(**given["options"])
        self._asked = 0

    def about(self) -> dict[str, Any]:
        """What it is."""
        import torch
        import vllm

        on_gpu = torch.cuda.is_available()
        return {
            "vllm": vllm.__version__,
            "root": str(Path(vllm.__file__).parent.parent),
            "gpu": torch.cuda.get_device_name(0) if on_gpu else "none",
            **self._llm.collective_rpc("bench_describe")[0],
        }

    def serve(self, prompts: list[list[int]], in_flight: int, tokens: int) -> Served:
        """Answer prompts, so many at a time."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        params = SamplingParams(temperature=0.0, max_tokens=tokens, detokenize=False)
        before = self._counts()
        answers: dict[int, list[int]] = {}
        waiting = list(enumerate(prompts))[::-1]
        self._asked += 1
        began, live = time.perf_counter(), 0
        while waiting or live:
            while waiting and live < in_flight:
                number, ids = waiting.pop()
                name = f"{self._asked}_{number}"
                engine.add_request(name, {"prompt_token_ids": ids}, params.clone())
                live += 1
            for output in engine.step():
                if output.finished:
                    live -= 1
                    number = int(output.request_id.partition("-")[0].partition("_")[2])
                    answers[number] = list(output.outputs[0].token_ids)
        seconds = round(time.perf_counter() - began, 4)
        drafts, *accepted = (
            after - first for after, first in zip(self._counts(), before, strict=True)
        )
        return Served(
            [answers[number] for number in range(len(prompts))], seconds, drafts, accepted
        )

    def _counts(self) -> list[int]:
        """Verifications of drafts until now, and how many accepted each position."""
        counts = {metric.name: metric for metric in self._llm.get_metrics()}
        drafts = counts.get("vllm:spec_decode_num_drafts")
        positions = counts.get("vllm:spec_decode_num_accepted_tokens_per_pos")
        return [
            0 if drafts is None else int(drafts.value),
            *(() if positions is None else map(int, positions.values)),
        ]

    def opinion(self, text: list[int]) -> list[list[float]]:
        """The two likeliest tokens behind a text, each with its log probability."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2, detokenize=False)
        output = self._llm.generate([{"prompt_token_ids": text}], params, use_tqdm=False)[0]
        likely = sorted(output.outputs[0].logprobs[0].items(), key=lambda each: -each[1].logprob)
        return [[token, round(float(entry.logprob), 5)] for token, entry in likely[:2]]


def serve(given: dict[str, Any]) -> None:
    """Start an engine; answer each line with a line."""
    server = Server(given)
    print("STARTED " + json.dumps(server.about()), flush=True)
    for line in sys.stdin:
        name, *rest = json.loads(line)
        answer = server.serve(*rest) if name == "serve" else server.opinion(*rest)
        print("DONE " + json.dumps(answer), flush=True)


# -- all of them


def command_of(which: Party, args: argparse.Namespace) -> list[str]:
    """Arguments of the Python that serves for a party."""
    options = {
        "model": str(args.model),
        "max_model_len": args.longest,
        "max_num_seqs": max(args.requests),
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "worker_extension_cls": EXTENSION,
        **json.loads(args.engine),
        **which.options,
    }
    drafts = options.pop("k", args.k)
    if drafts:
        draft = {"method": "eagle3", "model": str(args.draft), "num_speculative_tokens": drafts}
        options.setdefault("speculative_config", draft)
    request = {"options": options, "own_process": args.own_process}
    return [str(HERE), "--serve", json.dumps(request)]


class Sitting:
    """The engines, what they served and how it compares.

    :ivar loads: by load: rates of each round, acceptance, and answers beside the first engine's.
    """

    def __init__(self, engines: list[Engine], args: argparse.Namespace) -> None:
        self.engines, self._args = engines, args
        self._rates: dict[str, dict[str, list[float | None]]] = {}
        self._facts: dict[str, dict[str, dict[str, Any]]] = {}

    @property
    def loads(self) -> dict[str, Any]:
        """What came out, by load and party."""
        return {
            load: {
                name: {**self._facts[load].get(name, {}), **cell}
                for name, cell in compared(rates).items()
            }
            for load, rates in self._rates.items()
        }

    def round(self, number: int, in_flight: int, prompts: list[list[int]]) -> None:
        """Let every engine serve a load; the rates of round 0 are not counted."""
        served: dict[str, Served] = {}
        for engine in in_turn(self.engines, number):
            question = ("serve", prompts, in_flight, self._args.answer)
            answer = engine.ask(question, "DONE", self._args.timeout)
            if answer is not None:
                served[engine.party.name] = Served(*answer)
        load = f"{in_flight} requests"
        if number:
            rates = self._rates.setdefault(load, {e.party.name: [] for e in self.engines})
            for name, cell in rates.items():
                cell.append(served[name].rate if name in served else None)
        self._compare(load, served, prompts)
        shown = {name: [each.rate, each.shares] for name, each in served.items()}
        print(number, load, json.dumps(shown), flush=True)

    def _compare(self, load: str, served: dict[str, Served], prompts: list[list[int]]) -> None:
        """Keep acceptance, and where answers part from the first engine's of the same round."""
        reference = self.engines[0]
        facts = self._facts.setdefault(load, {})
        original = served.get(reference.party.name)
        for name, each in served.items():
            own = facts.setdefault(name, {"accepted": [], "equal": [], "partings": []})
            own["accepted"].append(each.shares)
            if original is None or name == reference.party.name:
                continue
            apart = [
                (prompt, *pair)
                for prompt, *pair in zip(prompts, original.answers, each.answers, strict=True)
                if pair[0] != pair[1]
            ]
            own["equal"].append(f"{len(prompts) - len(apart)} of {len(prompts)}")
            for parting in apart[: _PARTINGS - len(own["partings"])]:
                own["partings"].append(self._parting(*parting))

    def _parting(self, prompt: list[int], one: list[int], other: list[int]) -> dict[str, Any]:
        """Where two answers part, and what the first engine thinks of the tokens there."""
        pairs = enumerate(zip(one, other, strict=False))
        place = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
        text = prompt + one[:place]
        opinion = self.engines[0].ask(("opinion", text), "DONE", self._args.timeout)
        tokens = [answer[place] if place < len(answer) else None for answer in (one, other)]
        result: dict[str, Any] = {"token": place, "tokens": tokens, "likeliest": opinion}
        if opinion and len(opinion) == 2:
            result["apart"] = round(opinion[0][1] - opinion[1][1], 5)
        return result


def measure(sitting: Sitting, prompts: list[list[int]], args: argparse.Namespace) -> None:
    """Serve all loads in rounds, as long as there is time, and write what there is after each."""
    last = time.monotonic() + args.seconds
    for number in range(args.rounds + 1):
        for in_flight in args.requests:
            count = min(max(3 * in_flight, 8), len(prompts))
            sitting.round(number, in_flight, prompts[:count])
        keep(sitting, args)
        if time.monotonic() > last:
            break


def keep(sitting: Sitting, args: argparse.Namespace) -> None:
    """Write the result."""
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    document = {
        "what": "engines that served the same real text in turn: output tokens a second and their "
        "ratios to the first engine, round by round; accepted: the share of verifications that "
        "accepted each position, in each round; equal: answers that are the first engine's, token "
        "by token; apart: log probability of the likeliest token there less that of the next",
        "date": date,
        **{name: getattr(args, name) for name in ("k", "answer", "longest", "own_process")},
        "engine": json.loads(args.engine),
        "parties": {each.party.name: each.described() for each in sitting.engines},
        "loads": sitting.loads,
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def command_line() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=Path, help="token ids, as real_pair.py writes them")
    parser.add_argument("--out", type=Path, help="file for the result, JSON")
    parser.add_argument("--party", type=party, action="append", default=[], dest="parties")
    parser.add_argument("--k", type=int, default=3, help="drafts; 0 for none")
    parser.add_argument("--engine", default="{}", help="options of all engines, JSON")
    parser.add_argument(
        "--requests",
        type=numbers,
        default=[256, 64, 1],
    )
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer at most")
    parser.add_argument("--longest", type=int, default=1024, help="max_model_len")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=300, help="no round begins after that")
    parser.add_argument("--timeout", type=float, default=240, help="for a start, or for a load")
    parser.add_argument("--own-process", action="store_true", help="engines as servers have them")
    return parser


def read_prompts(path: Path) -> list[list[int]]:
    """The prompts.

    :raises Refused: if the file has none.
    """
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: expected prompts, as real_pair.py writes them: {error}") from error
    if not isinstance(prompts, list) or not prompts:
        raise Refused(f"{path}: expected a list of prompts, found none")
    return prompts


def run(args: argparse.Namespace) -> list[str]:
    """Start all engines, measure, write the result.

    :returns: the parties whose engine died.
    :raises Refused: if an input cannot be used.
    """
    for place in (args.model, args.draft):
        if not (place / "config.json").is_file():
            raise Refused(f"{place}: expected a folder with config.json, as real_pair.py makes it")
    require_place(args.out)
    prompts = read_prompts(args.prompts)
    work = Path(tempfile.mkdtemp(prefix="real-text-"))
    engines = [
        Engine(each, command_of(each, args), work / f"{number}.log")
        for number, each in enumerate(args.parties)
    ]
    sitting = Sitting(engines, args)
    try:
        for each in engines:
            each.told = each.answer("STARTED", args.timeout) or {}
            print(each.party.name, json.dumps(each.told), each.failed, flush=True)
        measure(sitting, prompts, args)
    finally:
        for each in engines:
            each.stop()
    return [each.party.name for each in engines if each.failed]


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if an engine died, 2 where the input is refused."""
    parser = command_line()
    args = parser.parse_args(arguments)
    if args.serve is not None:
        serve(json.loads(args.serve))
        return 0
    if not (args.model and args.draft and args.prompts and args.out and args.parties):
        parser.error("expected --model, --draft, --prompts, --out and a --party at least")
    dead: list[str] = []
    status = ended("real_text.py", lambda: dead.extend(run(args)))
    return status or int(bool(dead))


if __name__ == "__main__":
    raise SystemExit(main())
