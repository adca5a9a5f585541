"""How a finder of ours asks the finders after it."""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Asking(threading.local):
    """The modules that this thread's finders of ours are asking the other finders for."""

    def __init__(self) -> None:
        self.names: set[tuple[int, str]] = set()


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
    finders = list(sys.meta_path)
    after = finders[finders.index(finder) + 1 :] if finder in finders else finders
    _asking.names.add(question)
    try:
        for other in after:
            find_spec = getattr(other, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec is not None else None
            if spec is not None:
                return spec  # type: ignore[no-any-return]  # any object may be a finder
    finally:
        _asking.names.discard(question)
    return None


def stands_aside(finder: importlib.abc.MetaPathFinder, fullname: str) -> bool:
    """Whether ``finder`` is being asked for what it is asking the others for."""
    return (id(finder), fullname) in _asking.names
