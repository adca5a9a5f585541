"""How a finder of ours asks the finders after it."""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Asking(threading.local):
    """The modules that this thread's finders of ours are asking the other finders for.

    :ivar aside: those for which a finder of ours stands aside meanwhile.
    :ivar inside: those that it answers meanwhile -> for each such question, one inside the other,
        whether it was asked.
    """

    def __init__(self) -> None:
        self.aside: set[tuple[int, str]] = set()
        self.inside: dict[tuple[int, str], list[bool]] = {}


_asking = _Asking()


def next_spec(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """What the finders after ``finder`` find.

    A finder among them may ask the whole import system in turn; ``finder`` then stands aside.
    """
    question = (id(finder), fullname)
    _asking.aside.add(question)
    try:
        return _ask(finder, fullname, path, target)
    finally:
        _asking.aside.discard(question)


def spec_around(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """What the finders after ``finder`` put around what ``finder`` itself finds.

    :returns: ``None`` where none of them asks for that.
    """
    questions = _asking.inside.setdefault((id(finder), fullname), [])
    questions.append(False)
    try:
        spec = _ask(finder, fullname, path, target)
        return spec if questions[-1] else None
    finally:
        questions.pop()


def _ask(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    finders = list(sys.meta_path)
    after = finders[finders.index(finder) + 1 :] if finder in finders else finders
    for other in after:
        find_spec = getattr(other, "find_spec", None)
        spec = find_spec(fullname, path, target) if find_spec is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]  # any object may be a finder
    return None


def stands_aside(finder: importlib.abc.MetaPathFinder, fullname: str) -> bool:
    """Whether ``finder`` is being asked for what it is asking the others for."""
    return (id(finder), fullname) in _asking.aside


def answers(finder: importlib.abc.MetaPathFinder, fullname: str) -> None:
    """Note that ``finder`` gives what it found, to whoever asked."""
    if questions := _asking.inside.get((id(finder), fullname)):
        questions[-1] = True
