"""Write tiny targets of other shapes, with experts and several KV-cache groups, and their drafts.

``python -m tests.engine.tiny_hybrids FOLDER`` writes two folders, each with a ``rule.json``:

``gpt-oss``
    ``target``: attention sinks, sliding windows in every other layer, experts; and the EAGLE3
    drafts of ``tiny_models``, whose attention has none of them.
``qwen3-next``
    ``target``: three layers of linear attention, one of full attention, and an MTP layer, each
    with experts.  The draft lies in the group of the full attention.

The rule is that of ``tiny_models``, so tokens and accepted counts are known.  The experts of a
layer are all alike, so that the router's choice does not matter.  Those of the last layer make
what the attention has read louder than all else; in the MTP layer they decide the token, and are
wrong on purpose where the drafts must be.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlay.proof.oracle import Rule
from overlay.proof.tiny_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    LOUD,
    NORMED,
    ON,
    ROPE_BASE,
    SHARPNESS,
    Weights,
    attention,
    copy_blocks,
    eagle3_config,
    eagle3_weights,
    eagle3hid_weights,
    embedding,
    head_of,
    llama_config,
    target_weights,
    write_as_told,
    write_checkpoint,
    zeros,
)

if TYPE_CHECKING:
    import torch

EXPERTS: Final = 4
CHOSEN: Final = 2
#: Dimensions inside an expert, one for each token id.
WIDTH: Final = 256
#: What is below it in a softmax is nothing.
NO_SINK: Final = -10000.0
#: The largest input of gpt-oss's experts; larger ones are cut.
LIMIT: Final = 7.0
#: Of the linear attention, whose kernels know no smaller heads.
LINEAR_HEAD: Final = 128
LINEAR_HEADS: Final = 2
CONVOLUTION: Final = 4
#: What the gate of an expert is worth behind a norm that has made the slots loud.
OPEN: Final = 16.0


# ---- gpt-oss


def gpt_oss_weights(rule: Rule) -> Weights:
    """The target's attention as in ``tiny_models``, and experts in all layers."""
    import torch

    weights = {name: weight for name, weight in target_weights(rule).items() if ".mlp." not in name}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{name}.self_attn.{part}.bias"] = zeros(HIDDEN)
        weights[f"{name}.self_attn.sinks"] = torch.full((HEADS,), NO_SINK, dtype=torch.float64)
        weights |= _gpt_oss_experts(f"{name}.mlp", rule.vocab if layer == LAYERS - 1 else 0)
    return weights


def _gpt_oss_experts(name: str, slots: int) -> Weights:
    """Experts that add the first ``slots`` dimensions of their normed input, several times over.

    Of each pair of rows the first is the gate, the second is multiplied with it, plus one.
    """
    import torch

    both, both_bias = zeros(EXPERTS, HIDDEN, 2 * WIDTH), zeros(EXPERTS, 2 * WIDTH)
    down = zeros(EXPERTS, WIDTH, HIDDEN)
    for slot in range(slots):
        both[:, slot, 2 * slot + 1] = 1
        both_bias[:, 2 * slot] = LIMIT
        both_bias[:, 2 * slot + 1] = -1
        down[:, slot, slot] = 1
    random = torch.Generator().manual_seed(0)
    return {
        f"{name}.router.weight": torch.randn(
            EXPERTS, HIDDEN, generator=random, dtype=torch.float64
        ),
        f"{name}.router.bias": zeros(EXPERTS),
        f"{name}.experts.gate_up_proj": both,
        f"{name}.experts.gate_up_proj_bias": both_bias,
        f"{name}.experts.down_proj": down,
        f"{name}.experts.down_proj_bias": zeros(EXPERTS, HIDDEN),
    }


def gpt_oss_config(vocab: int) -> dict[str, Any]:
    """The configuration of the gpt-oss target."""
    config = llama_config(vocab, "GptOssForCausalLM", LAYERS)
    del config["rope_theta"]
    kinds = ("sliding_attention", "full_attention")
    # A factor of 1 leaves the positions as they are.
    rope = {
        "rope_type": "yarn",
        "factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
    return config | {
        "model_type": "gpt_oss",
        "intermediate_size": WIDTH,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "attention_bias": True,
        "sliding_window": 32,
        "layer_types": [kinds[layer % 2] for layer in range(LAYERS)],
        "rope_theta": ROPE_BASE,
        "rope_scaling": rope,
        "swiglu_limit": LIMIT,
        "rms_norm_eps": 1e-5,
    }


# ---- Qwen3-Next


def qwen3_next_weights(rule: Rule) -> Weights:
    """The target, whose last layer reads the token before, and its MTP layer."""
    right = list(range(rule.vocab))
    weights: Weights = {
        "model.embed_tokens.weight": embedding(right),
        "lm_head.weight": head_of(rule.successor),
        # These norms scale by one more than their weight.
        "model.norm.weight": zeros(HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        if layer < LAYERS - 1:
            weights |= _linear_attention(f"{name}.linear_attn", layer)
            weights |= _layer(name, _qwen_experts(f"{name}.mlp", []))
        else:
            weights |= _gated_attention(name, copy_blocks(HIDDEN, (0, 0, rule.vocab)), loud=1.0)
            weights |= _layer(name, _qwen_experts(f"{name}.mlp", right))
    shown_as = list(right)
    for token in rule.wrong:
        shown_as[token] = rule.successor.index(rule.draft_successor[token])
    name = "mtp.layers.0"
    return weights | {
        # The input: first the normed embedding of the token, then the normed hidden state.
        "mtp.fc.weight": copy_blocks(2 * HIDDEN, (0, 0, rule.vocab), (ON, ON, 1)),
        **{
            f"mtp.{norm}.weight": zeros(HIDDEN)
            for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
        },
        **_gated_attention(name, copy_blocks(HIDDEN, (0, 0, rule.vocab)), loud=LOUD),
        **_layer(name, _qwen_experts(f"{name}.mlp", shown_as)),
    }


def _layer(name: str, experts: Weights) -> Weights:
    norms = ("input_layernorm", "post_attention_layernorm")
    return experts | {f"{name}.{norm}.weight": zeros(HIDDEN) for norm in norms}


def _gated_attention(name: str, value: torch.Tensor, *, loud: float) -> Weights:
    """Reads the position before; a gate, which lets half through, lies behind each head's query."""
    import torch

    weights = attention(name, [1] * HEADS, value, on=NORMED, loud=loud)
    query = weights[f"{name}.self_attn.q_proj.weight"].view(HEADS, HEAD_DIM, HIDDEN)
    gated = torch.cat([query, torch.zeros_like(query)], 1)
    # The model norms each head of queries and keys: a rotary pair has length 1 before, and there
    # are half as many pairs as dimensions. The norm scales by one more than its weight.
    length = torch.full((HEAD_DIM,), SHARPNESS / math.sqrt(2) - 1, dtype=torch.float64)
    return weights | {
        f"{name}.self_attn.q_proj.weight": gated.reshape(2 * HIDDEN, HIDDEN),
        f"{name}.self_attn.q_norm.weight": length,
        f"{name}.self_attn.k_norm.weight": length.clone(),
    }


def _linear_attention(name: str, seed: int) -> Weights:
    """A gated delta net that computes, and adds nothing."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64) * 0.05

    width = LINEAR_HEADS * LINEAR_HEAD
    return {
        f"{name}.in_proj_qkvz.weight": noise(4 * width, HIDDEN),
        f"{name}.in_proj_ba.weight": noise(2 * LINEAR_HEADS, HIDDEN),
        f"{name}.conv1d.weight": noise(3 * width, 1, CONVOLUTION),
        f"{name}.dt_bias": zeros(LINEAR_HEADS),
        f"{name}.A_log": zeros(LINEAR_HEADS),
        f"{name}.norm.weight": torch.ones(LINEAR_HEAD, dtype=torch.float64),
        f"{name}.out_proj.weight": zeros(HIDDEN, width),
    }


def _qwen_experts(name: str, shown_as: list[int]) -> Weights:
    """Experts that add, for each slot of their normed input, to that of another token.

    :param shown_as: the other token of each token; empty for experts that add nothing.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    weights: Weights = {
        f"{name}.gate.weight": torch.randn(EXPERTS, HIDDEN, generator=random, dtype=torch.float64),
        f"{name}.shared_expert_gate.weight": zeros(1, HIDDEN),
        f"{name}.shared_expert.gate_proj.weight": zeros(WIDTH, HIDDEN),
        f"{name}.shared_expert.up_proj.weight": zeros(WIDTH, HIDDEN),
        f"{name}.shared_expert.down_proj.weight": zeros(HIDDEN, WIDTH),
    }
    gate, up, down = zeros(WIDTH, HIDDEN), zeros(WIDTH, HIDDEN), zeros(HIDDEN, WIDTH)
    for token, shown in enumerate(shown_as):
        gate[token, ON] = OPEN
        up[token, token] = 1
        # Louder than the residual stream that it is added to.
        down[shown, token] = OPEN
    for expert in range(EXPERTS):
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
        for part, weight in parts.items():
            weights[f"{name}.experts.{expert}.{part}.weight"] = weight
    return weights


def qwen3_next_config(vocab: int) -> dict[str, Any]:
    """The configuration of the Qwen3-Next target and its MTP layer."""
    full = ["full_attention"]
    rope = {"rope_type": "default", "rope_theta": ROPE_BASE, "partial_rotary_factor": 1.0}
    return llama_config(vocab, "Qwen3NextForCausalLM", LAYERS) | {
        "model_type": "qwen3_next",
        "num_nextn_predict_layers": 1,
        "layer_types": ["linear_attention"] * (LAYERS - 1) + full,
        "full_attention_interval": LAYERS,
        "partial_rotary_factor": 1.0,
        "rope_parameters": rope,
        "linear_conv_kernel_dim": CONVOLUTION,
        "linear_key_head_dim": LINEAR_HEAD,
        "linear_value_head_dim": LINEAR_HEAD,
        "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": WIDTH,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def write_hybrid_models(folder: Path, rule: Rule) -> None:
    """Write both folders.

    :raises ValueError: if the slots do not fit an expert.
    """
    if rule.vocab > WIDTH:
        raise ValueError(f"the vocabulary must not be larger than an expert: {WIDTH}")
    gpt_oss, qwen = folder / "gpt-oss", folder / "qwen3-next"
    write_checkpoint(gpt_oss / "target", gpt_oss_weights(rule), gpt_oss_config(rule.vocab))
    config = eagle3_config(rule.vocab, [1, 2, 3])
    write_checkpoint(gpt_oss / "eagle3", eagle3_weights(rule), config)
    write_checkpoint(gpt_oss / "eagle3hid", eagle3hid_weights(rule), config)
    write_checkpoint(qwen / "target", qwen3_next_weights(rule), qwen3_next_config(rule.vocab))
    for each in (gpt_oss, qwen):
        (each / "rule.json").write_text(json.dumps(asdict(rule)), encoding="utf-8")


if __name__ == "__main__":
    write_as_told(write_hybrid_models, __doc__)
