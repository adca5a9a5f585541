"""Find out who imported a module, afterwards and without running anything of what is looked at."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import cast


def importers(name: str) -> str:
    """The modules that hold ``name`` or a part of it in a global, or whose text imports it.

    ``import a.b.c`` leaves only ``a`` behind, so those that hold that one are read.
    """
    target, top = sys.modules[name], sys.modules.get(name.partition(".")[0])
    holders = []
    for other, module in list(sys.modules.items()):
        if other == name or module is None or name.startswith(other + "."):
            continue
        module_globals = _globals(module)
        values = list(module_globals.values())
        if any(value is target or _home(value) == name for value in values) or (
            any(value is top for value in values) and _says(module_globals, name)
        ):
            holders.append(other)
    return ", ".join(sorted(holders)[:3]) or "nobody that still holds it"


def _globals(module: object) -> Mapping[str, object]:
    """What a module holds, without asking it: a lazy one would import what it names."""
    try:
        return dict(object.__getattribute__(module, "__dict__"))
    except AttributeError:  # sys.modules may hold anything
        return {}


def _home(value: object) -> str | None:
    """The module that defines a function or class; ``None`` for any other object."""
    kind = type(value)  # isinstance would ask the object for its class
    if kind is FunctionType:
        return cast("FunctionType", value).__module__
    if issubclass(kind, type):
        return cast("str | None", type.__getattribute__(cast("type", value), "__module__"))
    return None


def _says(module_globals: Mapping[str, object], name: str) -> bool:
    """Whether a module's file has ``import name``."""
    file = module_globals.get("__file__")
    if type(file) is not str:
        return False
    try:
        text = Path(file).read_bytes().decode(errors="replace")
    except OSError:  # in an archive, or gone: it is not told then
        return False
    statement = rf"(?:^|[:;])[ \t]*import[ \t]+(?:.*,[ \t]*)?{re.escape(name)}(?!\w)"
    return re.search(statement, text, re.MULTILINE) is not None
