"""Write the tiny target once more, with experts: the same rule, through layers that communicate.

``python -m tests.engine.tiny_moe FOLDER`` writes what ``tiny_models`` writes, but its ``target``
is a Qwen3-MoE.  Its experts are all alike, so the oracle stays exact however the router chooses.
In the last layer they decide the token: each row's experts make what that row has read from its KV
cache louder than all else.  Rows that were mixed up between the ranks would produce other tokens.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from overlay.proof.oracle import Rule
from overlay.proof.tiny_models import (
    HEAD_DIM,
    HIDDEN,
    LAYERS,
    ON,
    SHARPNESS,
    Weights,
    llama_config,
    target_weights,
    write_as_told,
    write_checkpoint,
    zeros,
)
from tests.engine.tiny_eagle import write_models

EXPERTS: Final = 4
CHOSEN: Final = 2
#: Two data-parallel ranks, or two tensor-parallel ones, may each hold half of an expert.
WIDTH: Final = 256
#: What the gate of an expert is worth at its input: enough that it does not damp.
OPEN: Final = 4.0


def moe_weights(rule: Rule) -> Weights:
    """The target's weights with experts in place of each layer's silent MLP."""
    import torch

    weights = {name: weight for name, weight in target_weights(rule).items() if ".mlp." not in name}
    # The model norms each head of queries and keys: their length has to come from here. A rotary
    # pair of either has length 1 before it, and half as many pairs as dimensions: sqrt(2) after.
    length = torch.full((HEAD_DIM,), SHARPNESS / math.sqrt(2), dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights[f"{name}.self_attn.q_norm.weight"] = length.clone()
        weights[f"{name}.self_attn.k_norm.weight"] = length.clone()
        weights[f"{name}.mlp.gate.weight"] = torch.randn(
            EXPERTS, HIDDEN, generator=random, dtype=torch.float64
        )
        loud = layer == LAYERS - 1
        for expert in range(EXPERTS):
            weights |= loud_expert(f"{name}.mlp.experts.{expert}", rule.vocab if loud else 0)
    return weights


def loud_expert(name: str, slots: int, first: int = 0) -> Weights:
    """An expert that adds ``slots`` dimensions of its normed input, several times over.

    :param first: the first of these dimensions.
    """
    gate, up, down = zeros(WIDTH, HIDDEN), zeros(WIDTH, HIDDEN), zeros(HIDDEN, WIDTH)
    for slot in range(slots):
        gate[slot, ON] = OPEN
        up[slot, first + slot] = 1
        down[first + slot, slot] = 1
    parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    return {f"{name}.{part}.weight": weight for part, weight in parts.items()}


def moe_config(vocab: int) -> dict[str, Any]:
    """The configuration of the target with experts."""
    return {
        **llama_config(vocab, "Qwen3MoeForCausalLM", LAYERS),
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": WIDTH,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def write_moe_models(folder: Path, rule: Rule) -> None:
    """Write the target with experts, the drafts and ``rule.json``.

    :raises ValueError: see ``tiny_models.write_models``; or if the slots do not fit an expert.
    """
    if rule.vocab > WIDTH:
        raise ValueError(f"the vocabulary must not be larger than an expert: {WIDTH}")
    write_models(folder, rule)
    write_checkpoint(folder / "target", moe_weights(rule), moe_config(rule.vocab))


if __name__ == "__main__":
    write_as_told(write_moe_models, __doc__)
