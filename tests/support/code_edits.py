"""Bugs put into Python source by its syntax: in a named function, whatever its layout and comments.

An edit is (file, scope, old, new). The scope is the qualified name of a function or class of the
file, or `<module>`. `old` and `new` are code: expressions, statements, or a keyword argument
`name=value`. `old` must match exactly once inside the scope, node by node, so that neither line
breaks nor comments nor quotes count. In `old`, `...` matches any expression, as the only argument
of a call any arguments, and as the last statement of a block the rest of that block; as the whole
of `old` it is the body of the scope. In `new`, `MATCH` is what `old` has matched.

    edited(source, [("Replay.run", "captured.graphs[key].replay()", "pass")])
    edited(source, [("Passes.metadata", "max_query_len=query_len", "max_query_len=1")])
    edited(source, [("Captured.capture", "backend.synchronize()", "MATCH\nprint('recorded')")])

Standard library only: engines import it, too.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: (file, scope, old code, new code).
Edit = tuple[str, str, str, str]
_BLOCKS = ("body", "orelse", "finalbody")


class EditError(BaseException):
    """An edit does not fit the source, or is not one.

    No Exception: a test that expects any of those from a mistake must not take it for one.
    """


def edited(source: str, edits: Iterable[Sequence[str]], file: str = "<source>") -> str:
    """The source with all edits, each (scope, old, new), made one after the other.

    :raises EditError: if a scope or an old code is not there exactly once.
    """
    for scope, old, new in edits:
        tree = ast.parse(source)
        _edit(tree, scope, old, new, f"{file}: {scope}")
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        compile(source, file, "exec", dont_inherit=True)
    return source


def run_edited(file: Path, edits: Iterable[Sequence[str]], name: str) -> dict[str, Any]:
    """The names of a module that was run by itself with edits; see ``edited``.

    :param name: of the module, as its own code reads it.
    """
    names: dict[str, Any] = {"__name__": name}
    exec(compile(edited(file.read_text(encoding="utf-8"), edits), file, "exec"), names)
    return names


def _edit(tree: ast.Module, scope: str, old: str, new: str, where: str) -> None:
    owner = _scope(tree, scope, where)
    old, new = textwrap.dedent(old).strip(), textwrap.dedent(new).strip()
    if old == "...":
        owner.body = _statements(new, owner.body) or [ast.Pass()]
        return
    pattern, replacement = _expression(old), _expression(new)
    keyword = _keyword(old), _keyword(new)
    places: list[tuple[Any, str, int | None, Any]] = []
    if pattern is not None and replacement is not None:
        wanted = pattern
        places = [p for p in _places(owner) if isinstance(p[3], ast.expr) and _same(wanted, p[3])]
    elif keyword[0] is not None and keyword[1] is not None:
        wanted_keyword = keyword[0]
        places = [
            p
            for p in _places(owner)
            if isinstance(p[3], ast.keyword) and _same(wanted_keyword, p[3])
        ]
    blocks = [] if places or (pattern and replacement) else list(_runs(owner, ast.parse(old).body))
    if len(places) + len(blocks) != 1:
        raise EditError(f"{where} holds {len(places) + len(blocks)} times, not once: {old!r}")
    if blocks:
        block, start, end = blocks[0]
        block[start:end] = _statements(new, block[start:end])
        if not block:
            block.append(ast.Pass())
        return
    parent, field, index, node = places[0]
    made = keyword[1] if isinstance(node, ast.keyword) else _with_match(replacement, node)
    if index is None:
        setattr(parent, field, made)
    else:
        getattr(parent, field)[index] = made


def _scope(tree: ast.Module, scope: str, where: str) -> Any:
    owner: Any = tree
    for name in scope.split(".") if scope != "<module>" else ():
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [node for node in owner.body if isinstance(node, kinds) and node.name == name]
        if len(named) != 1:
            raise EditError(f"{where} is there {len(named)} times, not once: {name!r}")
        (owner,) = named
    return owner


def _expression(code: str) -> ast.expr | None:
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError:
        return None


def _keyword(code: str) -> ast.keyword | None:
    """`name=value`, as an argument of a call."""
    try:
        call = ast.parse(f"f({code})", mode="eval").body
    except SyntaxError:
        return None
    if isinstance(call, ast.Call) and not call.args and len(call.keywords) == 1:
        return call.keywords[0]
    return None


class _PutMatch(ast.NodeTransformer):
    """Replaces the name `MATCH` by what was matched: an expression, or statements."""

    def __init__(self, matched: Sequence[ast.AST]) -> None:
        self._matched = list(matched)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "MATCH":
            return [self._as_statement(each) for each in copy.deepcopy(self._matched)]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id != "MATCH":
            return node
        (matched,) = copy.deepcopy(self._matched)
        return matched.value if isinstance(matched, ast.Expr) else matched

    @staticmethod
    def _as_statement(node: Any) -> Any:
        return ast.Expr(node) if isinstance(node, ast.expr) else node


def _statements(code: str, matched: list[ast.stmt]) -> list[ast.stmt]:
    module: ast.Module = _PutMatch(matched).visit(ast.parse(code))
    return module.body


def _with_match(node: Any, matched: ast.expr) -> Any:
    return _PutMatch([matched]).visit(copy.deepcopy(node))


def _places(owner: Any) -> Iterator[tuple[Any, str, int | None, Any]]:
    """Every node inside, with its parent, the field that holds it and its place in a list."""
    for parent in ast.walk(owner):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                for index, node in enumerate(value):
                    if isinstance(node, ast.AST):
                        yield parent, field, index, node
            elif isinstance(value, ast.AST):
                yield parent, field, None, value


def _runs(owner: Any, pattern: list[ast.stmt]) -> Iterator[tuple[list[Any], int, int]]:
    """Where consecutive statements of a block match: the block, first and end."""
    for parent in ast.walk(owner):
        for field in _BLOCKS:
            block = getattr(parent, field, None)
            for start in range(len(block) if isinstance(block, list) else 0):
                assert block is not None
                if _is_rest(pattern[-1]) and _same(
                    pattern[:-1], block[start : start + len(pattern) - 1]
                ):
                    yield block, start, len(block)
                elif _same(pattern, block[start : start + len(pattern)]):
                    yield block, start, start + len(pattern)


def _is_any(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _is_rest(node: Any) -> bool:
    return isinstance(node, ast.Expr) and _is_any(node.value)


def _same(pattern: Any, node: Any) -> bool:
    """Whether a node matches a pattern; positions, and load or store, do not count."""
    if _is_any(pattern):
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if pattern and _is_rest(pattern[-1]):
            return _same(pattern[:-1], node[: len(pattern) - 1])
        return len(pattern) == len(node) and all(map(_same, pattern, node))
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and bool(pattern == node)
    if type(pattern) is not type(node):
        return False
    fields = [name for name in pattern._fields if name not in ("ctx", "type_comment", "kind")]
    if isinstance(pattern, ast.Call) and [*map(_is_any, pattern.args), *pattern.keywords] == [True]:
        fields = ["func"]
    return all(_same(getattr(pattern, name, None), getattr(node, name, None)) for name in fields)
