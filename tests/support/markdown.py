"""Read the project's Markdown pages: links, anchors, code and prose, as the tests need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\S*)")
_CODE = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    :ivar language: the word behind the opening fence, or nothing.
    :ivar line: the line of the opening fence, counted from 1.
    """

    language: str
    lines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Page:
    """One page, taken apart.

    :ivar prose: number and text of each line outside code, tables and HTML comments.
    :ivar tables: the same of each line of a table.
    """

    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]
    tables: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        """The path as seen from the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text_lines(self) -> list[tuple[int, str]]:
        """Prose and tables: everything that is not a block of code."""
        return sorted((*self.prose, *self.tables))

    @property
    def inline_code(self) -> list[tuple[int, str]]:
        """Line and text of each piece of inline code; one that spans lines counts as one."""
        pieces = []
        for number, text in _paragraphs(self.text_lines):
            pieces += [(number, match[2].strip()) for match in _CODE.finditer(text)]
        return pieces

    @property
    def links(self) -> list[tuple[int, str]]:
        """Line and target of each link and picture."""
        found = []
        for number, text in _paragraphs(self.text_lines):
            plain = _CODE.sub("", text) if "](" not in text else text
            found += [(number, match[1]) for match in _LINK.finditer(plain)]
        return found

    @property
    def anchors(self) -> set[str]:
        """The anchors of its headings, made as GitHub makes them."""
        made: dict[str, int] = {}
        anchors = set()
        for _, text in self.prose:
            if not (heading := re.match(r"#{1,6} +(.*)", text)):
                continue
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1].replace("`", ""))
            slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            anchors.add(f"{slug}-{made[slug]}" if slug in made else slug)
            made[slug] = made.get(slug, 0) + 1
        return anchors


def _paragraphs(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Lines that follow each other as one text, with the number of the first."""
    paragraphs: list[tuple[int, str]] = []
    last = -1
    for number, text in lines:
        if text.strip() and number == last + 1 and paragraphs and not text.startswith("|"):
            paragraphs[-1] = (paragraphs[-1][0], f"{paragraphs[-1][1]} {text.strip()}")
        else:
            paragraphs.append((number, text))
        last = number if text.strip() else -1
    return paragraphs


def read(path: Path) -> Page:
    """Take a page apart.

    :raises ValueError: for a fence that is never closed.
    """
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    tables: list[tuple[int, str]] = []
    fence, inside, start, language = "", [""], 0, ""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(text)
        if fence:
            if text.strip() == fence:
                blocks.append(Block(language, tuple(inside), start))
                fence = ""
            else:
                inside.append(text)
        elif match:
            fence, language, start, inside = match[1], match[2], number, []
        elif text.startswith("|"):
            tables.append((number, text))
        elif not text.startswith("<!--"):
            prose.append((number, text))
    if fence:
        raise ValueError(f"{path}:{start}: a fence that is never closed")
    return Page(path, tuple(blocks), tuple(prose), tuple(tables))


def pages() -> list[Page]:
    """Every page that users and developers read."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    found += [ROOT / "patches/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [read(path) for path in found]
