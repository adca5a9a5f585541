"""The bugs of drafting under data parallelism that `test_data_parallel.py` must catch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.draft_graphs.mutation_types import one
from tests.support.code_edits import Edit

#: audit: a dummy batch wrote the KV cache, or replayed a graph. graph double: the capture was
#: refused. lockstep: each rank failed where it must.
DpCatcher = Literal["audit", "graph double", "lockstep"]

_AGREED_COUNTS = """from vllm.v1.worker.dp_utils import coordinate_batch_across_dp

config = self._proposer.vllm_config.parallel_config
return coordinate_batch_across_dp(num_tokens, False, config, num_tokens)[1]"""


@dataclass(frozen=True)
class DpMutation:
    """One bug, in the module of some of two ranks.

    :ivar stands_for, changes: as in `mutation_types.Mutation`.
    :ivar mutated: the ranks that have it. modes, fails, captures, reaches, without:
        as in `dp_rank.DpRun`.
    :ivar ends: for each rank, what the trace of its error must hold; empty if none may fail.
    :ivar shows: a count or list of `dp_rank.DpOutcome` that must not be empty on some rank.
    :ivar repeats: whether another one stands for the same, and ends in the same way.
    """

    name: str
    stands_for: str
    changes: tuple[Edit, ...]
    catcher: DpCatcher
    mutated: tuple[int, ...] = (0, 1)
    modes: tuple[str, ...] = ("loop", "loop")
    fails: tuple[int, ...] = ()
    captures: int = 0
    reaches: bool = False
    without: tuple[int, ...] = ()
    ends: tuple[tuple[str, ...], ...] = ()
    shows: str = ""
    repeats: bool = False

    @property
    def alone(self) -> bool:
        """Whether it takes engines of its own, which it leaves waiting for each other."""
        return self.catcher == "lockstep"


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
            "draft_graphs.py",
            "DraftGraphs.dummy_run",
            "self._proposer._slot_mapping_buffer.fill_(-1)",
            """
                MATCH
                if self.captured is not None:
                    self.captured.buffers.pad_all(self._proposer)
                    self.captured.graphs[self.captured.plan[0]].replay()
            """,
        ),
        "audit",
        shows="dummy_replays",
    ),
    DpMutation(
        "upstream's passes still ask the other ranks, on one rank",
        "defect 9",
        one("draft_graphs.py", "DraftGraphs.token_counts", "return ...", _AGREED_COUNTS),
        "lockstep",
        mutated=(1,),
        ends=(_MIXED_UP, ("in capture_model", "in token_counts", _LEFT_ALONE)),
    ),
    DpMutation(
        "upstream's passes still ask the other ranks, on both ranks",
        "defect 9",
        one("draft_graphs.py", "DraftGraphs.token_counts", "return ...", _AGREED_COUNTS),
        "lockstep",
        ends=_ASKED_IN_VAIN,
        repeats=True,
    ),
    DpMutation(
        "a rank asks the others where its own capture has failed",
        "defect 9",
        one(
            "draft_graphs.py",
            "DraftGraphs.token_counts",
            "return ...",
            f"if self.captured is not None:\n    MATCH\n{_AGREED_COUNTS}",
        ),
        "lockstep",
        fails=(1,),
        ends=_ASKED_IN_VAIN,
    ),
    DpMutation(
        "each rank goes by its own device",
        "defect 9",
        one("ranks.py", "all_ranks_want", "return all_ranks_agree(...)", "return yes"),
        "lockstep",
        without=(1,),
        ends=(_MIXED_UP, ("in capture_model", "in coordinate_batch_across_dp", _LEFT_ALONE)),
    ),
    DpMutation(
        "captured passes ask the other ranks",
        "defect 9",
        one("upstream.py", "forward_context", "token_counts(...)", "None"),
        "graph double",
    ),
    DpMutation(
        "an idle rank's dummy passes find the slots of its last drafts",
        "defect 11",
        one(
            "draft_graphs.py",
            "DraftGraphs.dummy_run",
            "self._proposer._slot_mapping_buffer.fill_(-1)",
            "None",
        ),
        "audit",
        shows="dummy_writes",
    ),
)
