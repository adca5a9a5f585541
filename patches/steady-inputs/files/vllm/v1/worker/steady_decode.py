# SPDX-License-Identifier: Apache-2.0
"""Prepares a decode step by one kernel where its batch goes on as it was.

Under asynchronous scheduling, where every request was in the last step in the same row, had drafts
there, and brings its sampled token and K new drafts, all inputs follow from what the last step left
on the GPU. The state of the runner after that, on the host and on the GPU, is the one that
`_prepare_inputs` leaves, except for what only `_prepare_inputs` and `_prepare_input_ids` read after
writing it: input_ids on the host; req_indices, query_pos, num_scheduled_tokens, prev_positions and
prev_num_draft_tokens on the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm.v1.worker import steady_kernels


def complete_drafts(runner: Any, rows: int, scheduled_drafts: Mapping[str, Any]) -> int | None:
    """K where the last step left K drafts a request on the GPU, and this one verifies them all.

    None where a request among the first `rows` brings fewer, or there are none on the GPU.

    scheduled_drafts: draft tokens by request id.
    """
    drafts, sampled = runner._draft_token_ids, runner.input_batch.prev_sampled_token_ids
    if len(scheduled_drafts) != rows or not hasattr(drafts, "data_ptr"):
        return None
    drafted, k = drafts.shape
    complete = (
        min(drafted, sampled.shape[0]) >= rows
        # Until 0.23 there is one K for all steps.
        and getattr(runner, "prev_num_spec_tokens", runner.num_spec_tokens) == k
        and all(len(tokens) == k for tokens in scheduled_drafts.values())
    )
    return int(k) if complete else None


class SteadyDecode:
    """Prepares steady decode steps of one runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        # 0, 1, 2 ..., one number more than there can be requests.
        self.rows = np.arange(runner.max_num_reqs + 1)
        # K -> (row, position within its request) of each token of a batch of K+1 tokens a request.
        self._tokens: dict[int, tuple[Any, Any]] = {}

    def warm_up(self) -> None:
        """Compile the kernel for the largest K, if this runner can have steady steps."""
        from vllm.v1.worker import steady_kernels

        if self._runner.use_async_spec_decode:
            steady_kernels.warm_up(self._inputs(), self._runner.num_spec_tokens)

    def supported(self) -> bool:
        """Whether the kernel prepares all inputs that this runner has."""
        runner = self._runner
        return bool(
            runner.use_async_spec_decode
            and not runner.enable_prompt_embeds
            and not runner.uses_mrope
            and not runner.lora_config
            # State-space layers keep their accepted tokens on the host as well.
            and not runner.model_config.is_hybrid
            # From 0.28 on: sampled tokens of another pipeline stage are still to come.
            and getattr(runner, "_pp_recv_work", None) is None
            # Gone from 0.30 and 0.32 on.
            and not getattr(runner, "uses_xdrope_dim", 0)
            and getattr(runner, "mamba_prev_last_scheduled_idx", None) is None
        )

    def steady_k(self, scheduler_output: Any, num_scheduled_tokens: Any) -> int | None:
        """K where the batch goes on as it was and its tokens and drafts are on the GPU; else None.

        num_scheduled_tokens: [requests] int32, on the host.
        """
        runner = self._runner
        batch = runner.input_batch
        counts, previous = runner.valid_sampled_token_count_gpu, batch.prev_req_id_to_index
        if counts is None or batch.prev_sampled_token_ids is None or not previous:
            return None
        rows = batch.num_reqs
        k = complete_drafts(runner, rows, scheduler_output.scheduled_spec_decode_tokens)
        if k is None:
            return None
        steady = (
            counts.shape[0] >= rows
            and runner._draft_token_ids.stride(1) == 1
            and (num_scheduled_tokens == k + 1).all()
            and (runner.prev_num_draft_tokens.np[:rows] > 0).all()
            and (batch.num_computed_tokens_cpu[:rows] >= batch.num_prompt_tokens[:rows]).all()
            and all(previous.get(name) == row for row, name in enumerate(batch.req_ids))
        )
        return k if steady else None

    def prepare(self, k: int, metadata: Any) -> Any:
        """Do the rest of `_prepare_inputs` once the copy of the block table has been launched.

        metadata: SpecDecodeMetadata of an earlier step with as many requests and drafts.

        Returns the SpecDecodeMetadata of this step.
        """
        from vllm.v1.worker import steady_kernels

        runner = self._runner
        batch = runner.input_batch
        rows = batch.num_reqs
        self._fill_host_side(rows, k)
        last = steady_kernels.LastStep(
            valid_counts=runner.valid_sampled_token_count_gpu,
            sampled=batch.prev_sampled_token_ids,
            drafts=runner._draft_token_ids,
        )
        draft_ids = steady_kernels.advance(self._inputs(), last, rows)
        batch.block_table.compute_slot_mapping(
            rows, runner.query_start_loc.gpu[: rows + 1], runner.positions[: rows * (k + 1)]
        )
        runner.discard_request_mask.copy_to_gpu(rows)
        runner.num_decode_draft_tokens.copy_to_gpu()
        return dataclasses.replace(metadata, draft_token_ids=draft_ids, num_draft_tokens=[k] * rows)

    def _inputs(self) -> steady_kernels.Inputs:
        from vllm.v1.worker import steady_kernels

        runner = self._runner
        return steady_kernels.Inputs(
            num_computed=runner.num_computed_tokens,
            num_accepted=runner.num_accepted_tokens.gpu,
            query_start_loc=runner.query_start_loc.gpu,
            seq_lens=runner.seq_lens,
            positions=runner.positions,
            input_ids=runner.input_ids.gpu,
        )

    def _fill_host_side(self, rows: int, k: int) -> None:
        runner = self._runner
        batch = runner.input_batch
        tokens = rows * (k + 1)
        if k not in self._tokens:
            each = np.ones((len(self.rows), 1), self.rows.dtype) * np.arange(k + 1)
            self._tokens[k] = (np.repeat(self.rows, k + 1), each.reshape(-1))
        row_of_token, position_in_row = self._tokens[k]
        runner.req_indices.np[:tokens] = row_of_token[:tokens]
        runner.query_pos.np[:tokens] = position_in_row[:tokens]
        runner.num_scheduled_tokens.np[:rows] = k + 1
        runner.prev_positions.np[:rows] = self.rows[:rows]
        starts = runner.query_start_loc.np
        starts[: rows + 1] = self.rows[: rows + 1] * (k + 1)
        starts[rows + 1 :] = tokens
        lengths = runner.optimistic_seq_lens_cpu.numpy()
        np.add(batch.num_computed_tokens_cpu[:rows], k + 1, out=lengths[:rows])
        lengths[rows:] = 0
        known = [runner.requests[name].num_tokens for name in batch.req_ids]
        runner.discard_request_mask.np[:rows] = lengths[:rows] < known
        runner.num_accepted_tokens.np.fill(1)
        runner.num_decode_draft_tokens.np[:rows] = k
        runner.num_decode_draft_tokens.np[rows:] = -1
