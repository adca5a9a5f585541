"""A Llama in a few lines of PyTorch, from what ``conversion`` wrote: answers and hidden states.

Its hidden states are those that vLLM hands to an EAGLE3 draft: ``hidden(...)[n]`` is what goes
into layer ``n``.  ``Decoding`` writes the answers to many prompts at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional


class Rope:
    """Rotary angles; ``turned`` is what transformers and vLLM do with the halves of a head."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        half = config["head_dim"] // 2
        exponents = torch.arange(half, dtype=torch.float64) / half
        angles = torch.arange(config["max_position_embeddings"], dtype=torch.float64)[:, None]
        angles = angles * config["rope_theta"] ** -exponents[None, :]
        self._cos = angles.cos().float().to(device)
        self._sin = angles.sin().float().to(device)

    def turned(self, heads: Any, positions: Any) -> Any:
        """[batch, heads, tokens, head size] by the positions [batch, tokens]."""
        cos, sin = (table[positions][:, None] for table in (self._cos, self._sin))
        first, second = heads.float().chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        return turned.to(heads.dtype)


def split_heads(rows: Any, size: int) -> Any:
    """[batch, tokens, heads * size] as [batch, heads, tokens, size]."""
    return rows.unflatten(-1, (-1, size)).transpose(1, 2)


class Llama:
    """The target.

    :ivar config: as ``config.json`` has it.
    :ivar embedding: [vocabulary, hidden]; :ivar head: the same, of the output.
    :ivar weights: by the names of the checkpoint.
    """

    def __init__(self, folder: Path, device: str, dtype: Any) -> None:
        from safetensors.torch import load_file

        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: weight.to(device, dtype) for name, weight in weights.items()}
        self.embedding = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embedding)
        self.layers: int = self.config["num_hidden_layers"]
        self.device, self.dtype = device, dtype
        self.rope = Rope(self.config, device)

    def norm(self, rows: Any, name: str) -> Any:
        """The RMS norm of that name."""
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(rows, weight.shape, weight, self.config["rms_norm_eps"])

    def _linear(self, rows: Any, name: str) -> Any:
        return functional.linear(rows, self.weights[f"{name}.weight"])

    def layer(self, number: int, rows: Any, positions: Any, attend: Any) -> Any:
        """One layer; ``attend(layer, queries, keys, values)`` is its attention."""
        name, size = f"model.layers.{number}", self.config["head_dim"]
        normed = self.norm(rows, f"{name}.input_layernorm")
        queries, keys, values = (
            split_heads(self._linear(normed, f"{name}.self_attn.{part}_proj"), size)
            for part in "qkv"
        )
        queries, keys = (self.rope.turned(each, positions) for each in (queries, keys))
        mixed = attend(number, queries, keys, values).transpose(1, 2).flatten(2)
        rows = rows + self._linear(mixed, f"{name}.self_attn.o_proj")
        normed = self.norm(rows, f"{name}.post_attention_layernorm")
        gate = functional.silu(self._linear(normed, f"{name}.mlp.gate_proj"))
        up = self._linear(normed, f"{name}.mlp.up_proj")
        return rows + self._linear(gate * up, f"{name}.mlp.down_proj")

    def hidden(self, ids: Any, keep: tuple[int, ...] = (), cache: Any = None) -> Any:
        """Hidden states of texts [batch, tokens] that begin at position 0, padded on the right.

        :param keep: the layers whose inputs are returned.
        :param cache: gets keys and values; [layers, 2, batch, KV heads, places, head size].
        :returns: the inputs of these layers, by layer, and the last norm's output; each
            [batch, tokens, hidden].
        """
        positions = torch.arange(ids.shape[1], device=ids.device)[None].expand(ids.shape)

        def attend(number: int, queries: Any, keys: Any, values: Any) -> Any:
            if cache is not None:
                cache[number, 0, : len(ids), :, : ids.shape[1]] = keys
                cache[number, 1, : len(ids), :, : ids.shape[1]] = values
            times = queries.shape[1] // keys.shape[1]
            keys, values = (each.repeat_interleave(times, 1) for each in (keys, values))
            return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)

        rows = self.embedding[ids]
        inputs = {}
        for number in range(self.layers):
            if number in keep:
                inputs[number] = rows
            rows = self.layer(number, rows, positions, attend)
        return inputs, self.norm(rows, "model.norm")


class Decoding:
    """Answers of up to ``requests`` texts at a time, a token each a step.

    :ivar places: tokens of a prompt and its answer at most.
    """

    def __init__(self, model: Llama, requests: int, places: int) -> None:
        config, device = model.config, model.device
        shape = (model.layers, 2, requests, config["num_key_value_heads"], places)
        self.model, self.requests, self.places = model, requests, places
        self._cache = torch.zeros(*shape, config["head_dim"], device=device, dtype=model.dtype)
        self._rows = torch.arange(requests, device=device)
        self._all = torch.arange(places, device=device)
        self._ids = torch.zeros(requests, dtype=torch.long, device=device)
        self._positions = torch.zeros_like(self._ids)
        self._temperatures = torch.zeros(requests, device=device)

    def _attend(self, number: int, queries: Any, keys: Any, values: Any) -> Any:
        stored = self._cache[number]
        stored[0, self._rows, :, self._positions] = keys[:, :, 0]
        stored[1, self._rows, :, self._positions] = values[:, :, 0]
        kv_heads = keys.shape[1]
        queries = queries[:, :, 0].unflatten(1, (kv_heads, -1))
        scores = queries @ stored[0].transpose(-1, -2) * self.model.config["head_dim"] ** -0.5
        seen = self._all[None, :] <= self._positions[:, None]
        scores = scores.float().masked_fill(~seen[:, None, None], float("-inf"))
        mixed = scores.softmax(-1).to(values.dtype) @ stored[1]
        return mixed.flatten(1, 2)[:, :, None]

    def _step(self) -> None:
        """Take the ids at the positions; put the next ones into their place."""
        rows = self.model.embedding[self._ids][:, None]
        for number in range(self.model.layers):
            rows = self.model.layer(number, rows, self._positions[:, None], self._attend)
        self._choose(self.model.norm(rows[:, 0], "model.norm"))
        self._positions.add_(1).clamp_(max=self.places - 1)

    def _choose(self, rows: Any) -> None:
        """Sample by each request's temperature; the likeliest where that is 0."""
        logits = functional.linear(rows, self.model.head).float()
        warm = self._temperatures[:, None]
        noise = -torch.empty_like(logits).exponential_().log()
        self._ids.copy_((logits + noise * warm).argmax(-1))

    def answers(self, prompts: list[list[int]], temperatures: list[float], tokens: int) -> Any:
        """[requests, tokens]: what the model answers; what follows an end means nothing.

        :param prompts: at most ``requests``; fewer than ``places - tokens`` ids each.
        """
        end = self.model.config["eos_token_id"]
        self._positions.zero_()
        self._temperatures[: len(temperatures)] = torch.tensor(temperatures).to(self._ids.device)
        for first in range(0, len(prompts), 128):
            self._fill(first, prompts[first : first + 128])
        out = torch.full((self.requests, tokens), end, device=self._ids.device)
        out[:, 0] = self._ids
        done = self._ids == end
        done[len(prompts) :] = True
        for number in range(1, tokens):
            if number % 16 == 0 and bool(done.all()):
                break
            self._step()
            out[:, number] = self._ids
            done |= self._ids == end
        return out[: len(prompts)].cpu()

    def _fill(self, first: int, prompts: list[list[int]]) -> None:
        """Read prompts into the cache, and choose the first token of each answer."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._ids.device)
        ids = padded(prompts, 0).to(self._ids.device)
        part = slice(first, first + len(prompts))
        _, rows = self.model.hidden(ids, cache=self._cache[:, :, part])
        last = rows[torch.arange(len(prompts)), lengths - 1]
        logits = functional.linear(last, self.model.head).float()
        noise = -torch.empty_like(logits).exponential_().log()
        self._ids[part] = (logits + noise * self._temperatures[part, None]).argmax(-1)
        self._positions[part] = lengths


def padded(texts: list[list[int]], filler: int) -> Any:
    """[texts, longest]: ids, filled up on the right."""
    longest = max(map(len, texts))
    return torch.tensor([text + [filler] * (longest - len(text)) for text in texts])
