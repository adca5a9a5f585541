"""Write tiny DeepSeek-V3 models with an MTP layer whose hand-made weights follow ``oracle.Rule``.

As in ``tiny_models``, the rotary part of the attention alone says which key is read: the other
part of queries and keys is zero.  The residual stream has two banks of one dimension a token id,
the second of which the head reads, and the dimension ``ON``.  Sizes of a latent and of its rotary
part are those of DeepSeek-V3, because the kernels know no others.

- ``deepseek-mtp``: the MTP layer reads the token before through its own KV cache.
- ``deepseek-mtphid``: it reads it from the hidden state handed over.  Its attention is aimed one
  position *ahead*, so where ``seq_lens`` is too long a stale key wins, and the draft is wrong.
- ``deepseek-moe-mtp``: as the first, but the last layer of the target and the MTP layer have
  experts, all alike.  Those of the MTP layer decide the token, and which ones are wrong.

An MTP layer shares embedding and head with the target, so its wrong tokens are wrong in the values
of its attention, or in its experts.  At position 0 vLLM blanks its input: prompts need three
tokens.

``python -m tests.engine.tiny_mla FOLDER`` writes all of them and ``rule.json``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlay.proof import tiny_models
from overlay.proof.oracle import Rule
from overlay.proof.tiny_models import HIDDEN, ON, ROPE_BASE, Weights, zeros
from tests.engine import tiny_eagle

if TYPE_CHECKING:
    import torch

#: The one whose layers have experts.
WITH_EXPERTS: Final = "deepseek-moe-mtp"
DRAFTS: Final = ("deepseek-mtp", "deepseek-mtphid", WITH_EXPERTS)
LAYERS: Final = 2
HEADS: Final = 4
LATENT: Final = 512
ROPE: Final = 64
NOPE: Final = 128
VALUE: Final = LATENT // HEADS
#: What each of two hot dimensions is worth behind an RMS norm.
NORMED: Final = math.sqrt(HIDDEN / 2)
#: Queries times keys times 1 / sqrt(192), times a cosine sum that falls by 1.1 or more between
#: the chosen key and its neighbours: they differ by a factor of e**50.
SHARPNESS: Final = 26.0
#: How loud the MTP layer's attention is beside what was handed over to it.
LOUD: Final = 8.0
EXPERTS: Final = 8
#: Dimensions inside an expert, one for each token id.
WIDTH: Final = 256
#: What the gate of an expert is worth behind a norm that has made the slots loud.
OPEN: Final = 16.0


def _rotary(distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[ROPE] each: a query that finds the key ``distance`` positions before it, and that key.

    DeepSeek's rotary pairs are neighbours: dimensions 2i and 2i + 1.
    """
    import torch

    theta = ROPE_BASE ** (-torch.arange(ROPE // 2, dtype=torch.float64) / (ROPE // 2))
    query = torch.stack([torch.cos(theta * distance), -torch.sin(theta * distance)], -1)
    key = torch.stack([torch.ones_like(theta), torch.zeros_like(theta)], -1)
    return query.flatten(), key.flatten()


def _attention(
    name: str, distance: int, bank: int, shown_as: list[int], *, on: float, loud: float
) -> Weights:
    """Reads a bank of the key ``distance`` positions back into bank 1.

    :param shown_as: by token, which one its value says it is.
    :param on: what ON is worth at the input.
    """
    import torch

    vocab = len(shown_as)
    asked, answered = _rotary(distance)
    query = zeros(HEADS, NOPE + ROPE, HIDDEN)
    query[:, NOPE:, ON] = asked * SHARPNESS / on
    latent = zeros(LATENT + ROPE, HIDDEN)
    for token, shown in enumerate(shown_as):
        latent[shown, bank * vocab + token] = 1
    latent[LATENT:, ON] = answered * SHARPNESS / on
    values = zeros(HEADS, NOPE + VALUE, LATENT)
    values[:, NOPE:] = torch.eye(LATENT, dtype=torch.float64).view(HEADS, VALUE, LATENT)
    out = zeros(HIDDEN, HEADS * VALUE)
    out[vocab : 2 * vocab, :vocab] = torch.eye(vocab, dtype=torch.float64) * loud
    return {
        f"{name}.self_attn.q_proj.weight": query.flatten(0, 1),
        f"{name}.self_attn.kv_a_proj_with_mqa.weight": latent,
        f"{name}.self_attn.kv_b_proj.weight": values.flatten(0, 1),
        f"{name}.self_attn.o_proj.weight": out,
    }


def _experts(name: str, vocab: int, shown_as: list[int]) -> Weights:
    """Experts that add to bank 1 the token that each token of it is shown as, louder than it is.

    :param shown_as: empty for experts that add nothing.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    weights: Weights = {
        f"{name}.mlp.gate.weight": torch.randn(
            EXPERTS, HIDDEN, generator=random, dtype=torch.float64
        ),
        f"{name}.mlp.gate.e_score_correction_bias": zeros(EXPERTS),
    }
    gate, up, down = zeros(WIDTH, HIDDEN), zeros(WIDTH, HIDDEN), zeros(HIDDEN, WIDTH)
    for token, shown in enumerate(shown_as):
        gate[token, ON] = OPEN
        up[token, vocab + token] = 1
        down[vocab + shown, token] = OPEN
    silent = {"gate_proj": zeros(WIDTH, HIDDEN), "up_proj": zeros(WIDTH, HIDDEN)}
    silent["down_proj"] = zeros(HIDDEN, WIDTH)
    own = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    kinds = {"shared_experts": silent} | {f"experts.{each}": own for each in range(EXPERTS)}
    return weights | {
        f"{name}.mlp.{kind}.{part}.weight": weight.clone()
        for kind, parts in kinds.items()
        for part, weight in parts.items()
    }


def _layer(name: str, attention: Weights, mlp: Weights | None = None) -> Weights:
    import torch

    ones = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    ones["self_attn.kv_a_layernorm"] = LATENT
    return {
        **attention,
        **(tiny_models.silent_mlp(name) if mlp is None else mlp),
        **{
            f"{name}.{norm}.weight": torch.ones(size, dtype=torch.float64)
            for norm, size in ones.items()
        },
    }


def _silent(name: str) -> Weights:
    sizes = {
        "q_proj": (HEADS * (NOPE + ROPE), HIDDEN),
        "kv_a_proj_with_mqa": (LATENT + ROPE, HIDDEN),
        "kv_b_proj": (HEADS * (NOPE + VALUE), LATENT),
        "o_proj": (HIDDEN, HEADS * VALUE),
    }
    return {f"{name}.self_attn.{part}.weight": zeros(*size) for part, size in sizes.items()}


def _target(rule: Rule, draft: str) -> Weights:
    """Layer 0 reads the previous token into bank 1, the other layer does nothing."""
    experts = _experts("model.layers.1", rule.vocab, []) if draft == WITH_EXPERTS else None
    vocab = rule.vocab
    right = list(range(vocab))
    attention = _attention("model.layers.0", 1, 0, right, on=NORMED, loud=1.0)
    return {
        "model.embed_tokens.weight": tiny_models.embedding(right),
        "lm_head.weight": tiny_models.head_of(rule.successor, slot=vocab),
        **tiny_models.norms("model.norm"),
        **_layer("model.layers.0", attention),
        **_layer("model.layers.1", _silent("model.layers.1"), experts),
    }


def _mtp(rule: Rule, draft: str) -> Weights:
    """The layer behind the target's own."""
    name, vocab = f"model.layers.{LAYERS}", rule.vocab
    right = list(range(vocab))
    shown_as = list(right)
    experts = None
    for token in rule.wrong:
        shown_as[token] = rule.successor.index(rule.draft_successor[token])
    # The input: first the normed embedding of the token, then the normed hidden state.
    joined = tiny_models.copy_blocks(2 * HIDDEN, (0, 0, vocab), (ON, ON, 1))
    if draft == WITH_EXPERTS:
        attention = _attention(name, 1, 0, right, on=NORMED, loud=LOUD)
        experts = _experts(name, vocab, shown_as)
    elif draft == "deepseek-mtp":
        # Two hot dimensions, normed twice.
        attention = _attention(name, 1, 0, shown_as, on=NORMED, loud=LOUD)
    else:
        joined += tiny_models.copy_blocks(2 * HIDDEN, (vocab, HIDDEN, vocab))
        attention = _attention(name, -1, 1, shown_as, on=NORMED, loud=LOUD)
    return {
        f"{name}.embed_tokens.weight": tiny_models.embedding(list(range(vocab))),
        f"{name}.eh_proj.weight": joined,
        **tiny_models.norms(f"{name}.enorm", f"{name}.hnorm", f"{name}.shared_head.norm"),
        f"{name}.shared_head.head.weight": tiny_models.head_of(rule.successor, slot=vocab),
        **_layer(name, attention, experts),
    }


def _config(vocab: int, draft: str) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": None,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROPE,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": VALUE,
        # The layers from this one on are mixtures of experts.
        "first_k_dense_replace": 1 if draft == WITH_EXPERTS else 100,
        "moe_intermediate_size": WIDTH,
        "moe_layer_freq": 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "max_position_embeddings": 4096,
        "rope_theta": ROPE_BASE,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def write_mla_models(folder: Path, rule: Rule) -> None:
    """Write all models beside those of ``tiny_models``, and ``rule.json`` with them."""
    tiny_eagle.write_models(folder, rule)
    for draft in DRAFTS:
        weights = {**_target(rule, draft), **_mtp(rule, draft)}
        tiny_models.write_checkpoint(folder / draft, weights, _config(rule.vocab, draft))


if __name__ == "__main__":
    tiny_models.write_as_told(write_mla_models, __doc__)
