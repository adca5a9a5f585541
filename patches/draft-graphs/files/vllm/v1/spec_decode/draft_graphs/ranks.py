# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on: votes between tensor-parallel ranks, and drafting under data parallelism.

Where data-parallel ranks run in lockstep (their target has experts), upstream lets them agree on
the size and the graph of every draft pass, idle ranks included. A draft model none of whose layers
reads or writes another rank needs no such agreement: its ranks draft independently, in graphs, in
upstream's passes and in dummy batches alike. Whether they do is decided once, when the draft model
has been loaded, and for all ranks alike: a rank that waited for an agreement would wait forever.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .graph_backend import GraphBackend

#: Layers of experts: their tokens go to other ranks, or their weights are split over them.
EXPERTS = "vllm.model_executor.layers.fused_moe"
#: Names in code that deals with other data-parallel ranks: their groups, or their token counts.
_OTHER_RANKS = re.compile(r"(?:^|_)(?:dp|ep|etp|eplb)_(?:group|metadata)|_across_dp|all2all")


# ---- tensor parallelism


def writes_log() -> bool:
    """Whether this rank logs what all tensor-parallel ranks would log alike."""
    from vllm.distributed.parallel_state import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


def all_ranks_agree(yes: bool) -> bool:
    """Whether all tensor-parallel ranks vote yes; every one of them has to call this.

    The vote takes place on the CPU: the device may be in the middle of a capture.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return yes
    votes = torch.tensor([int(yes)], dtype=torch.int32)
    torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return bool(votes.item())


def even_out_recorded_all_reduces(backend: GraphBackend) -> None:
    """Record all-reduces until all tensor-parallel ranks have recorded equally many.

    At the end of `graph_capture()` vLLM pairs the ranks' recorded buffers of its custom all-reduce
    by their place in each rank's list, and reads past the end of a shorter list. A rank whose
    capture failed has the shorter one. All ranks have to call this while what they recorded still
    has its memory.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return
    custom = getattr(group.device_communicator, "ca_comm", None)
    if custom is None or custom.disabled:
        return
    from vllm._custom_ops import get_graph_buffer_ipc_meta

    own = len(get_graph_buffer_ipc_meta(custom._ptr)[1])
    most = torch.tensor([own], dtype=torch.int32)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    missing = int(most.item()) - own
    if missing == 0:
        return
    # Recorded and never run; this memory of vLLM's lives as long as its all-reduce does.
    any_buffer = custom.rank_data[:128].view(torch.bfloat16)

    def record() -> None:
        for _ in range(missing):
            custom.all_reduce(any_buffer, registered=True)

    backend.capture(record, backend.new_pool())


# ---- data parallelism


def coupling(proposer: Any) -> str | None:
    """The reason why data-parallel ranks must draft in lockstep; None where they need not.

    Depends only on the configuration and on the classes of the draft model's layers, those that it
    shares with the target included, so it is the same on all ranks.
    """
    parallel = proposer.vllm_config.parallel_config
    if int(parallel.data_parallel_size) == 1:
        return None
    lockstep = f"{parallel.data_parallel_size} data-parallel ranks draft in lockstep"
    if getattr(parallel, "enable_elastic_ep", False):
        return f"{lockstep}: elastic expert parallelism changes how many there are"
    if _has_dummy_passes_of_its_own(proposer):
        return (
            f"{lockstep}: {type(proposer).__name__} has dummy passes of its own, which write "
            "through the slots of the last drafts (set data_parallel_size to 1)"
        )
    classes = {type(module): None for module in proposer.model.modules()}
    reaching = sorted(cls.__name__ for cls in classes if looks_beyond_its_rank(cls))
    if reaching:
        return f"{lockstep}: layers of the draft model reach other ranks ({', '.join(reaching)})"
    return None


def _has_dummy_passes_of_its_own(proposer: Any) -> bool:
    """Whether an idle rank's dummy passes are not those that the hooks reach (dflash)."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    stock = SpecDecodeBaseProposer.dummy_run
    return getattr(type(proposer), "dummy_run", stock) is not stock


def has_experts(model: Any) -> bool:
    """Whether a model (torch.nn.Module) has layers of experts."""
    classes = {type(module) for module in model.modules()}
    return any(base.__module__.startswith(EXPERTS) for cls in classes for base in cls.__mro__)


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


def all_ranks_want(proposer: Any, yes: bool) -> bool:
    """Whether draft graphs are wanted on every data-parallel rank, as far as ranks must agree.

    Every rank has to call this, with graphs or without, once its draft model is loaded: what one
    rank's own environment or device says must not leave the others waiting. Where the ranks draft
    in lockstep, as upstream, the answer is `yes` itself, without a vote.
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
    """The token counts of all ranks for the forward context; None without data parallelism.

    Returns [ranks] int32 on the CPU, where vLLM reads them. Only this rank's own count is true: no
    layer of the draft model reads the others.
    """
    ranks = int(vllm_config.parallel_config.data_parallel_size)
    if ranks == 1:
        return None
    return torch.full((ranks,), num_tokens, dtype=torch.int32)
