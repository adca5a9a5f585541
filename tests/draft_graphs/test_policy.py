"""What a configuration gets: every refusal has its reason, and nothing else refuses.

Longer than other modules: a table has what each fact refuses, the tests beside it what the other
facts leave to capture, and `test_every_fact_is_tested` holds that each fact is in one of the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.draft_graphs.added_modules import added
from tests.draft_graphs.policy_table import (
    CASES,
    DRAFTERS,
    FLASH_ATTN,
    PAGE,
    backend,
    names_a_remedy,
    render,
)

policy: Any = added("policy")
messages: Any = added("messages")
keys: Any = added("keys")
attention: Any = added("attention")
capabilities: Any = added("capabilities")
coupling: Any = added("coupling")
sizes: Any = added("sizes")
drafters: Any = added("drafter")
Coupling, Manner = coupling.Coupling, coupling.Manner

EARLY = policy.Facts(num_speculative_tokens=3)
LATE = replace(
    EARLY,
    cudagraph_mode="FULL_AND_PIECEWISE",
    max_num_seqs=128,
    max_capture_tokens=512,
    attention=(FLASH_ATTN,),
)

# Fact -> (a value that must refuse, a word of the reason).
REFUSED: dict[str, tuple[Any, str]] = {
    "num_speculative_tokens": (0, "num_speculative_tokens"),
    "no_graphs": ("the platform (cpu) has no graphs", "platform"),
    "enforce_eager": (True, "enforce_eager"),
    "proposer_class": ("vllm.v1.spec_decode.gemma4.Gemma4Proposer", "Gemma4Proposer"),
    "overridden_methods": (("propose",), "propose"),
    "constant_draft_positions": (True, "positions"),
    "shared_mtp_indices": (True, "indices"),
    "padded_batch_disabled": (True, "disable_padded_drafter_batch"),
    "xdrope": (True, "XD-RoPE"),
    "adapted_layers": (("model.norm",), "model.norm"),
    "coupling": (
        Coupling(Manner.REFUSED, "2 data-parallel ranks change (remove enable_elastic_ep)"),
        "data-parallel",
    ),
    "decode_context_parallel_size": (2, "decode context parallelism"),
    "prefill_context_parallel_size": (2, "prefill context parallelism"),
    "sequence_parallel": (True, "sequence parallelism"),
    "weight_offloader": ("PrefetchOffloader", "PrefetchOffloader"),
    "computes_kv_scales": (True, "KV scales"),
    "fast_prefill": (True, "kv_sharing_fast_prefill"),
    "rswa": (True, "R-SWA"),
    "cudagraph_mode": ("NONE", "cudagraph mode is NONE"),
    "max_capture_tokens": (0, "capture sizes"),
    "attention": ((attention.Attention("OF_SOMEBODY", "Builder"),), "OF_SOMEBODY"),
    "platform": (capabilities.UNKNOWN, "the platform is not known"),
    "unseen_group": (1, "group 1"),
    "per_layer_connectors": (("ExampleConnector",), "ExampleConnector"),
}
# Facts that leave something to capture; the tests below say what.
GRANTED = {
    "drafter",
    "dynamic_k",
    "probabilistic",
    "multimodal",
    "no_first",
    "max_num_seqs",
    "low_latency_exchange",
    "tensor_parallel_size",
    "untried",
    "max_num_tokens",
}


def test_every_fact_is_tested() -> None:
    assert {field.name for field in fields(policy.Facts)} == REFUSED.keys() | GRANTED


@pytest.mark.parametrize("mode", ["step", "loop", "auto"])
@pytest.mark.parametrize("facts", [EARLY, LATE], ids=["early", "late"])
def test_a_plain_configuration_gets_graphs(mode: str, facts: Any) -> None:
    decision = policy.decide(mode, facts)
    assert decision.any
    assert decision.first
    assert decision.later == (("step",) if mode == "step" else ("loop",))
    assert decision.refusals == ()
    assert decision.notes == ()


@pytest.mark.parametrize("fact", sorted(REFUSED))
@pytest.mark.parametrize("mode", ["step", "loop", "auto"])
def test_one_adverse_fact_refuses_everything_and_says_so(fact: str, mode: str) -> None:
    value, word = REFUSED[fact]
    decision = policy.decide(mode, replace(LATE, **{fact: value}))
    assert not decision.any
    assert len(decision.refusals) == 1
    assert word in decision.refusals[0]


@pytest.mark.parametrize("fact", sorted(REFUSED))
def test_every_refusal_names_what_the_user_can_change(fact: str) -> None:
    (reason,) = policy.decide("auto", replace(LATE, **{fact: REFUSED[fact][0]})).refusals
    assert names_a_remedy(reason), reason


@pytest.mark.parametrize("untried", [False, True])
@pytest.mark.parametrize("platform", [*capabilities.PLATFORMS, capabilities.UNKNOWN])
def test_so_do_those_of_every_attention_backend_on_every_platform(
    platform: Any, untried: bool
) -> None:
    """With a drafter of each kind, in one group with each backend that the platform has."""
    rows = [row for row in capabilities.BACKENDS if platform.name in row.platforms]
    groups = [attention.Attention(row.names[0], "Builder", row, derived=True) for row in rows]
    groups += [attention.Attention("A", "Builder"), attention.Attention("A", "B", derived=True)]
    refused = 0
    for group in groups:
        for drafter in (LATE.drafter, *DRAFTERS.values()):
            for coupled in (LATE.coupling, TOGETHER.coupling):
                facts = replace(
                    LATE,
                    platform=platform,
                    untried=untried,
                    attention=(group,),
                    drafter=drafter,
                    coupling=coupled,
                )
                for reason in policy.decide("auto", facts).refusals:
                    assert names_a_remedy(reason), reason
                    refused += 1
    assert refused


@pytest.mark.parametrize("name", sorted(policy.OTHER_DRAFTERS))
def test_drafters_that_draft_otherwise_are_told_why(name: str) -> None:
    (reason,) = policy.decide("auto", replace(LATE, proposer_class=name)).refusals
    assert policy.OTHER_DRAFTERS[name] in reason
    assert "VLLM_USE_V2_MODEL_RUNNER" in reason


def test_all_reasons_are_given_at_once() -> None:
    facts = replace(LATE, rswa=True, fast_prefill=True, decode_context_parallel_size=2)
    assert len(policy.decide("auto", facts).refusals) == 3


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_every_mode_in_which_vllm_captures_grants(mode: str) -> None:
    """Draft graphs need that `capture_model` runs, and nothing of the target's own graphs."""
    assert policy.decide("auto", replace(LATE, cudagraph_mode=mode)).any


def test_the_page_has_the_table_of_what_a_configuration_gets() -> None:
    """`python -m tests.draft_graphs.policy_table` writes it."""
    assert PAGE.read_text(encoding="utf-8") == render()
    told = {fact for _, changes in CASES for fact in changes}
    # What has no row of its own is told beside the table.
    assert {field.name for field in fields(policy.Facts)} == told


def test_no_attention_layers_refuse() -> None:
    assert not policy.decide("auto", replace(LATE, attention=())).any


def test_off_refuses_whatever_the_facts() -> None:
    decision = policy.decide("off", LATE)
    assert not decision.any
    assert decision.refusals == ("OVERLAY_DRAFT_GRAPHS=off",)


def test_one_draft_token_has_no_later_pass() -> None:
    decision = policy.decide("auto", replace(LATE, num_speculative_tokens=1))
    assert (decision.first, decision.later) == (True, ())


def test_a_changing_k_gets_steps_in_auto_and_a_note_in_loop() -> None:
    facts = replace(LATE, dynamic_k=True)
    assert policy.decide("auto", facts).later == ("step",)
    loop = policy.decide("loop", facts)
    assert loop.later == ("loop",)
    assert "K below" in loop.notes[0]


def test_without_a_first_pass_the_later_ones_stay() -> None:
    facts = replace(LATE, no_first="no fc layer")
    decision = policy.decide("auto", facts)
    assert (decision.first, decision.later) == (False, ("loop",))
    assert "first: no fc layer" in decision.notes
    alone = policy.decide("auto", replace(facts, num_speculative_tokens=1))
    assert not alone.any
    assert alone.refusals == ("first: no fc layer",)


def serving(*roles: str, name: str = "FLASH_ATTN") -> Any:
    """An attention backend whose row has these roles."""
    row = replace(FLASH_ATTN.row, names=(name,), roles=frozenset(roles))
    return replace(FLASH_ATTN, name=name, row=row)


def test_an_attention_backend_may_serve_the_first_pass_alone() -> None:
    facts = replace(LATE, attention=(serving("first"),))
    for mode, wanted in (("auto", "step"), ("loop", "step"), ("step", "step")):
        decision = policy.decide(mode, facts)
        assert (decision.first, decision.later) == (True, ())
        assert decision.notes[0].startswith(f"{wanted}: attention backend FLASH_ATTN ")


def test_an_attention_backend_may_serve_steps_and_no_loop() -> None:
    facts = replace(LATE, attention=(serving("first", "step"),))
    for mode in ("auto", "loop"):
        decision = policy.decide(mode, facts)
        assert (decision.first, decision.later) == (True, ("step",))
        assert decision.notes[0].startswith("no loop, but steps: attention backend FLASH_ATTN ")
    assert policy.decide("step", facts).notes == ()


def test_an_attention_backend_may_serve_later_passes_alone() -> None:
    decision = policy.decide("auto", replace(LATE, attention=(serving("step", "loop"),)))
    assert (decision.first, decision.later) == (False, ("loop",))
    assert decision.notes[0].startswith("first: attention backend FLASH_ATTN ")


def test_of_two_attention_backends_both_must_serve_a_role() -> None:
    both = (serving(*policy.UNIFORM_ROLES), serving("step", name="TRITON_ATTN"))
    decision = policy.decide("auto", replace(LATE, attention=both))
    assert (decision.first, decision.later) == (False, ("step",))
    both = (serving("first"), serving("step", "loop", name="TRITON_ATTN"))
    decision = policy.decide("auto", replace(LATE, attention=both))
    assert not decision.any
    assert len(decision.refusals) == 2


def test_a_builder_of_another_class_is_a_stranger() -> None:
    derived = attention.Attention("FLASH_ATTN", "ChunkedLocalAttentionBuilder", derived=True)
    (reason,) = policy.decide("auto", replace(LATE, attention=(derived,))).refusals
    assert "builds its metadata by ChunkedLocalAttentionBuilder" in reason


@pytest.mark.parametrize("evidence", ["doubles", "reading"])
def test_what_no_gpu_has_shown_is_refused_until_the_user_grants_it(evidence: str) -> None:
    row = replace(backend("TRITON_MLA").row, evidence=evidence)
    facts = replace(LATE, attention=(replace(backend("TRITON_MLA"), row=row),))
    (reason,) = policy.decide("auto", facts).refusals
    assert "OVERLAY_DRAFT_GRAPHS_UNTRIED=on grants it" in reason
    decision = policy.decide("auto", replace(facts, untried=True))
    assert (decision.first, decision.later) == (True, ("loop",))
    (told,) = decision.untried
    assert "TRITON_MLA" in told
    assert f"({evidence}: {row.where})" in told


def test_the_switch_grants_nothing_that_was_read_and_refused() -> None:
    facts = replace(LATE, attention=(backend("FLEX_ATTENTION"),), untried=True)
    (reason,) = policy.decide("auto", facts).refusals
    assert reason.startswith("attention backend FLEX_ATTENTION of the draft: it uploads ids")


def test_a_platform_that_no_graph_has_run_on_lowers_what_shows_its_backends() -> None:
    rocm = capabilities.platform_row("vllm.platforms.rocm.RocmPlatform")
    facts = replace(LATE, platform=rocm, attention=(backend("TRITON_ATTN"),))
    (reason,) = policy.decide("auto", facts).refusals
    assert "TRITON_ATTN of the draft has run on a GPU of platform rocm" in reason
    (told,) = policy.decide("auto", replace(facts, untried=True)).untried
    assert told.startswith("attention backend TRITON_ATTN on platform rocm (reading: ")


def test_what_was_granted_before_there_was_a_table_stays_and_is_named() -> None:
    decision = policy.decide("auto", replace(LATE, attention=(backend("FLASH_ATTN", "fa4"),)))
    assert (decision.first, decision.later) == (True, ("loop",))
    (told,) = decision.untried
    assert told.startswith("attention backend FLASH_ATTN (FlashAttention 4) on platform")
    assert policy.decide("auto", LATE).untried == ()


def test_musa_gets_no_loop_with_tensor_parallelism() -> None:
    musa = capabilities.platform_row("vllm_musa.platform.MtmlMUSAPlatform")
    facts = replace(LATE, platform=musa, attention=(backend("TRITON_ATTN"),), untried=True)
    assert policy.decide("loop", facts).later == ("loop",)
    decision = policy.decide("loop", replace(facts, tensor_parallel_size=2))
    assert (decision.first, decision.later) == (True, ("step",))
    assert "MCCL" in decision.notes[0]


def test_sampled_drafts_get_graphs_of_their_own() -> None:
    assert not policy.decide("auto", LATE).sampled
    facts = replace(LATE, probabilistic=True)
    decision = policy.decide("auto", facts)
    assert decision.sampled
    assert "in batches with a prefill" in decision.notes[0]
    # Behind a first pass of upstream's they have none.
    alone = policy.decide("auto", replace(facts, no_first="a reason"))
    assert (alone.first, alone.sampled, alone.later) == (False, False, ("loop",))
    one = policy.decide("auto", replace(facts, num_speculative_tokens=1))
    assert (one.sampled, one.notes) == (True, ())


def test_batches_with_images_are_noted() -> None:
    decision = policy.decide("auto", replace(LATE, multimodal=True))
    assert decision.any
    assert decision.notes == ("first passes with multimodal embeddings among them",)
    later_only = replace(LATE, multimodal=True, no_first="a reason")
    assert policy.decide("auto", later_only).notes == ("first: a reason",)


def test_batches_beyond_the_capture_size_are_noted() -> None:
    decision = policy.decide("auto", replace(LATE, max_num_seqs=200))
    (note,) = decision.notes
    assert note == (
        "first passes over 128 requests, the largest capture size being 512 tokens "
        "(set max_cudagraph_capture_size to more)"
    )
    decision = policy.decide("auto", replace(LATE, max_num_seqs=600))
    assert decision.notes[1] == "later passes over 512 requests"


WIDE = {"max_num_seqs": 200, "max_num_tokens": 2048}


def test_first_passes_beyond_the_capture_size() -> None:
    """With K=3, 200 requests have 800 tokens; the largest capture size is 512."""
    decision = policy.decide("auto", replace(LATE, **WIDE))
    assert (decision.notes, decision.untried) == ((), ())
    assert sizes.most_first_tokens(replace(LATE, **WIDE)) == 800
    assert sizes.most_first_tokens(replace(LATE, **WIDE, tensor_parallel_size=2)) == 800
    older = (backend("FLASH_ATTN", "fa2"),)
    assert sizes.most_first_tokens(replace(LATE, **WIDE, attention=older)) == 800
    narrow = replace(LATE, **{**WIDE, "max_num_tokens": 600})
    assert sizes.most_first_tokens(narrow) == 600
    (note,) = policy.decide("auto", narrow).notes
    assert note == (
        "first passes over 150 requests, the drafter having room for 600 tokens "
        "(set max_num_batched_tokens to more)"
    )
    many = replace(LATE, **{**WIDE, "max_num_seqs": 600, "max_num_tokens": 8192})
    assert sizes.most_first_tokens(many) == 4 * 512
    mixed, first, later = policy.decide("auto", many).notes
    assert mixed == "first passes of more than 4096 tokens in batches with a prefill"
    assert first == (
        "first passes over 512 requests, the largest capture size being 512 tokens "
        "(set max_cudagraph_capture_size to more)"
    )
    assert later == "later passes over 512 requests"
    # The target's graphs may hold more than all requests have.
    assert sizes.most_first_tokens(replace(LATE, **{**WIDE, "max_num_seqs": 8})) == 512


def showing(**evidence: str) -> Any:
    """FlashAttention 3 with weaker evidence for some sizes."""
    return replace(FLASH_ATTN, row=replace(FLASH_ATTN.row, **evidence))


@pytest.mark.parametrize("beside", [(), (FLASH_ATTN,)], ids=["alone", "beside another"])
def test_what_no_gpu_has_shown_beyond_the_capture_size_has_to_be_granted(
    beside: tuple[Any, ...],
) -> None:
    facts = replace(LATE, **WIDE, attention=(*beside, showing(any_size="doubles")))
    assert sizes.most_first_tokens(facts) == 512
    assert "first passes over 128 requests" in policy.decide("auto", facts).notes[0]
    granted = replace(facts, untried=True)
    assert sizes.most_first_tokens(granted) == 800
    assert (
        "first passes of 513 to 800 tokens, above the largest capture size "
        "(doubles: tests/draft_graphs/upstream_twin.py)"
    ) in policy.decide("auto", granted).untried


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            {"attention": (backend("FLASH_ATTN", "fa3"), backend("TRITON_ATTN"))}, id="TRITON_ATTN"
        ),
        pytest.param({"attention": (backend("FLASH_ATTN", "fa4"),)}, id="FlashAttention 4"),
        pytest.param({"attention": (attention.Attention("OF_SOMEBODY", "Builder"),)}, id="unread"),
        pytest.param({"drafter": drafters.Drafter("extended", 2, one_pass=True)}, id="one pass"),
        pytest.param({"coupling": Coupling(Manner.TOGETHER, "experts")}, id="together"),
        pytest.param({"max_num_tokens": None}, id="no room known"),
    ],
)
def test_what_has_no_first_passes_beyond_it(other: dict[str, Any]) -> None:
    assert sizes.most_first_tokens(replace(LATE, **{**WIDE, "untried": True, **other})) == 512


def test_first_passes_over_mixed_batches() -> None:
    """Up to what the drafter has room for, and not beyond what the largest graph holds."""
    for ranks, room, most in ((1, 300, 300), (2, 2048, 2048), (1, 8192, 4096)):
        facts = replace(LATE, max_num_tokens=room, tensor_parallel_size=ranks)
        assert policy.decide("auto", facts).mixed_tokens == sizes.most_mixed_tokens(facts) == most
    assert policy.decide("auto", LATE).mixed_tokens == 0, "no room known"


def test_over_mixed_batches_what_no_gpu_has_shown_has_to_be_granted() -> None:
    facts = replace(LATE, max_num_tokens=2048, attention=(showing(mixed="doubles"),))
    assert policy.decide("auto", facts).mixed_tokens == 0
    granted = policy.decide("auto", replace(facts, untried=True))
    assert granted.mixed_tokens == 2048
    assert granted.untried == (
        "first passes over batches with a prefill (doubles: tests/draft_graphs/upstream_twin.py)",
    )


def test_where_a_first_pass_has_no_later_one_none_is_over_a_mixed_batch() -> None:
    """The graph of the later passes reads what that of the first leaves."""
    facts = replace(LATE, max_num_tokens=2048, attention=(serving("first"),))
    decision = policy.decide("auto", facts)
    assert (decision.first, decision.later, decision.mixed_tokens) == (True, (), 0)
    one = replace(LATE, max_num_tokens=2048, num_speculative_tokens=1)
    assert policy.decide("auto", one).mixed_tokens == 2048


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"attention": (backend("FLASH_ATTN", "fa2"),)}, id="FlashAttention 2"),
        pytest.param(
            {"attention": (backend("FLASH_ATTN", "fa3"), backend("TRITON_ATTN"))}, id="TRITON_ATTN"
        ),
        pytest.param({"drafter": drafters.Drafter("extended", 1)}, id="inputs of its own"),
        pytest.param({"drafter": drafters.Drafter("context", one_pass=True)}, id="one pass"),
        pytest.param({"coupling": Coupling(Manner.TOGETHER, "experts")}, id="together"),
        pytest.param({"no_first": "a reason"}, id="no first pass"),
    ],
)
def test_what_has_no_first_passes_over_mixed_batches(other: dict[str, Any]) -> None:
    facts = replace(LATE, **{"max_num_tokens": 2048, "untried": True, **other})
    assert policy.decide("auto", facts).mixed_tokens == 0


@pytest.mark.parametrize("missing", ["max_num_seqs", "max_capture_tokens"])
def test_before_vllm_captures_nothing_lies_beyond_it(missing: str) -> None:
    early = replace(LATE, **{**WIDE, missing: None})
    assert sizes.most_first_tokens(early) == (early.max_capture_tokens or 0)


@pytest.mark.parametrize("mode", ["off", "step", "loop", "auto"])
def test_the_environment_chooses_the_mode(mode: str) -> None:
    assert policy.mode_from({"OVERLAY_DRAFT_GRAPHS": mode}) == mode


def test_the_default_mode_is_auto() -> None:
    assert policy.mode_from({}) == "auto"
    assert policy.mode_from({"OVERLAY_DRAFT_GRAPHS": ""}) == "auto", "empty is unset"


@pytest.mark.parametrize("value", ["on", "AUTO", "1", "merged"])
def test_an_unknown_mode_stops_and_names_the_modes(value: str) -> None:
    with pytest.raises(ValueError, match="off, step, loop, auto"):
        policy.mode_from({"OVERLAY_DRAFT_GRAPHS": value})


@pytest.mark.parametrize(
    ("value", "on"), [("", False), ("off", False), ("0", False), ("on", True), ("1", True)]
)
def test_the_check_is_off_unless_it_is_on(value: str, on: bool) -> None:
    assert policy.check_from({"OVERLAY_DRAFT_GRAPHS_CHECK": value}) is on
    assert policy.untried_from({"OVERLAY_DRAFT_GRAPHS_UNTRIED": value}) is on


def test_the_check_takes_no_other_value() -> None:
    assert not policy.check_from({})
    with pytest.raises(ValueError, match="on or off"):
        policy.check_from({"OVERLAY_DRAFT_GRAPHS_CHECK": "yes"})
    with pytest.raises(ValueError, match="OVERLAY_DRAFT_GRAPHS_UNTRIED is 'yes'; set it to on or"):
        policy.untried_from({"OVERLAY_DRAFT_GRAPHS_UNTRIED": "yes"})


def test_the_line_of_a_capture_says_what_was_captured() -> None:
    plan = keys.plan_keys(k=3, max_num_seqs=8, max_capture_tokens=16, first=True, later=("loop",))
    line = messages.captured_line("auto", plan, ("first passes over 4 requests",), 3 << 20, 1.26)
    assert line == (
        "Draft graphs: mode auto, K=3; captured first 3 (1, 2, 4 requests); "
        "loop 4 (1, 2, 4, 8 requests); 3 MiB, 1.3 s. As upstream: first passes over 4 requests"
    )


def test_the_error_of_a_failed_capture_gives_the_reason_and_the_way_on() -> None:
    error = messages.cannot_go_on("out of memory")
    assert "a capture failed (out of memory)" in error
    assert error.endswith("Set OVERLAY_DRAFT_GRAPHS=off on all ranks and start them again.")


def test_the_line_of_a_refusal_gives_the_reasons() -> None:
    decision = policy.decide("auto", replace(LATE, rswa=True, fast_prefill=True))
    line = messages.refused_line("auto", decision)
    assert line.startswith("Draft graphs: none (mode auto), the drafter runs as upstream: kv_sh")
    assert "; R-SWA" in line


@pytest.mark.parametrize("mode", ["step", "loop", "auto"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_each_kind_of_drafter_gets_graphs(name: str, mode: str) -> None:
    drafter = DRAFTERS[name]
    facts = replace(LATE, drafter=drafter, max_num_seqs=64)
    decision = policy.decide(mode, facts)
    assert decision.first
    chain = ("step",) if mode == "step" else ("loop",)
    assert decision.later == (() if drafter.one_pass else chain)
    assert decision.notes == ()


@pytest.mark.parametrize("name", DRAFTERS)
def test_tokens_that_a_drafter_adds_count_for_the_largest_batch(name: str) -> None:
    drafter = DRAFTERS[name]
    decision = policy.decide("auto", replace(LATE, drafter=drafter, max_num_seqs=512))
    largest = 512 // (4 + drafter.extra)
    assert f"first passes over {largest} requests" in decision.notes[0]


def test_one_pass_serves_the_configured_k_only() -> None:
    facts = replace(LATE, drafter=DRAFTERS["PARD"], dynamic_k=True, max_num_seqs=64)
    assert policy.decide("auto", facts).notes == ("batches with a K below the configured one",)


def test_without_its_one_pass_a_drafter_has_no_graphs() -> None:
    facts = replace(LATE, drafter=DRAFTERS["P-EAGLE"], no_first="the width is not known")
    decision = policy.decide("auto", facts)
    assert not decision.any
    assert decision.refusals == ("whole: the width is not known",)


TOGETHER = replace(LATE, coupling=Coupling(Manner.TOGETHER, "2 data-parallel ranks in lockstep"))
#: Fact -> (a value with which ranks cannot draft together, a word of the reason).
NOT_TOGETHER: dict[str, tuple[Any, str]] = {
    "cudagraph_mode": ("FULL", "FULL_DECODE_ONLY"),
    "probabilistic": (True, "draft_sample_method"),
    "multimodal": (True, "images"),
    "dynamic_k": (True, "num_speculative_tokens_per_batch_size"),
}


def test_ranks_that_draft_together_get_graphs_and_one_line_says_when_not() -> None:
    decision = policy.decide("auto", TOGETHER)
    assert (decision.first, decision.later) == (True, ("loop",))
    prefill = "all data-parallel ranks in steps in which one of them has a prefill"
    assert (decision.notes, decision.offers) == ((f"first passes of {prefill}",), True)
    step = policy.decide("step", TOGETHER)
    assert (step.notes, step.offers) == ((prefill,), False)


def test_low_latency_exchanges_are_granted_by_the_user_only() -> None:
    deepep = replace(TOGETHER, low_latency_exchange=True)
    (reason,) = policy.decide("auto", deepep).refusals
    assert "OVERLAY_DRAFT_GRAPHS_UNTRIED=on on all ranks grants them" in reason
    decision = policy.decide("auto", replace(deepep, untried=True))
    assert decision.any
    assert "low-latency exchanges" in decision.untried[0]


@pytest.mark.parametrize("fact", sorted(NOT_TOGETHER))
def test_what_one_rank_could_change_for_all_refuses(fact: str) -> None:
    value, word = NOT_TOGETHER[fact]
    assert policy.decide("auto", replace(LATE, **{fact: value})).any
    decision = policy.decide("auto", replace(TOGETHER, **{fact: value}))
    assert not decision.any
    (reason,) = decision.refusals
    assert reason.startswith("2 data-parallel ranks in lockstep; ")
    assert word in reason


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
def test_modes_without_a_full_graph_of_uniform_batches_alone_refuse(mode: str) -> None:
    decision = policy.decide("auto", replace(TOGETHER, cudagraph_mode=mode))
    assert not decision.any


def barred(facts: Any, *roles: str) -> Any:
    """`facts` on a platform that does not get these roles."""
    bars = tuple(capabilities.Bar(role=role, tensor_parallel=1, why="not tried") for role in roles)
    return replace(facts, platform=replace(facts.platform, bars=bars))


def test_ranks_draft_together_only_with_a_graph_for_every_later_pass() -> None:
    for facts in (replace(TOGETHER, num_speculative_tokens=1), barred(TOGETHER, "loop")):
        assert policy.decide("auto", facts).any
    pard = replace(TOGETHER, drafter=DRAFTERS["PARD"], max_num_seqs=64)
    assert policy.decide("auto", pard).any
    no_first = replace(TOGETHER, no_first="the width is not known")
    for facts in (barred(TOGETHER, "first"), no_first):
        decision = policy.decide("auto", facts)
        assert (decision.first, decision.later) == (False, ("loop",))
    refused = {
        "auto": barred(TOGETHER, "loop", "step"),
        "step": barred(TOGETHER, "first"),
        "loop": replace(no_first, num_speculative_tokens=1),
    }
    for mode, facts in refused.items():
        (reason,) = policy.decide(mode, facts).refusals
        assert reason.endswith("the width is not known") or (
            "all ranks need a graph for every pass" in reason and "not tried" in reason
        )


TABLE = """
import json
from tests.draft_graphs.test_policy import LATE, messages, policy
decision = policy.decide("auto", LATE)
print(json.dumps(messages.plan_table("auto", LATE, decision, []), sort_keys=True))
"""


def test_what_ranks_compare_does_not_depend_on_the_process() -> None:
    """Each process of Python puts the elements of a set of strings in an order of its own."""
    tables = [
        subprocess.run(
            [sys.executable, "-c", TABLE],
            cwd=PAGE.parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert "FLASH_ATTN" in tables[0]
    assert len(set(tables)) == 1
