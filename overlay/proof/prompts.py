"""What engines are compared on: requests of the tiny models with a known answer, and texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN


@dataclass(frozen=True)
class EngineRequest:
    """One request.

    :ivar prompt: at least two token ids.
    :ivar tokens: how many to generate.
    :ivar arrival: the engine step before which it is added.
    :ivar temperature: the target is so sure of itself that up to 1.0 the oracle still holds; a
        request above that is not compared with it.  vLLM takes no more than 2.0.
    :ivar prompt_logprobs: ask for that many, and compare the likeliest with the oracle.
    :ivar adapter: the name of the target's LoRA adapter; ``None`` for none.
    """

    prompt: tuple[int, ...]
    tokens: int = 48
    arrival: int = 0
    temperature: float = 0.0
    prompt_logprobs: int | None = None
    adapter: str | None = None


#: Texts of several kinds and lengths, so that some drafts are easy and others are not.
TEXTS = (
    "The capital of France is",
    "Write a Python function that returns the n-th Fibonacci number.\n\ndef fibonacci(n):",
    "Once upon a time, in a village at the edge of a forest, there lived a clockmaker who",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "Translate into German: The train leaves at eight o'clock in the morning.\n\nGerman:",
    "Explain in three sentences why the sky is blue and why sunsets are red.",
    "The following is a list of the planets of the solar system, with one fact about each:\n\n1.",
    "SELECT customer.name, SUM(invoice.amount) FROM customer JOIN invoice ON",
    "Q: A shop sells pens at 3 for 2 euros. How much are 12 pens?\nA: Let us work it out.",
    "Dear Ms. Keller,\n\nthank you for your letter of 3 March. I am writing to",
    '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "fields": [',
    "The three laws of thermodynamics can be summarised as follows. First,",
    "<html>\n<head>\n<title>Opening hours</title>\n</head>\n<body>\n",
    "In the beginning the Universe was created. This has",
    "for (int i = 0; i < rows; i++) {\n    for (int j = 0; j < columns; j++) {\n",
    "Roses are red, violets are blue,",
)

#: What of the twelve requests of the tiny models is live at a time.
LIVE = 8


def tiny_requests(vocab: int, shortest: int = 2) -> tuple[EngineRequest, ...]:
    """Twelve requests in three waves that end one after the other.

    At most eight are live, and towards the end each smaller number is, for some steps, in batches
    without prefill.

    :param vocab: the number of token ids of the models.
    :param shortest: the fewest tokens of a prompt.
    """
    rng = random.Random(3)
    requests = []
    for index in range(12):
        prompt = tuple(rng.randrange(FIRST_TOKEN, vocab) for _ in range(rng.randint(shortest, 39)))
        tokens = 16 if index < 4 else 12 + 5 * index
        requests.append(EngineRequest(prompt, tokens, arrival=index // 4 * 3))
    return tuple(requests)


def as_asked(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Texts as a server is asked them: in the form of the model's chats, where it has one.

    :param tokenizer: of transformers or vLLM; it adds the first token to each text again.
    """
    if not getattr(tokenizer, "chat_template", None):
        return list(texts)
    first = getattr(tokenizer, "bos_token", None) or ""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        ).removeprefix(first)
        for text in texts
    ]


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts in that form."""
    return [list(tokenizer.encode(text)) for text in as_asked(tokenizer, texts)]
