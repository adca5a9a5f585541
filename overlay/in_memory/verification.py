"""Proof of effect: what a process runs, compared scope by scope with what was planned."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import CodeType, ModuleType

from overlay._processes.records import CodeState


def planned_code(module: CodeType, scope: str) -> list[CodeType]:
    """The code objects that the qualified name ``scope`` names inside a module's code.

    A name may be defined more than once (a property and its setter); all are given.
    """
    return _inside([module], scope.split("."))


def _inside(level: list[CodeType], parts: list[str]) -> list[CodeType]:
    """The code objects that a path of names leads to, from those that hold them."""
    for part in parts:
        level = [
            constant
            for code in level
            for constant in code.co_consts
            if isinstance(constant, CodeType) and constant.co_name == part
        ]
    return level


def running_code(module: ModuleType, scope: str) -> list[CodeType]:
    """The code objects that ``scope`` resolves to in an executed module, decorators undone.

    The code of a function inside another one is a constant of the outer function's code, and no
    attribute of that function leads to it.
    """
    value: object = module
    parts = scope.split(".")
    for number, part in enumerate(parts):
        try:
            # Through __dict__, since a descriptor must not run here.
            value = vars(value)[part]
        except (KeyError, TypeError):
            if isinstance(value, (ModuleType, type)):
                return []
            return _inside(list(_codes(value)), parts[number:])
    return list(_codes(value))


def _codes(value: object, depth: int = 0) -> Iterable[CodeType]:
    if _attribute(value, "__class__") is None:  # isinstance would ask for it, too
        return
    code = _attribute(value, "__code__")
    if isinstance(code, CodeType):
        yield code
    if depth > 8:  # a decorator that wraps itself
        return
    if isinstance(value, property):
        inner: Iterable[object] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, (classmethod, staticmethod)):
        inner = (value.__func__,)
    elif isinstance(value, (functools.partial, functools.partialmethod)):
        inner = (value.func,)
    else:
        inner = (
            _attribute(value, "__wrapped__"),
            _attribute(value, "fn"),
            *_closure_functions(value),
        )
    for each in inner:
        if each is not None and each is not value:
            yield from _codes(each, depth + 1)


def _closure_functions(value: object) -> list[object]:
    """What a decorator's function closes over: a plain one says nowhere else what it wraps."""
    functions = []
    cells = _attribute(value, "__closure__")
    for cell in cells if isinstance(cells, tuple) else ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if _attribute(content, "__code__") is not None:
            functions.append(content)
    return functions


def _attribute(value: object, name: str) -> object:
    """An attribute, ``None`` where there is none or the object fails when it is asked.

    A lazy one imports what it names, which need not be installed.
    """
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - any error of such an object; it shows no code, that is all
        return None


def compare(module: ModuleType, code: CodeType, scopes: Iterable[str]) -> dict[str, CodeState]:
    """Compare the running code with the planned code, scope by scope; a class by its methods.

    :returns: scope -> ``RUNS``, ``DIFFERS`` or ``UNSEEN``.
    """
    results = {}
    for scope in sorted(set(scopes)):
        if scope == "<module>":
            continue
        codes = planned_code(code, scope)
        methods = [name for body in codes for name in _functions(body)]
        if methods and _is_class(module, scope):
            states = {_compare(module, code, f"{scope}.{name}") for name in methods}
            results[scope] = next(state for state in CodeState if state in states)
        else:
            results[scope] = _compare(module, code, scope)
    return results


def _compare(module: ModuleType, code: CodeType, scope: str) -> CodeState:
    codes = planned_code(code, scope)
    running = running_code(module, scope)
    if not codes or not running:
        return CodeState.UNSEEN
    runs = any(each in codes for each in running)
    return CodeState.RUNS if runs else CodeState.DIFFERS


def _functions(body: CodeType) -> list[str]:
    """The names of the functions that a class's body defines."""
    return [
        constant.co_name
        for constant in body.co_consts
        if isinstance(constant, CodeType) and constant.co_name.isidentifier()
    ]


def _is_class(module: ModuleType, scope: str) -> bool:
    value: object = module
    for part in scope.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    return isinstance(value, type)
