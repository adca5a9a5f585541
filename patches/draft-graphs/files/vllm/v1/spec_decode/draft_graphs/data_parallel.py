# SPDX-License-Identifier: Apache-2.0
"""Drafting under data parallelism: each rank for itself, or as upstream.

Where ranks run in lockstep (their target has experts), upstream lets them agree on the size and
the graph of every draft pass, idle ranks included. A draft model in which no layer looks beyond
its own rank needs none of that: its ranks draft without each other, in graphs, in upstream's
passes and in dummy batches alike. Whether they do is settled once, when the draft model has been
loaded, and on all ranks alike: a rank that waited for an agreement would wait forever.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

#: Layers of experts: their tokens go to other ranks, or their weights are split over them.
EXPERTS = "vllm.model_executor.layers.fused_moe"
#: What code names that looks at other data-parallel ranks: their groups, or their token counts.
_OTHER_RANKS = re.compile(r"(?:^|_)(?:dp|ep|etp|eplb)_(?:group|metadata)|_across_dp|all2all")


def coupling(proposer: Any) -> str | None:
    """Why data-parallel ranks must draft in lockstep; None where they need not, or there are none.

    Depends on the configuration and on the classes of the draft model's layers only, those that it
    shares with the target included, so it is the same on all ranks.
    """
    parallel = proposer.vllm_config.parallel_config
    if int(parallel.data_parallel_size) == 1:
        return None
    ranks = f"{parallel.data_parallel_size} data-parallel ranks draft in lockstep"
    if getattr(parallel, "enable_elastic_ep", False):
        return f"{ranks}: elastic expert parallelism changes how many there are"
    classes = {type(module): None for module in proposer.model.modules()}
    found = sorted(cls.__name__ for cls in classes if looks_beyond_its_rank(cls))
    if found:
        return f"{ranks}: layers of the draft model reach other ranks ({', '.join(found)})"
    return None


def looks_beyond_its_rank(cls: type) -> bool:
    """Whether a class of layers is one of experts, or its code names other ranks.

    Its code is that of its methods, inherited ones included, of what their decorators keep, and of
    the functions that they call in their own file. PyTorch's own classes know nothing of ranks.
    """
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] != "torch"]
    if any(base.__module__.startswith(EXPERTS) for base in own):
        return True
    pending = [function for base in own for function in _functions(vars(base).values())]
    seen = set(pending)
    while pending:
        function = pending.pop()
        names = list(_names(function.__code__))
        if any(_OTHER_RANKS.search(name) for name in names):
            return True
        called = _functions(map(function.__globals__.get, names))
        beside = [each for each in called if each.__module__ == function.__module__]
        for each in [*beside, *_functions(_kept(function))]:
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return False


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """The functions among `values`, out of what may be wrapped around them."""
    for value in values:
        if isinstance(value, property):
            yield from _functions([value.fget, value.fset])
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _functions([value.__func__])
        elif isinstance(value, functools.cached_property):
            yield from _functions([value.func])
        elif isinstance(value, functools._lru_cache_wrapper):
            yield from _functions([value.__wrapped__])
        elif isinstance(value, FunctionType):
            yield value


def _kept(function: FunctionType) -> Iterator[Any]:
    """What a function keeps of the place where it was made; decorators keep what they replace."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def all_ranks_want(proposer: Any, yes: bool) -> bool:
    """Whether the draft graphs are wanted on every data-parallel rank, as far as ranks must agree.

    Every rank has to ask, with graphs or without, once its draft model is loaded: what one of them
    is told to do by its own environment or device must not leave the others waiting. Where the
    ranks draft in lockstep, as upstream, the answer is `yes` itself, and nobody is asked.
    """
    parallel = proposer.vllm_config.parallel_config
    if int(parallel.data_parallel_size) == 1 or coupling(proposer) is not None:
        return yes
    from vllm.distributed.parallel_state import get_dp_group, get_tp_group

    votes = torch.tensor([int(yes)], dtype=torch.int32)
    for group in (get_tp_group(), get_dp_group()):
        if group.world_size > 1:
            torch.distributed.all_reduce(
                votes, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group
            )
    return bool(votes.item())


def token_counts(vllm_config: Any, num_tokens: int) -> torch.Tensor | None:
    """What the forward context is told of all ranks' tokens; None without data parallelism.

    [ranks] int32 on the CPU, where vLLM looks for them. Only this rank's own count is true: no
    layer of the draft model reads the others.
    """
    ranks = int(vllm_config.parallel_config.data_parallel_size)
    if ranks == 1:
        return None
    return torch.full((ranks,), num_tokens, dtype=torch.int32)
