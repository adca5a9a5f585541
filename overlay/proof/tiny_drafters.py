"""Write a tiny target with a drafter that makes all drafts in one pass: P-EAGLE.

``python -m overlay.proof.tiny_drafters FOLDER`` writes ``target`` and ``peagle`` into
the folder ``parallel``.

**The vote.**  With ``x[t+1] = s(x[t-1])``, the row of a pass that predicts the token ``m`` behind
the next one can tell it from any of ``s(x)`` one position back, ``s(s(x))`` three back, and so on,
because all of them agree.  So heads look 1, 3 and 5 positions back.  Those that meet a masked
position, which shows no token, stay silent; those that meet a token that was read in the wrong
place, or not written, vote for another one.  So a prompt must follow
the rule as well (:func:`following`), and have at least eight tokens: no head may look beyond its
beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlay.proof.oracle import FIRST_TOKEN, EngineRequest, Rule, continuation, make_rule
from overlay.proof.tiny_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    LOUD,
    NORMED,
    ON,
    Weights,
    attention,
    copy_blocks,
    eagle3_config,
    eagle3_draft,
    embedding,
    llama_config,
    target_weights,
    write_checkpoint,
    zeros,
)

if TYPE_CHECKING:
    import torch

#: Positions back that the heads of a vote look; the drafts of up to six tokens follow from them.
DISTANCES: Final = (1, 3, 5)
#: Token ids of the models that vote: three slots of them fit into the residual stream.
VOTERS: Final = 128
#: The token of a position that is to be filled; it shows nothing but that it is there.
MASK: Final = 0
#: Tokens of a prompt that a vote needs.
LEAST_PROMPT: Final = 8


def voters_rule(wrong_every: int = 7) -> Rule:
    """The rule of ``parallel``: where a multiple of ``wrong_every`` is right, drafts are wrong."""
    rule = make_rule(VOTERS)
    answers = tuple(
        rule.successor[token] if token >= FIRST_TOKEN and token % wrong_every == 0 else token
        for token in range(rule.vocab)
    )
    return replace(rule, answers=answers)


def following(rule: Rule, requests: Iterable[EngineRequest]) -> tuple[EngineRequest, ...]:
    """The requests with prompts of the same lengths that follow the rule from two tokens on."""
    changed = []
    for request in requests:
        start = request.prompt[:2]
        rest = continuation(rule, start, len(request.prompt) - 2)
        changed.append(replace(request, prompt=(*start, *rest)))
    return tuple(changed)


def vote(
    rule: Rule, looks: tuple[int, ...] = DISTANCES
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """The embedding and the head of a model that votes, and the distance of each head.

    :param looks: how far back the heads look, one slot of ``rule.vocab`` dimensions each.
    """
    table = embedding(list(range(rule.vocab)))
    table[MASK] = 0
    # As long as any other token's, so that its key weighs as much.
    table[MASK, ON - 1] = table[MASK, ON] = 1
    head = zeros(rule.vocab, HIDDEN)
    distances = [looks[0]] * HEADS
    answers = list(range(rule.vocab))
    for place, distance in enumerate(looks):
        start = place * rule.vocab
        answers = [rule.successor[token] for token in answers]
        for first in range(start // HEAD_DIM, (start + rule.vocab) // HEAD_DIM):
            distances[first] = distance
        for token in range(FIRST_TOKEN, rule.vocab):
            head[rule.answers[answers[token]], start + token] = 1
    return table, head, distances


def peagle_weights(rule: Rule) -> Weights:
    """An EAGLE3 draft that fills masked positions behind the last token by a vote.

    It reads tokens one position earlier than the target, and the target's hidden states.
    """
    table, head, distances = vote(rule)
    value = copy_blocks(
        2 * HIDDEN, *((place * rule.vocab, 0, rule.vocab) for place in range(len(DISTANCES)))
    )
    # What is handed over is kept faint: it must reach the draft, and must not decide.
    faint = copy_blocks(3 * HIDDEN, (0, 0, HIDDEN)) * 0.05
    read = attention("midlayer", distances, value, on=NORMED, loud=LOUD)
    draft = eagle3_draft(table, fc=faint, head=head, attention=read)
    return {**draft, "mask_hidden": zeros(1, 3 * HIDDEN)}


def write_models(folder: Path) -> None:
    """Write the models that vote."""
    rule = voters_rule()
    parallel = folder / "parallel"
    config = llama_config(VOTERS, "LlamaForCausalLM", LAYERS)
    write_checkpoint(parallel / "target", target_weights(rule), config)
    config = eagle3_config(VOTERS, [1, 2, 3], ptd_token_id=MASK)
    write_checkpoint(parallel / "peagle", peagle_weights(rule), config)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
