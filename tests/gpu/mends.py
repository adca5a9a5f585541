#!/usr/bin/env python3
"""What ends or spoils a stock vLLM beside a mended one, on a GPU.

    mends.py --out result.json --stock PATH --patched PATH [--only REGEX] [--timeout 200]

``--stock`` and ``--patched`` are import paths (as of ``PYTHONPATH``): a pristine vLLM and one that
``overlay apply`` patched, or ``OVERLAY:SITE`` for one that is patched in memory.  Each cell runs in
an engine of both; the stock one must have the fault, and the mended one not.  Exit 0: so it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overlay.results import ModelRunner
from tests.engine.engine_launch import (
    TESTS,
    EngineFailed,
    foreign_environment,
    launch,
    write_models,
)
from tests.engine.engine_spec import EngineSpec
from tests.engine.mend_hooks import LENGTH, SHORT_DRAFT
from tests.engine.mend_judging import JUDGES

HOOKS = "tests.engine."
PLAIN = EngineSpec(
    "",
    "eagle3hid",
    3,
    max_model_len=LENGTH,
    packages=(str(TESTS),),
    engine={"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30},
)


def graphs(spec: EngineSpec, mode: str, compiled: int = 0) -> EngineSpec:
    """The engine with graphs."""
    compilation = {"mode": compiled, "cudagraph_mode": mode}
    return replace(spec, enforce_eager=False, compilation=compilation)


#: With vLLM's memory pool.
SLEEPER = replace(PLAIN, engine={**PLAIN.engine, "enable_sleep_mode": True})
SHORT = replace(PLAIN, speculative=SHORT_DRAFT, prefix_caching=True)
EAGER = replace(PLAIN, runner=ModelRunner.V2, speculative={"enforce_eager": True})
WEIGHTS = "weight_hooks:weights"
PARAMETERS = "mend_hooks:refused_parameters"

#: Name -> the engine, and what is done with it.
CELLS = {
    "context limit": (PLAIN, "mend_hooks:context_limit"),
    "context limit, graphs": (graphs(PLAIN, "FULL_DECODE_ONLY"), "mend_hooks:context_limit"),
    "prompt log probabilities": (PLAIN, "mend_hooks:overwritten_states"),
    "prompt log probabilities, piecewise": (
        graphs(PLAIN, "PIECEWISE", 3),
        "mend_hooks:piecewise_prompts",
    ),
    "draft weights": (SLEEPER, WEIGHTS),
    "draft weights, graphs": (graphs(SLEEPER, "FULL_DECODE_ONLY"), WEIGHTS),
    "draft weights, V2": (replace(SLEEPER, runner=ModelRunner.V2), WEIGHTS),
    "draft weights, V2, graphs": (
        replace(graphs(SLEEPER, "FULL_DECODE_ONLY"), runner=ModelRunner.V2),
        WEIGHTS,
    ),
    "draft gate": (SHORT, "mend_hooks:long_request"),
    "draft gate, graphs": (graphs(SHORT, "FULL_DECODE_ONLY"), "mend_hooks:long_request"),
    "draft gate, piecewise": (graphs(SHORT, "PIECEWISE", 3), "mend_hooks:long_request"),
    "eager draft": (graphs(EAGER, "FULL_DECODE_ONLY"), "mend_hooks:eager_draft"),
    "eager draft, compiled": (graphs(EAGER, "FULL_AND_PIECEWISE", 3), "mend_hooks:eager_draft"),
    "min_tokens": (PLAIN, "mend_hooks:least_tokens"),
    "min_p and logit_bias, V1": (PLAIN, PARAMETERS),
    "min_p and logit_bias, V2": (replace(PLAIN, runner=ModelRunner.V2), PARAMETERS),
    # What is right: the same prompts without drafts.
    "no drafts": (
        graphs(replace(PLAIN, draft=None), "PIECEWISE", 3),
        "mend_hooks:piecewise_prompts",
    ),
}


def run(spec: EngineSpec, hook: str, path: str, overlay: str, timeout: float) -> dict[str, Any]:
    """What a hook gave in an engine, with the release and the device."""
    environment = {"PYTHONPATH": absolute(path), "OVERLAY": overlay, "OVERLAY_FEATURES": FEATURES}
    given = replace(spec, post_load=(HOOKS + hook,))
    try:
        result = launch(sys.executable, given, env=environment, timeout=timeout)
    except EngineFailed as error:
        return {"failed": f"{error}\n{error.output[-3000:]}"}
    return {
        **result["hooks"][hook],
        "vllm": result["vllm"],
        "device": result["device"],
    }


#: Those that mend, and draft graphs, which go on beside them.
FEATURES = (
    "context-limit,draft-gate,draft-sampling,draft-weights,eager-draft,min-tokens,prompt-logprobs,"
    "draft-graphs"
)


def absolute(path: str) -> str:
    """An import path for a process that runs in another folder."""
    return os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))


def judge(name: str, ran: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """What is not as it must be in a cell."""
    stock, mended = ran[name]
    failed = [side["failed"].splitlines()[0] for side in (stock, mended) if "failed" in side]
    hook = CELLS[name][1].partition(":")[2]
    if failed:
        return failed
    if hook in JUDGES:
        return JUDGES[hook](stock, mended)
    right = ran.get("no drafts", ({}, {}))[0].get("prompts")
    if name == "no drafts" or right is None:
        return []
    print(f"{name}: stock differs from no drafts in {differences(stock['prompts'], right)} values")
    different = differences(mended["prompts"], right)
    return [f"{different} values are not those without drafts"] if different else []


def differences(one: Any, other: Any) -> int:
    """How many log probabilities differ by more than a rounding in bfloat16 makes."""
    count = 0
    for name, places in other.items():
        for mine, theirs in zip(one[name], places, strict=True):
            for token, value in (theirs or {}).items():
                count += abs((mine or {}).get(token, -99.0) - value) > 0.05
    return count


def main() -> int:
    """Run the cells and judge them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stock", required=True, help="import path of a pristine vLLM")
    parser.add_argument("--patched", required=True, help="import path of a patched one")
    parser.add_argument("--only", default="", help="cells whose names have this expression")
    parser.add_argument("--timeout", type=float, default=200, help="seconds of an engine")
    parser.add_argument("--at-a-time", type=int, default=6, help="engines that run together")
    arguments = parser.parse_args()
    names = [name for name in CELLS if re.search(arguments.only, name)]
    with tempfile.TemporaryDirectory(prefix="mends-") as folder:
        models = Path(folder, "models")
        environment = {**foreign_environment(), "PYTHONPATH": absolute(arguments.stock)}
        write_models(Path(sys.executable), models, environment=environment)
        specs = {name: replace(CELLS[name][0], models=str(models)) for name in names}
        with ThreadPoolExecutor(arguments.at_a_time) as pool:
            runs = {
                name: tuple(
                    pool.submit(run, specs[name], CELLS[name][1], path, how, arguments.timeout)
                    for path, how in ((arguments.stock, "off"), (arguments.patched, "auto"))
                )
                for name in names
            }
            ran = {name: (one.result(), other.result()) for name, (one, other) in runs.items()}
    problems = {name: judge(name, ran) for name in names}
    result = {
        "script": "tests/gpu/mends.py",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "problems": problems,
        "cells": {name: {"stock": one, "mended": other} for name, (one, other) in ran.items()},
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, found in problems.items():
        print(f"{name}: {'; '.join(found) or 'as it must be'}")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
