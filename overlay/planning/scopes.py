"""Qualified names of classes and functions, and the lines that they take up."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from overlay._features.model import MODULE_SCOPE

#: Qualified name to the places of that name, each a range of 0-based line numbers.
Scopes = Mapping[str, Sequence[range]]

#: What CPython's compiler raises for a text that it refuses.
_COMPILER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


class UnparsableError(ValueError):
    """The text is not Python to the Python that runs this."""


def find(lines: Sequence[str]) -> dict[str, list[range]]:
    """Find the places of every class and function of a module.

    A nested one is named with plain dots (``Outer.method.inner``).  A scope begins with its first
    decorator and ends before the next line of code that is not its own: blank lines, and comments
    indented deeper than its header, still belong to it.  A name that is defined several times has
    several places.  ``<module>`` is the whole file.

    :param lines: the lines without their ends.
    :raises UnparsableError: if the text is not Python.
    """
    # Python ends a line at a lone carriage return too; these lines do not.
    python_lines = [line.replace("\r", "\n") for line in lines]
    tree = _parse("\n".join(python_lines) + "\n", "<text>")
    to_ours = [
        index for index, line in enumerate(python_lines) for _ in range(line.count("\n") + 1)
    ]
    places: dict[str, list[range]] = {MODULE_SCOPE: [range(len(lines))]}
    for name, node in _definitions(tree, ""):
        start = to_ours[node.lineno - 1]
        if node.decorator_list:
            start = to_ours[node.decorator_list[0].lineno - 1]
            while start and not lines[start].lstrip().startswith("@"):
                start -= 1
        assert node.end_lineno is not None  # the parser sets it, only hand-made trees lack it
        header = lines[to_ours[node.lineno - 1]]
        stop = _reach(lines, to_ours[node.end_lineno - 1] + 1, _indent(header))
        places.setdefault(name, []).append(range(start, stop))
    return places


class Syntax:
    """Python's answers about texts, each worked out once.

    Planning asks through this class, so that a subclass can keep the answers for longer.
    """

    def __init__(self) -> None:
        self._scopes: dict[bytes, Scopes | UnparsableError] = {}
        self._errors: dict[tuple[bytes, str], str | None] = {}

    def scopes(
        self,
        data: bytes,
        lines: Sequence[str],
        derive: Callable[[], Scopes | None] | None = None,
    ) -> Scopes:
        """The scopes of a file.

        :param data: its bytes; :param lines: its lines, as ``SourceText`` reads them.
        :param derive: gives what ``find`` would, faster, or ``None`` where it cannot.
        :raises UnparsableError: if it is not Python.
        """
        answer = self._scopes.get(data)
        if answer is None:
            try:
                answer = derive() if derive is not None else None
                if answer is None:
                    answer = find(lines)
            except UnparsableError as error:
                answer = error
            self._scopes[data] = answer
        if isinstance(answer, UnparsableError):
            raise answer
        return answer

    def compile_error(self, data: bytes, path: str) -> str | None:
        """Why the bytes do not compile, or ``None``; nothing of them is run."""
        key = (data, path)
        if key not in self._errors:
            self._errors[key] = _compile_error(data, path)
        return self._errors[key]


def _compile_error(data: bytes, path: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, path, "exec", dont_inherit=True)
    except _COMPILER_ERRORS as error:
        return describe(error)
    return None


def _parse(text: str, path: str) -> ast.Module:
    try:
        with warnings.catch_warnings(), _no_collection():
            warnings.simplefilter("ignore")
            return ast.parse(text, path)
    except _COMPILER_ERRORS as error:
        raise UnparsableError(describe(error)) from error


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


def _reach(lines: Sequence[str], stop: int, indent: int) -> int:
    """The end of a scope: behind its blank lines and deeper comments."""
    while stop < len(lines):
        line = lines[stop].strip()
        if line and not (line.startswith("#") and _indent(lines[stop]) > indent):
            break
        stop += 1
    return stop


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
