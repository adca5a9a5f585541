# SPDX-License-Identifier: Apache-2.0
"""Follows `enforce_eager` of the draft on model runner V2, which captures its graphs all the same.

The speculators make their graphs of a mode, which may be NONE: so it is where the target has none.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.overlay_effects import active, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "eager-draft"
VARIABLE = "OVERLAY_EAGER_DRAFT"


def mode_of_draft(config: Any, mode: Any) -> Any:
    """The CUDAGraphMode of which the draft's graphs are made.

    config: SpeculativeConfig; mode: the target's.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif not config.enforce_eager:
        idle(FEATURE, "the draft may have graphs")
    elif mode == type(mode).NONE:
        idle(FEATURE, "the target has no graphs either")
    else:
        active(FEATURE, "the draft runs without graphs, as its enforce_eager says")
        return type(mode).NONE
    return mode
