"""A row that does not fit into the drafter reads and writes nothing of its own. Needs vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-gate")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import draft_gate

LIMIT, K, BLOCK, WIDTH = 20, 3, 4, 8


@pytest.fixture(autouse=True, scope="module")
def switched_on() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(draft_gate.VARIABLE, "on")
        yield


def make_runner(lengths: list[int], **config: Any) -> Any:
    """A double of the runner with these requests."""
    speculative = {
        "method": "eagle3",
        "disable_padded_drafter_batch": False,
        "parallel_drafting": False,
        **config,
    }
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**speculative),
        uses_mrope=False,
        uses_xdrope_dim=0,
        num_spec_tokens=K,
        effective_drafter_max_model_len=LIMIT,
        input_batch=SimpleNamespace(num_reqs=len(lengths)),
        optimistic_seq_lens_cpu=torch.tensor([*lengths, 0, 0]),
        _draft_probs=None,
    )


def make_metadata(lengths: list[int], tokens: int) -> tuple[Any, Any]:
    """Metadata of a step in which each request has so many tokens, and their positions."""
    positions = [length - tokens + n for length in lengths for n in range(tokens)]
    table = torch.arange(1, 1 + len(lengths) * WIDTH, dtype=torch.int32).view(-1, WIDTH)
    rows = [row for row in range(len(lengths)) for _ in range(tokens)]
    slots = [
        int(table[row, position // BLOCK]) * BLOCK + position % BLOCK
        for row, position in zip(rows, positions, strict=True)
    ]
    metadata = SimpleNamespace(
        max_seq_len=max(lengths),
        seq_lens=torch.tensor(lengths),
        block_table_tensor=table,
        slot_mapping=torch.tensor([*slots, 7, 7]),
    )
    return metadata, torch.tensor(positions)


LENGTHS = st.lists(st.integers(K + 1, WIDTH * BLOCK), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, sampled=st.booleans())
def test_closed_rows_touch_nothing_and_the_others_are_as_they_were(
    lengths: list[int], sampled: bool
) -> None:
    runner = make_runner(lengths)
    gate = draft_gate.DraftGate(runner)
    metadata, positions = make_metadata(lengths, K + 1)
    table, slots = metadata.block_table_tensor.clone(), metadata.slot_mapping.clone()
    given_positions = gate.close(runner, metadata, positions.clone())
    last = LIMIT - K
    closed = [length > last for length in lengths]
    assert gate.some_fit(runner, metadata) is not all(closed)
    # Every position with its drafts stays within the drafter's context.
    assert int(given_positions.max()) < last or not any(closed)
    for row, shut in enumerate(closed):
        part = slice(row * (K + 1), (row + 1) * (K + 1))
        inside = positions[part] < last
        assert given_positions[part][inside].tolist() == positions[part][inside].tolist()
        assert metadata.slot_mapping[part][inside].tolist() == slots[part][inside].tolist()
        if not shut:
            assert bool(inside.all())
        assert metadata.slot_mapping[part][~inside].tolist() == [-1] * int((~inside).sum())
        expected = [0] * WIDTH if shut else table[row].tolist()
        assert metadata.block_table_tensor[row].tolist() == expected
    assert metadata.slot_mapping[len(positions) :].tolist() == [7, 7]
    drafts = torch.full((len(lengths), K), 9)
    if sampled:
        runner._draft_probs = torch.full((len(lengths), K, 4), 0.25)
    reopened = gate.reopen(runner, drafts)
    assert reopened.tolist() == [[0 if shut else 9] * K for shut in closed]
    assert torch.equal(metadata.block_table_tensor, table)
    if sampled:
        for row, shut in enumerate(closed):
            expected = [1.0, 0.0, 0.0, 0.0] if shut else [0.25] * 4
            assert runner._draft_probs[row].tolist() == [expected] * K
    assert gate.reopen(runner, drafts).tolist() == drafts.tolist()


@pytest.mark.parametrize(
    "config",
    [
        {"method": "dflash"},
        {"method": "ngram"},
        {"parallel_drafting": True},
        {"disable_padded_drafter_batch": True},
    ],
    ids=str,
)
def test_what_is_not_shown_is_left_to_upstream(config: dict[str, Any]) -> None:
    runner = make_runner([4, 30], **config)
    gate = draft_gate.DraftGate(runner)
    assert effects()[draft_gate.FEATURE]["state"] == "idle"
    metadata, positions = make_metadata([4, 30], 4)
    before = metadata.slot_mapping.clone()
    assert not gate.some_fit(runner, metadata)
    assert gate.close(runner, metadata, positions) is positions
    assert torch.equal(metadata.slot_mapping, before)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("off", ""):
        monkeypatch.setenv(draft_gate.VARIABLE, value)
        assert not draft_gate.DraftGate(make_runner([4])).works
    monkeypatch.setenv(draft_gate.VARIABLE, "on")
    assert draft_gate.DraftGate(make_runner([4])).works
    assert effects()[draft_gate.FEATURE]["state"] == "active"
    monkeypatch.setenv(draft_gate.VARIABLE, "nearly")
    with pytest.raises(ValueError, match="set it to on or off"):
        draft_gate.DraftGate(make_runner([4]))
