"""The commands of the core: from a ``Request`` to a ``Report``; nothing here prints.

A module has a command's name, and its report where no other command has that; beside them stands
what several commands share (request, scene, assess).

The core imports neither wing (``overlay.authoring``, ``overlay.proof``): an image that only serves
can do without both folders.  What a user asks for that lies in a wing is imported here by name, and
a wing that is not there is said to be missing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

#: The folders beside the core.
WINGS = ("overlay.authoring", "overlay.proof")

#: Where what the core offers of a wing lies.
KEEP_EDITS = "overlay.authoring.commands.keep_edits"
MATRIX = "overlay.authoring.commands.matrix"


def is_there(module: str) -> bool:
    """Whether the wing that a module lies in is installed; the core always is."""
    return all(find_spec(wing) is not None for wing in WINGS if module.startswith(f"{wing}."))


def load(module: str, words: str) -> ModuleType:
    """Import a module that may lie in a wing.

    :param words: what a user asked for, such as ``overlay import`` or ``--keep-as``.
    :raises UsageError: if its wing is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in WINGS:
            raise
        from overlay.errors import UsageError  # `--help` needs no errors

        folder = error.name.replace(".", "/")
        raise UsageError(
            f"{words}: expected the folder {folder}, which this installation of vllm-overlay does "
            "not have; install vllm-overlay again for all commands"
        ) from None
