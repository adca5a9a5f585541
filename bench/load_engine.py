"""Profile one engine under a steady load of requests, and print it as JSON.

Runs inside an environment that holds vLLM; ``load_profile.py`` starts it.  So many requests are
always in flight: where one ends the next begins, so steps with a prefill among them and steps
without are mixed as a server mixes them; with ``--spread`` the answers differ in length, so that
requests end in nearly every step.  Weights are dummies and acceptance is synthetic.

The last line of standard output is ``RESULT {...}``: output tokens per second of each round, the
engine's steps by class (with and without prefills) with their share of the time and the host's
milliseconds in the runner, and what CPU the engine's thread and the others used; with ``--sample``
the host's functions, with ``--profile`` the GPU's kernels and pauses.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load_steps import Step, by_class
from bench.profiling import sampling, step_time
from bench.profiling.drafters import DRAFTERS
from overlay.proof.shapes import SHAPES

#: Fraction that, added again and again, leaves its multiples evenly spread between 0 and 1.
_GOLDEN = 0.6180339887498949


def answer_length(number: int, answer: int, spread: float) -> int:
    """Tokens of the answer to a request, by its number: evenly spread around ``answer``.

    :param spread: the largest difference, as a fraction of ``answer``.
    """
    return max(round(answer * (1 + spread * (2 * (number * _GOLDEN % 1) - 1))), 1)


def prompt_tokens(number: int, length: int) -> list[int]:
    """The prompt of a request, by its number."""
    return [(7 * number + 13 * place) % 30000 + 10 for place in range(length)]


class Load:
    """So many requests in flight, one new for each that ends.

    :ivar produced: output tokens until now.
    :ivar ended: requests that ended until now.
    """

    def __init__(
        self, llm: Any, concurrency: int, prompt: int, answer: int, spread: float = 0.0
    ) -> None:
        self._engine = llm.llm_engine
        self._concurrency, self._prompt = concurrency, prompt
        self._answer, self._spread = answer, spread
        self._sent = self._in_flight = self.produced = self.ended = 0

    def _params(self) -> Any:
        """The sampling parameters of the next request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0,
            max_tokens=answer_length(self._sent, self._answer, self._spread),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def step(self, *, more: bool = True) -> None:
        """Fill up what is in flight (``more``), and let the engine take a step."""
        while more and self._in_flight < self._concurrency:
            prompt = {"prompt_token_ids": prompt_tokens(self._sent, self._prompt)}
            self._engine.add_request(f"load-{self._sent}", prompt, self._params())
            self._sent += 1
            self._in_flight += 1
        for output in self._engine.step():
            self.produced += sum(len(part.token_ids) for part in output.outputs)
            if output.finished:
                self._in_flight -= 1
                self.ended += 1

    def run(self, requests: int) -> None:
        """Go on until so many further requests have ended."""
        last = self.ended + requests
        while self.ended < last:
            self.step()

    def finish(self) -> None:
        """Let what is in flight end."""
        while self._in_flight:
            self.step(more=False)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what :func:`start` reads, but for the number of requests at a time."""
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step")
    parser.add_argument(
        "--mode", default="FULL_AND_PIECEWISE", help="cudagraph mode, or '' for none"
    )
    parser.add_argument("--accept", type=float, default=2.5, help="mean acceptance length; 0: none")
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--speculative", default="{}", help="further speculative_config, JSON")
    parser.add_argument("--configs", type=Path, help="folder for the models' configurations")
    parser.add_argument("--gate", type=Path, help="start up, then wait until this file is there")
    # What `step_time.llm_arguments` reads besides.
    parser.set_defaults(model=None, arguments="[]", tensor_parallel=1)


def start(args: argparse.Namespace, *, own_process: bool) -> tuple[Any, dict[str, Any]]:
    """Start the engine, watch its steps, and wait for the gate, where there is one.

    :param own_process: whether it has a process of its own, as a server's has.

    Returns the engine, and what it is, for the result.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_process))
    import torch
    import vllm

    args.configs = args.configs or Path(tempfile.mkdtemp())
    options = step_time.llm_arguments(args, [args.concurrency])
    options |= {"worker_extension_cls": "bench.load_side.LoadExtension"}
    options |= {"enable_prefix_caching": False} | json.loads(args.engine)
    llm = vllm.LLM(**options)
    told = llm.collective_rpc("load_watch")[0]
    print("READY", flush=True)
    while args.gate and not args.gate.exists():
        time.sleep(0.1)
    return llm, {
        "vllm": vllm.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "runner": told["runner"],
        "draft_graphs": told.get("draft_graphs"),
        **{name: told[name] for name in ("capture_sizes", "largest_capture_size", "effects")},
        **{name: getattr(args, name) for name in ("shape", "drafter", "k", "mode", "accept")},
        "concurrency": args.concurrency,
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument(
        "--spread", type=float, default=0.0, help="largest difference of an answer, as a fraction"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=512, help="that end in a round")
    parser.add_argument("--sample", type=Path, metavar="FILE", help="sample stacks of the host")
    parser.add_argument("--sample-seconds", type=float, default=8)
    parser.add_argument("--sample-rate", type=int, default=500, help="samples a second")
    parser.add_argument("--profile", type=float, default=0, metavar="SECONDS", help="of the GPU")
    parser.add_argument(
        "--own-process", action="store_true", help="the engine in its own, as a server has it"
    )
    return parser.parse_args()


def per_step(before: dict[str, float], after: dict[str, float], steps: int) -> dict[str, float]:
    """What a step used, by name: milliseconds where the name is of seconds, else how often."""
    times = {"cpu": 1000, "other_threads": 1000, "collector": 1000}
    return {
        name: round((after[name] - before[name]) * times.get(name, 1) / steps, 3) for name in after
    }


def steps_of(llm: Any) -> list[Step]:
    """The steps that the engine took since this was asked last."""
    return [Step(**step) for step in llm.collective_rpc("load_steps")[0]]


def rounds(load: Load, llm: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Output tokens per second and the steps of each round, after one that is not counted."""
    load.run(args.requests)
    results = []
    for _ in range(args.rounds):
        steps_of(llm)
        before = llm.collective_rpc("load_clock")[0]
        produced, begun = load.produced, time.perf_counter()
        load.run(args.requests)
        ended = time.perf_counter()
        after = llm.collective_rpc("load_clock")[0]
        steps = steps_of(llm)
        results.append(
            {
                "tokens_per_s": round((load.produced - produced) / (ended - begun), 1),
                "seconds": round(ended - begun, 2),
                "per_step": per_step(before, after, len(steps)),
                "steps": by_class(steps, ended),
            }
        )
    return results


def host_functions(load: Load, llm: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per step of the functions of the engine's thread, all classes together."""
    steps_of(llm)
    llm.collective_rpc("load_sample", args=(args.sample_rate,))
    begun = time.perf_counter()
    while time.perf_counter() < begun + args.sample_seconds:
        load.step()
    stacks: str = llm.collective_rpc("load_sampled")[0]
    taken = 1000 * (time.perf_counter() - begun)
    args.sample.write_text(stacks, encoding="utf-8")
    steps = len(steps_of(llm))
    return {"rate": args.sample_rate, "steps": steps, **sampling.fold(stacks, taken / steps)}


def on_gpu(load: Load, llm: Any, seconds: float) -> dict[str, Any]:
    """Kernels, launches and pauses of the GPU per step, over so many seconds."""
    steps_of(llm)
    llm.collective_rpc("bench_profile")
    last = time.perf_counter() + seconds
    while time.perf_counter() < last:
        load.step()
    steps = steps_of(llm)
    profiled = llm.collective_rpc("bench_profiled", args=(float(len(steps)), None))
    figures: dict[str, Any] = profiled[0]
    return figures | {"steps": dict(collections.Counter(step.class_ for step in steps))}


def main() -> None:
    """Start the engine, load it, print the RESULT line."""
    args = arguments()
    llm, description = start(args, own_process=args.own_process)
    load = Load(llm, args.concurrency, args.prompt, args.answer, args.spread)
    result: dict[str, Any] = {
        **description,
        **{name: getattr(args, name) for name in ("prompt", "answer", "spread")},
        "own_process": args.own_process,
        "rounds": rounds(load, llm, args),
    }
    print("RESULT " + json.dumps(result), flush=True)
    if args.sample:
        result["host"] = host_functions(load, llm, args)
        print("RESULT " + json.dumps(result), flush=True)
    if args.profile:
        result["on_gpu"] = on_gpu(load, llm, args.profile)
        print("RESULT " + json.dumps(result), flush=True)
    load.finish()


if __name__ == "__main__":
    main()
