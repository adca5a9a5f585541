# SPDX-License-Identifier: Apache-2.0
"""The drafter of speculative decoding in full CUDA graphs, on vLLM's V1 model runner.

What vLLM calls:

- `create_draft_graphs(proposer)` when the draft model has been loaded;
- `profile_draft_graphs(runner)` when vLLM estimates what graphs will cost;
- `capture_draft_graphs(runner)` when vLLM captures the target's graphs;
- `DraftGraphs.propose` and `DraftGraphs.later_steps` for every draft.

`keys` and `policy` need neither torch nor vLLM. The package imports its other modules when they
are asked for, because vLLM's dispatcher imports `keys` before most of vLLM exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entries import (
        DraftGraphs,
        capture_draft_graphs,
        create_draft_graphs,
        profile_draft_graphs,
    )

__all__ = [
    "DraftGraphs",
    "capture_draft_graphs",
    "create_draft_graphs",
    "profile_draft_graphs",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import entries

    return getattr(entries, name)
