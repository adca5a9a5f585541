"""What the graph double does with an operator: enter it, refuse it, skip it or record it.

A CUDA graph records kernels. On CPU the nearest thing to a kernel is an operator that runs no
Python and calls no other operator; everything above has to be entered until such leaves show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.library

CPU_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
ALLOCATIONS = frozenset(
    "aten::" + name
    for name in "empty empty_strided empty_like empty_permuted new_empty new_empty_strided".split()
)
# Their result, or its shape, has to come back to the host before the next line can run.
HOST_READS = frozenset(
    "aten::" + name
    for name in (
        "_local_scalar_dense item is_nonzero equal nonzero nonzero_numpy masked_select bincount "
        "histc _unique2 unique_dim unique_consecutive unique_dim_consecutive _pin_memory"
    ).split()
)
# Planners that are C++ on CPU and host code on any GPU.
HOST_PLANNERS = frozenset({"_C::get_scheduler_metadata"})
# Python kernels that stand for one of the device's: an exchange of rows between ranks.
LEAVES = frozenset({"overlay_ranks::gather", "overlay_ranks::scatter"})
DATA_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEX_WRITES = frozenset({"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})


# PyTorch's own trees know dozens of containers, and took a third of a capture.
def leaves_of(value: Any) -> list[Any]:
    """What an operator's arguments or results hold, containers aside."""
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in leaves_of(each)]
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves_of(each)]
    return [value]


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An operator's arguments with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(with_tensors(each, change) for each in value)
    if isinstance(value, dict):
        return {name: with_tensors(each, change) for name, each in value.items()}
    return value


@cache
def has_python_kernel(func: torch._ops.OpOverload) -> bool:
    """Whether the operator's CPU kernel is a Python function (`Library.impl`, `custom_op`)."""
    if func.namespace in ("aten", "prims") or func._schema.name in LEAVES:
        return False
    overload = func._schema.overload_name
    names = {func._schema.name, func._schema.name + (f".{overload}" if overload else "")}
    registered = {
        f"{namespace}::{operator}"
        for namespace, operator, key in (entry.split("/") for entry in torch.library._impls)
        if key in CPU_KEYS
    }
    keys = [getattr(torch._C.DispatchKey, key) for key in CPU_KEYS]
    return bool(names & registered) or any(key in func.py_kernels for key in keys)


@cache
def is_composite(func: torch._ops.OpOverload) -> bool:
    """Whether PyTorch defines the operator by others, which are the ones that hold kernels."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return func.namespace == "aten" and bool(func.has_kernel_for_dispatch_key(key))


@cache
def is_allocation(func: torch._ops.OpOverload) -> bool:
    """Whether the operator only allocates: a replay has nothing to do for it."""
    return func._schema.name in ALLOCATIONS


@cache
def always_runs(func: torch._ops.OpOverload) -> bool:
    """Whether the operator has an effect besides what it returns."""
    schema = func._schema
    return not schema.returns or any(_is_written(argument) for argument in schema.arguments)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


@cache
def _may_write(func: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the operator may write.

    An operator that returns nothing and declares no written argument may write any of them.
    """
    arguments = func._schema.arguments
    undeclared = not func._schema.returns and not any(map(_is_written, arguments))
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(arguments)
        if undeclared or _is_written(argument)
    )


def written_tensors(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensor arguments that the operator may write."""
    for position, name in _may_write(func):
        value = args[position] if position < len(args) else kwargs.get(name)
        yield from (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))


@cache
def _depends_on_data(func: torch._ops.OpOverload) -> bool:
    """Whether the shape of what the operator returns depends on data."""
    return any(tag in func.tags for tag in DATA_DEPENDENT)


def refusal(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Why a CUDA graph could not capture this call, or None."""
    name = func._schema.name
    if name in HOST_PLANNERS:
        return "plans on the host"
    if name in HOST_READS:
        return "the host reads its result"
    if name == "aten::index" or (name in INDEX_WRITES and args[2].numel() != 1):
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
            return "a boolean mask makes the shape depend on data"
        return None
    if name == "aten::repeat_interleave" and kwargs.get("output_size") is not None:
        return None
    if _depends_on_data(func) and name != "aten::index":
        return "the shape of its result depends on data"
    return None
