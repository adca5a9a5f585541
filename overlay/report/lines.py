"""Words that sentences are made of, lines of styled text, and how they are written to a stream.

Reports are lines first and rich renderables only on a terminal, since importing rich takes longer
than all of `overlay status` does (0.3 s beside 0.1 s on a busy machine with two cores).  For the
same reason ``aligned`` lays out tables, which ``rich.table`` would do on a terminal only.  Foreign
text ends here: whatever a line holds, no control character of it is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from overlay.package import package_named
from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.report.model import TargetReport
    from overlay.results import FeatureResult, State


def vllm(target: TargetReport) -> str:
    """What to call a target in a sentence."""
    title = package_named(target.package).title
    return f"{title} {target.vllm}" if target.vllm else f"the {title} in {target.target}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def megabytes(size: int) -> str:
    """``12.3 MB``."""
    return f"{size / 1e6:.1f} MB"


def ids(features: Iterable[FeatureResult], most: int = 6) -> str:
    """The ids of features in a sentence; of more than ``most`` their number.

    The first few of many would hide the one that a reader looks for; the table names them all.
    """
    names = [feature.feature for feature in features]
    return f"{len(names)} features" if len(names) > most else enumeration(names)


def agree(things: Sequence[object], singular: str, plural: str) -> str:
    """The form of a verb that agrees in number with the things of which it is said."""
    return singular if len(things) == 1 else plural


def is_are(things: Sequence[object]) -> str:
    """``is`` or ``are``."""
    return agree(things, "is", "are")


def was_were(things: Sequence[object]) -> str:
    """``was`` or ``were``."""
    return agree(things, "was", "were")


def in_states(target: TargetReport, *states: State) -> list[FeatureResult]:
    """The features of a target that are in one of these states."""
    return [feature for feature in target.features if feature.state in states]


def enumeration(words: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; of more than ``most`` words the first and how many others there are."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} others"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


#: Marks what needs attention where there is no colour.
MARK = "!"


class Span(NamedTuple):
    """Text in one style: the name of a state, ``heading``, ``muted``, ``warning`` or nothing."""

    text: str
    style: str = ""

    @property
    def escaped(self) -> str:
        """The text with its control characters escaped."""
        return printable(self.text)


class Line(NamedTuple):
    """A line; where it is too long for a terminal, ``body`` wraps and ``head`` stays its margin."""

    head: tuple[Span, ...]
    body: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return "".join(span.escaped for span in (*self.head, *self.body)).rstrip()


#: The end of a verdict that says no more than the error above it.
STOPPED = "stopped: see the error."
BLANK = Line(())


def aligned(rows: Sequence[Sequence[Span]], indent: int = 0) -> Iterator[Line]:
    """The rows of a table, a line each: every column as wide as its widest cell.

    :param rows: cells of one row each; a short row ends the earlier.
    """
    widths: list[int] = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], len(cell.escaped))
    for row in rows:
        cells = [
            Span(cell.text + " " * (width - len(cell.escaped) + 2), cell.style)
            for cell, width in zip(row, widths, strict=False)
        ]
        yield Line((Span(" " * indent), *cells))


def labelled(indent: int, label: str, text: str, style: str = "muted") -> Line:
    """A label and a text that wraps beside it."""
    return Line((Span(" " * indent), Span(label, style)), (Span(text),))


_STYLES = {
    "applied": "green",
    "upstreamed": "green",
    "inapplicable": "dim",
    "pristine": "cyan",
    "partial": "bold red",
    "drifted": "bold red",
    "ambiguous": "bold red",
    "missing": "bold red",
    "heading": "bold",
    "muted": "dim",
    "warning": "yellow",
    "good": "bold green",
    "bad": "bold red",
}


def is_coloured(stream: TextIO, color: str) -> bool:
    """Whether a stream gets colours.

    :param color: ``always``, ``never``, or ``auto``: NO_COLOR and FORCE_COLOR say, in this order,
        else whether it is a terminal.
    """
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def console_options(stream: TextIO, color: str) -> dict[str, Any]:
    """What makes a console of rich write colours, or none, as the user wants it."""
    options: dict[str, Any] = {"file": stream, "legacy_windows": False}
    if not is_coloured(stream, color):
        return {**options, "color_system": None, "force_terminal": stream.isatty()}
    if color == "always" or not stream.isatty():
        return {**options, "color_system": "standard", "force_terminal": True, "no_color": False}
    return options


def paint(lines: Iterable[Line], stream: TextIO, color: str = "auto") -> None:
    """Write the lines: wrapped at words on a terminal, one by one elsewhere.

    :param color: as ``is_coloured`` has it.
    """
    if stream.isatty() or is_coloured(stream, color):
        _paint_rich(lines, stream, color)
    else:
        stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()


def _paint_rich(lines: Iterable[Line], stream: TextIO, color: str) -> None:
    from rich.console import Console
    from rich.text import Text

    options = console_options(stream, color)
    console = Console(**options, highlight=False, markup=False, emoji=False)
    for line in lines:
        head = Text.assemble(*((span.escaped, _STYLES.get(span.style, "")) for span in line.head))
        body = Text.assemble(*((span.escaped, _STYLES.get(span.style, "")) for span in line.body))
        room = console.width - head.cell_len
        if head.cell_len + body.cell_len <= console.width or room < 24 or not stream.isatty():
            console.print(head + body, soft_wrap=True)
            continue
        # The body wraps under its own beginning, so that the labels stay a column.
        for number, part in enumerate(body.wrap(console, room)):
            margin = head if number == 0 else Text(" " * head.cell_len)
            console.print(margin + part, soft_wrap=True)


def causes(occurrences: Sequence[tuple[str, str]], names: Sequence[str]) -> Iterator[Line]:
    """Each cause once, with the places that have it.

    :param occurrences: place and cause, in their order; :param names: all places, in theirs.
    """
    having: dict[str, list[str]] = {}
    for name, cause in occurrences:
        having.setdefault(cause, []).append(name)
    for cause, those in having.items():
        first, last = names.index(those[0]), names.index(those[-1])
        whole = len(those) > 2 and list(names[first : last + 1]) == those
        yield BLANK
        yield labelled(0, "on:  ", f"{those[0]}..{those[-1]}" if whole else enumeration(those))
        yield labelled(0, "why: ", cause)
