"""What ranks on CPU need that vLLM, or the graph double, does not have.

vLLM's communicator for CPU lacks what experts on several ranks ask of it: here it is, over gloo.
The double takes all memory for the device's, but the token counts of the ranks are the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch.utils._python_dispatch import _disable_current_modes

from tests.draft_graphs.recorded_graph import RecordedGraph

#: The communicators that the operators below are called for, by the name of their group.
_COMMUNICATORS: dict[str, Any] = {}


def _capturing() -> bool:
    return RecordedGraph.capturing is not None


def _gather(mine: torch.Tensor, rows: list[int], group: str) -> torch.Tensor:
    """The rows of all ranks. A capture only records, as NCCL's does: it exchanges nothing."""
    if _capturing():
        return mine.new_zeros(sum(rows), *mine.shape[1:])
    self = _COMMUNICATORS[group]
    _expect_equal(self, rows)
    gathered = []
    for rank, count in enumerate(rows):
        theirs = (
            mine.contiguous()
            if rank == self.rank_in_group
            else mine.new_empty(count, *mine.shape[1:])
        )
        torch.distributed.broadcast(
            theirs.view(torch.uint8), src=self.ranks[rank], group=self.cpu_group
        )
        gathered.append(theirs)
    return torch.cat(gathered)


def _expect_equal(self: Any, rows: list[int]) -> None:
    """Demand that all ranks exchange by the same counts: an error on each, where a GPU would hang.

    :raises RuntimeError: if not.
    """
    counts = torch.tensor(rows)
    theirs = [torch.empty_like(counts) for _ in rows]
    torch.distributed.all_gather(theirs, counts, group=self.cpu_group)
    if any(not torch.equal(counts, each) for each in theirs):
        raise RuntimeError(f"ranks exchange by different counts: {[t.tolist() for t in theirs]}")


def _scatter(all_rows: torch.Tensor, rows: list[int], group: str) -> torch.Tensor:
    """This rank's rows of the sum over all ranks. A capture exchanges nothing."""
    self = _COMMUNICATORS[group]
    mine = slice(sum(rows[: self.rank_in_group]), sum(rows[: self.rank_in_group + 1]))
    if _capturing():
        return torch.zeros_like(all_rows[mine])
    total = all_rows.float()
    torch.distributed.all_reduce(total, group=self.cpu_group)
    return total[mine].to(all_rows.dtype)


# A graph records each exchange as one kernel; see `graph_operators.LEAVES`.
_LIBRARY = torch.library.Library("overlay_ranks", "DEF")
for _name, _kernel in (("gather", _gather), ("scatter", _scatter)):
    _LIBRARY.define(f"{_name}(Tensor rows, int[] sizes, str group) -> Tensor")
    _LIBRARY.impl(_name, _kernel, "CPU")


def _group_of(communicator: Any) -> str:
    name = str(communicator.unique_name)
    _COMMUNICATORS[name] = communicator
    return name


def all_gatherv(
    self: Any,
    input_: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    sizes: list[int] | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """The rows of all ranks, of each of the tensors: [sum(sizes), ...].

    sizes: rows by rank; None if each has as many.
    """
    assert dim == 0
    if isinstance(input_, list):
        return [_gathered(self, each, sizes) for each in input_]
    return _gathered(self, input_, sizes)


def _gathered(self: Any, mine: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
    rows = sizes or [mine.shape[0]] * self.world_size
    assert rows[self.rank_in_group] == mine.shape[0]
    gathered: torch.Tensor = torch.ops.overlay_ranks.gather(mine, rows, _group_of(self))
    return gathered


def reduce_scatterv(
    self: Any, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
) -> torch.Tensor:
    """This rank's rows of the sum over all ranks."""
    assert dim == 0
    rows = sizes or [input_.shape[0] // self.world_size] * self.world_size
    assert sum(rows) == input_.shape[0]
    scattered: torch.Tensor = torch.ops.overlay_ranks.scatter(input_, rows, _group_of(self))
    return scattered


class Exchanging(torch.nn.Module):  # type: ignore[misc]  # Any, to mypy
    """A layer whose input goes to all ranks and comes back; otherwise it is that layer.

    It needs each rank's row count as experts do, and takes its own rows out of all.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: torch.Tensor) -> Any:
        from vllm.distributed.parallel_state import get_dp_group
        from vllm.forward_context import get_forward_context

        group = get_dp_group()
        counts = get_forward_context().dp_metadata.num_tokens_across_dp_cpu.tolist()
        all_rows = group.device_communicator.all_gatherv(rows, sizes=counts)
        start = sum(counts[: group.rank_in_group])
        return self.layer(all_rows[start : start + rows.shape[0]])


def install() -> None:
    """Give them to the communicator for CPU."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


def on_the_host(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, with the tensor that it makes inside a capture known to be host memory."""

    def made(*args: Any) -> Any:
        with _disable_current_modes():
            counts = make(*args)
        graph = RecordedGraph.capturing
        if graph is not None and counts is not None:
            graph._host[int(counts.untyped_storage()._cdata)] = counts
        return counts

    return made
