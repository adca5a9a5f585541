"""Questions about texts that every machine has: docstrings of Python's library.

A question names its document (a module, a package, a file), so that what a draft is measured on can
be kept apart from the documents that it is trained on.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
