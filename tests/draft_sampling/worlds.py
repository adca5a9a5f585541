"""A release's own samplers, stock and mended, on batches with logit_bias and min_p beside drafts.

Needs PyTorch.
"""

from __future__ import annotations

import ast
import functools
import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.targets.resolution import resolve
from tests.support.code_edits import Edit, edited
from tests.support.sampling_worlds import BUILTIN, REJECTION, SAMPLER, World

FEATURE = "vllm.v1.sample.draft_sampling"
PATH = f"{FEATURE.replace('.', '/')}.py"
VOCABULARY = 8
STATE = "vllm.v1.sample.logits_processor.state"


@dataclass(frozen=True)
class Asked:
    """A request: how many drafts it has, and what changes its logits.

    :ivar banned: tokens that are not allowed.
    :ivar repetition: its penalty on the tokens of its prompt, which are 0 and 1.
    """

    drafts: int
    temperature: float = 1.0
    min_p: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    repetition: float = 1.0


def penalised(
    logits: Any, prompts: Any, presence: Any, frequency: Any, repetition: Any, *_: Any
) -> Any:
    """vLLM's penalty on what is repeated, of the prompt's tokens alone."""
    own = logits.gather(1, prompts)
    by = repetition.unsqueeze(1)
    return logits.scatter_(1, prompts, torch.where(own > 0, own / by, own * by))


class AnyToken:
    """Samples by chance, as vLLM's own does without top_k and top_p."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, logits: Any, *_: Any) -> tuple[Any, None]:
        return by_chance(logits), None


def by_chance(logits: Any) -> Any:
    """A token of each row."""
    return logits.softmax(dim=-1).multinomial(1).squeeze(1)


class Sampling(World):
    """A release, stock or mended."""

    def __init__(self, read: Any, release: str, mended: bool) -> None:
        super().__init__(read)
        self.release, self.mended = release, mended


@functools.cache
def world(release: str, mended: bool, bug: Edit | None = None) -> Sampling:
    """A release without or with the feature; bug: an edit of one of the feature's files."""
    target = resolve(release)
    features = [each for each in load([shipped_folder()]) if each.id == "draft-sampling"]
    changes = plan(features, target, target.release).changes
    after = {each.path: each.after for each in changes} if mended else {}

    def read(path: str) -> bytes | None:
        text = after.get(path) or target.read(path)
        if bug is not None and path == bug[0]:
            assert text is not None
            return edited(text.decode(), [bug[1:]], path).encode()
        return text

    here = Sampling(read, release, mended)
    here.module("vllm.platforms").current_platform = SimpleNamespace(
        is_cpu=lambda: False, is_out_of_tree=lambda: False, is_tpu=lambda: False
    )
    here.module("vllm.v1.sample.ops.penalties").apply_all_penalties = penalised
    here.module("vllm.v1.sample.ops.topk_topp_sampler").TopKTopPSampler = AnyToken
    return here


PROCESSORS = "vllm.v1.sample.logits_processor"


def processors(here: Sampling, size: int, drafting: bool = True) -> Any:
    """LogitsProcessors of a batch of at most so many requests, as the runner builds them.

    What stock builds beside drafts is `build_logitsprocs` of the release.
    """
    state, builtin = here.module(STATE), here.module(BUILTIN)
    kinds = {n: getattr(builtin, n) for n in vars(builtin) if n.endswith("LogitsProcessor")}
    upstream = here.module(PROCESSORS)
    vars(upstream).update(kinds, LogitsProcessors=state.LogitsProcessors)
    here.module("vllm.v1.sample").logits_processor = upstream
    upstream.build_logitsprocs = stock_processors(here.release, vars(upstream))
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=size),
        speculative_config=SimpleNamespace() if drafting else None,
    )
    build = here.module(FEATURE).build_logitsprocs if here.mended else upstream.build_logitsprocs
    return build(config, "cpu", False, False)


def stock_processors(release: str, names: dict[str, Any]) -> Any:
    """A release's own `build_logitsprocs`, with these names of its module."""
    text = resolve(release).read(f"{PROCESSORS.replace('.', '/')}/__init__.py")
    assert text is not None
    (node,) = (
        each
        for each in ast.parse(text).body
        if isinstance(each, ast.FunctionDef) and each.name == "build_logitsprocs"
    )
    node.returns = None
    for argument in node.args.args:
        argument.annotation = None
    names = {
        **names,
        "itertools": itertools,
        "logger": mock.Mock(),
        "BUILTIN_LOGITS_PROCESSORS": [
            names[f"{kind}LogitsProcessor"] for kind in ("MinTokens", "LogitBias", "MinP")
        ],
        "_load_custom_logitsprocs": list,
    }
    exec(compile(ast.Module([node], []), release, "exec"), names)
    return names["build_logitsprocs"]


def batch(here: Sampling, requests: list[Asked], drafting: bool = True) -> Any:
    """SamplingMetadata of these requests, beside drafts or without."""
    size = len(requests)
    built = processors(here, size, drafting)
    added: list[tuple[int, Any, list[int], list[int]]] = [
        (
            row,
            SimpleNamespace(min_p=each.min_p, logit_bias=dict(each.bias), min_tokens=0),
            [0, 1],
            [],
        )
        for row, each in enumerate(requests)
    ]
    update = SimpleNamespace(batch_size=size, removed=[], moved=[], added=added)
    for processor in built.all:
        processor.update_state(update)
    mask = torch.zeros(size, VOCABULARY, dtype=torch.bool)
    for row, each in enumerate(requests):
        mask[row, list(each.banned)] = True
    temperature = torch.tensor([each.temperature for each in requests])
    return here.make(
        "vllm.v1.sample.metadata",
        "SamplingMetadata",
        temperature=temperature,
        all_greedy=not bool(temperature.any()),
        all_random=bool(temperature.all()),
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=all(each.repetition == 1.0 for each in requests),
        prompt_token_ids=torch.tensor([[0, 1]] * size),
        frequency_penalties=torch.zeros(size),
        presence_penalties=torch.zeros(size),
        repetition_penalties=torch.tensor([each.repetition for each in requests]),
        output_token_ids=[[] for _ in requests],
        spec_token_ids=[[2] * each.drafts for each in requests],
        allowed_token_ids_mask=mask if any(each.banned for each in requests) else None,
        bad_words_token_ids={},
        logitsprocs=built,
        logprob_token_ids=None,
        thinking_budget_state_holder=None,
    )


def beside_drafts(here: Sampling, requests: list[Asked], logits: Any) -> Any:
    """The logits at each draft that rejection sampling is handed, [drafts, vocabulary]."""
    asked, rejection = batch(here, requests), here.module(REJECTION)
    sampler = rejection.RejectionSampler(here.module(SAMPLER).Sampler())
    counts = [each.drafts for each in requests]
    cumulated = torch.tensor(counts).cumsum(0, dtype=torch.int32)
    metadata = SimpleNamespace(num_draft_tokens=counts, cu_num_draft_tokens=cumulated)
    logits = sampler.apply_logits_processors(logits.clone(), asked, metadata)
    return rejection.apply_sampling_constraints(logits, cumulated, asked)


def without_drafts(here: Sampling, requests: list[Asked], logits: Any) -> Any:
    """The same as the sampler handles it, a row of each request at a time."""
    sampler = here.module(SAMPLER).Sampler()
    asked = batch(here, requests, drafting=False)
    first, rows = 0, []
    for row, each in enumerate(requests):
        for draft in range(first, first + each.drafts):
            at = torch.zeros(len(requests), VOCABULARY)
            at[row] = logits[draft]
            at = sampler.apply_logits_processors(at, asked, False)
            if not asked.all_greedy:
                at = sampler.apply_temperature(at, asked.temperature, asked.all_random)
                for processor in asked.logitsprocs.argmax_invariant:
                    at = processor.apply(at)
            rows.append(at[row])
        first += each.drafts
    return torch.stack(rows)
