"""The stand-in for a GPU's paged attention: right, honest about padding, and recordable."""

from __future__ import annotations

from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")

from tests.support import cpu_operators

cpu_operators.load()

from tests.draft_graphs.graph_safe_attention import (
    FAULT_NAMES,
    GraphSafeImpl,
    GraphSafeMetadata,
    faults,
)
from tests.draft_graphs.recorded_graph import RecordedGraph

HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 8, 4, 24


class Batch:
    """Requests as (query length, sequence length), in blocks that are scattered on purpose."""

    def __init__(self, requests: list[tuple[int, int]], padded_tokens: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.requests = requests
        order = (torch.randperm(BLOCKS - 1) + 1).int()
        width = 5
        lengths = [query for query, _ in requests]
        offsets = torch.tensor([0, *lengths]).cumsum(0).int()
        self.meta = GraphSafeMetadata(
            num_actual_tokens=sum(lengths),
            max_query_len=max(lengths),
            query_start_loc=offsets,
            max_seq_len=width * BLOCK,
            seq_lens=torch.tensor([length for _, length in requests]).int(),
            block_table=order[: len(requests) * width].view(len(requests), width).clone(),
            slot_mapping=torch.full((padded_tokens,), -1),
        )
        self.live = sum(lengths)
        for row, (query, length) in enumerate(requests):
            positions = torch.arange(length - query, length)
            blocks = self.meta.block_table[row].long()[positions // BLOCK]
            rows = slice(int(offsets[row]), int(offsets[row + 1]))
            self.meta.slot_mapping[rows] = blocks * BLOCK + positions % BLOCK
        self.cache = torch.randn(BLOCKS, KV_HEADS, BLOCK, 2 * SIZE)
        self.query = torch.randn(padded_tokens, HEADS, SIZE)
        self.key = torch.randn(padded_tokens, KV_HEADS, SIZE)
        self.value = torch.randn(padded_tokens, KV_HEADS, SIZE)
        self.output = torch.full((padded_tokens, HEADS * SIZE), 7.0)

    def run(self) -> None:
        impl = GraphSafeImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
        impl.do_kv_cache_update(None, self.key, self.value, self.cache, self.meta.slot_mapping)
        impl.forward(None, self.query, self.key, self.value, self.cache, self.meta, self.output)

    def expected(self) -> Any:
        """The same, request by request and token by token, out of the cache as it is now."""
        out, token = torch.full_like(self.output, 7.0), 0
        for row, (query, length) in enumerate(self.requests):
            blocks = self.meta.block_table[row].long()
            flat = self.cache[blocks].transpose(1, 2).reshape(-1, KV_HEADS, 2 * SIZE)
            for position in range(length - query, length):
                seen = flat[: position + 1].repeat_interleave(HEADS // KV_HEADS, 1)
                scores = torch.einsum("hd,shd->hs", self.query[token], seen[..., :SIZE])
                weights = (scores * SIZE**-0.5).softmax(-1)
                out[token] = torch.einsum("hs,shd->hd", weights, seen[..., SIZE:]).flatten()
                token += 1
        return out


BATCHES = [
    [(1, 1)],
    [(1, 5), (1, 20), (1, 4)],
    [(4, 9), (4, 4), (4, 20)],
    [(7, 7), (1, 12), (3, 18)],
]


@pytest.mark.parametrize("requests", BATCHES)
def test_agrees_with_attention_request_by_request(requests: list[tuple[int, int]]) -> None:
    batch = Batch(requests, padded_tokens=16, seed=1)
    before = batch.cache.clone()
    batch.run()
    torch.testing.assert_close(batch.output, batch.expected())
    assert faults() == []
    changed = (batch.cache != before).any(3).any(1).flatten().nonzero().flatten()
    assert set(changed.tolist()) == set(batch.meta.slot_mapping[: batch.live].tolist())


def test_what_no_request_sees_may_be_nan() -> None:
    batch = Batch([(1, 5), (2, 9)], padded_tokens=8, seed=2)
    clean = Batch([(1, 5), (2, 9)], padded_tokens=8, seed=2)
    batch.query[3:] = batch.key[3:] = batch.value[3:] = float("nan")
    seen = {int(slot) for slot in batch.meta.slot_mapping[:3]}
    for row, (_, length) in enumerate(batch.requests):
        table = batch.meta.block_table[row].long()
        seen |= {int(table[p // BLOCK]) * BLOCK + p % BLOCK for p in range(length)}
    unseen = torch.tensor([slot for slot in range(BLOCKS * BLOCK) if slot not in seen])
    batch.cache[unseen // BLOCK, :, unseen % BLOCK] = float("nan")
    batch.run()
    clean.run()
    assert torch.equal(batch.output, clean.output)


@pytest.mark.parametrize("requests", BATCHES)
def test_a_recording_follows_lengths_tables_and_slots(requests: list[tuple[int, int]]) -> None:
    """Captured on padding alone, replayed on a real batch: nothing of the capture is baked."""
    batch = Batch(requests, padded_tokens=16, seed=3)
    meta = batch.meta
    real = [t.clone() for t in (meta.query_start_loc, meta.seq_lens, meta.block_table)]
    slots = meta.slot_mapping.clone()
    for tensor in (meta.query_start_loc, meta.seq_lens, meta.block_table):
        tensor.zero_()
    meta.slot_mapping.fill_(-1)
    graph = RecordedGraph()
    with graph.capture():
        batch.run()
    for tensor, contents in zip(
        (meta.query_start_loc, meta.seq_lens, meta.block_table), real, strict=True
    ):
        tensor.copy_(contents)
    meta.slot_mapping.copy_(slots)
    graph.replay()
    torch.testing.assert_close(batch.output, batch.expected())


def break_query(meta: GraphSafeMetadata) -> None:
    meta.max_query_len = 1


def break_tokens(meta: GraphSafeMetadata) -> None:
    meta.query_start_loc[-1] = 17
    meta.max_query_len = 17
    meta.seq_lens[-1] = 20


def break_bound(meta: GraphSafeMetadata) -> None:
    meta.max_seq_len = 8


def break_length(meta: GraphSafeMetadata) -> None:
    meta.seq_lens[0] = 1


def break_table(meta: GraphSafeMetadata) -> None:
    meta.block_table[1, 0] = BLOCKS


def break_slot(meta: GraphSafeMetadata) -> None:
    meta.slot_mapping[0] = BLOCKS * BLOCK


def break_slots(meta: GraphSafeMetadata) -> None:
    meta.slot_mapping[0] = meta.slot_mapping[1]


@pytest.mark.parametrize(
    ("broken", "named"),
    list(
        zip(
            [
                break_query,
                break_tokens,
                break_bound,
                break_length,
                break_table,
                break_slot,
                break_slots,
            ],
            FAULT_NAMES,
            strict=True,
        )
    ),
)
def test_what_a_kernel_would_do_out_of_bounds_is_counted(broken: Any, named: str) -> None:
    batch = Batch([(2, 9), (2, 4)], padded_tokens=16, seed=4)
    broken(batch.meta)
    faults()
    batch.run()
    assert faults() == [named]
    assert faults() == []


def test_the_integers_of_the_metadata_bound_the_work() -> None:
    batch = Batch([(3, 9), (2, 4)], padded_tokens=8, seed=5)
    batch.meta.max_query_len, batch.meta.num_actual_tokens = 2, 4
    batch.run()
    computed = (batch.output != 7.0).any(1).tolist()
    assert computed == [True, True, False, True, False, False, False, False]
