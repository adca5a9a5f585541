"""An EAGLE3 draft of one layer, as vLLM runs it, and its training-time test.

The draft reads at position ``i`` the embedding of token ``i + 1`` and what ``fc`` makes of three
hidden states of the target at ``i``, and says token ``i + 2``.  Its further steps read its own
hidden state in the place of the target's, at the next position; their keys and values join those
of the first step.  Embedding and output head are the target's: the checkpoint has neither, so
that vLLM shares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from bench.pair.conversion import write_json
from bench.pair.llama import Llama, split_heads

#: Rows of which the logits are made at a time: 800 MB with a vocabulary of 49,152.
_ROWS = 4096


def read_layers(layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs the draft reads; vLLM's default where they are enough."""
    return (2, layers // 2, layers - 3) if layers >= 8 else (1, layers // 2, layers - 1)


class Step(NamedTuple):
    """What a draft step came to.

    :ivar loss: to go back from; :ivar value: cross entropy with the target, a token.
    :ivar right: [batch, tokens], whether the draft says what the target says next.
    :ivar asked: [batch, tokens], where that is a token of an answer.
    """

    loss: Any
    value: float
    right: Any
    asked: Any


class Draft:
    """The draft and its weights, in float32.

    :ivar weights: by the names of the checkpoint.
    """

    def __init__(self, target: Llama, wide: int, seed: int) -> None:
        self.target, self.config = target, draft_config(target.config, wide)
        self.reads = read_layers(target.layers)
        self.weights = _first_weights(target, self.config, seed)
        for weight in self.weights.values():
            weight.requires_grad_(True)

    def _norm(self, rows: Any, name: str) -> Any:
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(rows, weight.shape, weight, self.config["rms_norm_eps"])

    def _linear(self, rows: Any, name: str) -> Any:
        return functional.linear(rows, self.weights[f"{name}.weight"].to(rows.dtype))

    def combined(self, inputs: dict[int, Any]) -> Any:
        """What the first step reads of the target's hidden states."""
        return self._linear(torch.cat([inputs[layer] for layer in self.reads], -1), "fc")

    def step(self, ids: Any, hidden: Any, first: int, past: list[tuple[Any, Any]]) -> Any:
        """One pass over all places of a batch.

        :param ids: [batch, tokens], read at each place.
        :param first: the position of the first place.
        :param past: keys and values of the passes before; those of this one are added.
        :returns: the hidden state handed on, [batch, tokens, hidden].
        """
        name, dtype = "midlayer", self.target.dtype
        embedded = self._norm(self.target.embedding[ids].float(), f"{name}.input_layernorm")
        normed = self._norm(hidden.float(), f"{name}.hidden_norm")
        both = torch.cat([embedded, normed], -1).to(dtype)
        queries, keys, values = (
            split_heads(self._linear(both, f"{name}.self_attn.{part}_proj"), self._size)
            for part in "qkv"
        )
        positions = first + torch.arange(ids.shape[1], device=ids.device)[None].expand(ids.shape)
        times = queries.shape[1] // keys.shape[1]
        keys = self.target.rope.turned(keys, positions).repeat_interleave(times, 1)
        past.append((keys, values.repeat_interleave(times, 1)))
        mixed = attention(self.target.rope.turned(queries, positions), past)
        rows = hidden + self._linear(mixed.transpose(1, 2).flatten(2), f"{name}.self_attn.o_proj")
        normed = self._norm(rows.float(), f"{name}.post_attention_layernorm").to(dtype)
        gate = functional.silu(self._linear(normed, f"{name}.mlp.gate_proj"))
        up = self._linear(normed, f"{name}.mlp.up_proj")
        return rows + self._linear(gate * up, f"{name}.mlp.down_proj")

    @property
    def _size(self) -> int:
        return int(self.config["head_dim"])

    def output(self, rows: Any) -> Any:
        """What the head reads."""
        return self._norm(rows.float(), "norm").to(self.target.dtype)

    def steps(self, batch: Any, count: int) -> list[Step]:
        """The training-time test: ``count`` draft steps from every place of a batch of answers."""
        with torch.no_grad():
            inputs, final = self.target.hidden(batch.ids, self.reads)
        ids, width = batch.ids, batch.ids.shape[1]
        hidden = self.combined(inputs)
        past: list[tuple[Any, Any]] = []
        results = []
        places = torch.arange(width, device=ids.device)[None]
        for number in range(count):
            # What is moved in from behind the end is asked nowhere.
            hidden = self.step(ids.roll(-1 - number, 1), hidden, number, past)
            said = places + 2 + number
            asked = (said >= batch.begins[:, None]) & (said < batch.ends[:, None])
            truth = ids.roll(-2 - number, 1)[asked]
            rows = self.output(hidden)[asked]
            loss, value, best = soft_loss(
                rows, final.roll(-1 - number, 1)[asked], self.target.head, train=rows.requires_grad
            )
            right = torch.zeros_like(asked)
            right[asked] = best == truth
            results.append(Step(loss, value, right, asked))
        return results

    def save(self, folder: Path) -> None:
        """Write the checkpoint in bfloat16, with its configuration."""
        from safetensors.torch import save_file

        weights = {
            name: weight.detach().to("cpu", torch.bfloat16).contiguous()
            for name, weight in self.weights.items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", self.config)


def attention(queries: Any, past: list[tuple[Any, Any]]) -> Any:
    """Attend to the first pass up to one's own place, and to one's own place in all later ones.

    :param queries: [batch, heads, tokens, head size], of the last pass in ``past``.
    """
    (keys, values), *later = past
    width, size = keys.shape[2], keys.shape[3]
    future = torch.ones(width, width, dtype=torch.bool, device=keys.device).triu(1)
    scores = (queries @ keys.transpose(-1, -2)).float().masked_fill(future, float("-inf"))
    own = [(queries * each).sum(-1, keepdim=True).float() for each, _ in later]
    shares = (torch.cat([scores, *own], -1) * size**-0.5).softmax(-1).to(values.dtype)
    mixed = shares[..., :width] @ values
    for number, (_, each) in enumerate(later):
        mixed = mixed + shares[..., width + number, None] * each
    return mixed


def soft_loss(rows: Any, target_rows: Any, head: Any, *, train: bool) -> tuple[Any, float, Any]:
    """Cross entropy of the draft's tokens with the target's distribution; its gradient by hand.

    The gradient is taken along with the value, chunk by chunk, so that no logits are kept.

    :param rows: [places, hidden], what the head reads of the draft; :param target_rows: of the
        target.
    :returns: a number to go back from, the loss a place, and the draft's likeliest tokens.
    """
    gradients, best, total = [], [], torch.zeros((), device=rows.device)
    with torch.no_grad():
        for own, other in zip(rows.split(_ROWS), target_rows.split(_ROWS), strict=True):
            shares = functional.linear(other, head).float().softmax(-1)
            logs = functional.linear(own, head).float().log_softmax(-1)
            total -= (shares * logs).sum()
            best.append(logs.argmax(-1))
            if train:
                gradients.append((logs.exp() - shares).to(head.dtype) @ head)
    count = max(len(rows), 1)
    loss = (rows.float() * torch.cat(gradients).float()).sum() / count if gradients else total
    everything = torch.cat(best) if best else torch.zeros(0, dtype=torch.long, device=rows.device)
    return loss, float(total) / count, everything


def draft_config(target: dict[str, Any], wide: int) -> dict[str, Any]:
    """The draft's ``config.json``.

    :param wide: the intermediate size of its layer.
    """
    reads = list(read_layers(target["num_hidden_layers"]))
    return {
        **target,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": wide,
        "draft_vocab_size": target["vocab_size"],
        "tie_word_embeddings": False,
        # Model runner V2 reads the first, V1 the second.
        "eagle_aux_hidden_state_layer_ids": reads,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": reads, "use_aux_hidden_state": True},
    }


def _first_weights(target: Llama, config: dict[str, Any], seed: int) -> dict[str, Any]:
    """The target's last layer, reading the last of its hidden states; the rest small or zero.

    The head was trained to read the target's last norm, so the draft begins as a short cut to it.
    """
    generator = torch.Generator().manual_seed(seed)
    size, wide = config["hidden_size"], config["intermediate_size"]
    last = f"model.layers.{target.layers - 1}"

    def own(name: str) -> Any:
        return target.weights[f"{name}.weight"].float().cpu()

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator) * 0.02

    def widened(name: str, shape: tuple[int, int]) -> Any:
        whole = torch.zeros(shape) if name == "down" else drawn(*shape)
        part = own(f"{last}.mlp.{name}_proj")[: shape[0], : shape[1]]
        whole[: part.shape[0], : part.shape[1]] = part
        return whole

    weights = {
        "fc": torch.cat([drawn(size, 2 * size) * 0.1, torch.eye(size)], 1),
        "midlayer.input_layernorm": torch.ones(size),
        "midlayer.hidden_norm": own(f"{last}.input_layernorm"),
        "midlayer.post_attention_layernorm": own(f"{last}.post_attention_layernorm"),
        "midlayer.self_attn.o_proj": own(f"{last}.self_attn.o_proj"),
        "midlayer.mlp.gate_proj": widened("gate", (wide, size)),
        "midlayer.mlp.up_proj": widened("up", (wide, size)),
        "midlayer.mlp.down_proj": widened("down", (size, wide)),
        "norm": own("model.norm"),
    }
    for part in "qkv":
        rows = own(f"{last}.self_attn.{part}_proj")
        weights[f"midlayer.self_attn.{part}_proj"] = torch.cat([drawn(*rows.shape), rows], 1)
    return {f"{name}.weight": weight.to(target.device) for name, weight in weights.items()}
