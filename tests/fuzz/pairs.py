"""Pairs of engines, one of a stock vLLM and one with features, which serve the same loads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine.engine_launch import foreign_environment, launch, write_models
from tests.engine.engine_spec import EngineSpec
from tests.engine.forked_engines import launch_forked
from tests.fuzz.comparison import (
    Difference,
    Least,
    figures,
    first_difference,
    first_other_answer,
    first_wrong_draft,
)
from tests.fuzz.loads import PLAIN, Shape, change_target, draw_load, draw_shape
from tests.fuzz.watched import REPLAYS, asked

TESTS = Path(__file__).resolve().parents[1]
#: What ``watched.run`` gives, with the release and the device.
Result = Mapping[str, Any]
SWITCHES = {
    "steady-inputs": "OVERLAY_STEADY_INPUTS",
    "greedy-verification": "OVERLAY_GREEDY_VERIFICATION",
    "batched-bookkeeping": "OVERLAY_BATCHED_BOOKKEEPING",
    "steady-scheduler": "OVERLAY_STEADY_SCHEDULER",
}
#: Those of features that mend what a stock vLLM does wrong, so that engines differ where they work.
MENDS = {
    "context-limit": "OVERLAY_CONTEXT_LIMIT",
    "draft-gate": "OVERLAY_DRAFT_GATE",
    "min-tokens": "OVERLAY_MIN_TOKENS",
    "prompt-logprobs": "OVERLAY_PROMPT_LOGPROBS",
    "draft-sampling": "OVERLAY_DRAFT_SAMPLING",
    "draft-weights": "OVERLAY_DRAFT_WEIGHTS",
}
#: Off beside graphs: on a CPU a reload packs the draft's weights to another place, which graphs do
#: not follow; `tests/engine/test_mends.py` has engines for it.
NOT_BESIDE_GRAPHS = ("draft-weights",)
#: The variant in which they are on: its engines may take other steps, but none may die, and what a
#: request is answered is the same.
MENDED = "mended"
GRAPHS = "OVERLAY_DRAFT_GRAPHS"
#: What shows that a feature was at work: each of these counts.
AT_WORK = {
    "steady-inputs": ("steps prepared by one kernel",),
    "greedy-verification": ("batches verified from one argmax",),
    "batched-bookkeeping": (
        *("steps whose requests went on together", "outputs listed together"),
        "steps whose placeholders were written together",
    ),
    "steady-scheduler": ("steps scheduled in part", "outputs noted in part"),
    "step": (REPLAYS,),
    "loop": (REPLAYS,),
}
#: What is on, by name: host features, and a mode of the graphs.
VARIANTS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in SWITCHES},
    "host": tuple(SWITCHES),
    "step": ("step",),
    "loop": ("loop",),
    "all step": (*SWITCHES, "step"),
    "all loop": (*SWITCHES, "loop"),
    MENDED: (*SWITCHES, *MENDS, "loop"),
}
#: Nothing is left to chance, to the machine's cores or to a compiler.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
ON_CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
}


def switches(variant: str, shape: Shape) -> dict[str, str]:
    """The environment variables of a variant."""
    on = set(VARIANTS[variant]) - set(NOT_BESIDE_GRAPHS if shape.graphs else ())
    mode = next((each for each in ("step", "loop") if each in on), "off")
    return {
        **{switch: "on" if name in on else "off" for name, switch in (SWITCHES | MENDS).items()},
        GRAPHS: mode,
        f"{GRAPHS}_CHECK": "on",
        f"{GRAPHS}_UNTRIED": "on" if shape.untried else "off",
    }


@dataclass(frozen=True)
class Side:
    """Where an engine's vLLM is.

    :ivar environment: variables that it needs there.
    """

    python: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Both sides, the folder with the models, and whether there is a GPU."""

    stock: Side
    other: Side
    models: Path
    gpu: bool = False
    timeout: float = 600

    def write_models(self) -> None:
        """Write the tiny models, as the loads want them."""
        environment = {**foreign_environment(), **self.stock.environment}
        write_models(self.stock.python, self.models, environment=environment)
        change_target(self.models / "target")

    def spec(self, shape: Shape, switched: Mapping[str, str], **load: Any) -> EngineSpec:
        """The engine that serves loads; ``load`` is for ``watched.asked``."""
        return replace(
            shape.spec(self.models, gpu=self.gpu),
            env={**asked(shape, gpu=self.gpu, **load), **switched},
            pre=("tests.fuzz.watched:prepare",),
            post_load=("tests.fuzz.watched:run",),
            packages=(str(TESTS),),
        )

    def run(self, side: Side, specs: Sequence[EngineSpec]) -> list[dict[str, Any]]:
        """What ``watched.run`` gave in each engine, with the release and the device."""
        fixed = ENVIRONMENT | ({} if self.gpu else ON_CPU) | dict(side.environment)
        if self.gpu:
            start = partial(launch, side.python, env=fixed, timeout=self.timeout)
            with ThreadPoolExecutor(len(specs)) as pool:
                results = list(pool.map(start, specs))
        else:
            results = launch_forked(side.python, specs, env=fixed, timeout=self.timeout)
        return [
            {**result["hooks"]["watched:run"], "vllm": result["vllm"], "device": result["device"]}
            for result in results
        ]


@dataclass(frozen=True)
class Pair:
    """A stock engine, and one engine for each variant beside it.

    :ivar loads: seeds of the loads; :ivar requests: in each; 0 for a drawn number.
    """

    seed: int
    shape: Shape
    variants: tuple[str, ...]
    loads: tuple[int, ...]
    requests: int = 0

    def load(self, variant: str = "") -> dict[str, Any]:
        """What ``Place.spec`` is told of the loads."""
        asked = {"seeds": list(self.loads), "requests": self.requests}
        return {**asked, "provoked": variant == MENDED}

    def asked(self) -> dict[str, tuple[list[int], dict[str, Any]]]:
        """The prompt and the parameters of each request, by its name in an outcome."""
        return {
            f"{number}.{event['id']}": (event["prompt"], event["parameters"])
            for number, seed in enumerate(self.loads, 1)
            for event in draw_load(seed, self.shape, self.requests)
            if event["do"] == "add"
        }

    def least(self) -> dict[str, Least]:
        """What requests with min_tokens promise.

        Nothing where there may be no other token, or no room (a release may be asked without).
        """
        return {
            name: Least(0, frozenset())
            if {"grammar", "allowed_token_ids"} & given.keys()
            or len(prompt) + given["min_tokens"] > self.shape.length
            else Least(given["min_tokens"], frozenset(given.get("stop_token_ids", ())))
            for name, (prompt, given) in self.asked().items()
            if "min_tokens" in given
        }

    def plain(self) -> dict[str, list[int]]:
        """The prompts of requests that get what the target says by itself."""
        return {
            name: prompt
            for name, (prompt, given) in self.asked().items()
            if len(prompt) > 1 and given.keys() <= PLAIN
        }

    def difference(self, variant: str, stock: Result, other: Result) -> Difference | None:
        """The first difference that must not be."""
        if variant == MENDED:
            limit = self.shape.length // (2 if self.shape.short_draft else 1)
            return first_other_answer(
                stock["outcomes"], other["outcomes"], self.least()
            ) or first_wrong_draft(other["outcomes"], self.plain(), self.shape.k, limit)
        return first_difference(stock["outcomes"], other["outcomes"])


def draw_pair(
    seed: int,
    given: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    *,
    loads: int = 2,
    gpu: bool = False,
) -> Pair:
    """Draw a pair.

    :param given: entries of the shape that are not drawn; :param variants: default: drawn, too.
    """
    rng = random.Random(seed)
    shape = draw_shape(rng, given or {}, gpu=gpu)
    if MENDED in variants:
        # Beside drafts a stock vLLM ends the thoughts of one request in the answer of another.
        shape = replace(shape, thinking=False)
    seeds = tuple(rng.randrange(1 << 30) for _ in range(loads))
    possible = [
        name
        for name, on in VARIANTS.items()
        if name != MENDED
        if shape.graphs or not {"step", "loop"} & set(on)
        if shape.asynchronous or on != ("steady-inputs",)
    ]
    everything = "all loop" if shape.graphs else "host"
    drawn = (everything, rng.choice([name for name in possible if name != everything]))
    return Pair(seed, shape, tuple(variants) or drawn, seeds)


@dataclass
class Report:
    """What pairs of engines showed.

    :ivar work: counts by variant and name.
    :ivar deaths: errors of which the engines of a pair both died.
    """

    figures: Counter[str] = field(default_factory=Counter)
    work: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[tuple[Pair, str, Difference]] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    def add(self, pair: Pair, stock: Result, others: Sequence[Result]) -> None:
        """Compare the results of a pair's engines."""
        self.about |= {name: stock[name] for name in ("vllm", "device")}
        self.figures += figures(stock["outcomes"]) + Counter(pairs=len(others))
        error = stock["outcomes"][-1]["error"]
        if error and any(other["outcomes"][-1]["error"] for other in others):
            self.deaths.append(f"seed {pair.seed}: {error}")
        for variant, other in zip(pair.variants, others, strict=True):
            self.work.setdefault(variant, Counter()).update(other["work"])
            difference = pair.difference(variant, stock, other)
            if variant == MENDED and error and difference is None:
                self.figures["stock engines that died alone"] += 1
            if difference is None and not set(other["faults"]) <= set(stock["faults"]):
                difference = Difference(0, None, "faults", stock["faults"], other["faults"])
            if difference is not None:
                self.differences.append((pair, variant, difference))

    def idle(self) -> list[str]:
        """What features that were on did in none of the engines."""
        wanted = {
            (feature, count)
            for variant in self.work
            for feature in VARIANTS[variant]
            if variant != MENDED
            for count in AT_WORK[feature]
        }
        return [
            f"{feature}: {count}"
            for feature, count in sorted(wanted)
            if not any(did[count] for name, did in self.work.items() if feature in VARIANTS[name])
        ]


def run_pairs(place: Place, pairs: Iterable[Pair], report: Report) -> None:
    """Run pairs, and add what they show to a report.

    :raises EngineFailed: if an engine ends without a result.
    """
    pairs = list(pairs)
    plain = [place.spec(pair.shape, {}, **pair.load()) for pair in pairs]
    varied = [
        place.spec(pair.shape, switches(variant, pair.shape), **pair.load(variant))
        for pair in pairs
        for variant in pair.variants
    ]
    with ThreadPoolExecutor(2) as pool:
        stock = pool.submit(place.run, place.stock, plain)
        others = iter(place.run(place.other, varied))
    for pair, one in zip(pairs, stock.result(), strict=True):
        report.add(pair, one, [next(others) for _ in pair.variants])


def reduce(place: Place, pair: Pair, variant: str, load: int, rounds: int = 5) -> list[int]:
    """Leave out events of the load that differs, as long as the engines differ without them.

    Each round tries to do without each quarter of what is left.

    :returns: the numbers of the events that may be left out.
    """
    seeds = pair.loads[: load + 1]
    total = len(draw_load(seeds[-1], pair.shape, pair.requests))
    without: list[int] = []
    for _ in range(rounds):
        left = [number for number in range(total) if number not in without]
        size = max(-(-len(left) // 4), 1)
        trials = [without + left[at : at + size] for at in range(0, len(left), size)]
        on = switches(variant, pair.shape)
        one, other = (
            place.run(
                side,
                [
                    place.spec(pair.shape, env, **{**engines, "seeds": list(seeds)}, without=each)
                    for each in trials
                ],
            )
            for side, env, engines in (
                (place.stock, {}, pair.load()),
                (place.other, on, pair.load(variant)),
            )
        )
        differing = [
            trial
            for trial, this, that in zip(trials, one, other, strict=True)
            if pair.difference(variant, this, that)
        ]
        if not differing:
            break
        without = differing[0]
    return sorted(without)
