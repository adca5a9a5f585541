"""Write tiny GLM-4-MoE models with experts in the MTP layer; they follow ``oracle.Rule``.

Target and MTP layer are one checkpoint.  The residual stream has two banks of one dimension a
token id, the second of which the head reads, and the dimension ``ON``.  All experts of a layer are
alike, so the oracle stays exact however the router chooses.  In the target's last layer and in the
MTP layer they decide the token: each row's experts make what that row has read louder than all
else, so that rows mixed up between the ranks produce other tokens, or other drafts.

- ``glm-mtp``: the MTP layer reads the token before through its own KV cache.
- ``glm-mtphid``: it reads it from the hidden state handed over.  Its attention is aimed one
  position *ahead*, so where ``seq_lens`` is too long a stale key wins, and the draft is wrong.

An MTP layer shares embedding and head with the target, so its wrong tokens are wrong in the values
of its attention.  At position 0 vLLM blanks its input: prompts need three tokens.

``python -m tests.engine.tiny_glm FOLDER`` writes both, and what ``tiny_models`` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlay.proof import tiny_models
from overlay.proof.oracle import Rule
from overlay.proof.tiny_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LOUD,
    NORMED,
    ON,
    ROPE_BASE,
    Weights,
    zeros,
)
from tests.engine import tiny_eagle
from tests.engine.tiny_moe import CHOSEN, EXPERTS, WIDTH, loud_expert

if TYPE_CHECKING:
    import torch

DRAFTS: Final = ("glm-mtp", "glm-mtphid")
LAYERS: Final = 3
#: The first layer is dense, as in the real models.
DENSE: Final = 1


def _read(distance: int, name: str, bank: int, shown_as: list[int], *, loud: float) -> Weights:
    """An attention that reads a bank of the key ``distance`` positions back into bank 1.

    :param shown_as: by token, which one its value says it is.
    """
    vocab = len(shown_as)
    value = zeros(HIDDEN, HIDDEN)
    for token, shown in enumerate(shown_as):
        value[vocab + shown, bank * vocab + token] = 1
    return tiny_models.attention(name, [distance] * HEADS, value, on=NORMED, loud=loud)


def _experts(name: str, random: torch.Generator, rule: Rule, *, loud: bool) -> Weights:
    """Experts that are all alike, and a shared one that adds nothing."""
    import torch

    slots = rule.vocab if loud else 0
    weights = {
        f"{name}.mlp.gate.weight": torch.randn(
            EXPERTS, HIDDEN, generator=random, dtype=torch.float64
        ),
        f"{name}.mlp.gate.e_score_correction_bias": zeros(EXPERTS),
    }
    for expert in range(EXPERTS):
        weights |= loud_expert(f"{name}.mlp.experts.{expert}", slots, first=rule.vocab)
    shared = f"{name}.mlp.shared_experts"
    for part, shape in (
        ("gate", (WIDTH, HIDDEN)),
        ("up", (WIDTH, HIDDEN)),
        ("down", (HIDDEN, WIDTH)),
    ):
        weights[f"{shared}.{part}_proj.weight"] = zeros(*shape)
    return weights


def _layer(name: str) -> Weights:
    return tiny_models.norms(f"{name}.input_layernorm", f"{name}.post_attention_layernorm")


def _target(rule: Rule, random: torch.Generator) -> Weights:
    """Layer 1 reads the previous token into bank 1; the experts of the last make it louder."""
    vocab = rule.vocab
    weights = {
        "model.embed_tokens.weight": tiny_models.embedding(list(range(vocab))),
        "lm_head.weight": tiny_models.head_of(rule.successor, slot=vocab),
        **tiny_models.norms("model.norm"),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= _layer(name)
        if layer == 1:
            weights |= _read(1, name, 0, list(range(vocab)), loud=1.0)
        else:
            weights |= tiny_models.silent_attention(name)
        if layer < DENSE:
            weights |= tiny_models.silent_mlp(name)
        else:
            weights |= _experts(name, random, rule, loud=layer == LAYERS - 1)
    return weights


def _mtp(rule: Rule, draft: str, random: torch.Generator) -> Weights:
    """The layer behind the target's own."""
    name, vocab = f"model.layers.{LAYERS}", rule.vocab
    shown_as = list(range(vocab))
    for token in rule.wrong:
        shown_as[token] = rule.successor.index(rule.draft_successor[token])
    # The input: first the normed embedding of the token, then the normed hidden state.
    joined = tiny_models.copy_blocks(2 * HIDDEN, (0, 0, vocab), (ON, ON, 1))
    if draft == "glm-mtp":
        read = _read(1, name, 0, shown_as, loud=LOUD)
    else:
        joined += tiny_models.copy_blocks(2 * HIDDEN, (vocab, HIDDEN, vocab))
        read = _read(-1, name, 1, shown_as, loud=LOUD)
    return {
        f"{name}.embed_tokens.weight": tiny_models.embedding(list(range(vocab))),
        f"{name}.eh_proj.weight": joined,
        **tiny_models.norms(f"{name}.enorm", f"{name}.hnorm", f"{name}.shared_head.norm"),
        f"{name}.shared_head.head.weight": tiny_models.head_of(rule.successor, slot=vocab),
        **_layer(name),
        **read,
        **_experts(name, random, rule, loud=True),
    }


def glm_config(vocab: int, **more: Any) -> dict[str, Any]:
    """The content of ``config.json``.

    :param more: further entries, which win.
    """
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": DENSE,
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "partial_rotary_factor": 1.0,
        "rope_theta": ROPE_BASE,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROPE_BASE,
            "partial_rotary_factor": 1.0,
        },
        "use_qk_norm": False,
        "attention_bias": False,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": CHOSEN,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def write_glm_models(folder: Path, rule: Rule) -> None:
    """Write both models beside those of ``tiny_models``, and ``rule.json`` with them.

    :raises ValueError: see ``tiny_models.write_models``; or if the slots do not fit an expert.
    """
    import torch

    if rule.vocab > WIDTH:
        raise ValueError(f"the vocabulary must not be larger than an expert: {WIDTH}")
    tiny_eagle.write_models(folder, rule)
    for draft in DRAFTS:
        random = torch.Generator().manual_seed(0)
        weights = {**_target(rule, random), **_mtp(rule, draft, random)}
        tiny_models.write_checkpoint(folder / draft, weights, glm_config(rule.vocab))


if __name__ == "__main__":
    tiny_models.write_as_told(write_glm_models, __doc__)
