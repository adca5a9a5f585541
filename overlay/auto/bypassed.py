"""Planned modules that another tool's import hook loads without asking ours.

A finder before ours that asks Python's own ``PathFinder`` (as typeguard's and jaxtyping's hooks do)
never calls us for the modules it takes; what it loads is the pristine file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


class Expected:
    """The planned modules that were not executed by a loader of ours yet.

    :param names: of the planned modules; :param ours: the type of our loader.
    """

    def __init__(self, names: Iterable[str], ours: type) -> None:
        self._names = set(names)
        self._ours = ours
        self._offered: set[str] = set()

    def offered(self, name: str) -> None:
        """Our loader was handed out for ``name``; who asked may execute it, or another one."""
        self._offered.add(name)

    def executes(self, name: str) -> None:
        """Our loader begins to execute ``name``."""
        self._names.discard(name)

    def failed(self, name: str) -> None:
        """Our loader could not execute ``name``, which may be imported once more."""
        self._names.add(name)

    def bypassed(self) -> dict[str, str]:
        """The modules that another loader executed, in full or in part -> its type; each once.

        Called for nearly every import: costs one intersection, and nothing once all were seen.
        """
        if not self._names:
            return {}
        there = sys.modules.keys() & self._names
        return {name: loader for name in sorted(there) if (loader := self._foreign(name))}

    def _foreign(self, name: str) -> str | None:
        module = sys.modules.get(name)
        if module is None:  # its import is forbidden, or failed meanwhile
            return None
        spec = _attribute(module, "__spec__")
        loader = getattr(spec, "loader", None) or _attribute(module, "__loader__")
        if isinstance(loader, self._ours):
            return None
        if name in self._offered and getattr(spec, "_initializing", False):
            return None  # it may wrap ours, and not have called it yet
        try:
            self._names.remove(name)
        except KeyError:  # another thread says it
            return None
        kind = type(loader)
        return f"{kind.__module__}.{kind.__qualname__}"


def _attribute(module: object, name: str) -> object:
    # Without the module's own __getattribute__, with which a lazy module would load itself.
    try:
        return object.__getattribute__(module, name)
    except AttributeError:
        return None


def others_before(finder: object) -> str:
    """The types of the finders, but ours, that are asked before ``finder``, for an error."""
    finders = list(sys.meta_path)
    before = finders[: finders.index(finder)] if finder in finders else finders
    kinds = (one if isinstance(one, type) else type(one) for one in before)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    return ", ".join(name for name in names if not name.startswith("overlay.")) or "none"
