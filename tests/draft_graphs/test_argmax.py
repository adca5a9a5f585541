"""Laws of the split argmax: it is `argmax`, and it is split."""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")

from hypothesis import given
from hypothesis import strategies as st

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from tests.support.beside_vllm import put_beside_vllm

pytestmark = pytest.mark.network

put_beside_vllm("draft-graphs")
argmax: Any = importlib.import_module("vllm.v1.spec_decode.draft_graphs.argmax")
split_argmax: Any = importlib.import_module("vllm.v1.sample.split_argmax")

# Few values, so that the largest is mostly there several times.
VALUES = st.sampled_from([float("-inf"), -1.0, 0.0, 1.0, 2.0, float("inf"), float("nan")])
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@st.composite
def logits(draw: Any) -> Any:
    rows, size = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 6, 7, 8, 24, 40, 64]))
    row = st.lists(VALUES, min_size=size, max_size=size)
    values = draw(st.lists(row, min_size=rows, max_size=rows))
    return torch.tensor(values, dtype=draw(TYPES))


def split_always() -> Any:
    """Small logits are split, too."""
    bounds: dict[str, Any] = {"_ONE_BLOCK": range(1, 1 << 20), "_FEW_ROWS": 512}
    return mock.patch.multiple(split_argmax, **bounds)


@given(logits=logits())
def test_it_is_argmax(logits: Any) -> None:
    with split_always():
        tokens = split_argmax.first_largest(logits)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


@given(logits=logits())
def test_the_proposer_s_own_sampling_has_it(logits: Any) -> None:
    class Proposer:
        def _greedy_sample(self, hidden_states: Any) -> Any:
            return (hidden_states + 0).argmax(dim=-1)

    with split_always():
        tokens = argmax.greedy_sample(Proposer(), logits)
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


def test_only_the_argmax_of_a_matrix_s_rows_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[Any] = []

    def first_largest(logits: Any) -> Any:
        split.append(logits.shape)
        return logits.argmax(dim=-1)

    monkeypatch.setattr(argmax, "first_largest", first_largest)
    matrix = torch.zeros(2, 8)
    with argmax._SplitArgmax():
        for result in (matrix.argmax(), matrix.argmax(dim=0), matrix[0].argmax(dim=-1)):
            assert result.sum() == 0
        assert split == []
        matrix.argmax(dim=-1)
    assert split == [(2, 8)]
    matrix.argmax(dim=-1)
    assert len(split) == 1


@given(rows=st.integers(1, 600), size=st.integers(1, 300_000))
def test_the_parts_are_even_and_not_too_many(rows: int, size: int) -> None:
    with split_always():
        parts = split_argmax._parts(rows, size)
    assert size % parts == 0
    assert parts == 1 or rows * parts <= 512


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [
        (1, 128256, 256),
        (8, 128256, 64),
        (8, 129280, 64),
        (9, 128256, 1),  # slower than PyTorch's own, as all that follow
        (1, 151936, 1),
        (1, 32000, 1),
    ],
)
def test_it_is_split_where_that_pays(rows: int, size: int, parts: int) -> None:
    assert split_argmax._parts(rows, size) == parts


def test_the_features_that_split_share_the_module() -> None:
    path = "vllm/v1/sample/split_argmax.py"
    naming = [each.id for each in load([shipped_folder()]) if path in each.shared]
    assert naming == ["draft-graphs", "greedy-verification"]
