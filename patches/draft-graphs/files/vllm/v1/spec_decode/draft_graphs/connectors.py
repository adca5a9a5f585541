# SPDX-License-Identifier: Apache-2.0
"""Tells which KV connectors act in each attention layer, by Python that no replay runs.

vLLM calls `wait_for_layer_load` before and `save_kv_layer` behind each attention layer, the draft's
included, in every step. All connectors have both methods, since they are abstract; those of most
do nothing. What a connector does in a step is its own business, so one that may do something keeps
upstream's drafting for all batches: vLLM binds its metadata in every step, and whether there is
work in it no one else can tell.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

METHODS = ("wait_for_layer_load", "save_kv_layer")
#: What a function consists of that returns a constant and does nothing else.
_NOTHING = frozenset({"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"})
_LMCACHE = "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector"
_MULTI = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"


def current() -> Any:
    """This process's KV connector; None without one.

    vLLM makes it behind the draft model and before the KV cache, so that captures have it.
    """
    from vllm.distributed import kv_transfer

    return kv_transfer.get_kv_transfer_group() if kv_transfer.has_kv_transfer_group() else None


def acting_per_layer(connector: Any) -> tuple[str, ...]:
    """Names of the classes, of `connector` or its children, that act in each attention layer.

    connector: as `current` returns it. Empty where nothing acts.
    """
    return tuple(sorted(set(_acting(connector)))) if connector is not None else ()


def _acting(connector: Any) -> Iterator[str]:
    methods = [getattr(connector, name, None) for name in METHODS]
    acting = [method for method in methods if method is not None and not _does_nothing(method)]
    if not acting:
        return
    modules = {getattr(method, "__module__", None) for method in acting}
    children = getattr(connector, "_connectors", None)
    if modules == {_MULTI} and children is not None:
        for child in children:
            yield from _acting(child)
        return
    engine = getattr(connector, "_lmcache_engine", None)
    if modules == {_LMCACHE} and getattr(engine, "use_layerwise", None) is False:
        return
    yield type(connector).__name__


def _does_nothing(method: Any) -> bool:
    """Whether a method is Python that returns a constant and does nothing else."""
    code = getattr(method, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    return all(instruction.opname in _NOTHING for instruction in dis.get_instructions(code))
