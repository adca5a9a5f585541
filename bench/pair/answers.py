"""What a model answers to questions, as tokens; the texts that a draft is trained on."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.pair.llama import Decoding, padded
from overlay.proof.oracle import Question

#: The temperatures of answers that are trained on.
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
#: Of documents, one in so many is only measured on.
HELD_OUT = 12


def held_out(question: Question) -> bool:
    """Whether it is measured on, and not trained on."""
    return hashlib.sha256(question.document.encode()).digest()[0] % HELD_OUT == 0


class Answers(NamedTuple):
    """Prompts with their answers.

    :ivar ids: [answers, tokens], filled up on the right.
    :ivar begins: [answers], where each answer begins; :ivar ends: behind its last token.
    """

    ids: Any
    begins: Any
    ends: Any

    def part(self, rows: Any) -> Answers:
        """Some of them, no wider than the longest."""
        ends = self.ends[rows]
        return Answers(self.ids[rows, : int(ends.max())], self.begins[rows], ends)

    @property
    def tokens(self) -> int:
        """The tokens of the answers."""
        return int((self.ends - self.begins).sum())


class Tokenizer:
    """The model's tokenizer and chat template."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def prompt(self, question: str) -> list[int]:
        """The ids of a conversation that begins with a question."""
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def text(self, ids: list[int]) -> str:
        """What ids say."""
        return str(self._tokenizer.decode(ids))


def prompts(
    tokenizer: Tokenizer, questions: list[Question], count: int, longest: int
) -> list[list[int]]:
    """The first ``count`` prompts of at most ``longest`` tokens, with their template."""
    result: list[list[int]] = []
    for question in questions:
        ids = tokenizer.prompt(question.text)
        if len(ids) <= longest:
            result.append(ids)
            if len(result) == count:
                break
    return result


def answer(
    decoding: Decoding,
    texts: list[list[int]],
    tokens: int,
    *,
    seed: int,
    seconds: float,
    greedy: bool,
) -> Answers:
    """Answer prompts, as many as there is time for.

    :param tokens: of an answer, at most.
    :param greedy: whether no answer is sampled.
    """
    draw = random.Random(seed)
    end = decoding.model.config["eos_token_id"]
    last = time.monotonic() + seconds
    rows: list[list[int]] = []
    begins: list[int] = []
    for first in range(0, len(texts), decoding.requests):
        part = texts[first : first + decoding.requests]
        warm = [0.0 if greedy else draw.choice(TEMPERATURES) for _ in part]
        for text, ids in zip(part, decoding.answers(part, warm, tokens).tolist(), strict=True):
            rows.append(text + (ids[: ids.index(end) + 1] if end in ids else ids))
            begins.append(len(text))
        if time.monotonic() > last:
            break
    ends = torch.tensor([len(row) for row in rows])
    return Answers(padded(rows, end), torch.tensor(begins), ends)
