"""The running code objects compared with the plan, scope by scope."""

from __future__ import annotations

import types

from overlay.in_memory import import_hook as evidence

TEXT = """
import functools

def wrap(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)
    return wrapped

def opaque(function):
    def wrapped(*args):
        return function(*args)
    return wrapped

class A:
    def plain(self):
        return 1

    @property
    def shown(self):
        return 2

    @classmethod
    def made(cls):
        return 3

    @wrap
    def wrapped(self):
        return 4

def free():
    return 5

@opaque
def hidden():
    return 6
"""
SCOPES = ["A.plain", "A.shown", "A.made", "A.wrapped", "free", "hidden"]


def executed(text: str) -> types.ModuleType:
    module = types.ModuleType("m")
    exec(compile(text, "m.py", "exec"), module.__dict__)
    return module


PLANNED = compile(TEXT, "other.py", "exec")


def test_planned_code_runs_through_every_decorator() -> None:
    assert evidence.compare(executed(TEXT), PLANNED, SCOPES) == dict.fromkeys(SCOPES, "runs")


LAZY = """
class Lazy:
    def __getattribute__(self, name):
        raise ModuleNotFoundError(name)
lazy = Lazy()

def beside(function):
    other = lazy
    def wrapped(*args):
        return other, function(*args)
    return wrapped

@beside
def found():
    return 1
"""


def test_an_object_that_fails_when_it_is_asked_shows_no_code_and_stops_nothing() -> None:
    code = compile(LAZY, "m.py", "exec")
    assert evidence.compare(executed(LAZY), code, ["found"]) == {"found": "runs"}
    module = executed(LAZY)
    vars(module)["found"] = vars(module)["lazy"]
    assert evidence.compare(module, code, ["found"]) == {"found": "unseen"}


def test_each_scope_that_differs_is_found() -> None:
    for number, scope in enumerate(SCOPES, start=1):
        changed = executed(TEXT.replace(f"return {number}", f"return {number}0"))
        states = evidence.compare(changed, PLANNED, SCOPES)
        assert [name for name, state in states.items() if state != "runs"] == [scope]
        assert states[scope] == "differs"


NESTED = """
import functools

def wrap(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)
    return wrapped

class A:
    @wrap
    def outer(self):
        def inner():
            def innermost():
                return 1
            return innermost
        return inner
"""
INNERMOST = "A.outer.inner.innermost"


def test_a_function_inside_a_method_is_compared_where_its_code_lies() -> None:
    code = compile(NESTED, "other.py", "exec")
    assert evidence.compare(executed(NESTED), code, [INNERMOST]) == {INNERMOST: "runs"}
    changed = executed(NESTED.replace("return 1", "return 2"))
    assert evidence.compare(changed, code, [INNERMOST]) == {INNERMOST: "differs"}
    gone = executed(NESTED.replace("innermost", "other"))
    assert evidence.compare(gone, code, [INNERMOST]) == {INNERMOST: "unseen"}
    replaced = executed(NESTED)
    replaced.A.outer = lambda self: 1
    assert evidence.compare(replaced, code, [INNERMOST]) == {INNERMOST: "unseen"}


def test_a_replaced_function_is_found() -> None:
    module = executed(TEXT)
    module.A.plain = lambda self: 1
    assert evidence.compare(module, PLANNED, ["A.plain"]) == {"A.plain": "differs"}


def test_what_has_no_code_is_unseen_and_the_module_scope_left_out() -> None:
    states = evidence.compare(executed(TEXT), PLANNED, ["gone", "<module>"])
    assert states == {"gone": "unseen"}


def test_a_class_is_compared_method_by_method() -> None:
    assert evidence.compare(executed(TEXT), PLANNED, ["A"]) == {"A": "runs"}
    for number in range(1, 5):
        changed = executed(TEXT.replace(f"return {number}", f"return {number}0"))
        assert evidence.compare(changed, PLANNED, ["A"]) == {"A": "differs"}
