"""The texts that a draft is trained and measured on: what this machine and a folder have."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from overlay.proof.oracle import Passage, docstrings, quoted


def passages(folder: Path) -> Iterator[Passage]:
    """Docstrings of Python's library, descriptions of packages, and the pages of a folder."""
    return chain(docstrings(), readmes(), pages(folder))


def readmes() -> Iterator[Passage]:
    """The descriptions of the installed packages."""
    texts = {
        each.metadata["Name"]: each.read_text("METADATA") or ""
        for each in importlib.metadata.distributions()
    }
    for name in sorted(filter(None, texts)):
        yield from _paragraphs(name, texts[name].partition("\n\n")[2])


def pages(folder: Path) -> Iterator[Passage]:
    """The pages in Markdown of a folder."""
    for place in sorted(folder.rglob("*.md")):
        yield from _paragraphs(place.name, place.read_text(encoding="utf-8", errors="replace"))


def _paragraphs(document: str, text: str) -> Iterator[Passage]:
    for paragraph in text.split("\n\n")[:60]:
        quotation = quoted(paragraph)
        if quotation and not re.match(r"[\[<!|`#.=~-]", quotation):
            yield Passage(document, "", quotation)
