#!/usr/bin/env python3
"""Whether answers behind a reasoning are held to their grammar in an engine on a CPU.

    python -m tests.reasoning_end.engine --python PYTHON --out RESULT.json [--steps N] [--seed S]

PYTHON is of an environment with a vLLM for CPU, of 0.20.1 to 0.26.0, which is copied and patched.
Each request is served without drafts and beside them, synchronously and with the asynchronous
double, by a stock engine and a mended one: a load with the end at each place, then loads drawn from
the seed until the engine has taken N steps beside drafts, a stock one at most 300. Exit 0: the
mended ones answer as without drafts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN, Rule, continuation
from tests.engine.engine_spec import QUICKEST, EngineSpec
from tests.engine.mend_hooks import LENGTH, Added, counts, serve
from tests.engine.tiny_eagle import read_rule
from tests.fuzz.loads import GRAMMARS, VOCAB, change_target

#: The seed and the number of steps of the loads that are drawn.
VARIABLE = "TEST_REASONING"
TESTS = Path(__file__).resolve().parents[1]
PLAIN = EngineSpec(
    "",
    "eagle3hid",
    3,
    max_model_len=LENGTH,
    engine={**QUICKEST, "skip_tokenizer_init": False},
    packages=(str(TESTS),),
)
#: Tokens up to the end of the reasoning, the end included.
PLACES = range(1, 13)


class Parser:
    """A reasoning parser whose reasoning ends with a token."""

    end = -1

    def __init__(self, tokenizer: Any, **_: Any) -> None:
        """As upstream makes it."""

    def is_reasoning_end(self, tokens: Sequence[int]) -> bool:
        """Whether a prompt holds the end."""
        return self.end in tokens

    def is_reasoning_end_streaming(self, _: Sequence[int], delta: Iterable[int]) -> bool:
        """Whether the end is among new tokens."""
        return self.end in list(delta)


def parameters(llm: Any, grammar: dict[str, Any] | None, most: int) -> dict[str, Any]:
    """Those of a request, by vLLM's names."""
    from vllm.sampling_params import StructuredOutputsParams

    return {
        "temperature": 0.0,
        "max_tokens": most,
        # `serve` ignores it: behind its end a grammar allows everything.
        "stop_token_ids": [llm.get_tokenizer().eos_token_id],
        **({"structured_outputs": StructuredOutputsParams(**grammar)} if grammar else {}),
    }


def each_place(llm: Any, rule: Rule) -> Added:
    """Requests whose reasoning ends at each place, with each grammar."""
    prompts: dict[int, list[int]] = {}
    for first in range(FIRST_TOKEN, FIRST_TOKEN + 180):
        for length in range(2, 8):
            prompt = [first + 3 * place for place in range(length)]
            if max(prompt) < FIRST_TOKEN + 185 and Parser.end not in prompt:
                coming = continuation(rule, prompt, max(PLACES))
                if Parser.end in coming:
                    prompts.setdefault(coming.index(Parser.end) + 1, prompt)
    return [
        (number, f"{place} {number}", prompts[place], parameters(llm, grammar, 30))
        for number, grammar in enumerate(GRAMMARS[1:4])
        for place in PLACES
        if place in prompts
    ]


def drawn(llm: Any, rule: Rule, rng: random.Random) -> Added:
    """Requests that come one after the other, most with a grammar, an end and company."""
    added: Added = []
    step = 0
    for number in range(rng.choice((8, 20, 40))):
        step += rng.choice((0, 0, 1, 3))
        prompt = [rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(rng.randint(2, 40))]
        prompt = [token for token in prompt if token != Parser.end]
        token = Parser.end
        for _ in range(rng.randint(1, 9)):
            token = rule.successor.index(token)
        prompt += [token] if rng.random() < 0.5 else [token, rng.randrange(FIRST_TOKEN, VOCAB)]
        if Parser.end in prompt:
            continue
        grammar = rng.choice(GRAMMARS) if rng.random() < 0.8 else None
        given = parameters(llm, grammar, rng.choice((3, 12, 30, 45)))
        if rng.random() < 0.1:
            given["repetition_penalty"] = 2.0
        added.append((step, f"{number}", prompt, given))
    return added


def answers(llm: Any) -> dict[str, Any]:
    """What requests are answered without drafts, and beside them."""
    core = llm.llm_engine.engine_core.engine_core
    manager, scheduler = core.structured_output_manager, core.scheduler
    manager._use_async_grammar_compilation = False
    manager.reasoner_cls = Parser
    inner, take = scheduler._update_after_schedule, scheduler.update_draft_token_ids
    rule = read_rule(Path(llm.llm_engine.model_config.model).parent)
    Parser.end = continuation(rule, [FIRST_TOKEN, FIRST_TOKEN + 9], 20)[15]
    seed, most = json.loads(os.environ[VARIABLE])
    step, steps = llm.llm_engine.step, 0

    def counted() -> Any:
        nonlocal steps
        steps += 1
        return step()

    def without_drafts(output: Any) -> None:
        inner(output)
        for request in scheduler.requests.values():
            request.spec_token_ids = []

    llm.llm_engine.step = counted
    loads: list[dict[str, Any]] = []
    beside_drafts = 0
    while not loads or (beside_drafts < most and not loads[-1]["beside"]["error"]):
        number = len(loads)
        rng = random.Random(seed + number)
        added = drawn(llm, rule, rng) if number else each_place(llm, rule)
        # The names of what was served are taken.
        added = [(at, f"{number}: {name}", prompt, given) for at, name, prompt, given in added]
        # Asynchronously places for drafts are made there, synchronously drafts are taken here.
        scheduler._update_after_schedule = without_drafts
        scheduler.update_draft_token_ids = lambda _: None
        try:
            right = serve(llm, added)
        finally:
            scheduler._update_after_schedule, scheduler.update_draft_token_ids = inner, take
        before = steps
        beside = serve(llm, [(at, f"{name} d", prompt, given) for at, name, prompt, given in added])
        beside_drafts += steps - before
        loads.append({"right": right, "beside": beside})
    return {"loads": loads, "steps": beside_drafts, "end": Parser.end, "counts": counts()}


def judgement(outcome: dict[str, Any]) -> dict[str, Any]:
    """How many answers beside drafts are those without."""
    loads = outcome["loads"]
    other = [
        name
        for load in loads
        for name, tokens in load["right"]["tokens"].items()
        if load["beside"]["tokens"].get(f"{name} d") != tokens
    ]
    errors = [each["error"] for load in loads for each in load.values() if each["error"]]
    return {
        "loads": len(loads),
        "steps": outcome["steps"],
        "requests": sum(len(load["right"]["tokens"]) for load in loads),
        "accepted drafts": sum(
            step[-1] for load in loads for each in load["beside"]["steps"].values() for step in each
        ),
        "answered otherwise": len(other),
        "of them": other[:40],
        "error": errors[0] if errors else None,
        "counts": {k: v for k, v in outcome["counts"].items() if "reasoning" in k or "an end" in k},
    }


def main() -> int:
    """Serve by both, write the result."""
    from tests.engine.engine_fixtures import overlay
    from tests.engine.engine_launch import write_models
    from tests.engine.forked_engines import launch_forked
    from tests.engine.private_copy import make_private_copy
    from tests.fuzz.pairs import ON_CPU

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "script": "tests/reasoning_end/engine.py",
        "seed": args.seed,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        copies = {
            name: make_private_copy(args.python, folder / name) for name in ("stock", "mended")
        }
        overlay("apply", copies["mended"].site)
        write_models(args.python, folder / "models")
        change_target(folder / "models/target")
        for name, copy in copies.items():
            steps = args.steps if name == "mended" else min(args.steps, 300)
            specs = [
                replace(
                    PLAIN,
                    models=str(folder / "models"),
                    env={VARIABLE: json.dumps([args.seed, steps])},
                    pre=pre,
                    post_load=("tests.reasoning_end.engine:answers",),
                )
                for pre in ((), ("tests.engine.mend_hooks:asynchronous",))
            ]
            engines = launch_forked(copy.python, specs, env=ON_CPU, timeout=7200)
            result["release"] = engines[0]["vllm"]
            for kind, engine in zip(("synchronous", "asynchronous"), engines, strict=True):
                (outcome,) = (
                    each for hook, each in engine["hooks"].items() if hook.endswith(":answers")
                )
                result[f"{name}, {kind}"] = judgement(outcome)
                print(name, kind, judgement(outcome), flush=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    mended = [each for name, each in result.items() if name.startswith("mended")]
    return int(any(each["answered otherwise"] or each["error"] for each in mended))


if __name__ == "__main__":
    sys.exit(main())
