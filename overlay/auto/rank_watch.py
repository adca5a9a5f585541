"""When the ranks of an engine compare what they run: before the model is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from overlay.auto.watching import when_imported

if TYPE_CHECKING:  # a process that is no worker never compares
    from overlay.auto.ranks import RankReport

#: Gives this process's report for its rank.
Describe: TypeAlias = "Callable[[int], RankReport]"
_MODULE = "vllm.distributed.parallel_state"
_FUNCTION = "initialize_model_parallel"


def watch(describe: Describe, required: bool = False) -> None:
    """Have this process compare itself with its peers as soon as vLLM has made its groups.

    vLLM makes them before it loads the model, in ``initialize_model_parallel`` of
    ``vllm.distributed.parallel_state``, whichever executor started the process (multiprocess, Ray
    or the external launcher).

    :param describe: gives this process's report for its rank.
    :param required: whether vLLM must not go on where the ranks cannot be compared.
    """
    lost = "the ranks of this engine are not compared; `overlay status --live` shows what each runs"
    when_imported(_MODULE, lambda found: _wrap(found, describe), None if required else lost)


def _wrap(module: ModuleType, describe: Describe) -> None:
    inner = getattr(module, _FUNCTION)
    if getattr(inner, "_overlay_compares", False):
        return

    @functools.wraps(inner)
    def initialize_then_compare(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        group = module.get_world_group()
        from overlay.auto.ranks import compare

        compare(describe(group.rank), group)
        return result

    # A function may carry attributes, but its type tells mypy of none.
    initialize_then_compare._overlay_compares = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, initialize_then_compare)
