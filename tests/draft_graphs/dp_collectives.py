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
        return [_gather(self, each, sizes) for each in input_]
    return _gather(self, input_, sizes)


def _gather(self: Any, mine: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
    rows = sizes or [mine.shape[0]] * self.world_size
    assert rows[self.rank_in_group] == mine.shape[0]
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


def reduce_scatterv(
    self: Any, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
) -> torch.Tensor:
    """This rank's rows of the sum over all ranks."""
    assert dim == 0
    total = input_.float()
    torch.distributed.all_reduce(total, group=self.cpu_group)
    rows = sizes or [input_.shape[0] // self.world_size] * self.world_size
    assert sum(rows) == input_.shape[0]
    mine = slice(sum(rows[: self.rank_in_group]), sum(rows[: self.rank_in_group + 1]))
    return total[mine].to(input_.dtype)


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
