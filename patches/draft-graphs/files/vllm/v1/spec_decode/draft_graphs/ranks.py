# SPDX-License-Identifier: Apache-2.0
"""Votes between ranks: whether all of them want draft graphs, plan the same ones and captured them.

All votes take place while vLLM starts, on the CPU; none of them takes place while it serves. None
waits longer than `same_settings.PATIENCE` for a rank that does not come to it: one that waits in an
exchange of rows, or has no patches. One that has died ends it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from . import same_settings
from .coupling import Manner, coupling

if TYPE_CHECKING:
    from .graph_backend import GraphBackend


# ---- tensor parallelism


def writes_log() -> bool:
    """Whether this rank logs what all tensor-parallel ranks would log alike."""
    from vllm.distributed.parallel_state import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


def all_ranks_agree(yes: bool, *, data_parallel: bool) -> bool:
    """Whether all tensor-parallel ranks vote yes; every one of them has to call this.

    data_parallel: whether all data-parallel ranks vote, too; the same on all of them.

    The vote takes place on the CPU: the device may be in the middle of a capture.

    Raises RuntimeError if a rank does not vote within `same_settings.PATIENCE`, or has died.
    """
    groups = _groups(data_parallel)
    if not groups:
        return yes
    votes = torch.tensor([int(yes)], dtype=torch.int32)
    for group in groups:
        _meet(group)
        torch.distributed.all_reduce(
            votes, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group
        )
    return bool(votes.item())


def _meet(group: Any) -> None:
    """Wait until all ranks of a group are here, so that what comes next ends.

    A rank that failed in the warm-up of a graph comes here while the others wait for its rows in
    the exchange of that warm-up, up to a timeout of their own or until this rank has ended.

    Raises RuntimeError if a rank does not come within `same_settings.PATIENCE`, or has died.
    """
    patience = same_settings.PATIENCE
    try:
        torch.distributed.monitored_barrier(
            group.cpu_group, timedelta(seconds=patience), wait_all_ranks=True
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"Draft graphs: expected ranks {', '.join(map(str, group.ranks))} of a group to vote "
            f"within {patience:.0f} s, but not all of them did. One has died, or has failed in the "
            "first run of a graph, so that others wait there for its rows. Look for the first "
            "error in the logs of all ranks; with OVERLAY_DRAFT_GRAPHS=off on all of them they "
            f"draft as upstream. Found: {error}"
        ) from error


def _groups(data_parallel: bool) -> list[Any]:
    """The groups of more than one rank that vote: a vote in one after the other reaches all."""
    from vllm.distributed.parallel_state import get_dp_group, get_tp_group

    groups = [get_tp_group(), *([get_dp_group()] if data_parallel else [])]
    return [group for group in groups if group.world_size > 1]


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


def in_lockstep(proposer: Any) -> bool:
    """Whether data-parallel ranks are one engine, whose ranks met over one store.

    Those of a target without experts are engines of their own for vLLM, which counts one rank in
    each. Elastic expert parallelism has groups without a common store.
    """
    parallel = proposer.vllm_config.parallel_config
    elastic = bool(getattr(parallel, "enable_elastic_ep", False))
    return int(parallel.data_parallel_size) > 1 and not elastic


def all_ranks_want(proposer: Any, yes: bool) -> bool:
    """Whether draft graphs are wanted on every data-parallel rank, as far as ranks must agree.

    Every rank has to call this, with graphs or without, once its draft model is loaded: what one
    rank's own environment or device says must not leave the others waiting. Where all ranks draft
    as upstream, the answer is `yes` itself, without a vote.
    """
    parallel = proposer.vllm_config.parallel_config
    if int(parallel.data_parallel_size) == 1 or coupling(proposer).manner is Manner.REFUSED:
        return yes
    return all_ranks_agree(yes, data_parallel=True)


def differences(plan: Mapping[str, str]) -> list[str]:
    """Lines of a table of what the data- and tensor-parallel ranks plan differently; empty if not.

    plan: what this rank has planned, by name. Every rank has to call this.
    """
    tables: list[Any] = [dict(plan)]
    for group in _groups(data_parallel=True):
        _meet(group)
        gathered: list[Any] = [None] * group.world_size
        torch.distributed.all_gather_object(gathered, tables, group=group.cpu_group)
        tables = [table for each in gathered for table in each]
    names = sorted({name for table in tables for name in table})
    lines = []
    for name in names:
        values = [table.get(name, "nothing") for table in tables]
        if len(set(values)) > 1:
            lines += [f"  rank {rank}: {name} = {value}" for rank, value in enumerate(values)]
    return lines


def token_counts(vllm_config: Any, num_tokens: int) -> torch.Tensor | None:
    """The token counts of all ranks for the forward context; None without data parallelism.

    Returns [ranks] int32 on the CPU, where vLLM reads them. In a graph that all ranks replay
    together each of them is true. Where ranks draft alone only this rank's own is, and no layer of
    the draft model reads the others.
    """
    ranks = int(vllm_config.parallel_config.data_parallel_size)
    if ranks == 1:
        return None
    return torch.full((ranks,), num_tokens, dtype=torch.int32)
