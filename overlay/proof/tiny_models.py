"""Write the tiny target and its drafts: Llamas with hand-made weights that follow ``oracle.Rule``.

Every model has a residual stream of ``HIDDEN`` dimensions: a *slot* of one dimension a token id,
for the drafts a second one behind it, and a last dimension that is always on (``ON``).  A single
attention layer looks a fixed distance back, by rotary angle alone: queries and keys read nothing
but ``ON``, so which key wins is a matter of positions, KV slots and lengths, and of nothing else.

``python -m overlay.proof.tiny_models FOLDER`` writes ``target``, ``eagle3`` and
``eagle3hid``.  Needs PyTorch and safetensors, no vLLM.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlay.proof.oracle import Rule, make_rule

if TYPE_CHECKING:
    import torch

HIDDEN: Final = 512
HEAD_DIM: Final = 64
HEADS: Final = HIDDEN // HEAD_DIM
LAYERS: Final = 4
ROPE_BASE: Final = 10000.0
ON: Final = HIDDEN - 1
#: What each of the two hot dimensions of an embedding is worth behind an RMS norm.
NORMED: Final = math.sqrt(HIDDEN / 2)
#: Sharpness of the attention: 20 * 20 / sqrt(64) times a cosine sum that falls by 1.1 or more
#: between the chosen key and its neighbours makes them differ by a factor of e**50.
SHARPNESS: Final = 20.0
#: How loud a draft's attention is beside what was handed over to it.
LOUD: Final = 64.0

Weights = dict[str, "torch.Tensor"]


def zeros(*shape: int) -> torch.Tensor:
    """A tensor of zeros in double precision; weights are rounded only when they are written."""
    import torch

    return torch.zeros(*shape, dtype=torch.float64)


def embedding(shown_as: list[int]) -> torch.Tensor:
    """[vocab, HIDDEN]: each token lights the slot dimension of the token it is shown as, and ON."""
    table = zeros(len(shown_as), HIDDEN)
    for token, slot in enumerate(shown_as):
        table[token, slot] = 1
        table[token, ON] = 1
    return table


def head_of(successor: tuple[int, ...], slot: int = 0) -> torch.Tensor:
    """[vocab, HIDDEN]: the token read from the slot votes for its successor."""
    table = zeros(len(successor), HIDDEN)
    for token, following in enumerate(successor):
        # Two tokens may vote for one successor (a wrong one); each keeps its own column.
        table[following, slot + token] = 1
    return table


def copy_blocks(inputs: int, *blocks: tuple[int, int, int]) -> torch.Tensor:
    """[HIDDEN, inputs]: copies of ``(to, from, width)`` blocks of dimensions."""
    matrix = zeros(HIDDEN, inputs)
    for to, start, width in blocks:
        for i in range(width):
            matrix[to + i, start + i] = 1
    return matrix


def attention(
    name: str, distances: Sequence[int], value: torch.Tensor, *, on: float, loud: float
) -> Weights:
    """An attention whose heads read, for each query, the key at a distance before it.

    :param distances: one for each head; below 0 behind it.
    :param value: [HIDDEN, inputs], what is read there.
    :param on: what the ON dimension (of the first HIDDEN inputs) is worth at its input.

    A rotary pair of the key is at angle ``position * theta``, that of the query at
    ``(position - distance) * theta``; their product is greatest where the angles are equal.
    """
    import torch

    theta = ROPE_BASE ** (-torch.arange(HEAD_DIM // 2, dtype=torch.float64) / (HEAD_DIM // 2))
    queries = [
        torch.cat([torch.cos(theta * distance), -torch.sin(theta * distance)])
        for distance in distances
    ]
    key = torch.cat([torch.ones_like(theta), torch.zeros_like(theta)])
    inputs = value.shape[1]
    weights = {"q_proj": zeros(HIDDEN, inputs), "k_proj": zeros(HIDDEN, inputs)}
    weights["q_proj"][:, ON] = torch.cat(queries) * SHARPNESS / on
    weights["k_proj"][:, ON] = key.repeat(HEADS) * SHARPNESS / on
    weights |= {"v_proj": value, "o_proj": torch.eye(HIDDEN, dtype=torch.float64) * loud}
    return {f"{name}.self_attn.{part}.weight": weight for part, weight in weights.items()}


def silent_attention(name: str) -> Weights:
    """A whole attention that adds nothing."""
    parts = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"{name}.self_attn.{part}.weight": zeros(HIDDEN, HIDDEN) for part in parts}


def silent_mlp(name: str) -> Weights:
    """The weights of an MLP that adds nothing."""
    return {
        f"{name}.mlp.gate_proj.weight": zeros(128, HIDDEN),
        f"{name}.mlp.up_proj.weight": zeros(128, HIDDEN),
        f"{name}.mlp.down_proj.weight": zeros(HIDDEN, 128),
    }


def norms(*names: str) -> Weights:
    """The weights of RMS norms over the residual stream that scale nothing."""
    import torch

    return {f"{name}.weight": torch.ones(HIDDEN, dtype=torch.float64) for name in names}


def target_weights(rule: Rule) -> Weights:
    """The target: layer 1 reads the previous token's slot, the other layers do nothing.

    Layer 0 is silent so that before layer 1 the stream is still the bare embedding, in a tensor of
    its own: what vLLM hands over from before layer 0 is the very tensor that a norm which works in
    place (CUDA's, where nothing is compiled) then adds that layer's attention to.
    """
    weights = {
        "model.embed_tokens.weight": embedding(list(range(rule.vocab))),
        "lm_head.weight": head_of(rule.successor),
        **norms("model.norm"),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        if layer == 1:
            slot = copy_blocks(HIDDEN, (0, 0, rule.vocab))
            weights |= attention(name, [1] * HEADS, slot, on=NORMED, loud=1.0)
        else:
            weights |= silent_attention(name)
        weights |= silent_mlp(name)
        weights |= norms(f"{name}.input_layernorm", f"{name}.post_attention_layernorm")
    return weights


def eagle3_draft(
    table: torch.Tensor, *, fc: torch.Tensor, head: torch.Tensor, attention: Weights
) -> Weights:
    """The weights of an EAGLE3 draft.

    :param table: its embedding; :param fc: reads what the target hands over.
    """
    return {
        "embed_tokens.weight": table,
        "fc.weight": fc,
        "lm_head.weight": head,
        **attention,
        **silent_mlp("midlayer"),
        **norms("norm", *(f"midlayer.{n}" for n in ("input_layernorm", "hidden_norm"))),
        **norms("midlayer.post_attention_layernorm"),
    }


def eagle3_weights(rule: Rule) -> Weights:
    """Reads the token before through its own KV cache: the embedding half, one position back."""
    slot = copy_blocks(2 * HIDDEN, (0, 0, rule.vocab))
    return eagle3_draft(
        embedding(list(range(rule.vocab))),
        # What is handed over is kept faint: it must reach the draft, and must not decide.
        fc=copy_blocks(3 * HIDDEN, (0, 0, HIDDEN)) * 0.05,
        head=head_of(rule.draft_successor),
        attention=attention("midlayer", [1] * HEADS, slot, on=NORMED, loud=LOUD),
    )


def eagle3hid_weights(rule: Rule) -> Weights:
    """Reads the token before from the hidden state handed over (slot 1), not from the KV cache.

    Its attention is aimed one position *ahead*.  The best key that it may see is its own, which
    carries both tokens into the two slots; where ``seq_lens`` is too long a stale key beyond the
    valid length is nearer still, and the draft is wrong.
    """
    vocab = rule.vocab
    both = copy_blocks(2 * HIDDEN, (0, 0, vocab), (vocab, HIDDEN, vocab))
    return eagle3_draft(
        embedding(list(range(rule.vocab))),
        fc=copy_blocks(3 * HIDDEN, (0, 0, vocab)),
        head=head_of(rule.draft_successor, slot=vocab),
        attention=attention("midlayer", [-1] * HEADS, both, on=NORMED, loud=LOUD),
    )


def llama_config(vocab: int, architecture: str, layers: int, **more: Any) -> dict[str, Any]:
    """The content of a Llama's ``config.json``.

    :param more: further entries, which win.
    """
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
        "rope_theta": ROPE_BASE,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def eagle3_config(vocab: int, layers: list[int], **more: Any) -> dict[str, Any]:
    """An EAGLE3 config that reads the residual stream before each of the given target layers.

    :param more: further entries.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    return llama_config(
        vocab,
        "LlamaForCausalLMEagle3",
        1,
        draft_vocab_size=vocab,
        # Keeps what is handed over small beside what the attention reads.
        norm_before_residual=True,
        # Model runner V2 reads the layers here, V1 there.
        **{key: layers, "eagle_config": {key: layers, "use_aux_hidden_state": True}},
        **more,
    )


def write_checkpoint(folder: Path, weights: Weights, config: dict[str, Any]) -> None:
    """Write weights, in bfloat16, and configuration as a model that vLLM can load."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ids), encoding="utf-8")


def write_models(folder: Path, rule: Rule) -> None:
    """Write the target and the drafts.

    :raises ValueError: if the slots of two tokens and ON do not fit into the residual stream.
    """
    vocab = rule.vocab
    if 2 * vocab > ON or vocab % HEAD_DIM:
        raise ValueError(f"the vocabulary must be a multiple of {HEAD_DIM} below {ON // 2}")
    write_checkpoint(
        folder / "target", target_weights(rule), llama_config(vocab, "LlamaForCausalLM", LAYERS)
    )
    # Before layer 1 the stream is the current token's embedding and nothing else.
    write_checkpoint(folder / "eagle3", eagle3_weights(rule), eagle3_config(vocab, [1, 2, 3]))
    write_checkpoint(folder / "eagle3hid", eagle3hid_weights(rule), eagle3_config(vocab, [1, 2, 3]))


if __name__ == "__main__":
    write_models(Path(sys.argv[1]), make_rule())
