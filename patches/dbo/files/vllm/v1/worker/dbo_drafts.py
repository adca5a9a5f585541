# SPDX-License-Identifier: Apache-2.0
"""Lets a target that is split into micro-batches start and run beside a drafter.

With dual-batch overlap the runner makes a slot mapping for each micro-batch of the target. The
drafter is never split: it runs the whole batch, with slots of its own, and looks only whether its
attention layers are in the mapping. Until vllm#45378 is merged it is given the list of mappings,
takes it for one, and hands it on to attention layers that refuse it, so that vLLM does not start.

The runner keeps attention metadata for KV-cache groups of one kind by that kind alone. So the
second micro-batch gets the metadata of the first one, with another block table, unless the
micro-batch is a part of the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "dbo-drafts"
VARIABLE = "OVERLAY_DBO_DRAFTS"


def drafter_slot_mappings(runner: Any, slot_mappings: Any) -> Any:
    """The slot mapping for the drafter's part of a dummy run of `runner` (GPUModelRunner).

    slot_mappings: layer name -> [tokens] slots; a list of such mappings, one for each micro-batch,
    where the run was split; None where there is no KV cache yet.

    Returns the first of a list, and anything else as it is. Reports the feature's effect. Raises
    ValueError if the switch is neither on nor off.
    """
    reason = idle_reason(runner, os.environ)
    if reason is not None:
        idle(FEATURE, reason)
        return slot_mappings
    active(FEATURE, "the drafter takes dummy runs that are split into micro-batches")
    if not isinstance(slot_mappings, list):
        return slot_mappings
    count(FEATURE, "dummy runs of the drafter beside micro-batches")
    return slot_mappings[0] if slot_mappings else None


def metadata_key(kind: tuple[Any, ...], micro_batch: int) -> tuple[Any, ...]:
    """The key by which the runner keeps the attention metadata of a micro-batch.

    kind: upstream's key, of the KV-cache group's specification and the builder's class.
    micro_batch: its number, from 0.

    Raises ValueError if the switch is neither on nor off.
    """
    return (*kind, micro_batch) if is_on(VARIABLE) else kind


def idle_reason(runner: Any, environ: Mapping[str, str]) -> str | None:
    """Why nothing is to be done for `runner`; None where its dummy runs may be split.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE, environ):
        return f"{VARIABLE}=off"
    if not runner.parallel_config.use_ubatching:
        return "micro-batching is off (enable_dbo, ubatch_size)"
    if runner.speculative_config is None:
        return "no speculative decoding"
    if not hasattr(getattr(runner, "drafter", None), "dummy_run"):
        drafter = type(getattr(runner, "drafter", None)).__name__
        return f"{drafter} drafts without a draft model"
    return None
