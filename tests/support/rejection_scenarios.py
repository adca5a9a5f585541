"""What makes a batch one that upstream's own text has to verify, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.rejection_batches import Batch, Case
from tests.support.sampling_worlds import BUILTIN, REJECTION, SAMPLER

Change = Callable[[Case], None]

VOCAB, BEST, SECOND = 8, (2, 5, 6, 1, 3, 4, 7, 2), 0


def peaked() -> Batch:
    """All drafts of two requests are right, of the third only the second one is."""
    logits = torch.arange(VOCAB) * -0.125 - torch.zeros(len(BEST), 1)
    logits[:, SECOND] = 3.0
    logits[range(len(BEST)), BEST] = 4.0
    return Batch(drafts=((2, 5), (1,), (SECOND, 7)), logits=logits)


def one_is_random(case: Case) -> None:
    case.asked.all_greedy = False
    case.asked.temperature = torch.tensor([0.05, 0.0, 0.0])


def logprobs(case: Case) -> None:
    case.asked.max_num_logprobs = 1


def switched_off(case: Case) -> None:
    case.sampler.verifies_greedily = False


def logprob_token_ids(case: Case) -> None:
    case.asked.logprob_token_ids = {0: [3]}


def penalties(case: Case) -> None:
    case.asked.no_penalties = False
    case.asked.prompt_token_ids = torch.tensor([[2], [1], [4]])


def allowed_tokens(case: Case) -> None:
    case.asked.allowed_token_ids_mask = torch.zeros(3, VOCAB, dtype=torch.bool)
    case.asked.allowed_token_ids_mask[0, 5] = True  # those that are forbidden


def bad_words(case: Case) -> None:
    case.asked.bad_words_token_ids = {1: [[3]]}


def _processor(case: Case, name: str, params: dict[str, Any] | None) -> Any:
    """One of vLLM's processors, with or without a request that it has to do with."""
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=3))
    made = getattr(case.world.module(BUILTIN), name)(config, "cpu", False)
    if params is not None:
        update = case.world.module("vllm.v1.sample.logits_processor.interface").BatchUpdate
        added: list[Any] = [(0, SimpleNamespace(**params), None, [])]
        made.update_state(update(batch_size=3, removed=[], added=added, moved=[]))
    case.asked.logitsprocs.non_argmax_invariant.append(made)
    return made


def a_logit_bias(case: Case) -> None:
    _processor(case, "LogitBiasLogitsProcessor", {"logit_bias": {1: 100.0}})


def min_tokens(case: Case) -> None:
    stop = {"all_stop_token_ids": {5}, "structured_outputs": None}
    _processor(case, "MinTokensLogitsProcessor", {"min_tokens": 9, **stop})


def idle_processors(case: Case) -> None:
    _processor(case, "LogitBiasLogitsProcessor", None)
    _processor(case, "MinTokensLogitsProcessor", None)


def _upside_down(case: Case, parent: str, name: str, module: str) -> None:
    """A processor that is idle as its parent sees it, and turns the logits over."""
    made = _processor(case, parent, None)
    apply = {"apply": lambda self, logits: logits.neg(), "__module__": module}
    made.__class__ = type(name, (type(made),), apply)


def a_plugin(case: Case) -> None:
    turn = {"apply": lambda self, logits: logits.neg(), "__module__": "plugin"}
    case.asked.logitsprocs.non_argmax_invariant.append(type("Plugin", (), turn)())


def a_plugin_named_as_vllms(case: Case) -> None:
    name = "LogitBiasLogitsProcessor"
    _upside_down(case, name, name, "plugin")


def a_plugin_that_is_a_min_tokens(case: Case) -> None:
    _upside_down(case, "MinTokensLogitsProcessor", "Plugin", "plugin")


def an_unknown_processor_of_vllm(case: Case) -> None:
    _upside_down(case, "LogitBiasLogitsProcessor", "AnotherLogitsProcessor", BUILTIN)


class Budget:
    """Of thinking; forces token 0 where a request is tracked."""

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked

    def has_tracked_requests(self) -> bool:
        return self.tracked

    def update_state(self, *_: Any, **__: Any) -> None:
        pass

    def apply_to_logits(self, logits: Any, *_: Any, **__: Any) -> Any:
        return logits.index_fill(1, torch.tensor([0]), 1e9)


def a_thinking_budget(case: Case) -> None:
    case.asked.thinking_budget_state_holder = Budget(tracked=True)


def a_thinking_budget_of_nobody(case: Case) -> None:
    case.asked.thinking_budget_state_holder = Budget(tracked=False)


def fly(case: Case) -> None:
    case.sampler.fly_window_size, case.sampler.fly_entropy_threshold = 1, 0.0


def _subclass(made: Any, name: str, module: str, **methods: Any) -> None:
    made.__class__ = type(name, (type(made),), {"__module__": module, **methods})


def _turned(self: Any, logits: Any, *_: Any) -> Any:
    return logits.neg()


def a_named_rejection_sampler(case: Case) -> None:
    _subclass(case.sampler, "RejectionSampler", "plugin", apply_logits_processors=_turned)


def another_rejection_sampler(case: Case) -> None:
    _subclass(case.sampler, "Other", REJECTION, apply_logits_processors=_turned)


def a_named_sampler(case: Case) -> None:
    _subclass(case.sampler.sampler, "Sampler", "plugin", apply_logits_processors=_turned)


def another_sampler(case: Case) -> None:
    _subclass(case.sampler.sampler, "Other", SAMPLER, apply_logits_processors=_turned)


#: Those that change what upstream returns, and the release from which on they are there.
NOT_PLAIN: dict[Change, str] = {
    one_is_random: "0.20.0",
    logprobs: "0.20.0",
    penalties: "0.20.0",
    allowed_tokens: "0.20.0",
    bad_words: "0.20.0",
    a_logit_bias: "0.20.0",
    min_tokens: "0.20.0",
    a_plugin: "0.20.0",
    a_plugin_named_as_vllms: "0.20.0",
    a_plugin_that_is_a_min_tokens: "0.20.0",
    an_unknown_processor_of_vllm: "0.20.0",
    a_thinking_budget: "0.21.0",
    fly: "0.33.0",
    a_named_rejection_sampler: "0.20.0",
    another_rejection_sampler: "0.20.0",
    a_named_sampler: "0.20.0",
    another_sampler: "0.20.0",
}
#: Those that are left to upstream, too, though it samples the same.
LEFT: tuple[Change, ...] = (switched_off, logprob_token_ids)
PLAIN: dict[Change, str] = {
    lambda case: None: "0.20.0",
    idle_processors: "0.20.0",
    a_thinking_budget_of_nobody: "0.21.0",
}
