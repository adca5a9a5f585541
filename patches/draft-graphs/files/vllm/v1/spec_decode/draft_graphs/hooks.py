# SPDX-License-Identifier: Apache-2.0
"""Functions that the patched vLLM calls when it loads the draft model, profiles and captures."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from vllm.logger import init_logger
from vllm.v1 import overlay_effects

from . import adapters, graph_backend, messages, ranks, same_settings
from .attention import WHICH_PLATFORMS
from .draft_graphs import DraftGraphs
from .drafter import OTHER_METHODS
from .facts import early_facts
from .keys import FEATURE
from .policy import Decision, Facts, check_from, decide, mode_from, untried_from

__all__ = [
    "DraftGraphs",
    "capture_draft_graphs",
    "create_draft_graphs",
    "profile_draft_graphs",
]

logger = init_logger(__name__)

ANOTHER_RANK = "another data-parallel rank drafts as upstream (its log says why)"


def create_draft_graphs(proposer: Any) -> DraftGraphs | None:
    """Create the draft graphs of a proposer whose model has been loaded, to be captured later.

    Returns None, with the reasons in the log, where the configuration gets none. Raises ValueError
    for an unknown value of one of the feature's switches, and `same_settings.RanksDiffer` where
    tensor- or data-parallel ranks would not draft alike.
    """
    mode, check = mode_from(os.environ), check_from(os.environ)
    untried = untried_from(os.environ)
    backend = graph_backend.default_graph_backend()
    if mode == "off":
        facts = Facts(num_speculative_tokens=1)
    else:
        facts = replace(early_facts(proposer, backend), untried=untried)
    decision = decide(mode, facts)
    same_settings.require_equal_settings(
        same_settings.settings(mode, decision, check=check, untried=untried),
        data_parallel=ranks.in_lockstep(proposer),
    )
    if not ranks.all_ranks_want(proposer, decision.any) and decision.any:
        decision = Decision(refusals=(ANOTHER_RANK,))
    if not decision.any:
        if ranks.writes_log():
            logger.info("%s", messages.refused_line(mode, decision))
        overlay_effects.idle(FEATURE, "; ".join(decision.refusals))
        return None
    unadapted = adapters.take_off(proposer)
    if unadapted and ranks.writes_log():
        logger.info("%s", messages.unadapted_line(unadapted))
    return DraftGraphs(proposer, mode=mode, backend=backend, check=check, facts=facts)


def _draft_graphs_of(runner: Any) -> DraftGraphs | None:
    return getattr(getattr(runner, "drafter", None), "draft_graphs", None)


def capture_draft_graphs(runner: Any) -> None:
    """Capture the draft graphs of a runner if its drafter has any; see `DraftGraphs.capture`."""
    draft_graphs = _draft_graphs_of(runner)
    if draft_graphs is not None:
        draft_graphs.capture(runner)
    elif getattr(runner, "speculative_config", None) is None:
        overlay_effects.idle(FEATURE, "no speculative decoding")
    else:
        _say_who_drafts(getattr(runner, "drafter", None))


def _say_who_drafts(drafter: Any) -> None:
    """Log why a drafter never asked for graphs; one that did has told its own reasons.

    `load_model` of vLLM's proposer gives each drafter a `draft_graphs` of its own, None included. A
    class that loads or drafts by its own code, as vllm-ascend's, has the class attribute at most.
    """
    if "draft_graphs" in getattr(drafter, "__dict__", {}):
        return
    name = type(drafter).__name__
    if drafter is None:
        reason = "this rank has no drafter (of several pipeline stages the last one has it)"
    elif hasattr(drafter, "draft_graphs"):
        reason = (
            f"{name} of {type(drafter).__module__} loads its model and drafts by its own code "
            f"({WHICH_PLATFORMS})"
        )
    else:
        reason = f"{name} drafts without a draft model ({OTHER_METHODS})"
    overlay_effects.idle(FEATURE, reason)
    if ranks.writes_log():
        refused = Decision(refusals=(reason,))
        logger.info("%s", messages.refused_line(mode_from(os.environ), refused))


def profile_draft_graphs(runner: Any) -> int:
    """Bytes that `capture_draft_graphs` will take; 0 without draft graphs."""
    draft_graphs = _draft_graphs_of(runner)
    return 0 if draft_graphs is None else draft_graphs.profile(runner)
