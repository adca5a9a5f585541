# SPDX-License-Identifier: Apache-2.0
"""How data-parallel ranks draft: alone, together, or as upstream. Imports neither torch nor vLLM.

Where data-parallel ranks run in lockstep (their target has experts), upstream lets them agree on
the size and the graph of every draft pass, idle ranks included. There are three answers:

- alone: no layer of the draft model reads or writes another rank. The ranks draft independently,
  in graphs, in upstream's passes and in dummy batches alike, and ask each other nothing.
- together: the draft model has experts. After each agreement of the target that all ranks run a
  FULL graph, all of them replay the draft graphs of the agreed size; see `together`.
- refused: all ranks draft as upstream.

The answer is given once, when the draft model has been loaded, from the configuration and from the
classes of its layers, so it is the same on all ranks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType
from typing import Any

#: Layers of experts: their tokens go to other ranks, or their weights are split over them.
EXPERTS = "vllm.model_executor.layers.fused_moe"
#: all2all backends whose buffers alternate with every call: a rank that made one call less than the
#: others, as when a capture fails between two of them, reads the wrong half from then on.
LOW_LATENCY_EXCHANGES = frozenset({"deepep_low_latency", "nixl_ep"})
#: Names in code that deals with other data-parallel ranks: their groups, or their token counts.
_OTHER_RANKS = re.compile(r"(?:^|_)(?:dp|ep|etp|eplb)_(?:group|metadata)|_across_dp|all2all")


class Manner(Enum):
    """The three answers."""

    ALONE = "alone"
    TOGETHER = "together"
    REFUSED = "refused"


@dataclass(frozen=True)
class Coupling:
    """How the data-parallel ranks of a drafter draft.

    reason: why they do not draft alone, with what the user can change; empty where they do.
    """

    manner: Manner = Manner.ALONE
    reason: str = ""

    @property
    def together(self) -> bool:
        """Whether all ranks replay the graphs that they have agreed on."""
        return self.manner is Manner.TOGETHER


def coupling(proposer: Any) -> Coupling:
    """How the data-parallel ranks of a proposer draft.

    The layers of the draft model include those that it shares with the target.
    """
    parallel = proposer.vllm_config.parallel_config
    if int(parallel.data_parallel_size) == 1:
        return Coupling()
    lockstep = f"{parallel.data_parallel_size} data-parallel ranks draft in lockstep"
    if getattr(parallel, "enable_elastic_ep", False):
        return Coupling(
            Manner.REFUSED,
            f"{lockstep}: elastic expert parallelism changes how many there are (remove "
            "enable_elastic_ep)",
        )
    if _has_dummy_passes_of_its_own(proposer):
        return Coupling(
            Manner.REFUSED,
            f"{lockstep}: {type(proposer).__name__} has dummy passes of its own, which write "
            "through the slots of the last drafts (set data_parallel_size to 1)",
        )
    classes = {type(module): None for module in proposer.model.modules()}
    reaching = sorted(cls.__name__ for cls in classes if looks_beyond_its_rank(cls))
    if not reaching:
        return Coupling()
    return Coupling(
        Manner.TOGETHER,
        f"{lockstep}: layers of the draft model reach other ranks ({', '.join(reaching)})",
    )


def _has_dummy_passes_of_its_own(proposer: Any) -> bool:
    """Whether an idle rank's dummy passes are not those that the hooks reach (dflash)."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    stock = SpecDecodeBaseProposer.dummy_run
    return getattr(type(proposer), "dummy_run", stock) is not stock


def looks_beyond_its_rank(cls: type) -> bool:
    """Whether a class of layers is one of experts, or its code names other ranks.

    Its code is that of its methods, inherited ones included, of what their decorators wrap, and of
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
        same_file = [each for each in called if each.__module__ == function.__module__]
        for each in [*same_file, *_functions(_enclosed(function))]:
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return False


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """The functions among `values`, unwrapped from properties, methods and caches."""
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


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """The values in a function's closure; a decorator keeps there what it wraps."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
