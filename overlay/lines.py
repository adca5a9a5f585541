"""The pieces that answers for people are made of."""

from __future__ import annotations

from dataclasses import dataclass

#: Marks what needs attention where there is no colour.
MARK = "!"


@dataclass(frozen=True)
class Span:
    """Text in one style: the name of a state, ``heading``, ``muted``, ``warning`` or nothing."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Line:
    """A line; where it is too long for a terminal, ``body`` wraps and ``head`` stays its margin."""

    head: tuple[Span, ...]
    body: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return "".join(span.text for span in (*self.head, *self.body)).rstrip()


BLANK = Line(())


def labelled(indent: int, label: str, text: str, style: str = "muted") -> Line:
    """A label and a text that wraps beside it."""
    return Line((Span(" " * indent), Span(label, style)), (Span(text),))
