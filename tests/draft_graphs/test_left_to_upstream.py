"""Batches that are left to upstream although there are graphs, and what the log says of them.

No engine runs. Needs vLLM.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import FIRST, SHAPE, Drafter
from tests.draft_graphs.twin_model import HIDDEN, VOCAB
from tests.draft_graphs.twin_sampling import Metadata

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1.spec_decode.draft_graphs import drafter as kinds

pytestmark = pytest.mark.usefixtures("one_rank")


def widened(batch: dict[str, Any]) -> dict[str, Any]:
    common = batch["common_attn_metadata"]
    table = torch.cat([common.block_table_tensor, common.block_table_tensor], 1)
    return {"common_attn_metadata": replace(common, block_table_tensor=table)}


def chosen_by_request(batch: dict[str, Any]) -> dict[str, Any]:
    common = batch["common_attn_metadata"]
    return {"common_attn_metadata": replace(common, causal=torch.ones(3, dtype=torch.bool))}


def with_an_image(batch: dict[str, Any]) -> dict[str, Any]:
    return {"mm_embed_inputs": ([torch.zeros(1, HIDDEN)], torch.ones(12, dtype=torch.bool))}


def narrower(batch: dict[str, Any]) -> dict[str, Any]:
    return {"target_hidden_states": batch["target_hidden_states"][:, : 2 * HIDDEN]}


REASONS = {
    widened: "the block table has",
    chosen_by_request: "attention is not causal",
    narrower: "the target gives hidden states of",
    # That is a note of the capture's own line.
    with_an_image: None,
}


@pytest.mark.parametrize("change", REASONS)
def test_what_no_graph_holds_is_left_to_upstream(change: Any, log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    captured, *none = log
    assert none == []
    for _ in range(3):
        assert drafter.propose(**change(drafter.batch())) is None
        assert drafter.propose() is not None, "it is not withdrawn for that"
    reason = REASONS[change]
    if reason is None:
        assert log == [captured]
    else:
        (line,) = log[1:]
        assert line.startswith("INFO Draft graphs: batches run as upstream, because ")
        assert reason in line


OWN_BUFFERS = ("input_ids", "positions", "hidden_states", "_slot_mapping_buffer")


@pytest.mark.parametrize("name", OWN_BUFFERS)
def test_a_buffer_that_is_not_what_was_captured_leaves_batches_to_upstream(
    name: str, log: list[str]
) -> None:
    """A graph would go on with the old one, staging with either."""
    drafter = Drafter()
    drafter.capture()
    captured = getattr(drafter.proposer, name)
    setattr(drafter.proposer, name, captured.clone())
    for _ in range(2):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    (line,) = log[1:]
    assert f"the proposer's {name} is not the tensor that was captured" in line
    setattr(drafter.proposer, name, captured)
    assert drafter.propose() is not None, "it is not withdrawn for that"
    assert len(log) == 2


@pytest.mark.parametrize("table", [None, "target_to_draft_ids", "draft_to_target_ids"])
def test_a_vocabulary_map_that_is_not_what_was_captured_leaves_batches_to_upstream(
    table: str | None, log: list[str]
) -> None:
    """The graph has a copy of the tables; `None` for another mapping."""
    shape = replace(
        SHAPE,
        method="draft_model",
        returns_tuple=False,
        vocabularies=True,
        max_capture_tokens=64,
    )
    kind = kinds.Drafter("extended", 1, takes_hidden_states=False, hands_over=False)
    drafter = Drafter(shape, drafter=kind)
    drafter.capture()
    assert drafter.propose() is not None
    mapping = drafter.proposer.vocab_mapping
    owner = drafter.proposer if table is None else mapping
    name = table or "vocab_mapping"
    captured = getattr(owner, name)
    setattr(owner, name, copy.deepcopy(captured))
    for _ in range(2):
        assert drafter.propose() is None
    (line,) = log[1:]
    assert "the mapping between the vocabularies is not the one that was captured" in line
    setattr(owner, name, captured)
    assert drafter.propose() is not None
    assert len(log) == 2


@pytest.mark.parametrize("change", [widened, chosen_by_request])
def test_nor_are_its_later_passes_drafted(change: Any) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.later_steps(**change(drafter.batch())) is None
    assert drafter.later_steps() is not None


def test_batches_with_images_are_named_at_the_start(log: list[str]) -> None:
    Drafter(multimodal=True).capture()
    assert "As upstream: first passes with multimodal embeddings among them" in log[0]


def test_sampled_drafts_have_graphs_and_probabilities(log: list[str]) -> None:
    drafter = Drafter(replace(SHAPE, sampled="generator"), probabilistic=True)
    drafter.capture()
    assert "loop 4 (1, 2, 4, 6 requests); sampled first 3 (1, 2, 4 requests); sampled" in log[0]
    warm = Metadata(all_greedy=False, all_random=True, temperature=torch.full((3,), 0.7))
    sampled = {"sampling_metadata": warm}
    assert drafter.propose(**sampled) is not None
    probs = drafter.proposer._last_draft_probs
    assert probs.shape == (3, 3, VOCAB)
    assert probs.dtype == torch.float32
    assert torch.allclose(probs.sum(-1), torch.ones(3, 3))
    # Those of a first pass that was upstream's are not at hand.
    assert drafter.later_steps(**sampled) is None
    greedy = Metadata(all_greedy=True, all_random=False, temperature=None)
    assert drafter.propose(sampling_metadata=greedy) is not None
    assert drafter.proposer._last_draft_probs is None, "vLLM would take those of earlier drafts"
    # Greedy drafts for sampled requests are what upstream drafts, too.
    without = Drafter()
    without.capture()
    assert without.propose(**sampled) is not None


def test_the_largest_batches_are_upstreams() -> None:
    drafter = Drafter()
    drafter.capture()
    for reqs in range(1, 7):
        drafts = drafter.graphs.propose(**drafter.batch(reqs))
        assert (drafts is not None) == (reqs <= max(FIRST)), reqs


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_a_loop_serves_its_own_k_only(k: int) -> None:
    drafter = Drafter()
    drafter.capture()
    drafts = drafter.propose(num_speculative_tokens=k)
    # With K=1 the first pass gives the only draft, and the loop is not needed.
    assert (drafts is not None) == (k in (1, 3))
    assert drafts is None or drafts.shape == (3, k)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_steps_serve_every_k_up_to_the_configured_one(k: int) -> None:
    drafter = Drafter(replace(SHAPE, mode="step"))
    drafter.capture()
    drafts = drafter.propose(num_speculative_tokens=k)
    assert (drafts is not None) == (1 <= k <= 3)
    assert drafts is None or drafts.shape == (3, k)


def unequal(batch: dict[str, Any]) -> dict[str, Any]:
    """As if one request had a token more than the others, and one a token less."""
    common = batch["common_attn_metadata"]
    return {"common_attn_metadata": replace(common, max_query_len=common.max_query_len + 1)}


def test_mixed_batches_left_to_upstream_are_counted_by_reason(
    effect: Callable[[], dict[str, Any]],
) -> None:
    drafter = Drafter(replace(SHAPE, mixed=True), untried=True)
    drafter.capture()
    batch = unequal(drafter.batch())
    assert drafter.propose(**batch) is not None
    assert drafter.propose(**batch, num_speculative_tokens=2) is None
    left = [name for name in effect()["counts"] if "left to upstream" in name]
    reason = "no mixed graph for so many tokens or requests or this K"
    assert left == [f"first passes left to upstream: {reason}"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (widened, "the block table has"),
        (chosen_by_request, "attention is not causal"),
        (narrower, "the target gives hidden states of"),
        (with_an_image, "multimodal embeddings among the inputs"),
        (lambda batch: {"num_speculative_tokens": 2}, "no graph for so many requests or this K"),
        (lambda batch: {"target_token_ids": batch["target_token_ids"][:-1]}, "not K+1 tokens"),
        (unequal, "not K+1 tokens"),
    ],
)
def test_batches_left_to_upstream_are_counted_by_reason(
    effect: Callable[[], dict[str, Any]], change: Any, reason: str
) -> None:
    drafter = Drafter()
    drafter.capture()
    for _ in range(2):
        assert drafter.propose(**change(drafter.batch())) is None
    ((name, times),) = effect()["counts"].items()
    assert name.startswith(f"first passes left to upstream: {reason}")
    assert times == 2
