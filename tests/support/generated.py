"""Hypothesis strategies: modules, and hunks that match them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume
from hypothesis import strategies as st

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.planning.scopes import find


@dataclass(frozen=True)
class Case:
    """A text and a hunk whose pre-image is taken from lines ``start`` to ``stop`` of it."""

    lines: tuple[str, ...]
    hunk: Hunk
    start: int
    stop: int

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@st.composite
def modules(draw: st.DrawFn, distinct: bool = False) -> tuple[str, ...]:
    """The lines of a module of functions and classes that compiles."""
    number = 0

    def body(indent: str, size: int) -> list[str]:
        nonlocal number
        lines = []
        for _ in range(size):
            number += 1
            common = None if distinct else draw(st.sampled_from([None, "a = 1", "b = 2", ""]))
            lines.append(
                (indent + common if common else "")
                if common is not None
                else f"{indent}v{number} = {number}"
            )
        return lines

    lines: list[str] = body("", draw(st.integers(0, 4)))
    for kind in draw(st.lists(st.sampled_from("fcv"), min_size=1, max_size=4)):
        number += 1
        if kind == "v":
            lines += body("", 2)
        elif kind == "f":
            lines += [f"def f{number}():", *body("    ", draw(st.integers(1, 5))), "    pass", ""]
        else:
            lines.append(f"class C{number}:")
            for name in draw(st.sampled_from([("m",), ("m", "n"), ("m", "m")])):
                lines += [f"    def {name}(self):", *body("        ", draw(st.integers(1, 4)))]
                lines += ["        pass", ""]
    return tuple(lines)


@st.composite
def cases(draw: st.DrawFn, distinct: bool = False, inner: bool = False, depth: int = 0) -> Case:
    """A module and a hunk from it that a patch file may hold.

    :param distinct: no line of code is repeated, so that the hunk fits at one place.
    :param inner: the hunk lies inside the body of a function, header and ``pass`` left out.
    """
    lines = draw(modules(distinct))
    scopes = find(lines)
    names = [name for name in scopes if name != MODULE_SCOPE] if inner else list(scopes)
    functions = [
        n for n in names if not inner or lines[scopes[n][0].start].lstrip().startswith("def ")
    ]
    assume(functions)
    scope = draw(st.sampled_from(sorted(functions)))
    place = draw(st.sampled_from(list(scopes[scope])))
    first, last = place.start, place.stop
    if inner:
        first += 1
        last = max(i for i in range(first, last) if lines[i].strip() == "pass")
    assume(first < last)
    start = draw(st.integers(first, last - 1))
    stop = draw(st.integers(start + 1, min(last, start + 6)))
    return Case(lines, draw(hunks(lines[start:stop], scope)), start, stop)


@st.composite
def hunks(draw: st.DrawFn, pre: tuple[str, ...], scope: str) -> Hunk:
    """A hunk with this pre-image, as a patch file may hold it: recognisable once applied."""
    out: list[tuple[str, str]] = []
    added = 0

    def add(before: str, after: str) -> None:
        nonlocal added
        added += 1
        indent = max(_indent(before), _indent(after), key=len)
        indent += "    " if before.endswith(":") and not after else ""
        fresh = f"{indent}new{added} = {added}"
        out.append(("+", draw(st.sampled_from([fresh, fresh, indent + "a = 1"]))))

    for before, text in zip(("", *pre), pre, strict=False):
        if draw(st.integers(0, 4)) == 0:
            add(before, text)
        removable = not text.lstrip().startswith(("def ", "class ")) and text.strip() != "pass"
        out.append(("-" if removable and draw(st.integers(0, 3)) == 0 else " ", text))
    if draw(st.integers(0, 2)) == 0 or len(out) == len(pre) == [op for op, _ in out].count(" "):
        add(pre[-1], "")
    hunk = Hunk(scope, tuple(out), 1, 1)
    size = len(hunk.post)
    inside = any(hunk.pre[at : at + size] == hunk.post for at in range(len(hunk.pre) - size + 1))
    assume(hunk.post and not inside)
    return hunk


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def places(image: tuple[str, ...], lines: tuple[str, ...], ranges: list[range]) -> list[int]:
    """Where an image is inside ranges: the plainest way to say it, to judge the real one by."""
    return [
        at
        for at in range(len(lines) - len(image) + 1)
        if lines[at : at + len(image)] == image
        and any(r.start <= at and at + len(image) <= r.stop for r in ranges)
    ]
