"""What ranks offer each other in the drafter's agreement, through each release's own functions.

Drafters put an offer where vLLM has the number of tokens without padding, and listen where vLLM
reads the answer. These tests run the functions of all releases with an all-reduce among ranks that
exist on paper only. Needs vLLM; the functions are those of the release, what they import is the
engine's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm
from tests.support.covering import each_release

put_beside_vllm("draft-graphs")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.spec_decode.draft_graphs import upstream

pytestmark = [pytest.mark.network, pytest.mark.parametrize("release", each_release())]

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


#: The compiled module, by its text in a release: several have the same.
_COMPILED: dict[bytes, Any] = {}


def compiled(release: str) -> Any:
    """The compiled module of a release."""
    text = resolve(release).read(UTILS)
    assert text is not None
    if text not in _COMPILED:
        _COMPILED[text] = compile(text, UTILS, "exec")
    return _COMPILED[text]


class Ranks:
    """The module of a release as one rank of three runs it, and what the others contribute."""

    def __init__(self, release: str, *, size: int = 3) -> None:
        self.names: dict[str, Any] = {"__name__": f"dp_utils_of_{release}"}
        exec(compiled(release), self.names)
        self.heard: list[int] = []
        read = "_post_process_cudagraph_mode"
        self.names[read] = upstream.listening(self.names[read], self.hear)
        self.names["_get_device_and_group"] = lambda parallel: ("cpu", None)
        self.names["dist"] = SimpleNamespace(all_reduce=self.reduce)
        self.parallel = SimpleNamespace(
            data_parallel_size=size,
            data_parallel_rank=0,
            num_ubatches=2,
            disable_nccl_for_dp_synchronization=True,
        )
        self.rows: Any = None

    def hear(self, tensor: Any) -> None:
        """Note what each rank gave as its tokens without padding."""
        self.heard += tensor[0].tolist()

    def reduce(self, tensor: Any, group: Any) -> None:
        """Add what the other ranks have, as an all-reduce does."""
        assert tensor.shape == self.rows.shape, "the ranks' tensor has another shape"
        tensor[:, 1:] += self.rows[:, 1:]

    def agree(self, passes: list[tuple[int, int]], given: list[int]) -> Any:
        """The answer of the drafter's agreement: split or not, tokens of all ranks, mode."""
        self.heard.clear()
        padded, votes = zip(*passes, strict=True)
        zeros = [0] * len(passes)
        self.rows = torch.tensor([given, padded, zeros, votes], dtype=torch.int32)
        split, tokens, mode = self.names["coordinate_batch_across_dp"](
            num_tokens_unpadded=given[0],
            parallel_config=self.parallel,
            allow_microbatching=False,
            num_tokens_padded=padded[0],
            cudagraph_mode=votes[0],
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
            assert ranks.agree(passes, given) == upstreams
            assert ranks.heard == given


def test_ranks_that_ask_nobody_are_told_nothing(release: str) -> None:
    alone = Ranks(release, size=1)
    assert alone.agree([(8, 1)], [-3]) == (False, None, 1)
    assert alone.heard == []
    skip = alone.names.get("skip_dp_coordination")
    if skip is not None:  # from 0.30 on
        several = Ranks(release)
        with several.names["skip_dp_coordination"]():
            several.agree(CASES[0], GIVEN[0])
        assert several.heard == []
