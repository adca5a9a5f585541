"""Warnings about a port that lands: what a merge of lines cannot see.

Landing is not being right: of what lands exactly 5 % is not what the people who ported it wrote.
These warnings refuse nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.authoring.carry import CarriedHunk
from overlay.planning.attempt import Texts
from overlay.planning.scopes import Scopes, UnparsableError
from overlay.planning.text import SourceText, TextError
from overlay.results import Outcome

_NAME = re.compile(r"[^\W\d]\w*")
_MERGED_LINES = (
    "{}: upstream changed lines that the hunk changes too; they were merged statement by statement"
)

_BESIDE = "{}: upstream changed lines right beside the hunk: compare what its lines stand among"


def port_warnings(
    origin: bytes, before: bytes, hunks: Sequence[CarriedHunk], texts: Texts
) -> tuple[str, ...]:
    """What to look at although the hunks land.

    Names that the added lines use, the base has and the release lacks; scopes whose parameters or
    whose number of returned values changed since the base; lines that both sides changed.
    """
    try:
        base, release = texts.source(origin).lines, texts.source(before).lines
        base_scopes, release_scopes = texts.scopes(origin), texts.scopes(before)
    except (TextError, UnparsableError):
        return ()
    landed = [hunk for hunk in hunks if hunk.outcome is not Outcome.UPSTREAM]
    return tuple(
        dict.fromkeys(
            (
                *_lost_names(landed, base, release),
                *_changed_scopes(landed, (base, base_scopes), (release, release_scopes)),
                *(_MERGED_LINES.format(hunk.scope) for hunk in landed if hunk.by_statement),
                *(_BESIDE.format(hunk.scope) for hunk in landed if hunk.beside),
                *(f"{hunk.scope}: {text}" for hunk in landed for text in hunk.differences),
            )
        )
    )


def _lost_names(
    hunks: Sequence[CarriedHunk], base: Sequence[str], release: Sequence[str]
) -> Iterator[str]:
    lost = _names(base) - _names(release)
    for hunk in hunks:
        added = [text for op, text in hunk.hunk.lines if op == "+"]
        names = _names(added) & lost
        for name in sorted(names & _used(base, hunk.hunk) if names else ()):
            yield f"{hunk.scope}: the release's file does not have the name {name}, the base's did"


def names_lost(
    base: bytes, hunks: Sequence[Hunk], releases: Mapping[str, bytes | None]
) -> dict[str, list[str]]:
    """The names that new lines use and their base has -> the releases whose file lacks them."""
    try:
        lines = SourceText.from_bytes(base).lines
    except TextError:
        return {}
    there = _names(lines)
    lost: dict[str, list[str]] = {}
    for hunk in hunks:
        added = _names(text for op, text in hunk.lines if op == "+") & there
        lacking = {
            name: [each for each, data in releases.items() if name.encode() not in (data or b"")]
            for name in added
        }
        used = _used(lines, hunk) if any(lacking.values()) else set()
        lost |= {name: lacking[name] for name in sorted(added & used) if lacking[name]}
    return lost


def _names(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in _NAME.findall(line.split("#", 1)[0])}


def _used(base: Sequence[str], hunk: Hunk) -> set[str]:
    """The names that the lines which a hunk adds load: no words of texts, no parts of objects.

    An attribute of ``self`` or ``cls`` and the name of an argument are such names, too.  Where the
    base with this hunk alone is not Python, all identifiers count.
    """
    at = hunk.source_line - 1
    lines = [*base[:at], *hunk.post, *base[at + len(hunk.pre) :]]
    ops = [op for op, _ in hunk.lines if op != "-"]
    added = {at + number for number, op in enumerate(ops, 1) if op == "+"}
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        tree = None
    if tree is None or tuple(base[at : at + len(hunk.pre)]) != hunk.pre:
        return _names(text for op, text in hunk.lines if op == "+")
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.lineno in added and not hasattr(builtins, node.id):
            names |= {node.id} if isinstance(node.ctx, ast.Load) else set()
        elif isinstance(node, ast.Attribute) and node.end_lineno in added:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names |= {node.attr} if own and isinstance(node.ctx, ast.Load) else set()
        elif isinstance(node, ast.keyword) and node.lineno in added and node.arg is not None:
            names.add(node.arg)
    return names


def _changed_scopes(
    hunks: Sequence[CarriedHunk],
    base: tuple[Sequence[str], Scopes],
    release: tuple[Sequence[str], Scopes],
) -> Iterator[str]:
    for hunk in hunks:
        if MODULE_SCOPE in (hunk.hunk.scope, hunk.scope):
            continue
        was = _function(*base, hunk.hunk.scope)
        now = _function(*release, hunk.scope)
        if was is None or now is None:
            continue
        if ast.dump(was.args) != ast.dump(now.args):
            before, after = _parameters(was), _parameters(now)
            went = [f"-{name}" for name in before if name not in after]
            came = [f"+{name}" for name in after if name not in before]
            names = f": {', '.join(went + came)}" if went or came else ""
            yield f"{hunk.scope}: its parameters changed since the base{names}"
        if _returned(was) != _returned(now):
            yield (
                f"{hunk.scope}: it returned {_counts(_returned(was))} in the base, and now "
                f"{_counts(_returned(now))}"
            )


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _function(lines: Sequence[str], scopes: Scopes, scope: str) -> _Function | None:
    """The one function of a name; ``None`` for a class, or where there are several."""
    places = scopes.get(scope, ())
    if len(places) != 1:
        return None
    text = textwrap.dedent("\n".join(lines[places[0].start : places[0].stop]))
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):  # a string over several lines that dedenting does not suit
        return None
    first = body[0] if body else None
    return first if isinstance(first, _Function) else None


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    every = (
        *arguments.posonlyargs,
        *arguments.args,
        arguments.vararg,
        *arguments.kwonlyargs,
        arguments.kwarg,
    )
    return [parameter.arg for parameter in every if parameter is not None]


def _returned(function: _Function) -> frozenset[int]:
    """How many values its own return statements give: 0 for none, 2 for a pair."""
    counts: set[int] = set()
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return):
            value = node.value
            if value is None:
                counts.add(0)
            else:
                counts.add(len(value.elts) if isinstance(value, ast.Tuple) else 1)
        pending += ast.iter_child_nodes(node)
    return frozenset(counts)


def _counts(numbers: frozenset[int]) -> str:
    if not numbers:
        return "nothing"
    return " or ".join(map(str, sorted(numbers))) + (
        " value" if numbers == frozenset({1}) else " values"
    )
