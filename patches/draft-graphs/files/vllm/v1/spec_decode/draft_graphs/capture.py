# SPDX-License-Identifier: Apache-2.0
"""Captures draft graphs: all that are wanted, on all ranks, or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from . import compat
from .addresses import Addresses
from .buffers import DraftBuffers
from .graph_backend import Graph, GraphBackend
from .keys import DraftKey, has_padding
from .passes import Passes
from .report import told
from .staging import FirstStaging, LaterStaging

T = TypeVar("T")


class CaptureFailed(RuntimeError):
    """Draft graphs could not be captured on this rank, or on another one."""


class Captured:
    """All that belongs to one capture; dropping it frees the graphs and their memory.

    attn_groups: the attention groups that the graphs were captured with. hidden_width: of the
    target's hidden states. blocks: in a row of the block table. masked: keys of later passes
    that batches with fewer requests run in. first_staging, later_staging: one for each number of
    live requests seen.
    """

    def __init__(
        self,
        proposer: Any,
        runner: Any,
        backend: GraphBackend,
        plan: list[DraftKey],
        *,
        check: bool,
    ) -> None:
        firsts = [key.num_reqs for key in plan if key.role == "first"]
        self.plan = plan
        self.attn_groups = proposer.draft_attn_groups
        combines = proposer.method == "eagle3" and bool(firsts)
        self.hidden_width = (
            compat.combine_width(proposer) if combines else int(proposer.hidden_size)
        )
        self.buffers = DraftBuffers(
            proposer,
            max_reqs=max(key.num_reqs for key in plan),
            max_first_reqs=max(firsts, default=0),
            blocks=compat.block_table_width(runner, proposer.kv_cache_gid),
            combine_width=self.hidden_width if combines else None,
        )
        self.blocks = int(self.buffers.block_table.shape[1])
        self.passes = Passes(proposer, self.buffers)
        self.passes.keeps_steps = any(key.role == "step" for key in plan)
        self.pool = backend.new_pool()
        self.graphs: dict[DraftKey, Graph] = {}
        self.masked = {key for key in plan if key.role != "first" and has_padding(key, plan)}
        self.addresses = Addresses(proposer, self.buffers) if check else None
        self.first_staging: dict[tuple[DraftKey, bool, int], FirstStaging] = {}
        self.later_staging: dict[tuple[DraftKey, int], LaterStaging] = {}

    def capture(self, key: DraftKey, backend: GraphBackend) -> None:
        """Run the body of `key` once, so that nothing is compiled or tuned later, then record it.

        The warm-up has every row padded, so it writes no slot of the KV cache.
        """
        self.passes.body(key, mask=True)()
        backend.synchronize()
        if self.addresses is not None:
            self.passes.observe = self.addresses.observer(key, self.passes, key.num_tokens)
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
    after_each: Callable[[DraftKey], None] | None = None,
) -> Captured:
    """Capture `keys` of `plan`, with static memory for the whole plan.

    check: whether to take down the addresses that the graphs read. after_each: called with each
    key once it is captured. Raises CaptureFailed, having kept nothing, if any rank fails.
    """
    with torch.inference_mode():
        captured = _agreed(
            partial(Captured, proposer, runner, backend, plan, check=check), "the static memory"
        )
        try:
            for key in keys:
                _agreed(partial(captured.capture, key, backend), str(key))
                if after_each is not None:
                    after_each(key)
        except CaptureFailed as failure:
            _even_out(backend, failure)
            raise
        # A warm-up may leave anything in the proposer's buffers: within `graph_capture()`
        # vLLM's custom all-reduce returns memory as it found it unless it is captured.
        captured.buffers.pad_all(proposer)
        backend.synchronize()
    return captured


def _even_out(backend: GraphBackend, failure: CaptureFailed) -> None:
    """Raises CaptureFailed, with both reasons, where the ranks' recordings stay uneven."""
    try:
        compat.even_out_recorded_all_reduces(backend)
    except Exception as error:
        raise CaptureFailed(
            f"{failure}; nor could the ranks' recorded all-reduces be evened out: {told(error)}"
        ) from error


def _agreed(work: Callable[[], T], what: str) -> T:
    """The result of `work` if all tensor-parallel ranks have one.

    A rank that went on alone would wait for the others in its next collective. Whatever a
    capture raises means that this configuration cannot be captured, so all of it counts.
    """
    try:
        result = work()
    except Exception as error:
        compat.all_ranks_agree(False)
        raise CaptureFailed(f"{what}: {told(error)}") from error
    if not compat.all_ranks_agree(True):
        raise CaptureFailed(f"{what}: another tensor-parallel rank failed")
    return result
