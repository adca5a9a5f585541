"""Batches of drafts to verify, and all that a rejection sampler makes of one."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from tests.support.code_edits import Edit
from tests.support.sampling_worlds import (
    BUILTIN,
    FEATURE,
    REJECTION,
    SAMPLER,
    Modules,
    World,
    world,
)
from tests.support.triton_by_hand import seen

# Few values, so that the largest is mostly there several times.
VALUES = (0.0, -1.0, 1.0, 2.0, float("-inf"), float("inf"), float("nan"))
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SIZES = (1, 2, 6, 8, 24)
METADATA = "vllm.v1.sample.metadata"
GREEDY = "rejection_greedy_sample_kernel"
K_MAX = 3


@dataclasses.dataclass(frozen=True)
class Batch:
    """Requests with their drafts; -1 stands for a draft that is padding."""

    drafts: tuple[tuple[int, ...], ...]
    logits: Any  # [drafts + requests, vocab], each request's bonus token behind its drafts
    index: Any = torch.int32  # type of the indices of rows
    rates: tuple[float, ...] | None = None  # of acceptance, in synthetic mode
    logprobs_mode: str = "raw_logprobs"
    seeded: tuple[int, ...] = ()  # requests with a generator of their own


#: One strategy for all draws: a new one is looked over each time, which took a sixth of a run.
COUNTS = st.lists(st.integers(0, K_MAX), min_size=1, max_size=4)
SIZED = st.sampled_from(SIZES)
INDICES = st.sampled_from([torch.int32, torch.int64])
RATES = st.sampled_from([None, None, (0.9, 0.6, 0.3)])
MODES = st.sampled_from(["raw_logprobs", "processed_logits"])
SEEDED: st.SearchStrategy[tuple[int, ...]] = st.sampled_from([(), (0,)])
GUESSED = st.sampled_from((False, False, True))
TOKENS = {size: st.integers(-1, size - 1) for size in SIZES}


@functools.cache
def logits_of(rows: int, size: int) -> st.SearchStrategy[Any]:
    """[rows, size], of `VALUES`; bytes are one draw in the place of hundreds."""
    number = rows * size
    return st.binary(min_size=number, max_size=number).map(
        lambda drawn: torch.tensor([VALUES[byte % len(VALUES)] for byte in drawn]).view(rows, size)
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    counts = draw(COUNTS)
    size, rows = draw(SIZED), sum(counts) + len(counts)
    logits = draw(logits_of(rows, size)).to(draw(TYPES))
    if draw(st.booleans()):  # of a vocabulary that is padded
        logits = torch.nn.functional.pad(logits, (0, 3), value=9.0)[:, :size]
    best = iter(logits.argmax(dim=-1).tolist())
    drafts = []
    for count in counts:
        right = [next(best) for _ in range(count + 1)][:count]
        # Two of three drafts are what upstream accepts.
        guesses = [draw(GUESSED) and draw(TOKENS[size]) for _ in right]
        drafts.append(tuple(t if g is False else g for t, g in zip(right, guesses, strict=True)))
    return Batch(
        drafts=tuple(drafts),
        logits=logits,
        index=draw(INDICES),
        rates=draw(RATES),
        logprobs_mode=draw(MODES),
        seeded=draw(SEEDED),
    )


@dataclasses.dataclass
class Case:
    """A batch as one world has it."""

    world: World
    sampler: Any
    metadata: Any
    asked: Any  # the sampling metadata
    logits: Any

    @property
    def feature(self) -> Any:
        return self.world.module(FEATURE)


def make(release: str, batch: Batch, *, patched: bool, bug: Edit | None = None) -> Case:
    """The batch, plain, in a release without or with the feature; bug: an edit of it."""
    here = world(release, patched, bug)
    sampler = here.module(SAMPLER).Sampler(batch.logprobs_mode)
    spec = SimpleNamespace(rejection_sample_method="strict")
    if batch.rates is not None:
        spec.rejection_sample_method = "synthetic"
        spec.synthetic_acceptance_rates = list(batch.rates)
    return Case(
        here,
        here.module(REJECTION).RejectionSampler(sampler, spec),
        to_verify(here, batch),
        plain(here, batch),
        batch.logits.clone() if batch.logits.is_contiguous() else batch.logits,
    )


def to_verify(here: Modules, batch: Batch) -> Any:
    """SpecDecodeMetadata as the model runner makes it."""
    counts = [len(drafts) for drafts in batch.drafts]
    drafted = torch.tensor(counts).cumsum(0, dtype=torch.int32)
    sampled = torch.tensor([count + 1 for count in counts]).cumsum(0, dtype=torch.int32)
    bonus = (sampled - 1).to(batch.index)
    rows = torch.arange(int(sampled[-1]), dtype=batch.index)
    flat = [token for drafts in batch.drafts for token in drafts]
    return here.module("vllm.v1.spec_decode.metadata").SpecDecodeMetadata(
        draft_token_ids=torch.tensor(flat, dtype=torch.int32),
        num_draft_tokens=counts,
        cu_num_draft_tokens=drafted,
        cu_num_sampled_tokens=sampled,
        target_logits_indices=rows[~torch.isin(rows, bonus)],
        bonus_logits_indices=bonus,
        logits_indices=rows,
    )


def plain(here: Modules, batch: Batch) -> Any:
    """SamplingMetadata of greedy requests that ask for nothing."""
    requests = len(batch.drafts)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=requests))
    idle = here.module(BUILTIN).MinTokensLogitsProcessor(config, "cpu", False)
    processors = here.module("vllm.v1.sample.logits_processor.state").LogitsProcessors([idle])
    return here.make(
        METADATA,
        "SamplingMetadata",
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={i: torch.Generator().manual_seed(i) for i in batch.seeded},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(requests),
        presence_penalties=torch.zeros(requests),
        repetition_penalties=torch.ones(requests),
        output_token_ids=[[] for _ in range(requests)],
        spec_token_ids=[list(drafts) for drafts in batch.drafts],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=processors,
        logprob_token_ids=None,
        thinking_budget_state_holder=None,
    )


def outcome(case: Case) -> dict[str, Any]:
    """What `forward` returns, and all that it does on the way that anybody can see.

    With it: what `rejection_sample` learns of the target logits, the launches of the kernel for
    greedy requests with all arguments (the other kernels are given unwritten memory),
    what becomes of the logits, and the state of the random numbers behind it.
    """
    module, learnt = case.world.module(REJECTION), []
    inner = module.rejection_sample

    def rejection_sample(*given: Any, **named: Any) -> Any:
        target = given[5]
        known = (tuple(target.shape), target.ndim, target.device, target.argmax(dim=-1))
        learnt.append(seen((*known, given[6], named["synthetic_mode"])))
        return inner(*given, **named)

    # torch.manual_seed looks for a GPU, too, and keeps the stack of each call for one to come.
    torch.default_generator.manual_seed(5)
    case.world.launches.clear()
    module.rejection_sample = rejection_sample
    try:
        output = case.sampler(case.metadata, None, case.logits, case.asked)
    finally:
        module.rejection_sample = inner
    return {
        "kind": type(output).__name__,
        "tokens": seen(output.sampled_token_ids),
        "logprobs": seen(output.logprobs_tensors),
        "learnt": learnt,
        "launches": [one for one in case.world.launches if one[0] == GREEDY],
        "logits": seen(case.logits),
        "random": torch.get_rng_state().numpy().tobytes(),
    }
