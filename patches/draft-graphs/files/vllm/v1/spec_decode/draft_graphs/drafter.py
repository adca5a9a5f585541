# SPDX-License-Identifier: Apache-2.0
"""The kinds of drafters that draft graphs serve, told apart by the proposer's class.

A drafter's kind says what its first pass over a uniform batch, in which each request has K+1
tokens, consists of:

| kind | drafters | tokens a request | rows sampled | the target's hidden states |
|---|---|---|---|---|
| shifted | EAGLE, EAGLE3, MTP | K+1 | 1 | go in |
| extended | draft_model | K+2 | 1 | not used |
| extended | PARD | 2K+1 | K | not used |
| extended | P-EAGLE | 2K | K | go in |
| context | dflash | K+1 queries, K+1 of context | K | become keys and values |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .keys import Role, tokens_per_request

#: Where the first pass gets its inputs from: `shifted`, the target's tokens moved by one, which
#: staging does; `extended` and `context`, the proposer's own `set_inputs_first_pass`, which the
#: graph contains.
Inputs = Literal["shifted", "extended", "context"]

EAGLE_PROPOSER = "vllm.v1.spec_decode.eagle.EagleProposer"
#: The proposer classes that get draft graphs, by module and name; a subclass is another class.
DRAFTERS = frozenset(
    {
        EAGLE_PROPOSER,
        "vllm.v1.spec_decode.dflash.DFlashProposer",
        "vllm.v1.spec_decode.draft_model.DraftModelProposer",
    }
)

#: What the user can do about a drafter that gets no graphs.
OTHER_METHODS = "methods eagle, eagle3, mtp, draft_model and dflash get graphs"
#: The same where model runner V2 can do it; a release follows.
BY_V2 = "set VLLM_USE_V2_MODEL_RUNNER=1: model runner V2 has graphs for it from"
#: Proposer classes that draft otherwise: what is different, and what the user can do.
OTHER_DRAFTERS: Mapping[str, str] = {
    "vllm.v1.spec_decode.gemma4.Gemma4Proposer": (
        f"its layers read keys and values of several groups of the target's ({BY_V2} 0.23 on)"
    ),
    "vllm.v1.spec_decode.step3p5.Step3p5MTPProposer": (
        f"each of its passes runs another MTP layer ({BY_V2} 0.27 on)"
    ),
}

#: Methods that a class overrides although the graphs build on them: they call the class's own.
_OWN_METHODS = {
    "DFlashProposer": frozenset(
        {
            "set_inputs_first_pass",
            "build_model_inputs_first_pass",
            "build_per_group_and_layer_attn_metadata",
        }
    )
}


@dataclass(frozen=True)
class Drafter:
    """What draft graphs need to know of a kind of drafter.

    inputs: where the first pass gets its inputs from.
    extra: tokens that the first pass adds to the K+1 of each request.
    one_pass: whether the first pass drafts all K tokens.
    takes_hidden_states: whether the target's hidden states go into the first pass.
    hands_over: whether each pass hands hidden states to the next one.
    combines: whether `combine_hidden_states` reduces the target's hidden states.
    """

    inputs: Inputs = "shifted"
    extra: int = 0
    one_pass: bool = False
    takes_hidden_states: bool = True
    hands_over: bool = True
    combines: bool = False

    @property
    def first_role(self) -> Role:
        """The role of the first pass."""
        return "whole" if self.one_pass else "first"

    def first_tokens(self, k: int) -> int:
        """Tokens of each request in the first pass, for K drafts."""
        return tokens_per_request(self.first_role, k, self.extra)


def drafter_of(proposer: Any) -> Drafter | None:
    """The kind of a proposer; None where its class is not one that the graphs were made for.

    EagleProposer (eagle, eagle3 and every plain MTP method), DraftModelProposer and
    DFlashProposer themselves; a subclass of theirs may do anything.
    """
    from vllm.v1.spec_decode.dflash import DFlashProposer
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.eagle import EagleProposer

    kind = type(proposer)
    if kind is DFlashProposer:
        return Drafter(inputs="context", one_pass=True, hands_over=False, combines=True)
    if kind is not EagleProposer and kind is not DraftModelProposer:
        return None
    takes_hidden_states = bool(proposer.pass_hidden_states_to_model)
    combines = proposer.method == "eagle3"
    # P-EAGLE with K=1 adds nothing: upstream takes the path of EAGLE.
    if not proposer.needs_extra_input_slots:
        return Drafter(combines=combines)
    return Drafter(
        inputs="extended",
        extra=int(proposer.net_num_new_slots_per_request),
        one_pass=bool(proposer.parallel_drafting),
        takes_hidden_states=takes_hidden_states,
        hands_over=takes_hidden_states,
        combines=combines,
    )


def own_methods(drafter: type) -> frozenset[str]:
    """Names of methods that this class of proposers may have of its own."""
    return _OWN_METHODS.get(drafter.__name__, frozenset())
