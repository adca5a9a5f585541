"""The requests of the GPU cells that are to run every draft graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from overlay.proof import oracle
from overlay.proof.tiny_drafters import voters_rule
from tests.draft_graphs.added_modules import added
from tests.engine import expected_steps
from tests.gpu.every_size import BELOW, DEFAULT_CAPTURED, STEPS, at_every_size, levels
from tests.gpu.gpu_cells import all_cells

pytestmark = pytest.mark.slow  # what it is parametrized by takes seconds

keys: Any = added("keys")
LOOPS = [cell for cell in all_cells("MODELS") if cell.mode == "loop"]
CELLS = {cell.name: cell for cell in LOOPS if cell.every_size == "uniform"}
MIXED = {cell.name: cell for cell in LOOPS if cell.every_size == "mixed"}


@pytest.mark.parametrize("name", CELLS)
def test_every_size_is_live_and_one_more_than_each(name: str) -> None:
    """From the oracle alone: how many requests are still there at each step."""
    spec = CELLS[name].spec
    one_pass = name.startswith(("pard", "peagle", "dflash"))
    rule = voters_rule() if one_pass else oracle.make_rule()
    steps = [
        len(expected_steps.undisturbed(rule, request.prompt, request.tokens, spec.k))
        for request in spec.requests
    ]
    assert len(steps) == spec.max_num_seqs
    live = Counter(sum(end > step for end in steps) for step in range(max(steps)))
    captured = (spec.compilation or {}).get("max_cudagraph_capture_size", DEFAULT_CAPTURED)
    assert live == dict.fromkeys(levels(spec.max_num_seqs, spec.k, captured), STEPS)
    for tokens in range(captured - BELOW, captured + 1):
        plan = keys.plan_keys(
            k=spec.k,
            max_num_seqs=spec.max_num_seqs,
            max_capture_tokens=tokens,
            first=True,
            later=("loop",),
            one_pass=one_pass,
        )
        for role in ("whole",) if one_pass else ("first", "loop"):
            sizes = sorted(key.num_reqs for key in plan if key.role == role)
            wanted = {*sizes, *(size + 1 for size in sizes if size < spec.max_num_seqs)}
            assert wanted <= set(live)


@pytest.mark.parametrize("name", CELLS)
def test_all_begin_in_one_step_and_end_in_time(name: str) -> None:
    spec = CELLS[name].spec
    prompts = [len(request.prompt) for request in spec.requests]
    assert sum(prompts) <= spec.max_num_batched_tokens
    # A batch of all requests with all their drafts is one step, too.
    assert len(prompts) * (spec.k + 1) <= spec.max_num_batched_tokens
    longest = max(
        place + request.tokens for place, request in zip(prompts, spec.requests, strict=True)
    )
    assert longest + 2 * spec.k < spec.max_model_len


@pytest.mark.parametrize("name", MIXED)
def test_every_graph_of_mixed_batches_has_a_batch(name: str) -> None:
    """From the oracle alone: how many requests and tokens there are at each step."""
    spec, rule = MIXED[name].spec, oracle.make_rule()
    batches: dict[int, list[int]] = defaultdict(list)
    for request in spec.requests:
        batches[request.arrival].append(len(request.prompt))
        verified = expected_steps.undisturbed(rule, request.prompt, request.tokens, spec.k)
        for step in range(request.arrival + 1, request.arrival + 1 + len(verified)):
            batches[step].append(spec.k + 1)
        assert len(request.prompt) + request.tokens + 2 * spec.k < spec.max_model_len
    plan = keys.plan_keys(
        k=spec.k,
        max_num_seqs=spec.max_num_seqs,
        max_capture_tokens=DEFAULT_CAPTURED,
        first=True,
        later=("loop",),
        max_mixed_tokens=keys.MIXED_TOKENS[-1],
    )
    captured = keys.DraftKeys()
    for key in plan:
        captured.add(key)
    mixed = [each for each in batches.values() if set(each) != {spec.k + 1}]
    taken = {captured.dispatch("mixed", sum(each), len(each), spec.k) for each in mixed}
    assert taken == {None, *(key for key in plan if key.role == "mixed")}
    assert max(sum(each) for each in mixed) <= spec.max_num_batched_tokens
    assert max(len(each) for each in mixed) <= spec.max_num_seqs


def test_without_a_larger_graph_there_is_nothing_above() -> None:
    assert levels(8, 5) == [8, 5, 4, 3, 2, 1]
    assert len(at_every_size(8, 5)) == 8
