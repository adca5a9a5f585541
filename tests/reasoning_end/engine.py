#!/usr/bin/env python3
"""Whether answers behind a reasoning are held to their grammar in an engine on a CPU.

    python -m tests.reasoning_end.engine --python PYTHON --out RESULT.json

PYTHON is of an environment with a vLLM for CPU, of 0.20.1 to 0.26.0, which is copied and patched.
Each request is served without drafts and beside them, synchronously and with the asynchronous
double, by a stock engine and a mended one. Exit 0: the mended ones answer as without drafts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN, continuation
from tests.engine.engine_spec import QUICKEST, EngineSpec
from tests.engine.mend_hooks import LENGTH, counts, serve
from tests.engine.tiny_eagle import read_rule
from tests.fuzz.loads import GRAMMARS, change_target

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


def loads(llm: Any) -> list[tuple[int, str, list[int], dict[str, Any]]]:
    """Requests whose reasoning ends at each place, with each grammar."""
    from vllm.sampling_params import StructuredOutputsParams

    rule = read_rule(Path(llm.llm_engine.model_config.model).parent)
    Parser.end = continuation(rule, [FIRST_TOKEN, FIRST_TOKEN + 9], 20)[15]
    prompts: dict[int, list[int]] = {}
    for first in range(FIRST_TOKEN, FIRST_TOKEN + 180):
        for length in range(2, 8):
            prompt = [first + 3 * place for place in range(length)]
            if max(prompt) < FIRST_TOKEN + 185 and Parser.end not in prompt:
                coming = continuation(rule, prompt, max(PLACES))
                if Parser.end in coming:
                    prompts.setdefault(coming.index(Parser.end) + 1, prompt)
    return [
        (
            number,
            f"{place} {number}",
            prompts[place],
            {
                "temperature": 0.0,
                "max_tokens": 30,
                # `serve` ignores it: behind its end a grammar allows everything.
                "stop_token_ids": [llm.get_tokenizer().eos_token_id],
                "structured_outputs": StructuredOutputsParams(**grammar),
            },
        )
        for number, grammar in enumerate(GRAMMARS[1:4])
        for place in PLACES
        if place in prompts
    ]


def answers(llm: Any) -> dict[str, Any]:
    """What the requests are answered without drafts, and beside them."""
    core = llm.llm_engine.engine_core.engine_core
    manager, scheduler = core.structured_output_manager, core.scheduler
    manager._use_async_grammar_compilation = False
    manager.reasoner_cls = Parser
    inner, take = scheduler._update_after_schedule, scheduler.update_draft_token_ids
    added = loads(llm)

    def without_drafts(output: Any) -> None:
        inner(output)
        for request in scheduler.requests.values():
            request.spec_token_ids = []

    # Asynchronously places for drafts are made there, synchronously drafts are taken here.
    scheduler._update_after_schedule = without_drafts
    scheduler.update_draft_token_ids = lambda _: None
    try:
        right = serve(llm, added)
    finally:
        scheduler._update_after_schedule, scheduler.update_draft_token_ids = inner, take
    # The names of what was served are taken.
    beside = serve(llm, [(at, f"{name} d", prompt, given) for at, name, prompt, given in added])
    return {"right": right, "beside": beside, "end": Parser.end, "counts": counts()}


def judgement(outcome: dict[str, Any]) -> dict[str, Any]:
    """How many answers beside drafts are those without."""
    right, beside = outcome["right"], outcome["beside"]
    other = [
        name
        for name, tokens in right["tokens"].items()
        if beside["tokens"].get(f"{name} d") != tokens
    ]
    return {
        "requests": len(right["tokens"]),
        "accepted drafts": sum(step[-1] for each in beside["steps"].values() for step in each),
        "answered otherwise": other,
        "error": beside["error"] or right["error"],
        "counts": {k: v for k, v in outcome["counts"].items() if "reasoning" in k or "an end" in k},
    }


def main() -> int:
    """Serve by both, write the result."""
    from tests.engine.engine_fixtures import overlay
    from tests.engine.engine_launch import write_models
    from tests.engine.forked_engines import launch_forked
    from tests.engine.private_copy import make_private_copy

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "script": "tests/reasoning_end/engine.py",
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
        specs = [
            replace(
                PLAIN,
                models=str(folder / "models"),
                pre=pre,
                post_load=("tests.reasoning_end.engine:answers",),
            )
            for pre in ((), ("tests.engine.mend_hooks:asynchronous",))
        ]
        for name, copy in copies.items():
            engines = launch_forked(copy.python, specs)
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
