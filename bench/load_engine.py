"""Profile one engine under a steady load of requests, and print it as JSON.

Runs inside an environment that holds vLLM; ``load_profile.py`` starts it.  So many requests are
always in flight: where one ends the next begins, so steps with a prefill among them and steps
without are mixed as a server mixes them.  Weights are dummies and acceptance is synthetic.

The last line of standard output is ``RESULT {...}``: output tokens per second of each round, the
engine's steps by class (with and without prefills) with their share of the time and the host's
milliseconds in the runner; with ``--sample`` the host's functions, with ``--profile`` the GPU's
kernels and pauses.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlay.proof import sampling, step_time
from overlay.proof.shapes import DRAFTERS, SHAPES

#: Names of the classes of steps, in the result.
DECODES, MIXED, PREFILLS = "decodes", "mixed", "prefills"


@dataclass
class Step:
    """One call of the runner.

    :ivar class_: what the step's requests did.
    :ivar requests: how many requests it served.
    :ivar tokens: how many tokens were scheduled.
    :ivar began: seconds, of ``time.perf_counter``.
    :ivar host: seconds in each method of the runner and the drafter, by name.
    """

    class_: str
    requests: int
    tokens: int
    began: float
    host: dict[str, float] = field(default_factory=dict)


def class_of(scheduled: dict[str, int], drafts: dict[str, list[int]]) -> str:
    """Tell which class a step is of.

    :param scheduled: the number of tokens of each request.
    :param drafts: the draft tokens to be verified of each request that has some.
    """
    decoding = sum(tokens == 1 + len(drafts.get(name, ())) for name, tokens in scheduled.items())
    if decoding == len(scheduled):
        return DECODES
    return MIXED if decoding else PREFILLS


def by_class(steps: list[Step], ended: float) -> dict[str, Any]:
    """Figures of each class of steps; a step lasts until the next one begins.

    :param ended: when the last step ended, as ``Step.began``.
    """
    ends = [step.began for step in steps[1:]] + [ended]
    lasted: dict[str, list[float]] = collections.defaultdict(list)
    members: dict[str, list[Step]] = collections.defaultdict(list)
    for step, end in zip(steps, ends, strict=True):
        lasted[step.class_].append(end - step.began)
        members[step.class_].append(step)
    total = sum(map(sum, lasted.values()))
    return {
        name: {
            "steps": len(seconds),
            "share_of_time": round(sum(seconds) / total, 4),
            "median_ms": round(1000 * statistics.median(seconds), 3),
            "mean_ms": round(1000 * statistics.fmean(seconds), 3),
            "mean_tokens": round(statistics.fmean(step.tokens for step in members[name]), 1),
            "mean_requests": round(statistics.fmean(step.requests for step in members[name]), 1),
            "host_median_ms": host_medians(members[name]),
        }
        for name, seconds in sorted(lasted.items())
    }


def host_medians(steps: Iterable[Step]) -> dict[str, float]:
    """Median milliseconds of each timed method."""
    taken: dict[str, list[float]] = collections.defaultdict(list)
    for step in steps:
        for name, seconds in step.host.items():
            taken[name].append(seconds)
    return {name: round(1000 * statistics.median(values), 3) for name, values in taken.items()}


class Watch:
    """Keeps what each call of the runner served, in the process of the engine."""

    def __init__(self, runner: Any) -> None:
        self.steps: list[Step] = []
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        self._time(runner, "execute_model", self._begin)
        self._time(runner, "sample_tokens", None)
        self._time(drafter, "propose", None)

    def _begin(self, scheduler_output: Any, *_: Any, **__: Any) -> None:
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduled:
            class_ = class_of(scheduled, scheduler_output.scheduled_spec_decode_tokens)
            tokens = scheduler_output.total_num_scheduled_tokens
            self.steps.append(Step(class_, len(scheduled), tokens, time.perf_counter()))

    def _time(self, owner: Any, name: str, before: Callable[..., None] | None) -> None:
        inner = getattr(owner, name, None)
        if inner is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            begun = time.perf_counter()
            result = inner(*args, **kwargs)
            if self.steps:
                host = self.steps[-1].host
                host[name] = host.get(name, 0.0) + time.perf_counter() - begun
            return result

        setattr(owner, name, call)


class Load:
    """So many requests in flight, one new for each that ends.

    :ivar produced: output tokens until now.
    :ivar ended: requests that ended until now.
    """

    def __init__(self, llm: Any, concurrency: int, prompt: int, answer: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine = llm.llm_engine
        self._concurrency, self._prompt = concurrency, prompt
        self._params = SamplingParams(
            temperature=0.0,
            max_tokens=answer,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._sent = self._in_flight = self.produced = self.ended = 0

    def step(self, *, more: bool = True) -> None:
        """Fill up what is in flight (``more``), and let the engine take a step."""
        while more and self._in_flight < self._concurrency:
            tokens = [(7 * self._sent + 13 * place) % 30000 + 10 for place in range(self._prompt)]
            prompt = {"prompt_token_ids": tokens}
            self._engine.add_request(f"load-{self._sent}", prompt, self._params)
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


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step")
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", help="target's cudagraph mode")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=512, help="that end in a round")
    parser.add_argument("--accept", type=float, default=2.5, help="mean acceptance length; 0: none")
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--speculative", default="{}", help="further speculative_config, JSON")
    parser.add_argument("--sample", type=Path, metavar="FILE", help="sample stacks of the host")
    parser.add_argument("--sample-seconds", type=float, default=8)
    parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="of the GPU")
    parser.add_argument("--configs", type=Path, help="folder for the models' configurations")
    # What `step_time.llm_arguments` reads besides; the runner is watched in this process.
    parser.set_defaults(model=None, arguments="[]", tensor_parallel=1)
    return parser.parse_args()


def rounds(load: Load, watch: Watch, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Output tokens per second and the steps of each round, after one that is not counted."""
    load.run(args.requests)
    results = []
    for _ in range(args.rounds):
        watch.steps.clear()
        produced, begun = load.produced, time.perf_counter()
        load.run(args.requests)
        ended = time.perf_counter()
        results.append(
            {
                "tokens_per_s": round((load.produced - produced) / (ended - begun), 1),
                "seconds": round(ended - begun, 2),
                "steps": by_class(watch.steps, ended),
            }
        )
    return results


def host_functions(load: Load, watch: Watch, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per step of the host's functions, all classes of steps together."""
    watch.steps.clear()
    return sampling.sample(
        args.sample.resolve(),
        sampler="auto",
        py_spy=None,
        pid=None,
        seconds=args.sample_seconds,
        rate=500,
        work=load.step,
        steps=lambda: float(len(watch.steps)),
    )


def on_gpu(load: Load, watch: Watch, llm: Any, steps: int) -> dict[str, Any]:
    """Kernels, launches and pauses of the GPU per step, over so many steps."""
    watch.steps.clear()
    llm.collective_rpc("bench_profile")
    while len(watch.steps) < steps:
        load.step()
    taken = float(len(watch.steps))
    figures: dict[str, Any] = llm.collective_rpc("bench_profiled", args=(taken, None))[0]
    return figures | {"steps": dict(collections.Counter(step.class_ for step in watch.steps))}


def runner_of(llm: Any) -> Any:
    """The model runner, which lives in this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def main() -> None:
    """Start the engine, load it, print the RESULT line."""
    args = arguments()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    import vllm

    args.configs = args.configs or Path(tempfile.mkdtemp())
    options = step_time.llm_arguments(args, [args.concurrency])
    options |= {"enable_prefix_caching": False} | json.loads(args.engine)
    llm = vllm.LLM(**options)
    description = llm.collective_rpc("bench_watch")[0]
    watch = Watch(runner_of(llm))
    load = Load(llm, args.concurrency, args.prompt, args.answer)
    result: dict[str, Any] = {
        "vllm": vllm.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "runner": description["runner"],
        "draft_graphs": description.get("draft_graphs"),
        **{name: getattr(args, name) for name in ("shape", "drafter", "k", "mode", "concurrency")},
        **{name: getattr(args, name) for name in ("prompt", "answer", "accept")},
        "rounds": rounds(load, watch, args),
    }
    print("RESULT " + json.dumps(result), flush=True)
    if args.sample:
        result["host"] = host_functions(load, watch, args)
        print("RESULT " + json.dumps(result), flush=True)
    if args.profile:
        result["on_gpu"] = on_gpu(load, watch, llm, args.profile)
        print("RESULT " + json.dumps(result), flush=True)
    load.finish()


if __name__ == "__main__":
    main()
