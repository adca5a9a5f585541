"""Run one engine spec inside a vLLM environment and print ``RESULT`` and one line of JSON.

``python -m tests.engine.run_engine SPEC.json [--out RESULT.json]``; see
``engine_spec.EngineSpec``.  The exit status says only whether the engine ran; the result says
whether it was right.

- ``ok``: every token and every accepted count agrees with the oracle.
- ``requests``: for each, ``tokens``, ``tokens_ok``, ``steps`` (known, drafted, accepted),
  ``steps_ok`` (each step accepted exactly what it must at that position, whatever the schedule),
  ``prompt_logprobs_ok``, ``prompt_logprobs``, ``finish``; ``*_ok`` is null where there is nothing
  to compare.
- ``counts``: vLLM's own metrics; ``watched``: the same, added up from the steps; ``oracle``: what
  the metrics come to if nothing is preempted or near its length limit; ``counts_ok``: that
  vLLM's equal the watched ones, and ``undisturbed``: that they equal the oracle's.
- ``workers``: what each worker runs, from which files, with their hashes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overlay.proof import engine_compat, oracle, verify_engine
from tests.engine import expected_steps
from tests.engine.engine_facts import (
    base_environment,
    describe_engine,
    inspect_in_forks,
    read_metrics,
    with_draft_attention,
)
from tests.engine.engine_spec import EngineSpec, Request
from tests.engine.tiny_adapters import ADAPTERS, adapter_folder
from tests.engine.tiny_eagle import read_rule

#: How a process that was spawned from this one finds the spec, and so the hooks it must call.
#: Without the overlay's prefix: such variables are part of what ranks compare.
SPEC_VARIABLE = "TEST_ENGINE_SPEC"

Steps = dict[str, list[oracle.OracleStep]]


def call(hook: str, *arguments: Any) -> Any:
    """Call a ``module:function`` by name."""
    module, _, function = hook.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def short_name(hook: str) -> str:
    """The name of a hook without the packages of its module."""
    return hook.rpartition(".")[2]


def prepare(spec: EngineSpec) -> None:
    """Set up what comes before vLLM: environment variables and ``pre`` hooks."""
    for name, value in base_environment(spec.tensor_parallel_size).items():
        os.environ.setdefault(name, value)
    os.environ.update(engine_compat.runner_environment(spec.runner))
    os.environ.update(spec.env)
    for hook in spec.pre:
        call(hook)


def serve(llm: Any, requests: tuple[Request, ...], models: str) -> tuple[dict[str, Any], int]:
    """``verify_engine.serve`` of requests that may have adapters.

    :param models: the folder with the models and adapters.
    """

    def options_of(request: Request) -> dict[str, Any]:
        if request.adapter is None:
            return {}
        from vllm.lora.request import LoRARequest

        number = ADAPTERS.index(request.adapter) + 1
        folder = adapter_folder(models, request.adapter)
        return {"lora_request": LoRARequest(request.adapter, number, folder)}

    return verify_engine.serve(llm, requests, options_of)


def judge(
    request: Request, output: Any, steps: list[oracle.OracleStep], rule: oracle.Rule
) -> dict[str, Any]:
    """One request's part of the result.

    :param rule: without any adapter.
    """
    rule = expected_steps.adapted(rule, request.adapter)
    tokens = list(output.outputs[0].token_ids)
    prompt = list(request.prompt)
    tokens_ok = steps_ok = None
    if request.temperature <= 1.0:  # above, the oracle does not hold
        tokens_ok = tokens == oracle.continuation(rule, prompt, len(tokens))
        # A step may accept past the last token that was asked for, where the rule still holds.
        text = prompt + oracle.continuation(rule, prompt, request.tokens)
        steps_ok = all(
            step.accepted == oracle.accepted(rule, text[: step.known], step.drafted)
            for step in steps
        )
    return {
        "tokens": tokens,
        "tokens_ok": tokens_ok,
        "steps": [[step.known, step.drafted, step.accepted] for step in steps],
        "steps_ok": steps_ok,
        "prompt_logprobs_ok": _prompt_logprobs_ok(request, output, rule),
        "prompt_logprobs": _prompt_logprobs(request, output),
        "finish": output.outputs[0].finish_reason,
    }


def _prompt_logprobs_ok(request: Request, output: Any, rule: oracle.Rule) -> bool | None:
    if request.prompt_logprobs is None:
        return None
    likeliest = [
        next((token for token, logprob in entries.items() if logprob.rank == 1), None)
        for entries in output.prompt_logprobs[2:]
    ]
    return likeliest == [rule.successor[token] for token in request.prompt[:-2]]


def _prompt_logprobs(request: Request, output: Any) -> list[float]:
    """The logprobs of each prompt token and of the likeliest in its place, in this order."""
    if request.prompt_logprobs is None:
        return []
    places = zip(output.prompt_logprobs[1:], request.prompt[1:], strict=True)
    return [
        round(float(value), 6)
        for entries, token in places
        for value in (
            entries[token].logprob,
            *(entry.logprob for entry in entries.values() if entry.rank == 1),
        )
    ]


def run(spec: EngineSpec) -> dict[str, Any]:
    """Start the engine, serve the requests and compare with the oracle."""
    began = time.monotonic()
    import torch
    import vllm

    inspect_in_forks()
    imported = time.monotonic()
    steps: Steps = defaultdict(list)
    engine_compat.watch_drafts(
        lambda request_id, *step: steps[engine_compat.external_id(request_id)].append(
            oracle.OracleStep(*step)
        )
    )
    llm = vllm.LLM(**with_draft_attention(spec.llm_arguments()))
    loaded = time.monotonic()
    hooks = {short_name(hook): call(hook, llm) for hook in spec.post_load}
    outputs, engine_steps = serve(llm, spec.requests, spec.models)
    served = time.monotonic()
    hooks |= {short_name(hook): call(hook, llm) for hook in spec.finish}
    rule = read_rule(Path(spec.models))
    requests = [
        judge(request, outputs[str(i)], steps[str(i)], rule)
        for i, request in enumerate(spec.requests)
    ]
    result = {
        "vllm": vllm.__version__,
        "vllm_file": vllm.__file__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "engine_steps": engine_steps,
        "seconds": {
            "import": round(imported - began, 2),
            "load": round(loaded - imported, 2),
            "serve": round(served - loaded, 2),
        },
        "requests": requests,
        "workers": describe_engine(llm),
        "hooks": hooks,
        **_compare_counts(spec, rule, steps, read_metrics(llm)),
    }
    verdicts = [request[name] for request in requests for name in request if name.endswith("_ok")]
    result["ok"] = all(verdict is not False for verdict in verdicts) and result["counts_ok"]
    # Not left to the interpreter's end, where vLLM would end its workers after Ray has gone.
    llm.llm_engine.engine_core.shutdown()
    return result


def _compare_counts(
    spec: EngineSpec, rule: oracle.Rule, steps: Steps, metrics: dict[str, Any]
) -> dict[str, Any]:
    preemptions = metrics.pop("preemptions", 0)
    if spec.draft is None:
        nothing = dict.fromkeys(("counts", "watched", "oracle", "undisturbed"))
        return {**nothing, "counts_ok": not metrics, "preemptions": preemptions}
    watched = oracle.count_steps((step for each in steps.values() for step in each), spec.k)
    exact = oracle.count_steps(
        (
            step
            for request in spec.requests
            for step in expected_steps.undisturbed(
                expected_steps.adapted(rule, request.adapter),
                request.prompt,
                request.tokens,
                spec.k,
            )
        ),
        spec.k,
    )
    counts = oracle.Counts(**{**metrics, "per_position": tuple(metrics["per_position"])})
    return {
        "counts": asdict(counts),
        "watched": asdict(watched),
        "oracle": asdict(exact),
        "counts_ok": counts == watched,
        "undisturbed": counts == exact,
        "preemptions": preemptions,
    }


def main() -> None:
    """Read the spec, run it, print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", type=Path, help="write the result there too")
    arguments = parser.parse_args()
    os.environ[SPEC_VARIABLE] = str(arguments.spec.resolve())
    spec = EngineSpec.from_json(arguments.spec.read_text(encoding="utf-8"))
    prepare(spec)
    result = json.dumps(run(spec))
    if arguments.out:
        arguments.out.write_text(result, encoding="utf-8")
    print("RESULT " + result, flush=True)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # A worker that was spawned: it imports this file again, and must be prepared as we are.
    prepare(EngineSpec.from_json(Path(os.environ[SPEC_VARIABLE]).read_text(encoding="utf-8")))
