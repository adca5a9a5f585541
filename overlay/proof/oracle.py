"""What engines are asked, and what the tiny models must say, computed exactly, without PyTorch.

The target's rule is ``x[t+1] = successor[x[t-1]]``: the next token depends on the one *before* the
current one, so a model can only follow it by looking one position back, through its KV cache. The
drafts follow the same rule except after the tokens in :attr:`Rule.wrong`, where they are wrong on
purpose.  So the number of accepted tokens at each position is known too, whatever the device, the
batch or the schedule.

Texts are questions about what every machine has, docstrings of Python's library.  A question names
its document (a module, a package, a file), so that what a draft is measured on can be kept apart
from the documents that it is trained on.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Token ids below this one (padding, begin and end of text) are never produced.
FIRST_TOKEN = 3


@dataclass(frozen=True)
class Rule:
    """The target's and the drafts' tables, one entry a token id.

    :ivar successor: the token that follows two positions after each token.
    :ivar draft_successor: the same as the drafts believe it.
    :ivar answers: for drafts that are all made in one pass, what is drafted where each token is
        right; empty where each draft follows from the ones before it.
    """

    successor: tuple[int, ...]
    draft_successor: tuple[int, ...]
    answers: tuple[int, ...] = ()

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return len(self.successor)

    @property
    def wrong(self) -> tuple[int, ...]:
        """The tokens after which the drafts are wrong."""
        pairs = zip(self.successor, self.draft_successor, strict=True)
        return tuple(token for token, (true, drafted) in enumerate(pairs) if true != drafted)


@dataclass(frozen=True)
class OracleStep:
    """One verification of drafts in one request.

    :ivar known: tokens of the request, prompt included, that were known before it.
    :ivar drafted: tokens that were proposed.
    :ivar accepted: how many of them, from the first on, were right.
    """

    known: int
    drafted: int
    accepted: int


class Answer(NamedTuple):
    """What one request got.

    :ivar prompt: the number of its prompt's tokens.
    :ivar tokens: the ids that were generated.
    :ivar steps: each verification of its drafts, in order.
    """

    prompt: int
    tokens: tuple[int, ...]
    steps: tuple[OracleStep, ...]


@dataclass(frozen=True)
class Counts:
    """What vLLM's metrics of speculative decoding add up to.

    :ivar per_position: for each draft position, how many verifications accepted it.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


def make_rule(vocab: int = 192, wrong_every: int = 7, seed: int = 0) -> Rule:
    """A rule whose successors form one cycle through all ids from ``FIRST_TOKEN`` on.

    :param wrong_every: the drafts are wrong after each multiple of it; 0 for never.
    """
    ids = list(range(FIRST_TOKEN, vocab))
    random.Random(seed).shuffle(ids)
    successor = list(range(vocab))
    for here, there in zip(ids, ids[1:] + ids[:1], strict=True):
        successor[here] = there
    drafted = list(successor)
    for token in range(FIRST_TOKEN, vocab):
        if wrong_every and token % wrong_every == 0:
            drafted[token] = successor[successor[token]]
    return Rule(tuple(successor), tuple(drafted))


def _extend(table: Sequence[int], tokens: Sequence[int], count: int) -> list[int]:
    if len(tokens) < 2:
        raise ValueError(f"the rule needs two known tokens, not {len(tokens)}")
    before, last = tokens[-2], tokens[-1]
    tokens_after = []
    for _ in range(count):
        before, last = last, table[before]
        tokens_after.append(last)
    return tokens_after


def continuation(rule: Rule, prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that follow ``prompt``.

    :raises ValueError: if the prompt has fewer than two tokens.
    """
    return _extend(rule.successor, prompt, count)


def drafts(rule: Rule, tokens: Sequence[int], k: int) -> list[int]:
    """The ``k`` tokens that the drafts propose after the known ones."""
    if rule.answers:
        return [rule.answers[token] for token in continuation(rule, tokens, k)]
    return _extend(rule.draft_successor, tokens, k)


def accepted(rule: Rule, tokens: Sequence[int], k: int) -> int:
    """How many of the ``k`` proposals after the known tokens are right, from the first on."""
    proposed = drafts(rule, tokens, k)
    true = continuation(rule, tokens, k)
    return next((i for i in range(k) if proposed[i] != true[i]), k)


def count_steps(steps: Iterable[OracleStep], k: int) -> Counts:
    """Add up the steps of any number of requests."""
    all_steps = list(steps)
    return Counts(
        drafts=len(all_steps),
        draft_tokens=sum(step.drafted for step in all_steps),
        accepted=sum(step.accepted for step in all_steps),
        per_position=tuple(sum(step.accepted > i for step in all_steps) for i in range(k)),
    )


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


#: Characters of a text that are quoted.
_SHORT, _LONG = 60, 420
#: Questions about one passage.
_FORMS: Final = 5
_ABOUT_TEXTS: Final = (
    "Summarize this in one or two sentences:\n\n{text}",
    "Rewrite this in simpler words:\n\n{text}",
    "Continue this text:\n\n{text}",
    "What is this text about, and who would need it?\n\n{text}",
    "Write three questions that this text answers, with their answers:\n\n{text}",
    "List the main points of this text:\n\n{text}",
    "Make a friendly announcement of this:\n\n{text}",
    "Explain this to a beginner, with an example:\n\n{text}",
)
_ABOUT_NAMES: Final = (
    "Explain what `{name}` in Python's module `{document}` does.\n\nIts documentation: {text}",
    "Write a Python function with this docstring:\n\n{text}",
    "Show an example of how to use `{document}.{name}` in Python.",
    "When would I use `{name}` of the Python module `{document}`?\n\n{text}",
    "Write unit tests for `{name}`, which is documented as follows:\n\n{text}",
)


class Question(NamedTuple):
    """What a user asks.

    :ivar document: where its text is from.
    """

    document: str
    text: str


class Passage(NamedTuple):
    """A piece of a text; ``name`` is that of what it documents, or empty."""

    document: str
    name: str
    text: str


def questions(seed: int, passages: Iterable[Passage]) -> list[Question]:
    """Questions about passages, in an order of the seed, none twice."""
    draw = random.Random(seed)
    every: dict[str, Question] = {}
    for passage in passages:
        forms = _ABOUT_NAMES + _ABOUT_TEXTS[:4] if passage.name else _ABOUT_TEXTS
        for form in draw.sample(forms, _FORMS):
            text = form.format(**passage._asdict())
            every.setdefault(text, Question(passage.document, text))
    return draw.sample(list(every.values()), len(every))


def docstrings() -> Iterator[Passage]:
    """What Python's library says of its modules, classes and functions; nothing is imported."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names):
        for place in (library / f"{name}.py", *sorted((library / name).rglob("*.py"))):
            if not place.is_file() or "test" in place.parts or "tests" in place.parts:
                continue
            try:
                tree = ast.parse(place.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                continue
            yield from _documented(name, tree)


def _documented(module: str, tree: ast.Module) -> Iterator[Passage]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = quoted(ast.get_docstring(node) or "")
            if text and not node.name.startswith("_"):
                yield Passage(module, node.name, text)


def quoted(text: str) -> str:
    """The beginning of a text, whole lines or sentences; empty where there is too little."""
    text = text.strip()
    if len(text) > _LONG:
        text = re.sub(r"[^.\n]*\Z", "", text[:_LONG]).strip()
    return text if len(text) >= _SHORT else ""
