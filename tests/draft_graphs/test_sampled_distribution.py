"""Sampled drafts of padded batches have the distribution that vLLM is told. Needs vLLM.

Where rows are padded, the generator deals out its numbers otherwise than without graphs, so the
drafts are not upstream's one by one. But each is drawn from the probabilities that are handed to
vLLM, which `upstream_twin.py` compares with upstream's. No engine runs.

With a draft ``x`` drawn from ``p``, the sum of ``p`` below ``x`` and a random share of ``p[x]`` is
evenly spread between 0 and 1, whatever ``p`` is: so the drafts of all rows and passes are one
sample, and its chi-square says whether they are drawn as told.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.twin_model import Shape
from tests.draft_graphs.twin_sampling import Metadata
from tests.draft_graphs.twin_shapes import HAS_SAMPLED

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.skipif(not HAS_SAMPLED, reason="drafts are sampled from 0.22 on"),
]

#: Mode, and live requests of graphs for 4 and 8: one row in four is padding, or more.
CASES = (("loop", 3), ("step", 5))
BATCHES, BINS = 60, 20
#: A chi-square of 19 degrees of freedom is larger once in a million.
LARGEST = 63.0
TEMPERATURES = (0.5, 1.0, 1.7)


@cache
def batches(mode: str, live: int) -> tuple[tuple[Any, Any], ...]:
    """Drafts, [live, K], and their probabilities, [live, K, V], of one batch again and again."""
    shape = Shape(k=3, mode=mode, max_num_seqs=8, max_capture_tokens=64, sampled="generator")
    drafter = Drafter(shape, probabilistic=True)
    drafter.capture()
    assert f"first {live}" not in drafter.keys, "the batch was to be padded"
    warm = torch.tensor([TEMPERATURES[row % len(TEMPERATURES)] for row in range(live)])
    sampling = Metadata(all_greedy=False, all_random=True, temperature=warm)
    batch = drafter.batch(live)
    torch.manual_seed(live)
    drawn = []
    for _ in range(BATCHES):
        drafts = drafter.graphs.propose(**{**batch, "sampling_metadata": sampling})
        assert drafts is not None, drafter.graphs.withdrawn
        drawn.append((drafts, drafter.proposer._last_draft_probs.clone()))
    return tuple(drawn)


def chi_square(drawn: Iterable[tuple[Any, Any]]) -> float:
    """How far drafts are from being drawn from their probabilities; about `BINS` where they are."""
    counts = torch.zeros(BINS)
    generator = torch.Generator().manual_seed(0)
    for drafts, probs in drawn:
        each = probs.gather(-1, drafts[..., None])[..., 0]
        below = probs.cumsum(-1).gather(-1, drafts[..., None])[..., 0] - each
        share = below + each * torch.rand(each.shape, generator=generator)
        counts += torch.histc(share, BINS, 0, 1)
    expected = counts.sum() / BINS
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("mode", "live"), CASES)
def test_drafts_of_padded_batches_are_drawn_from_their_probabilities(mode: str, live: int) -> None:
    assert chi_square(batches(mode, live)) < LARGEST


def test_likeliest_drafts_are_not_taken_for_drawn_ones() -> None:
    greedy = [(probs.argmax(-1), probs) for _, probs in batches(*CASES[0])]
    assert chi_square(greedy) > LARGEST


def test_drafts_that_all_batches_share_are_not_taken_for_fresh_ones() -> None:
    drawn = batches(*CASES[0])
    assert chi_square([(drawn[0][0], probs) for _, probs in drawn]) > LARGEST
