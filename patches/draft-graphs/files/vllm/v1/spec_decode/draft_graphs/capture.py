# SPDX-License-Identifier: Apache-2.0
"""Captures draft graphs: all that are planned, on all ranks that draft together, or none.

Without the votes between ranks, the address check and the undoing of failures, capture and replay
are these lines:

    buffers = DraftBuffers(proposer, ...)           # static memory, outside the pool
    pool = torch.cuda.graph_pool_handle()
    for key in plan:                                # the largest of each role first
        body = passes_of(proposer, ...).body(key)   # `first`, `step`, `loop` or `whole`
        body()                                      # warm-up: compiles and tunes; all rows padded
        torch.cuda.synchronize()
        graphs[key] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[key], pool=pool):
            body()                                  # recorded, not run
    buffers.pad_all(proposer)

    # for each batch: copy it to `buffers`, replay, copy the drafts out
    FirstStaging(...).stage(...)
    graphs[first].replay()
    graphs[loop].replay()
    drafts = buffers.drafts[:, :num_reqs].t().clone()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from . import connectors, ranks, upstream
from .address_check import AddressCheck
from .buffers import DraftBuffers
from .drafter import drafter_of
from .extended_passes import passes_of
from .graph_backend import Graph, GraphBackend
from .keys import DraftKey, has_padding
from .messages import reason_of
from .reads import Reads
from .sampling import Sampling
from .vocabularies import mapped_by, static_mapping, tables_of

T = TypeVar("T")


class CaptureFailed(RuntimeError):
    """Draft graphs could not be captured on this rank or on another one."""


class Captured:
    """Everything that belongs to one capture; dropping it frees the graphs and their memory.

    plan: all keys that the static memory is for.
    attn_groups: the attention groups that the graphs were captured with.
    drafter: the kind of the proposer.
    hidden_width: columns of the target's hidden states; None where they are not staged.
    blocks: columns of the block table.
    graphs: the captured graphs by key.
    masked: keys in which batches with fewer requests run, and whose graphs compute slots. Where
        data-parallel ranks draft together any of them may have no request at all.
    sampling: the static tensors of sampled drafts; None where drafts are greedy.
    builders: metadata builders of the captures; None for those of the attention groups.
    mapping: tables between two vocabularies; None where there is one.
    reads: where the tensors of the draft's modules lay when everything had been captured.
    address_check: the debug mode's record of addresses; None where it is off.
    """

    def __init__(
        self,
        proposer: Any,
        runner: Any,
        backend: GraphBackend,
        plan: list[DraftKey],
        *,
        check: bool,
        together: bool,
    ) -> None:
        drafter = drafter_of(proposer)
        if drafter is None:
            raise ValueError(f"{type(proposer).__name__} is not a proposer that graphs are for")
        firsts = [key.num_reqs for key in plan if key.role in ("first", "whole")]
        mixed = [key.num_tokens for key in plan if key.role == "mixed"]
        self.plan = plan
        self.drafter = drafter
        self.attn_groups = proposer.draft_attn_groups
        self.hidden_width: int | None = None
        if drafter.takes_hidden_states:
            combines = drafter.combines and bool(firsts)
            width = upstream.combine_width(proposer) if combines else proposer.hidden_size
            self.hidden_width = None if width is None else int(width)
        # A shifted first pass reads them where the model does, unless they are combined first.
        own = drafter.combines or drafter.inputs != "shifted"
        self.buffers = DraftBuffers(
            proposer,
            drafter,
            max_reqs=max(key.num_reqs for key in plan),
            max_first_reqs=max(firsts, default=0),
            max_mixed_tokens=max(mixed, default=0),
            blocks=upstream.block_table_width(runner, proposer.kv_cache_gid),
            target_width=self.hidden_width if own and firsts else None,
        )
        self.blocks = int(self.buffers.block_table.shape[1])
        self.passes = passes_of(proposer, self.buffers, drafter)
        self.passes.keeps_steps = any(key.role == "step" for key in plan)
        sampled = [key.num_reqs for key in plan if key.sampled]
        self.sampling = Sampling(proposer, max(sampled)) if sampled else None
        self.passes.sampling = self.sampling
        self.pool = backend.new_pool()
        self.graphs: dict[DraftKey, Graph] = {}
        # The slots of a shifted first pass are staged, not computed.
        staged = ("first", "mixed") if drafter.inputs == "shifted" else ()
        self.masked = {
            key for key in plan if key.role not in staged and (together or has_padding(key, plan))
        }
        self.mapping = static_mapping(proposer)
        self._mapped_by = tables_of(proposer)
        self._proposer_buffers = upstream.proposer_buffers(proposer)
        self.builders = upstream.make_builders_of_full_graphs(proposer)
        self.reads = self.read_now()
        self._connector = connectors.current()
        self.address_check = AddressCheck(proposer, self.buffers) if check else None

    def read_now(self) -> Reads:
        """Where the tensors of the draft's modules lie, those shared with the target included."""
        proposer = self.passes.proposer
        ranks_agree = int(proposer.vllm_config.parallel_config.tensor_parallel_size) > 1
        return Reads(dict(proposer.model.named_modules()), ranks_agree=ranks_agree)

    def replaced(self) -> str | None:
        """What the proposer has of its own now that is not what the graphs read; None for nothing.

        In the debug mode the address check looks at the proposer's buffers, and raises.
        """
        proposer = self.passes.proposer
        tables = zip(self._mapped_by, tables_of(proposer), strict=True)
        if any(table is not now for table, now in tables):
            return "the mapping between the vocabularies is not the one that was captured"
        if connectors.current() is not self._connector:
            return "the KV connector is not the one of the capture"
        if self.address_check is None:
            for name, tensor in self._proposer_buffers.items():
                if getattr(proposer, name, None) is not tensor:
                    return f"the proposer's {name} is not the tensor that was captured"
        return None

    def capture(self, key: DraftKey, backend: GraphBackend) -> None:
        """Run the body of `key` once, so that nothing is compiled or tuned later, then record it.

        In the warm-up every row is padding, so it writes no slot of the KV cache.
        """
        require_no_micro_batch()
        proposer = self.passes.proposer
        with (
            upstream.builders_of_full_graphs(proposer, self.builders),
            mapped_by(proposer, self.mapping),
        ):
            self.passes.body(key, mask=True)()
            backend.synchronize()
            if self.address_check is not None:
                self.passes.observe = self.address_check.observer(key, self.passes, key.num_tokens)
            try:
                self.graphs[key] = backend.capture(
                    self.passes.body(key, mask=key in self.masked), self.pool
                )
            finally:
                self.passes.observe = None


def capture_keys(
    proposer: Any,
    runner: Any,
    backend: GraphBackend,
    plan: list[DraftKey],
    keys: list[DraftKey],
    *,
    check: bool,
    together: bool,
    after_each: Callable[[DraftKey], None] | None = None,
) -> Captured:
    """Capture `keys` of `plan`, with static memory for the whole plan.

    check: whether to record the addresses that the graphs read.
    together: whether data-parallel ranks draft together: each key is captured on all of them, in
        lockstep, since its warm-up exchanges rows with them.
    after_each: called with each key once it is captured.

    Raises CaptureFailed, having kept nothing, if any rank fails.
    """
    with torch.inference_mode():
        captured = _agreed(
            partial(Captured, proposer, runner, backend, plan, check=check, together=together),
            "the static memory",
            data_parallel=together,
        )
        try:
            for key in keys:
                _agreed(partial(captured.capture, key, backend), str(key), data_parallel=together)
                if after_each is not None:
                    after_each(key)
        except CaptureFailed as failure:
            _even_out(backend, failure)
            raise
        # A warm-up may leave anything in the proposer's buffers: within `graph_capture()`
        # vLLM's custom all-reduce returns memory as it found it unless it is captured.
        captured.buffers.pad_all(proposer)
        backend.synchronize()
        captured.reads = captured.read_now()  # what the warm-ups made is among it
    return captured


def require_no_micro_batch() -> None:
    """Raise RuntimeError while a micro-batch of the target (dual-batch overlap) is running.

    A pass that was captured then would take that micro-batch's forward context, stream, workspace
    and half of the all-to-all buffers for its own. Upstream ends them all before the target's
    forward pass returns.
    """
    from vllm.v1.worker import ubatching

    running = [context for context in ubatching._CURRENT_CONTEXTS if context is not None]
    if running or ubatching.dbo_enabled():
        raise RuntimeError(
            f"{max(len(running), 1)} micro-batches of the target are still running; draft graphs "
            "are captured outside of them"
        )


def _even_out(backend: GraphBackend, failure: CaptureFailed) -> None:
    """Even out the ranks' recorded all-reduces; raise CaptureFailed with both reasons if not."""
    try:
        ranks.even_out_recorded_all_reduces(backend)
    except Exception as error:
        raise CaptureFailed(
            f"{failure}; nor could the ranks' recorded all-reduces be evened out: "
            f"{reason_of(error)}"
        ) from error


def _agreed(work: Callable[[], T], what: str, *, data_parallel: bool) -> T:
    """The result of `work` if it succeeds on all ranks that vote; else raise CaptureFailed.

    data_parallel: whether the data-parallel ranks vote as well as the tensor-parallel ones.

    A rank that went on alone would wait for the others in its next collective. Any exception means
    that this configuration cannot be captured, so all of them count.
    """
    try:
        result = work()
    except Exception as error:
        ranks.all_ranks_agree(False, data_parallel=data_parallel)
        raise CaptureFailed(f"{what}: {reason_of(error)}") from error
    if not ranks.all_ranks_agree(True, data_parallel=data_parallel):
        other = "rank" if data_parallel else "tensor-parallel rank"
        raise CaptureFailed(f"{what}: another {other} failed")
    return result
