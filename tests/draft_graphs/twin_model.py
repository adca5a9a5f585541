"""The drafter of `upstream_twin.py`: what it is captured for, and a small random model."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from tests.draft_graphs import graph_safe_attention

VOCAB, HIDDEN, HEADS, HEAD, BLOCK, BLOCKS, WIDTH, LONGEST = 97, 32, 2, 16, 4, 160, 16, 64
LAYER = "draft.layers.0"


@dataclass(frozen=True)
class Shape:
    """One kind of drafter, and what it was captured for."""

    k: int
    mode: str
    max_num_seqs: int
    max_capture_tokens: int
    method: str = "eagle3"
    returns_tuple: bool = True
    mrope: bool = False
    target_mrope: bool = False
    multimodal: bool = False
    dynamic_k: bool = False
    # Where sampled drafts get their noise from: "generator", or "rows"; empty: greedy drafts.
    sampled: str = ""
    parallel: bool = False
    vocabularies: bool = False
    causal: bool = False
    # Whether batches come with ranges of a prefix language model. Two layers then: tokens of a
    # range that see each other change only what later layers store.
    ranges: bool = False
    # Whether first passes over mixed batches are captured.
    mixed: bool = False
    backend: str = "CPU_ATTN"


class Model(Eagle3LlamaForCausalLM):  # type: ignore[misc]  # mypy sees no vLLM
    """Random weights, one or two attention layers, everything that a drafter may be asked for.

    Upstream lets only its own classes draft for EAGLE3, so it is one, by name alone.
    """

    def __init__(self, shape: Shape) -> None:
        torch.nn.Module.__init__(self)
        self.shape = shape
        generator = torch.Generator().manual_seed(0)

        def weight(*size: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(size, generator=generator) / size[-1] ** 0.5)

        self.embed, self.head = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN)
        self.query, self.key, self.value = (weight(HIDDEN, HIDDEN) for _ in range(3))
        self.places, self.mix = weight(3, HIDDEN), weight(HIDDEN, 2 * HIDDEN)
        self.reduce = weight(HIDDEN, 3 * HIDDEN)
        self.model = SimpleNamespace(fc=SimpleNamespace(input_size=3 * HIDDEN))
        self.attention = graph_safe_attention.GraphSafeImpl(HEADS, HEAD, HEAD**-0.5, HEADS)
        # The second layer's heads lie behind those of the first.
        layers = 2 if shape.ranges else 1
        self.kv_cache = torch.zeros(BLOCKS, layers * HEADS, BLOCK, 2 * HEAD)
        self.beyond = torch.zeros((), dtype=torch.int64)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[tokens, 3 * hidden] to [tokens, hidden]."""
        return hidden_states @ self.reduce.T

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings: Any = None, is_multimodal: Any = None
    ) -> torch.Tensor:
        assert not multimodal_embeddings
        return self.embed[input_ids.long()]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states @ self.head.T

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        hidden_states: torch.Tensor | None = None,
    ) -> Any:
        # Beyond the longest position a table of cosines ends.
        self.beyond.add_((positions >= LONGEST).sum())
        context = get_forward_context()
        metadata, slots = context.attn_metadata[LAYER], context.slot_mapping[LAYER]
        embeds = inputs_embeds if input_ids is None else self.embed_input_ids(input_ids)
        if hidden_states is None:
            hidden_states = torch.zeros_like(embeds)
        places = positions if positions.dim() == 2 else positions[None].expand(3, -1)
        mixed = torch.cat([embeds, hidden_states], -1) @ self.mix.T
        mixed = torch.tanh(mixed + torch.sin(places.T.float() @ self.places))
        tokens, last = mixed.shape[0], mixed
        for heads in self.kv_cache.split(HEADS, dim=1):
            query, key, value = (
                (last @ weight.T).view(tokens, HEADS, HEAD)
                for weight in (self.query, self.key, self.value)
            )
            self.attention.do_kv_cache_update(self, key, value, heads, slots)
            output = torch.zeros(tokens, HEADS * HEAD)
            self.attention.forward(self, query, key, value, heads, metadata, output)
            last = torch.tanh(last + output)
        return (last, torch.tanh(last + mixed)) if self.shape.returns_tuple else last


class ContextModel(Model):
    """The drafter of dflash: the target's hidden states are keys and values of its context."""

    def precompute_and_store_context_kv(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write the keys and values of `states`, [tokens, hidden], to the KV cache."""
        self.beyond.add_((positions >= LONGEST).sum())
        mixed = torch.tanh(states + torch.sin(positions[:, None].float() * self.places[0]))
        key, value = ((mixed @ weight.T).view(-1, HEADS, HEAD) for weight in (self.key, self.value))
        self.attention.do_kv_cache_update(self, key, value, self.kv_cache, slots)
