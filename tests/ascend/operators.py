"""Operators of torch_npu on the CPU, under their real schemas: attention over a paged cache.

`register` defines kernels for the operators that vllm-ascend calls in a draft. A call that does
not fit the operator's schema fails as it does on an NPU; arguments that the stand-in does not
understand are refused, not passed over.
"""

from __future__ import annotations

from typing import Any

import torch

_NAMES = {
    # v2's name of an argument: v1's
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "num_query_heads": "num_heads",
    "softmax_scale": "scale",
}
#: Arguments that change nothing in what is computed here.
_INERT = frozenset(
    ("workspace", "out", "softmax_lse_flag", "return_softmax_lse", "inner_precise", "next_tokens")
)
_KNOWN = frozenset(
    (
        *("query_rope", "key_rope", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv"),
        *("block_table", "num_heads", "num_key_value_heads", "scale", "input_layout"),
        *("sparse_mode", "block_size", "pre_tokens"),
    )
)
_UNLIMITED = 2147483647


def fused_infer_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any
) -> torch.Tensor:
    """Attention of each request's queries to its keys in a paged cache.

    :param query: TND [tokens, heads, width], or in MLA's decode layouts [tokens, heads, 1, width]
        and [tokens, 1, heads, width].
    :param key: [blocks, block size, key heads * width], or with heads in a dimension of its own;
        `query_rope` and `key_rope` are behind query and key, as the second part of their width.
    :returns: in the layout that the operator writes.
    """
    # What equals the schema's default does not reach a kernel.
    options: dict[str, Any] = {"scale": 1.0, "num_heads": 1, "sparse_mode": 0}
    options |= {_NAMES.get(name, name): value for name, value in given.items()}
    for name in options.keys() - _KNOWN - _INERT:
        raise NotImplementedError(f"the stand-in does not know {name}={options[name]!r}")
    if options.get("pre_tokens", _UNLIMITED) != _UNLIMITED:
        raise NotImplementedError("the stand-in knows no sliding window")
    layout, heads = options["input_layout"], options["num_heads"]
    rope = options.get("query_rope")
    tokens = _by_token(query, layout, heads)
    if rope is not None:
        tokens = torch.cat([tokens, _by_token(rope, layout, heads)], -1)
    key_heads = options.get("num_key_value_heads") or heads
    keys = _by_slot(key, options["block_size"], key_heads)
    values = _by_slot(value, options["block_size"], key_heads)
    if rope is not None:
        keys = torch.cat(
            [keys, _by_slot(options["key_rope"], options["block_size"], key_heads)], -1
        )
    ends = options.get("actual_seq_lengths", [])
    if not layout.startswith("TND"):  # one query a request
        ends = list(range(1, tokens.shape[0] + 1))
    result = _attention(tokens, keys, values, ends, options)
    if layout == "TND":
        return result
    return result.transpose(0, 1)[:, :, None]  # [heads, tokens, 1, width]


def _by_token(query: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    if layout not in ("TND", "TND_NTD", "BNSD_NBSD", "BSND_NBSD"):
        raise NotImplementedError(f"the stand-in does not know the layout {layout}")
    return query.reshape(query.shape[0], heads, -1)


def _by_slot(cache: torch.Tensor, block_size: int, heads: int) -> torch.Tensor:
    """[slots, heads, width]."""
    if cache.dim() == 4 and cache.shape[1] == heads and cache.shape[2] == block_size:
        cache = cache.transpose(1, 2)  # blocks, heads, block size, width
    return cache.reshape(cache.shape[0] * block_size, heads, -1)


def _attention(
    tokens: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    ends: list[int],
    options: dict[str, Any],
) -> torch.Tensor:
    heads = tokens.shape[1]
    result = torch.zeros(*tokens.shape[:2], values.shape[-1], dtype=tokens.dtype)
    table, size = options["block_table"], options["block_size"]
    start = 0
    for row, (end, length) in enumerate(zip(ends, options["actual_seq_lengths_kv"], strict=False)):
        count = end - start
        if count > 0 and length > 0:
            places = torch.arange(length)
            slots = table[row, places // size].long() * size + places % size
            group = heads // keys.shape[1]
            own, content = (each[slots].repeat_interleave(group, 1) for each in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", tokens[start:end], own) * options["scale"]
            # A query sees its own key and those before it, the last query all of them.
            beyond = places[None] > torch.arange(count)[:, None] + length - count
            weights = scores.masked_fill(beyond, float("-inf")).softmax(-1).nan_to_num()
            result[start:end] = torch.einsum("hqk,khd->qhd", weights, content)
        start = max(start, end)
    return result


def attention_by_tensors(
    tokens: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    scale: float,
) -> torch.Tensor:
    """The same attention without a number of the host, so that a graph can hold it.

    :param tokens: [tokens, heads, width]; those behind the last request give anything.
    :param keys: [slots, heads, width], as `values`.
    :param starts: [requests + 1]; `lengths`: [requests]; `table`: [requests, blocks].
    """
    numbers = torch.arange(tokens.shape[0])
    rows = torch.searchsorted(starts[1:], numbers.int(), right=True).clamp(max=len(lengths) - 1)
    places = torch.arange(table.shape[1] * block_size)
    slots = table[rows][:, places // block_size].long() * block_size + places % block_size
    # Of each token, the place of its own key.
    own = lengths[rows] - (starts[rows + 1] - starts[rows]) + (numbers - starts[rows])
    scores = torch.einsum("thw,tkhw->thk", tokens, keys[slots]) * scale
    hidden = (places[None] > own[:, None])[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num()
    return torch.einsum("thk,tkhw->thw", weights, values[slots])


def _into(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any) -> Any:
    out = given["out"]
    computed = fused_infer_attention(query, key, value, **_said(given))
    out[0].view(-1)[: computed.numel()].copy_(computed.reshape(-1))
    return out[0], out[1]


def _made(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any) -> Any:
    return fused_infer_attention(query, key, value, **_said(given)), torch.zeros(1)


def _said(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def register() -> torch.library.Library:
    """Define the kernels; they go with what is returned."""
    library = torch.library.Library("npu", "IMPL")
    for name in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"):
        library.impl(f"{name}.out", _into, "CPU")
        library.impl(name, _made, "CPU")
        workspace = f"_{name}_get_max_workspace"
        library.impl(workspace, lambda *args, **kwargs: torch.zeros(1), "CPU")
    return library
