"""A small draft model with paged attention, in vLLM's way and in vllm-ascend's.

Both run over the same weights and KV caches. In vLLM's way the attention is the reference, from
tensors of lengths. In vllm-ascend's it goes through vllm-ascend's own attention class, by the
operators of `operators`, from the metadata that vllm-ascend's own builder has made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from tests.ascend.operators import attention_by_tensors, fused_infer_attention

VOCAB, HIDDEN, HEADS, WIDTH, ROPE = 97, 32, 2, 16, 8
BLOCK, BLOCKS, TABLE = 4, 160, 26
LONGEST = 96
LAYER = "model.layers.0.self_attn.attn"

#: Lengths on the host, in dense models and in MLA, or on the device.
Attention = Literal["dense", "mla", "tensor"]


@dataclass(frozen=True)
class Cache:
    """The KV cache of the one layer; its last block is where padding is written to.

    :ivar first: keys [blocks, block size, heads, width]; of MLA the latent part, of one head.
    :ivar second: values; of MLA the part with positions.
    """

    first: torch.Tensor
    second: torch.Tensor

    @classmethod
    def of(cls, attention: Attention) -> Cache:
        """A cache full of zeros."""
        heads, second = (1, ROPE) if attention == "mla" else (HEADS, WIDTH)
        shape = (BLOCKS + 1, BLOCK, heads)
        return cls(torch.zeros(*shape, WIDTH), torch.zeros(*shape, second))

    def fill(self, seed: int) -> None:
        """Put in what earlier steps may have left."""
        noise = torch.Generator().manual_seed(seed)
        self.first.normal_(generator=noise)
        self.second.normal_(generator=noise)

    def write(self, slots: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
        """Write keys and values of tokens; a slot of -1 is in the last block."""
        count = min(slots.shape[0], first.shape[0])
        places = slots[:count].long()
        for cache, rows in ((self.first, first), (self.second, second)):
            flat = cache.view(-1, cache.shape[2], cache.shape[3])
            flat[places] = rows[:count].view(count, cache.shape[2], cache.shape[3])


class DraftModel(Eagle3LlamaForCausalLM):  # type: ignore[misc]  # mypy sees no vLLM
    """The draft; `attend` is put in by the side that runs it."""

    def __init__(self, attention: Attention) -> None:
        torch.nn.Module.__init__(self)
        noise = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=noise) / shape[-1] ** 0.5

        self.attention = attention
        self.cache = Cache.of(attention)
        self.embedding, self.head = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN)
        self.mix, self.reduce = weight(HIDDEN, 2 * HIDDEN), weight(HIDDEN, 3 * HIDDEN)
        self.places = weight(1, HIDDEN)
        query = WIDTH + ROPE if attention == "mla" else WIDTH
        key = (WIDTH, ROPE) if attention == "mla" else (HEADS * WIDTH, HEADS * WIDTH)
        self.query = weight(HEADS * query, HIDDEN)
        self.first, self.second = weight(key[0], HIDDEN), weight(key[1], HIDDEN)
        self.model = SimpleNamespace(fc=SimpleNamespace(input_size=3 * HIDDEN))
        self.attend: Callable[..., torch.Tensor] = reference

    def combine_hidden_states(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, 3 * HIDDEN] of the target, to [tokens, HIDDEN]."""
        return hidden @ self.reduce.T

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, VOCAB]."""
        return hidden @ self.head.T

    compute_draft_logits = compute_logits

    def embed_input_ids(self, ids: torch.Tensor, **others: Any) -> torch.Tensor:
        """[tokens, HIDDEN]."""
        return self.embedding[ids.long()]

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states for the logits and for the next pass, [tokens, HIDDEN] each."""
        tokens = torch.cat([self.embedding[input_ids.long()], hidden_states], -1)
        # Positions matter, so that a wrong one gives another draft.
        mixed = torch.tanh(tokens @ self.mix.T + torch.sin(positions[:, None] * self.places * 3))
        query = (mixed @ self.query.T).view(mixed.shape[0], HEADS, -1)
        out = self.attend(self, query, mixed @ self.first.T, mixed @ self.second.T)
        last = torch.tanh(mixed + 2 * out.reshape(mixed.shape[0], HIDDEN))
        return last, torch.tanh(last + mixed)


def options_of(attention: Attention) -> dict[str, Any]:
    """The operator's arguments that never change."""
    width = WIDTH + ROPE if attention == "mla" else WIDTH
    return {
        "num_heads": HEADS,
        "num_key_value_heads": 1 if attention == "mla" else HEADS,
        # Sharp, so that a key more or less shows.
        "scale": 4 * width**-0.5,
        "block_size": BLOCK,
        "input_layout": "TND",
    }


def reference(
    model: DraftModel, query: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """Attention from vLLM's forward context."""
    context = get_forward_context()
    metadata = context.attn_metadata[LAYER]
    model.cache.write(context.slot_mapping[LAYER], first, second)
    given: dict[str, Any] = {
        **options_of(model.attention),
        "actual_seq_lengths": metadata.query_start_loc[1:].tolist(),
        "actual_seq_lengths_kv": metadata.seq_lens.tolist(),
        "block_table": metadata.block_table,
    }
    cache = model.cache
    if model.attention != "mla":
        return fused_infer_attention(query, cache.first, cache.second, **given)
    given |= {"query_rope": query[..., WIDTH:], "key_rope": cache.second}
    return fused_infer_attention(query[..., :WIDTH], cache.first, cache.first, **given)


def by_tensors(model: DraftModel, query: torch.Tensor, metadata: Any) -> torch.Tensor:
    """Attention as an operator has it that reads lengths on the device."""
    return attention_by_tensors(
        query,
        *(cache.view(-1, HEADS, WIDTH) for cache in (model.cache.first, model.cache.second)),
        starts=metadata.query_start_loc,
        lengths=metadata.seq_lens,
        table=metadata.block_table,
        block_size=BLOCK,
        scale=options_of("tensor")["scale"],
    )
