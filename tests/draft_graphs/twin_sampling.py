"""Sampled drafts in `upstream_twin.py`: temperatures, and noise that both ways get alike.

Upstream draws with exponential noise from the default generator. Where no row is padded, both ways
get the very numbers of one seed. Where rows are padded, the generator would deal out its numbers
differently: there the noise is a function of row and column instead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch

from tests.draft_graphs.twin_model import VOCAB, Shape

ROWS = 64


@dataclass
class Metadata:
    """What the drafter reads of vLLM's `SamplingMetadata`."""

    all_greedy: bool
    all_random: bool
    temperature: torch.Tensor | None


def metadata(shape: Shape, dice: random.Random, reqs: int) -> Metadata:
    """What `propose` gets of a batch's sampling: mixed, all greedy or all random."""
    kind = dice.choice(("mixed", "greedy", "random")) if shape.sampled else "greedy"
    if kind == "greedy":
        return Metadata(all_greedy=True, all_random=False, temperature=None)
    warm = [dice.choice((0.3, 1.0, 1.7)) for _ in range(reqs)]
    if kind == "mixed":
        warm[0] = 0.0
        warm = dice.sample(warm, reqs)
    return Metadata(all_greedy=False, all_random=kind == "random", temperature=torch.tensor(warm))


@contextmanager
def noise(shape: Shape) -> Iterator[None]:
    """Let exponential noise be a function of row and column, if the shape asks for it."""
    if shape.sampled != "rows":
        yield
        return
    table = torch.empty(ROWS, VOCAB).exponential_(generator=torch.Generator().manual_seed(2))

    def exponential_(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(table[: tensor.shape[0]])

    with mock.patch.object(torch.Tensor, "exponential_", exponential_):
        yield


def comparable(shape: Shape, sizes: set[int], reqs: int) -> bool:
    """Whether both ways must get the same numbers; sizes: requests of the captured graphs."""
    return shape.sampled != "generator" or reqs in sizes


def require_equal_probabilities(
    shape: Shape, found: torch.Tensor | None, expected: torch.Tensor | None, where: str
) -> None:
    """Demand equal probabilities, bit by bit where no row is padded.

    :raises AssertionError: if they differ, or only one way has any.
    """
    assert (found is None) == (expected is None), f"{where}: probabilities of one way only"
    if found is None or expected is None:
        return
    assert found.dtype == expected.dtype == torch.float32
    if shape.sampled == "generator":
        assert torch.equal(found, expected), f"{where}: probabilities"
    assert torch.allclose(found, expected, atol=1e-5), f"{where}: probabilities"
