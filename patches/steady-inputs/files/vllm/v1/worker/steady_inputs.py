# SPDX-License-Identifier: Apache-2.0
"""Keeps inputs that are the same as in the last step instead of making and copying them again.

From one decode step of speculative decoding to the next a batch mostly keeps its shape: the same
requests with K+1 tokens each. What the runner derives from the shape alone then stays the same on
the GPU, too, and its input ids are those that the last step left there. Nothing here changes what
a step computes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on
from vllm.v1.worker.steady_decode import SteadyDecode, complete_drafts

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "steady-inputs"
VARIABLE = "OVERLAY_STEADY_INPUTS"

# Buffers of the runner (CpuGpuBuffer) whose GPU side is written only by `copy_to_gpu`, in vLLM
# 0.20.0 to 0.33.0.
STEADY_BUFFERS = (
    "req_indices",
    "query_pos",
    "num_scheduled_tokens",
    "discard_request_mask",
    "num_decode_draft_tokens",
    "prev_positions",
    "prev_num_draft_tokens",
)


def unproven(device: Any, untried: bool) -> str | None:
    """Why steady inputs do nothing on this platform; None where they work.

    device: where the runner's tensors lie.
    untried: whether the user has them work on platforms where no test has run.
    """
    if device.type == "cpu":  # without the kernel
        return None
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        return f"platform {device.type} has no Triton, and the kernel of steady steps needs it"
    if current_platform.is_cuda() or untried:
        return None
    return (
        f"no test has run on platform {type(current_platform).__name__} ({VARIABLE}=untried has it "
        "work there all the same)"
    )


class SteadyCopy:
    """Replaces `copy_to_gpu` of one buffer: copies only what the GPU does not hold already."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._held = buffer.np.copy()
        # How many leading elements of the GPU side are known to equal `_held`.
        self._known = 0
        # The tensor for which that is known; another one has other content.
        self._gpu = buffer.gpu

    def __call__(self, n: int | None = None) -> Any:
        """Make the GPU side equal to the CPU side, in the order of the current stream.

        n: leading elements to copy; None for all.

        Returns the GPU side, or its first `n` elements.
        """
        buffer = self._buffer
        now = buffer.np if n is None else buffer.np[:n]
        size = now.shape[0]
        if buffer.gpu is not self._gpu:
            self._gpu, self._known = buffer.gpu, 0
        if size > self._known or not (now == self._held[:size]).all():
            self._held[:size] = now
            self._known = max(self._known, size)
            buffer.gpu[:size].copy_(buffer.cpu[:size], non_blocking=True)
        return buffer.gpu if n is None else buffer.gpu[:n]


class SteadyInputs:
    """Inputs that one runner keeps from step to step."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._decode = SteadyDecode(runner)
        self._rows = self._decode.rows
        self._shape: tuple[Any, Any] | None = None
        self._metadata: Any = None
        self._draft_positions: Any = None
        for name in STEADY_BUFFERS:
            buffer = getattr(runner, name)
            buffer.copy_to_gpu = SteadyCopy(buffer)

    def warm_up(self) -> None:
        """Compile the kernel of steady steps."""
        self._decode.warm_up()

    def prepare(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any | None:
        """Prepare the step's inputs if the batch goes on decoding as it was.

        Called once the copy of the block table to the GPU has been launched.

        num_scheduled_tokens: [requests] int32, on the host.

        Returns the step's SpecDecodeMetadata; None, having done nothing, where `_prepare_inputs`
        has to prepare it.
        """
        k = self._steady_k(scheduler_output, num_scheduled_tokens)
        if k is None:
            count(FEATURE, "steps prepared by upstream")
            return None
        count(FEATURE, "steps prepared by one kernel")
        return self._decode.prepare(k, self._metadata)

    def _steady_k(self, scheduler_output: Any, num_scheduled_tokens: Any) -> int | None:
        """K where the batch goes on as it was, in the shape whose metadata is kept; else None."""
        if self._shape is None or not self._decode.supported():
            return None
        k = self._decode.steady_k(scheduler_output, num_scheduled_tokens)
        rows = self._runner.input_batch.num_reqs
        drafts, tokens = self._shape
        if k is None or len(drafts) != rows or not (drafts == k).all():
            return None
        return k if (tokens == self._rows[1 : rows + 1] * (k + 1)).all() else None

    def fill_input_ids(
        self, num_reqs: int, cu_num_tokens: Any, scheduled_drafts: Mapping[str, Any]
    ) -> bool:
        """Copy the last step's tokens and drafts into the input ids, if every request decodes.

        Where the batch is the last step's, row by row, and each request has its sampled token and
        all K drafts, the input ids are two strided copies; upstream uploads four index arrays.

        cu_num_tokens: [num_reqs] int32.
        scheduled_drafts: draft tokens by request id.

        Returns whether the input ids were written.
        """
        runner = self._runner
        k = complete_drafts(runner, num_reqs, scheduled_drafts)
        if k is None or runner.enable_prompt_embeds:
            return False
        if not (runner.prev_positions.np[:num_reqs] == self._rows[:num_reqs]).all():
            return False
        if not (cu_num_tokens == self._rows[1 : num_reqs + 1] * (k + 1)).all():
            return False
        ids = runner.input_ids.gpu[: num_reqs * (k + 1)].view(num_reqs, k + 1)
        sampled = runner.input_batch.prev_sampled_token_ids
        ids[:, 0].copy_(sampled[:num_reqs, 0], non_blocking=True)
        ids[:, 1:].copy_(runner._draft_token_ids[:num_reqs], non_blocking=True)
        count(FEATURE, "input ids copied on the GPU")
        return True

    def spec_decode_metadata(self, num_draft_tokens: Any, cu_num_tokens: Any) -> Any | None:
        """The metadata of the last step with this step's draft tokens; None if the shape differs.

        num_draft_tokens: [requests] int32 array, drafts of each request.
        cu_num_tokens: [requests] int32 array, cumulated tokens.
        """
        if self._shape is None:
            return None
        last_drafts, last_tokens = self._shape
        if (
            last_drafts.shape != num_draft_tokens.shape
            or not (last_drafts == num_draft_tokens).all()
            or not (last_tokens == cu_num_tokens).all()
        ):
            return None
        return dataclasses.replace(
            self._metadata,
            draft_token_ids=self._runner.input_ids.gpu[self._draft_positions],
            num_draft_tokens=num_draft_tokens.tolist(),
        )

    def keep_spec_decode_metadata(
        self, num_draft_tokens: Any, cu_num_tokens: Any, metadata: Any
    ) -> None:
        """Keep the metadata of a shape; both arrays are copied, because the runner reuses them."""
        if self._metadata is not None and metadata.logits_indices is self._metadata.logits_indices:
            return
        self._shape = (num_draft_tokens.copy(), cu_num_tokens.copy())
        self._metadata = metadata
        self._draft_positions = metadata.logits_indices[metadata.target_logits_indices + 1]


def create_steady_inputs(runner: Any) -> SteadyInputs | None:
    """Create the inputs that a runner keeps.

    Returns None without speculative decoding, if switched off, and, with a line in the log, on a
    platform where no test has run. Reports the feature's effect. Raises ValueError for an unknown
    value of OVERLAY_STEADY_INPUTS.
    """
    if not is_on(VARIABLE, further=("untried",)):
        idle(FEATURE, f"{VARIABLE}=off")
        return None
    if runner.speculative_config is None:
        idle(FEATURE, "no speculative decoding")
        return None
    reason = unproven(runner.device, os.environ.get(VARIABLE) == "untried")
    if reason is not None:
        from vllm.logger import init_logger

        init_logger(__name__).info("Steady inputs: off, %s.", reason)
        idle(FEATURE, reason)
        return None
    inputs = SteadyInputs(runner)
    inputs.warm_up()
    if runner.use_async_spec_decode:
        active(FEATURE, "one kernel prepares steps that go on decoding as the last one did")
    else:
        active(FEATURE, "unchanged inputs are not copied again (no asynchronous scheduling)")
    return inputs
