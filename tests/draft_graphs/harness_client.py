"""Call `harness.py` in a process forked from one that imported a patched vLLM.

The part that pytest imports.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness import Outcome, Plan, Run
from tests.engine.engine_spec import QUICKEST, EngineSpec, Request

MODULE = "tests.draft_graphs.harness"
TESTS = Path(__file__).resolve().parents[1]
#: The target runs eagerly on CPU; its mode decides what the drafter may do.
FULL_DECODE_ONLY = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


class HarnessFailed(AssertionError):
    """The harness did not come to its end."""


def make_requests(seed: int = 3) -> tuple[Request, ...]:
    """Twelve requests in three waves that end one after the other: eight at most are live, and
    towards the end each smaller number is, for some steps, in uniform batches."""
    rng = random.Random(seed)
    made = []
    for index in range(12):
        prompt = tuple(rng.randrange(3, 192) for _ in range(rng.randint(2, 39)))
        tokens = 16 if index < 4 else 12 + 3 * index
        made.append(Request(prompt, tokens, arrival=index // 4 * 3))
    return tuple(made)


def make_spec(models: Path, draft: str, k: int, **more: Any) -> dict[str, Any]:
    """A small engine for eight requests, whose KV cache holds fewer: some are preempted.

    The target captures up to vLLM's own largest size, which bounds first passes, too; its own sizes
    are three times as many, and each takes two passes.
    """
    settings: dict[str, Any] = {
        "requests": make_requests(),
        "block_size": 16,
        "kv_blocks": 22,
        "max_model_len": 128,
        "enforce_eager": False,
        "compilation": {
            **FULL_DECODE_ONLY,
            "cudagraph_capture_sizes": [size * (k + 1) for size in (1, 2, 4, 8, 16)],
        },
        **more,
    }
    spec = EngineSpec(models=str(models), draft=draft, k=k, **settings)
    return dict(json.loads(spec.to_json()))


def run_harness(forks: ForkedModules, plans: Sequence[Plan]) -> list[dict[str, Outcome]]:
    """The outcomes of every plan, by the names of its runs.

    :raises HarnessFailed: if it ends without a result; says what it printed last.
    """
    with tempfile.TemporaryDirectory(prefix="draft-graphs-") as folder:
        plan, out = Path(folder, "plan.json"), Path(folder, "out.json")
        plan.write_text(json.dumps([asdict(each) for each in plans]), encoding="utf-8")
        ended = forks.run(MODULE, str(plan), "--out", str(out))
        if ended.returncode != 0 or not out.is_file():
            said = f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
            raise HarnessFailed(f"ended with status {ended.returncode}:\n{said}")
        by_plan = json.loads(out.read_text(encoding="utf-8"))
    return [{each["name"]: Outcome(**each) for each in outcomes} for outcomes in by_plan]


def expect_right(outcome: Outcome) -> None:
    """Tokens and accepted counts are the oracle's, and nothing was raised on the way."""
    assert outcome.error is None, outcome.error
    assert outcome.tokens_ok
    assert outcome.accepted == outcome.expected
    assert sum(outcome.accepted) > 0


def expect_graphs(outcome: Outcome, k: int) -> None:
    """Every batch that graphs could hold was drafted by them, with no Python of the draft model."""
    assert outcome.python_calls == 0
    assert outcome.used
    assert outcome.captured
    assert not sum(outcome.missed.values()), outcome.missed
    assert outcome.model_calls == upstreams_calls(outcome, k)


def upstreams_calls(outcome: Outcome, k: int) -> int:
    """How often upstream's code had to call the draft model.

    Its first pass runs where `propose` declined, and its later ones where, after that,
    `later_steps` declined, too.
    """
    passes = {"propose": 0, "later_steps": 0}
    for call, times in outcome.declined.items():
        passes[call.split()[0]] += times
    return passes["propose"] + (k - 1) * passes["later_steps"]


def live_sizes(outcome: Outcome, entry: str) -> set[int]:
    """The numbers of live requests for which graphs answered an entry."""
    calls = (call.split() for call in outcome.used)
    return {int(size) for name, size in calls if name == entry}


__all__ = [
    "FULL_DECODE_ONLY",
    "QUICKEST",
    "HarnessFailed",
    "Outcome",
    "Plan",
    "Run",
    "expect_graphs",
    "expect_right",
    "live_sizes",
    "make_requests",
    "make_spec",
    "run_harness",
    "upstreams_calls",
]
