"""Time what each mend adds to a step that does not need it, on a CPU.

    ENGINE/bin/python bench/mend_costs.py [--out result.json]

Runs where vLLM can be imported.  The function that a mend's hunk calls in each step is called with
what a batch of requests has, in turns with an empty function.  The figures are the differences of
the thread's time, median and largest of all pairs, in microseconds a step, and the median's share
of a step that a GPU took: 64 decodes of 1B on a stock vLLM.  No model runs, no GPU is used here.
`eager-draft` is asked once, at the start; `draft-weights` and `dbo` have no hunk in a step that
does not need them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PATCHES = Path(__file__).resolve().parents[1] / "patches"
#: Whose steps a mend's share is of.
STEPS = Path(__file__).with_name("results") / "h200-load-profile-0.33.0-2026-11-26.json"
REQUESTS, DRAFTS, VOCABULARY, LENGTH = 64, 3, 64, 8192
PAIRS, CALLS = 200, 200


def put_beside_vllm() -> None:
    """Let the mends' modules be imported as parts of vLLM."""
    import vllm.v1
    import vllm.v1.sample
    import vllm.v1.structured_output
    import vllm.v1.worker

    for name in (*BUILDERS, "shared"):
        files = PATCHES / name / "files/vllm/v1"
        for package, folder in (
            (vllm.v1, files),
            (vllm.v1.sample, files / "sample"),
            (vllm.v1.structured_output, files / "structured_output"),
            (vllm.v1.worker, files / "worker"),
        ):
            package.__path__.append(str(folder))


def context_limit() -> Callable[[], Any]:
    """A step of requests that are far from the end of their context."""
    import numpy as np
    from vllm.v1.worker.context_limit import align_counts

    batch = SimpleNamespace(num_tokens_no_spec=np.full(REQUESTS, LENGTH // 2, np.int32))
    runner = SimpleNamespace(input_batch=batch, max_model_len=LENGTH, num_spec_tokens=DRAFTS)
    return lambda: align_counts(runner, None)


def prompt_logprobs() -> Callable[[], Any]:
    """A step in which nobody asks for log probabilities of a prompt."""
    from vllm.v1.worker.prompt_states import keep_states

    runner = SimpleNamespace(num_prompt_logprobs={}, speculative_config=object())
    return lambda: keep_states(runner, None)


def draft_sampling() -> Callable[[], Any]:
    """A step of requests without min_p and logit_bias."""
    import torch
    from vllm.v1.sample.draft_sampling import apply_bias, apply_min_p
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import (
        LogitBiasLogitsProcessor,
        MinPLogitsProcessor,
        MinTokensLogitsProcessor,
    )

    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS))
    kinds = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    device = torch.device("cpu")
    processors = LogitsProcessors(kind(config, device, False) for kind in kinds)
    asked = SimpleNamespace(logitsprocs=processors)
    logits = torch.zeros(REQUESTS * DRAFTS, VOCABULARY)
    metadata = SimpleNamespace(num_draft_tokens=[DRAFTS] * REQUESTS)

    def step() -> None:
        apply_bias(logits, asked, metadata)
        apply_min_p(logits, logits, asked)  # the counts of drafts are not looked at

    return step


def draft_gate() -> Callable[[], Any]:
    """A step whose requests all fit into the drafter's context."""
    from vllm.v1.worker.draft_gate import DraftGate

    drafter = type("EagleProposer", (), {"method": "eagle3", "needs_extra_input_slots": False})()
    runner = SimpleNamespace(
        drafter=drafter,
        speculative_config=SimpleNamespace(disable_padded_drafter_batch=False),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        input_batch=SimpleNamespace(num_reqs=REQUESTS),
        num_spec_tokens=DRAFTS,
        effective_drafter_max_model_len=LENGTH,
    )
    gate = DraftGate(runner)
    metadata = SimpleNamespace(max_seq_len=LENGTH // 2)

    def step() -> None:
        gate.close(metadata)
        gate.positions(metadata, metadata)
        gate.drafts(metadata)

    return step


def min_tokens() -> Callable[[], Any]:
    """A step of requests without min_tokens."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
    from vllm.v1.worker.min_tokens import count_tokens

    config: Any = None
    processors = LogitsProcessors([MinTokensLogitsProcessor(config, torch.device("cpu"), False)])
    batch = SimpleNamespace(logitsprocs=processors)
    runner = SimpleNamespace(speculative_config=object(), input_batch=batch)
    return lambda: count_tokens(runner, None)


def reasoning_end() -> Callable[[], Any]:
    """What the scheduler does with the tokens of requests without a grammar."""
    from vllm.v1.structured_output.reasoning_end import tokens_of_answer

    request = SimpleNamespace(structured_output_request=None)
    manager = SimpleNamespace(
        _tokens_of_answer=tokens_of_answer, _get_reasoner=lambda _: None, reasoner=None
    )
    told = [7] * (DRAFTS + 1)

    def step() -> None:
        for _ in range(REQUESTS):
            step_token_ids = told
            tokens = manager._tokens_of_answer(manager, request, told)
            assert tokens is step_token_ids

    return step


def eager_draft() -> Callable[[], Any]:
    """The start of an engine whose draft may have graphs; no step asks."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.eager_draft import mode_of_draft

    config = SimpleNamespace(enforce_eager=False)
    return lambda: mode_of_draft(config, CUDAGraphMode.FULL)


#: By mend, what makes the call of a step.
BUILDERS: dict[str, Callable[[], Callable[[], Any]]] = {
    "context-limit": context_limit,
    "draft-gate": draft_gate,
    "draft-sampling": draft_sampling,
    "eager-draft": eager_draft,
    "min-tokens": min_tokens,
    "prompt-logprobs": prompt_logprobs,
    "reasoning-end": reasoning_end,
}
#: Those that no step calls.
ONCE = ("eager-draft",)


def thread_time(call: Callable[[], Any]) -> float:
    """Microseconds of this thread that a call takes."""
    begin = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begin) / CALLS * 1e6


def cost(call: Callable[[], Any]) -> dict[str, float]:
    """What a call costs more than an empty function, in microseconds."""
    differences = sorted(thread_time(call) - thread_time(lambda: None) for _ in range(PAIRS))
    return {
        "median_us": round(statistics.median(differences), 2),
        "largest_us": round(differences[-1], 2),
    }


def shortest_step() -> float:
    """The shorter one of the medians of two rounds of 64 decodes, in microseconds."""
    rounds = json.loads(STEPS.read_text(encoding="utf-8"))["rounds"]
    return 1e3 * min(float(each["steps"]["decodes"]["median_ms"]) for each in rounds)


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    put_beside_vllm()
    import vllm

    step = shortest_step()
    added = {name: cost(builder()) for name, builder in BUILDERS.items()}
    shares = {
        name: round(100 * each["median_us"] / step, 3)
        for name, each in added.items()
        if name not in ONCE
    }
    result = {
        "script": "bench/mend_costs.py",
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "requests": REQUESTS,
        "drafts": DRAFTS,
        "pairs": PAIRS,
        "calls": CALLS,
        "added": added,
        "step": {"us": step, "of": STEPS.name},
        "percent_of_a_step": {**shares, "all": round(sum(shares.values()), 3)},
        "in_no_step": [*ONCE, "dbo", "draft-weights"],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
