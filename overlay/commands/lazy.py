"""The commands of the core, each imported when it is first asked for.

``overlay status`` pays for nothing that only ``apply`` needs: what calls commands names this module
at its top, and a command comes in when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlay.commands.adopt import adopt as adopt
    from overlay.commands.apply import apply as apply
    from overlay.commands.cache import cache as cache
    from overlay.commands.check import check as check
    from overlay.commands.diff import diff as diff
    from overlay.commands.doctor import doctor as doctor
    from overlay.commands.list_ import list_ as list_
    from overlay.commands.list_ import show as show
    from overlay.commands.live import live as live
    from overlay.commands.live import of_this_vllm as of_this_vllm
    from overlay.commands.report_ import report as report
    from overlay.commands.revert import Keep as Keep
    from overlay.commands.revert import revert as revert
    from overlay.commands.since import since as since
    from overlay.commands.status import status as status

_COMMANDS = "adopt apply cache check diff doctor list_ live revert since status".split()

#: Name -> the module that defines it, below ``overlay.commands``.
_HOMES = {name: name for name in _COMMANDS} | {
    "Keep": "revert",
    "of_this_vllm": "live",
    "report": "report_",
    "show": "list_",
}

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        """A command, imported from where it is defined."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"overlay.commands.{_HOMES[name]}"), name)
