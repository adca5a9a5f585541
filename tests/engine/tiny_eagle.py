"""Write what ``overlay.proof.tiny_models`` writes, an EAGLE-1 draft and LoRA adapters.

``python -m tests.engine.tiny_eagle FOLDER`` writes ``eagle1`` and ``adapters`` beside the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from overlay.proof import tiny_models
from overlay.proof.oracle import Rule
from overlay.proof.tiny_models import (
    HEADS,
    HIDDEN,
    LOUD,
    Weights,
    attention,
    copy_blocks,
    embedding,
    llama_config,
    norms,
    silent_mlp,
    write_as_told,
    write_checkpoint,
)
from tests.engine.tiny_adapters import ADAPTERS, FOLDER, write_adapter

DRAFTS: Final = ("eagle3", "eagle3hid", "eagle1")


def eagle1_weights(rule: Rule) -> Weights:
    """Shares the target's head, so its wrong tokens are wrong by embedding: shown as another."""
    shown_as = list(range(rule.vocab))
    for token in rule.wrong:
        shown_as[token] = rule.successor.index(rule.draft_successor[token])
    slot = copy_blocks(HIDDEN, (0, 0, rule.vocab))
    return {
        "embed_tokens.weight": embedding(shown_as),
        "fc.weight": copy_blocks(2 * HIDDEN, (0, 0, HIDDEN)),
        # An EAGLE-1 draft has no norm before its first attention.
        **attention("layers.0", [1] * HEADS, slot, on=1.0, loud=LOUD),
        **silent_mlp("layers.0"),
        **norms("layers.0.post_attention_layernorm"),
    }


def write_models(folder: Path, rule: Rule) -> None:
    """Write all of them.

    :raises ValueError: see ``tiny_models.write_models``.
    """
    tiny_models.write_models(folder, rule)
    config = llama_config(rule.vocab, "LlamaForCausalLM", 1)
    write_checkpoint(folder / "eagle1", eagle1_weights(rule), config)
    for name in ADAPTERS:
        write_adapter(folder / FOLDER / name, rule, name, HIDDEN)


if __name__ == "__main__":
    write_as_told(write_models, __doc__)
