"""The GPU memory that a shape takes, by its configuration: so much that it surely suffices.

Engines that start at the same moment on one GPU cannot measure how much of it is free: each is told
how large its KV cache is, and may take that and its weights, graphs and activations.
"""

from __future__ import annotations

from overlay.proof.shapes import SHAPES

#: Bytes of a number in bfloat16.
_NUMBER = 2
#: Tokens of a request that the KV cache holds beyond the prompt and the answer: draft tokens, and
#: what is left over of a block.
_BEYOND = 32
#: Share of the KV cache that is held ready beyond what the requests take.
_SPARE = 0.05
#: The longest request that a shape's engine takes; its KV cache holds two, at least.
MAX_MODEL_LEN = 4096
#: The requests that a shape's server serves at a time, unless more are asked for.
MOST_SERVED = 256
#: The CUDA context, graphs, activations of a batch of prompts, and logits in single precision.
_OVERHEAD = 6_000_000_000


def kv_cache_bytes(shape: str, requests: int, tokens: int) -> int:
    """The KV cache of a target and its EAGLE3 draft.

    :param requests: at a time; :param tokens: of each, prompt and answer together.
    """
    target = SHAPES[shape]
    layers = target["num_hidden_layers"] + 1
    a_token = 2 * layers * target["num_key_value_heads"] * target["head_dim"] * _NUMBER
    held = max(requests * (tokens + _BEYOND), 2 * MAX_MODEL_LEN)
    return int(held * a_token * (1 + _SPARE))


def weight_bytes(shape: str) -> int:
    """The weights of a target and its EAGLE3 draft; the draft's are rather too many."""
    target = SHAPES[shape]
    hidden, head = target["hidden_size"], target["head_dim"]
    heads = 2 * target["num_attention_heads"] + 2 * target["num_key_value_heads"]
    dense = 3 * hidden * target["intermediate_size"]
    mlp = dense
    if "num_experts" in target:
        mlp = target["num_experts"] * hidden * (3 * target["moe_intermediate_size"] + 1)
    vocabulary = target["vocab_size"] * hidden
    attention = hidden * head * heads
    draft = 2 * attention + dense + 3 * hidden * hidden + 2 * vocabulary
    layers: int = target["num_hidden_layers"] * (attention + mlp)
    return _NUMBER * int(layers + 2 * vocabulary + draft)


def engine_bytes(shape: str, kv_cache: int) -> int:
    """All that an engine takes of a GPU with a KV cache of that many bytes."""
    return weight_bytes(shape) + kv_cache + _OVERHEAD
