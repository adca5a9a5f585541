# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls: when the draft model is loaded, when it profiles graphs, when it captures."""

from __future__ import annotations

import os
from typing import Any

from vllm.logger import init_logger

from . import compat, graph_backend, report
from .data_parallel import all_ranks_want
from .facts import early_facts
from .graphs import DraftGraphs
from .policy import Decision, Facts, check_from, decide, mode_from

__all__ = [
    "DraftGraphs",
    "capture_draft_graphs",
    "create_draft_graphs",
    "profile_draft_graphs",
]

logger = init_logger(__name__)


def create_draft_graphs(proposer: Any) -> DraftGraphs | None:
    """Draft graphs for a proposer whose model has been loaded, to be captured later.

    None, with the reasons in the log, where the configuration gets none. Raises ValueError for
    an unknown value of OVERLAY_DRAFT_GRAPHS or OVERLAY_DRAFT_GRAPHS_CHECK.
    """
    mode, check = mode_from(os.environ), check_from(os.environ)
    backend = graph_backend.default_graph_backend()
    if mode == "off":
        decision = decide(mode, Facts(num_speculative_tokens=1), {})
    else:
        facts = early_facts(proposer, backend)
        decision = decide(mode, facts, backend.attention_backends)
    if not all_ranks_want(proposer, decision.any) and decision.any:
        decision = Decision(refusals=("another data-parallel rank drafts as upstream",))
    if not decision.any:
        if compat.is_speaker():
            logger.info("%s", report.refused_line(mode, decision))
        return None
    return DraftGraphs(proposer, mode=mode, backend=backend, check=check, facts=facts)


def _of_runner(runner: Any) -> DraftGraphs | None:
    return getattr(getattr(runner, "drafter", None), "draft_graphs", None)


def capture_draft_graphs(runner: Any) -> None:
    """Capture the draft graphs of a runner, if its drafter has any. See `DraftGraphs.capture`."""
    graphs = _of_runner(runner)
    if graphs is not None:
        graphs.capture(runner)


def profile_draft_graphs(runner: Any) -> int:
    """Bytes that `capture_draft_graphs` will take; 0 without draft graphs."""
    graphs = _of_runner(runner)
    return 0 if graphs is None else graphs.profile(runner)
