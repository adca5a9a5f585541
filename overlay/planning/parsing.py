"""What Python says of a text: its definitions, and whether it compiles.  Nothing of it is run."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: What CPython's compiler raises for a text that it refuses.
_COMPILER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


class UnparsableError(ValueError):
    """The text is not Python to the Python that runs this."""


#: The qualified name of a class or function, its first line, 0-based, and the one behind it.
Definition = tuple[str, int, int]


def definitions(lines: Sequence[str]) -> list[Definition]:
    """Every class and function of a module, as ``scopes.find`` names and places them.

    :param lines: the lines without their ends.
    :raises UnparsableError: if the text is not Python.
    """
    text = "\n".join(lines) + "\n"
    to_ours: Sequence[int] = range(len(lines) + 1)
    if "\r" in text:  # Python ends a line at a lone carriage return too; these lines do not
        to_ours = [at for at, line in enumerate(lines) for _ in range(line.count("\r") + 1)]
        text = text.replace("\r", "\n")
    try:
        # Parsing allocates 100,000 nodes, which all stay in use until they have been looked at.
        with warnings.catch_warnings(), _no_collection():
            warnings.simplefilter("ignore")
            return list(_placed(ast.parse(text, "<text>"), lines, to_ours))
    except _COMPILER_ERRORS as error:
        raise UnparsableError(describe(error)) from error


def _placed(tree: ast.Module, lines: Sequence[str], to_ours: Sequence[int]) -> Iterator[Definition]:
    for name, node in _definitions(tree, ""):
        start = to_ours[node.lineno - 1]
        if node.decorator_list:
            start = to_ours[node.decorator_list[0].lineno - 1]
            while start and not lines[start].lstrip().startswith("@"):
                start -= 1
        assert node.end_lineno is not None  # the parser sets it, only hand-made trees lack it
        header = lines[to_ours[node.lineno - 1]]
        stop = reach(lines, to_ours[node.end_lineno - 1] + 1, _indent(header))
        yield name, start, stop


def compile_error(source: str | bytes, path: str, flags: int = 0) -> str | None:
    """Why a module does not compile; ``None`` where it does.

    :param flags: the compiler's own, of a part of a module that has statements for all of it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", flags, dont_inherit=True)
    except _COMPILER_ERRORS as error:
        return describe(error)
    return None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector: parsing allocates 100,000 nodes that all stay in use."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def describe(error: BaseException) -> str:
    """A compiler's error in one line, with the line of the source where it has one."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        quote = f" ({error.text.strip()})" if error.text and error.text.strip() else ""
        return f"line {error.lineno}: {error.msg}{quote}"
    return str(error) or type(error).__name__


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Definition]]:
    """Every class and function below ``node``, in the order of the text."""
    stack = [(child, prefix) for child in _blocks(node)]
    while stack:
        child, outer = stack.pop()
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            outer += child.name
            yield outer, child
            outer += "."
        stack += [(grandchild, outer) for grandchild in _blocks(child)]


_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")

_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


def _blocks(node: ast.AST) -> list[ast.AST]:
    """The statements (and the handlers and cases that hold some) of a node, the last one first.

    Expressions hold no definitions; leaving them out is what makes the walk cheap.
    """
    nodes: list[ast.AST] = []
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = _fields(kind)
    for field in _FIELDS[kind]:
        nodes += getattr(node, field)
    nodes.reverse()
    return nodes


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that hold blocks."""
    if not issubclass(kind, ast.Module | ast.stmt | ast.excepthandler | ast.match_case):
        return ()
    return tuple(name for name in _BLOCKS if name in kind._fields)


def reach(lines: Sequence[str], stop: int, indent: int) -> int:
    """The end of a scope: behind its blank lines and deeper comments."""
    while stop < len(lines):
        line = lines[stop].strip()
        if line and not (line.startswith("#") and _indent(lines[stop]) > indent):
            break
        stop += 1
    return stop


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
