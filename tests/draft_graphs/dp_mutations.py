"""The bugs of drafting under data parallelism that `test_data_parallel.py` must catch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.draft_graphs.mutation_types import one

#: audit: a dummy batch wrote the KV cache, or replayed a graph. graph double: the capture was
#: refused. lockstep: each rank failed where it must. use: there are graphs that must not be.
DpCatcher = Literal["audit", "graph double", "lockstep", "use"]

_OWN_COUNTS = "return token_counts(self._proposer.vllm_config, num_tokens)"
_AGREED_COUNTS = """from vllm.v1.worker.dp_utils import coordinate_batch_across_dp

        config = self._proposer.vllm_config.parallel_config
        return coordinate_batch_across_dp(num_tokens, False, config, num_tokens)[1]"""


@dataclass(frozen=True)
class DpMutation:
    """One bug, in the module of some of two ranks.

    :ivar stands_for, changes: as in `mutation_types.Mutation`.
    :ivar mutated: the ranks that have it. modes, fails, reaches: as in `dp_rank.DpRun`.
    :ivar ends: for each rank, what the trace of its error must hold; empty if none may fail.
    :ivar shows: a count or list of `dp_rank.DpOutcome` that must not be empty on some rank.
    :ivar thorough: whether it runs only on request: each takes two engines of its own.
    """

    name: str
    stands_for: str
    changes: tuple[tuple[str, str, str], ...]
    catcher: DpCatcher
    mutated: tuple[int, ...] = (0, 1)
    modes: tuple[str, ...] = ("loop", "loop")
    fails: tuple[int, ...] = ()
    reaches: bool = False
    ends: tuple[tuple[str, ...], ...] = ()
    shows: str = ""
    thorough: bool = True


#: What a rank waits in that nobody joins, or whose other end is gone.
_LEFT_ALONE = "gloo/transport"
#: A rank that takes the other's drafter for its own target, while both capture.
_MIXED_UP = ("in capture_model", "Cudagraph runtime mode mismatch in dummy_run")
#: While both serve, the idle rank asks in its dummy pass, and the other asks who is at work.
_ASKED_IN_VAIN = (
    ("in has_unfinished_dp", _LEFT_ALONE),
    ("in execute_dummy_batch", "in token_counts", _LEFT_ALONE),
)

DP_MUTATIONS = (
    DpMutation(
        "a dummy run replays a graph over padding",
        "hazard 14",
        one(
            "graphs.py",
            "self._proposer._slot_mapping_buffer.fill_(-1)",
            "self._proposer._slot_mapping_buffer.fill_(-1)\n"
            "        if self._captured is not None:\n"
            "            self._captured.buffers.pad_all(self._proposer)\n"
            "            self._captured.graphs[self._captured.plan[0]].replay()",
        ),
        "audit",
        shows="dummy_replays",
        thorough=False,
    ),
    DpMutation(
        "upstream's passes still ask the other ranks, on one rank",
        "defect 9",
        one("graphs.py", _OWN_COUNTS, _AGREED_COUNTS),
        "lockstep",
        mutated=(1,),
        ends=(_MIXED_UP, ("in capture_model", "in token_counts", _LEFT_ALONE)),
        thorough=False,
    ),
    DpMutation(
        "upstream's passes still ask the other ranks, on both ranks",
        "defect 9",
        one("graphs.py", _OWN_COUNTS, _AGREED_COUNTS),
        "lockstep",
        ends=_ASKED_IN_VAIN,
        thorough=False,
    ),
    DpMutation(
        "a rank asks the others where its own capture has failed",
        "defect 9",
        one(
            "graphs.py",
            _OWN_COUNTS,
            f"if self._captured is not None:\n            {_OWN_COUNTS}\n        {_AGREED_COUNTS}",
        ),
        "lockstep",
        fails=(1,),
        ends=_ASKED_IN_VAIN,
    ),
    DpMutation(
        "each rank goes by its own environment",
        "defect 9",
        one("data_parallel.py", "return bool(votes.item())", "return yes"),
        "lockstep",
        modes=("loop", "off"),
        ends=(_MIXED_UP, ("in capture_model", "in coordinate_batch_across_dp", _LEFT_ALONE)),
    ),
    DpMutation(
        "captured passes ask the other ranks",
        "defect 9",
        one(
            "compat.py",
            "        num_tokens_across_dp=token_counts(proposer.vllm_config, num_tokens),\n",
            "",
        ),
        "graph double",
    ),
    DpMutation(
        "nobody looks at the layers of the draft model",
        "defect 9",
        one("facts.py", "data_parallel=data_parallel.coupling(proposer)", "data_parallel=None"),
        "use",
        reaches=True,
    ),
    DpMutation(
        "an idle rank's dummy passes find the slots of its last drafts",
        "defect 11",
        one("graphs.py", "self._proposer._slot_mapping_buffer.fill_(-1)", "pass"),
        "audit",
        shows="dummy_writes",
    ),
)
