# SPDX-License-Identifier: Apache-2.0
"""Joins the outputs of micro-batches where each holds several tensors.

A target of EAGLE3 drafts returns (hidden states, [hidden states of some layers]). Upstream joins
single tensors, and from 0.22 on tuples of tensors, but no tuple with a list in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "dbo-eagle3"
VARIABLE = "OVERLAY_DBO_EAGLE3"


def joined_outputs(outputs: list[Any]) -> Any | None:
    """The joined output of all micro-batches; None where upstream joins them.

    outputs: those of the micro-batches, in their order, each a tensor [tokens, ...] or a tuple of
    such tensors and of lists of them.

    Reports the feature's effect. Raises as `joined` does, and ValueError if the switch is neither
    on nor off.
    """
    return joined(outputs) if _reported(outputs) else None


def first_tensors(outputs: list[Any]) -> list[Any]:
    """The outputs that upstream is to join: of each that holds several tensors the first one.

    Reports the feature's effect. Raises ValueError if the switch is neither on nor off.
    """
    return [output[0] for output in outputs] if _reported(outputs) else outputs


def with_the_rest(outputs: list[Any], first: torch.Tensor) -> Any:
    """The joined output of all micro-batches.

    outputs: those of the micro-batches, as `first_tensors` got them.
    first: what upstream made of the tensors that `first_tensors` returned.

    Returns `first` itself where upstream joined whole outputs. Raises as `joined` does.
    """
    if _why_upstream(outputs) is not None:
        return first
    rest = [joined(parts) for parts in zip(*(output[1:] for output in outputs), strict=True)]
    return type(outputs[0])([first, *rest])


def joined(parts: Sequence[Any]) -> Any:
    """Tensors joined along their rows; tuples and lists of these joined item by item.

    Raises ValueError where the micro-batches returned different numbers of tensors, and TypeError
    for anything but tensors in tuples and lists.
    """
    first = parts[0]
    if isinstance(first, (tuple, list)):
        return type(first)(joined(items) for items in zip(*parts, strict=True))
    return torch.cat(list(parts), dim=0)


def _reported(outputs: list[Any]) -> bool:
    """Whether the outputs are joined here; reports it as the feature's effect."""
    reason = _why_upstream(outputs)
    if reason is not None:
        idle(FEATURE, reason)
        return False
    active(FEATURE, "outputs that hold several tensors are joined")
    count(FEATURE, "outputs joined")
    return True


def _why_upstream(outputs: list[Any]) -> str | None:
    """Why upstream joins the outputs as they are; None where it cannot."""
    if not is_on(VARIABLE):
        return f"{VARIABLE}=off"
    if not outputs or not isinstance(outputs[0], (tuple, list)):
        return "the target's output is one tensor"
    return None
