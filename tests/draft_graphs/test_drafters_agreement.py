"""What ranks offer each other in the drafter's agreement, through each release's own functions.

Drafters put an offer where vLLM has the number of tokens without padding. These tests run the
functions of all releases, as the feature leaves them, with an all-reduce among ranks that exist
on paper only. Needs vLLM; the functions are those of the release, what they import is the engine's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from overlay.features.folder import load
from overlay.features.sources import shipped_folder
from overlay.package import KNOWN_RELEASES
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve

pytestmark = [pytest.mark.network, pytest.mark.parametrize("release", KNOWN_RELEASES)]

UTILS = "vllm/v1/worker/dp_utils.py"
#: For each of three ranks the tokens of its pass with padding, and its vote: 0 for no graph, 1 for
#: a piecewise one, -1 to withdraw.
CASES = [
    [(8, 1), (16, 1), (8, 1)],
    [(8, 1), (4000, 0), (4, 1)],
    [(8, 0), (3, 0), (1, 0)],
    [(8, -1), (16, 1), (8, 0)],
    [(1, 1), (1, 1), (1, 1)],
]
#: What the ranks give as their tokens without padding: offers, one of which is none, counts.
GIVEN = ([-3, -1, -5], [-2, 1, -1], [1, 1, 1])


#: The module as the feature leaves it, by its text in a release: several have the same.
_PATCHED: dict[bytes, Any] = {}


def patched(release: str) -> Any:
    """The compiled module of a release."""
    target = resolve(release)
    before = target.read(UTILS)
    assert before is not None
    if before not in _PATCHED:
        features = [each for each in load([shipped_folder()]) if each.id == "draft-graphs"]
        changes = plan(features, target, target.release, target.record, Syntax()).changes
        (after,) = [change.after for change in changes if change.path == UTILS]
        assert after is not None
        _PATCHED[before] = compile(after, UTILS, "exec")
    return _PATCHED[before]


class Ranks:
    """The module of a release as one rank of three runs it, and what the others contribute."""

    def __init__(self, release: str, *, size: int = 3) -> None:
        self.names: dict[str, Any] = {"__name__": f"dp_utils_of_{release}"}
        exec(patched(release), self.names)
        self.names["_get_device_and_group"] = lambda parallel: ("cpu", None)
        self.names["dist"] = SimpleNamespace(all_reduce=self.reduce)
        self.parallel = SimpleNamespace(
            data_parallel_size=size,
            data_parallel_rank=0,
            num_ubatches=2,
            disable_nccl_for_dp_synchronization=True,
        )
        self.rows: Any = None

    def reduce(self, tensor: Any, group: Any) -> None:
        """Add what the other ranks have, as an all-reduce does."""
        assert tensor.shape == self.rows.shape, "the ranks' tensor has another shape"
        tensor[:, 1:] += self.rows[:, 1:]

    def agree(self, passes: list[tuple[int, int]], given: list[int], **more: Any) -> Any:
        """The answer of the drafter's agreement: split or not, tokens of all ranks, mode."""
        padded, votes = zip(*passes, strict=True)
        zeros = [0] * len(passes)
        self.rows = torch.tensor([given, padded, zeros, votes], dtype=torch.int32)
        split, tokens, mode = self.names["coordinate_batch_across_dp"](
            num_tokens_unpadded=given[0],
            parallel_config=self.parallel,
            allow_microbatching=False,
            num_tokens_padded=padded[0],
            cudagraph_mode=votes[0],
            **more,
        )
        return split, None if tokens is None else tokens.tolist(), mode


@pytest.fixture
def ranks(release: str) -> Ranks:
    return Ranks(release)


def test_offers_reach_all_ranks_and_change_no_answer(release: str, ranks: Ranks) -> None:
    for passes in CASES:
        upstreams = ranks.agree(passes, [1, 1, 1])
        assert not upstreams[0]
        assert upstreams[2] == min(vote for _, vote in passes)
        for given in GIVEN:
            told: list[int] = []
            assert ranks.agree(passes, given, unpadded_across_dp=told) == upstreams
            assert told == given


def test_ranks_that_ask_nobody_are_told_nothing(release: str) -> None:
    told: list[int] = []
    alone = Ranks(release, size=1)
    assert alone.agree([(8, 1)], [-3], unpadded_across_dp=told) == (False, None, 1)
    skip = alone.names.get("skip_dp_coordination")
    if skip is not None:  # from 0.30 on
        several = Ranks(release)
        with several.names["skip_dp_coordination"]():
            several.agree(CASES[0], GIVEN[0], unpadded_across_dp=told)
    assert told == []
