"""Write the tiny target with drafters beside EAGLE: draft models, PARD, P-EAGLE and dflash.

``python -m tests.engine.more_drafters FOLDER`` writes three folders, each with a ``target`` and a
``rule.json``:

``chain``
    ``draft_model``: the target's rule once more, in a model of its own with one layer.
``vocabularies``
    ``draft_model``: the same with other token ids, and tokens that the target does not have, which
    it would always like best.
``parallel``
    ``pard``, ``peagle`` and ``dflash``: all drafts in one pass, by a vote.

**The vote.**  With ``x[t+1] = s(x[t-1])``, the row of a pass that predicts the token ``m`` behind
the next one can tell it from any of ``s(x)`` one position back, ``s(s(x))`` three back, and so on,
because all of them agree.  So heads look 1, 3 and 5 positions back.  Those that meet a masked
position, which shows no token, stay silent; those that meet a token that was read in the wrong
place, or not written, vote for another one.  So a prompt must follow
the rule as well (:func:`following`), and have at least eight tokens: no head may look beyond its
beginning.

The rows of dflash predict the token of their own position, so its heads look 2, 4 and 6 positions
back: in the keys and values that it makes of the target's hidden states, and in those of the last
token.  One more head looks one position ahead.  It finds a masked position, or none, and stays
silent; but where lengths are too long it finds what an earlier request left there, and votes
louder than all others.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlay.proof import tiny_drafters
from overlay.proof.oracle import FIRST_TOKEN, Rule
from overlay.proof.tiny_drafters import DISTANCES, MASK, VOTERS, vote, voters_rule
from overlay.proof.tiny_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    LOUD,
    NORMED,
    ON,
    SHARPNESS,
    Weights,
    attention,
    copy_blocks,
    embedding,
    head_of,
    llama_config,
    norms,
    silent_mlp,
    target_weights,
    write_as_told,
    write_checkpoint,
    write_rule,
    zeros,
)

if TYPE_CHECKING:
    import torch

#: The same where a row predicts the token of its own position.
OWN_DISTANCES: Final = (2, 4, 6)
#: How many votes the head that looks ahead has, where the others have one each.
LOUDEST: Final = 4
#: Tokens of the draft's vocabulary that the target's does not have.
FOREIGN: Final = 64


def _llama(table: torch.Tensor, head: torch.Tensor, attention: Weights) -> Weights:
    """A Llama of one layer."""
    name = "model.layers.0"
    return {
        "model.embed_tokens.weight": table,
        "lm_head.weight": head,
        **attention,
        **silent_mlp(name),
        **norms("model.norm", f"{name}.input_layernorm", f"{name}.post_attention_layernorm"),
    }


def draft_model_weights(rule: Rule) -> Weights:
    """The rule of the drafts, in a model that takes nothing from the target."""
    slot = copy_blocks(HIDDEN, (0, 0, rule.vocab))
    reading = attention("model.layers.0", [1] * HEADS, slot, on=NORMED, loud=LOUD)
    return _llama(embedding(list(range(rule.vocab))), head_of(rule.draft_successor), reading)


def token_of_draft(rule: Rule) -> list[int]:
    """The draft's id of each of the target's tokens, in the other vocabulary."""
    # The unknown token is 0 in both.
    ids = list(range(1, rule.vocab))
    random.Random(5).shuffle(ids)
    return [0, *ids]


def other_vocabulary_weights(rule: Rule) -> Weights:
    """The draft model with other ids, which likes a token that the target lacks best of all."""
    ids = token_of_draft(rule)
    plain = draft_model_weights(rule)
    table, head = zeros(rule.vocab + FOREIGN, HIDDEN), zeros(rule.vocab + FOREIGN, HIDDEN)
    for token, other in enumerate(ids):
        table[other] = plain["model.embed_tokens.weight"][token]
        head[other] = plain["lm_head.weight"][token]
        head[rule.vocab + token % FOREIGN, token] = 2
    for token in range(rule.vocab, rule.vocab + FOREIGN):
        table[token, ON - 1] = table[token, ON] = 1
    return {**plain, "model.embed_tokens.weight": table, "lm_head.weight": head}


def pard_weights(rule: Rule) -> Weights:
    """A Llama that fills masked positions behind the last token by a vote."""
    table, head, distances = vote(rule)
    value = copy_blocks(
        HIDDEN, *((place * rule.vocab, 0, rule.vocab) for place in range(len(DISTANCES)))
    )
    return _llama(table, head, attention("model.layers.0", distances, value, on=NORMED, loud=LOUD))


def dflash_weights(rule: Rule) -> Weights:
    """A Qwen3 layer whose context is made of the target's hidden states, by a vote."""
    import torch

    table, head, distances = vote(rule, OWN_DISTANCES)
    ahead = len(OWN_DISTANCES) * rule.vocab
    distances[ahead // HEAD_DIM :] = [-1] * (HEADS - ahead // HEAD_DIM)
    # The last two dimensions of the stream are lit in every row.
    shown = HIDDEN - 2 - ahead
    for token in range(FIRST_TOKEN, shown):
        head[token, ahead + token] = LOUDEST
    places = ((place * rule.vocab, 0, rule.vocab) for place in range(len(OWN_DISTANCES)))
    value = copy_blocks(HIDDEN, *places, (ahead, 0, shown))
    # The model norms each head of queries and keys: a rotary pair has length 1 before, and there
    # are half as many pairs as dimensions.
    length = torch.full((HEAD_DIM,), SHARPNESS / math.sqrt(2), dtype=torch.float64)
    name = "layers.0"
    return {
        "embed_tokens.weight": table,
        "lm_head.weight": head,
        # Before the target's layer 1 the stream is the bare embedding.
        "fc.weight": copy_blocks(3 * HIDDEN, (0, 0, HIDDEN)),
        **attention(name, distances, value, on=NORMED, loud=LOUD),
        f"{name}.self_attn.q_norm.weight": length,
        f"{name}.self_attn.k_norm.weight": length.clone(),
        **silent_mlp(name),
        **norms("hidden_norm", "norm"),
        **norms(f"{name}.input_layernorm", f"{name}.post_attention_layernorm"),
    }


def _dflash_config(vocab: int) -> dict[str, Any]:
    layers = [1, 2, 3]
    return llama_config(
        vocab,
        "DFlashDraftModel",
        1,
        model_type="qwen3",
        draft_vocab_size=vocab,
        eagle_aux_hidden_state_layer_ids=layers,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": [layer - 1 for layer in layers]},
    )


def write_tokenizer(folder: Path, ids: dict[str, int]) -> None:
    """Write a tokenizer of whole words.

    :param ids: the id of each word.
    """
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, **ids}, "unk_token": "<unk>"}
    parts = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    content: dict[str, Any] = {
        "version": "1.0",
        **dict.fromkeys(parts),
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_models(folder: Path, rule: Rule) -> None:
    """Write all folders."""
    tiny_drafters.write_models(folder, rule)
    llama, vocab = "LlamaForCausalLM", rule.vocab
    for name in ("chain", "vocabularies"):
        write_checkpoint(
            folder / name / "target", target_weights(rule), llama_config(vocab, llama, LAYERS)
        )
        write_rule(folder / name, rule)
    chain, other = folder / "chain", folder / "vocabularies"
    config = llama_config(vocab, llama, 1)
    write_checkpoint(chain / "draft_model", draft_model_weights(rule), config)
    config = llama_config(vocab + FOREIGN, llama, 1)
    write_checkpoint(other / "draft_model", other_vocabulary_weights(rule), config)
    words = {f"word{token}": token for token in range(1, vocab)}
    write_tokenizer(other / "target", words)
    ids = token_of_draft(rule)
    foreign = {f"other{token}": token for token in range(vocab, vocab + FOREIGN)}
    known = {f"word{token}": ids[token] for token in range(1, vocab)}
    write_tokenizer(other / "draft_model", {**known, **foreign})

    voters, parallel = voters_rule(), folder / "parallel"
    config = llama_config(VOTERS, llama, 1, pard_token=MASK)
    write_checkpoint(parallel / "pard", pard_weights(voters), config)
    write_checkpoint(parallel / "dflash", dflash_weights(voters), _dflash_config(VOTERS))


if __name__ == "__main__":
    write_as_told(write_models, __doc__)
