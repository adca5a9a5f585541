"""A request beyond the drafter's context does not stop drafts for the others. Needs vLLM.

Each release's own functions of the runner, with the fault and mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.releases import torch
from tests.draft_gate.world import LIMIT, Drafted, K, Step, draft, metadata_of, places
from tests.support.beside_vllm import PATCHES
from tests.support.code_edits import run_edited

# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import draft_gate

pytestmark = pytest.mark.network

MEND = ("draft-gate",)
#: With those whose hunks are in the same functions.
ALL = ("batched-bookkeeping", "context-limit", "draft-gate", "prompt-logprobs")
DRAFTS = list(range(1, K + 1))
#: One request beyond the context, the others not: the last of them has no token more to spare.
MIXED = Step([8, LIMIT + 9, 30, LIMIT - K], [4, 4, 1, 4])


@pytest.mark.parametrize("release", each_release("draft-gate"))
def test_every_release_has_the_fault(release: str) -> None:
    stock = draft(release, (), MIXED)
    assert stock.handed is None
    assert stock.drafts == [[0] * K] * 4
    # Without the long request it drafts for the others.
    rest = draft(release, (), Step([8, 30, LIMIT - K], [4, 1, 4]))
    assert rest.drafts == [DRAFTS] * 3


@pytest.mark.parametrize("features", [MEND, ALL], ids=["alone", "beside others"])
@pytest.mark.parametrize("release", each_release("draft-gate"))
def test_it_is_mended(release: str, features: tuple[str, ...]) -> None:
    for drafter in draft_gate.DRAFTERS:
        lengths = [*MIXED.lengths[:3], LIMIT - K - (drafter == "DFlashProposer")]
        for verified in (False, True):
            judge(release, features, Step(lengths, MIXED.counts, drafter, verified))


def judge(release: str, features: tuple[str, ...], step: Step) -> Drafted:
    """Assert that each request is drafted for that fits, and the others are padding."""
    mended = draft(release, features, step)
    if all(step.fits) or not _has_work(step):
        stock = draft(release, (), step)
        assert mended.drafts == stock.drafts
        assert (mended.handed is None) is (stock.handed is None)
        return mended
    assert mended.handed is not None
    assert mended.drafts == [DRAFTS if fits else [0] * K for fits in step.fits]
    metadata, before = mended.handed["common_attn_metadata"], metadata_of(step)
    assert metadata.max_seq_len == before.max_seq_len
    assert torch.equal(metadata.seq_lens, before.seq_lens)
    assert torch.equal(metadata.slot_mapping, before.slot_mapping)
    at = 0
    for row, (fits, count) in enumerate(zip(step.fits, step.counts, strict=True)):
        table = metadata.block_table_tensor[row]
        assert torch.equal(table, before.block_table_tensor[row]) if fits else not table.any()
        handed = mended.handed["target_positions"][at : at + count].tolist()
        was = places(step)[at : at + count].tolist()
        at += count
        if fits:
            assert handed == was
            continue
        # As far as a drafter goes from there, and the beginnings that requests may share.
        assert max(handed) + 1 <= step.room
        if step.drafter == "EagleProposer":
            assert [place for place in handed if place < step.room - 1] == [
                place for place in was if place < step.room - 1
            ]
        else:
            assert handed == [0] * count
    if mended.chances is not None:
        for row, fits in enumerate(step.fits):
            each = mended.chances[row]
            assert torch.allclose(each.sum(-1), torch.ones(K))
            assert (each[:, 0] == 1).all() if not fits else (each[:, 0] < 1).all()
    return mended


def _has_work(step: Step) -> bool:
    """Whether there is something to draft, or the beginning of a prompt that others may share.

    Drafters that number the places of a row themselves must not be given one beyond their context.
    """
    if step.drafter != "EagleProposer":
        return any(step.fits) and max(step.counts) <= step.room
    return any(n - c <= step.room for n, c in zip(step.lengths, step.counts, strict=True))


REQUESTS = st.lists(
    st.integers(1, 2 * LIMIT).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(drawn=REQUESTS, drafter=st.sampled_from(draft_gate.DRAFTERS), verified=st.booleans())
def test_each_request_is_judged_by_itself(drawn: Any, drafter: str, verified: bool) -> None:
    lengths, counts = map(list, zip(*drawn, strict=True))
    judge("0.33.0", MEND, Step(lengths, counts, drafter, verified))


def test_switched_off_it_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(draft_gate.VARIABLE, "off")
    assert draft("0.33.0", MEND, MIXED).handed is None


#: Mistakes, each noticed: a scope, what it has, and what it gets instead.
BUGS = (
    ("DraftGate.close", "lengths > last", "lengths > last + 1"),
    ("DraftGate.close", "lengths > last", "lengths >= last"),
    ("DraftGate.close", "copy.copy(metadata)", "metadata"),
    ("DraftGate.close", "table.masked_fill(closed[:, None], NULL_BLOCK)", "table"),
    ("DraftGate.close", "table.masked_fill(closed[:, None], NULL_BLOCK)", "MATCH.zero_()"),
    ("DraftGate.close", "(first > last).all()", "(first > last).any()"),
    ("DraftGate.close", "(first > last).all()", "over.all()"),
    ("DraftGate.close", "self._extends and metadata.max_query_len > last", "False"),
    ("DraftGate.positions", "metadata.max_seq_len = self._longest", "pass"),
    ("DraftGate.positions", "positions.clamp(max=last - 1)", "positions"),
    ("DraftGate.positions", "positions.clamp(max=last - 1)", "torch.zeros_like(positions)"),
    (
        "DraftGate.positions",
        "torch.where(tokens, inside, positions)",
        "inside",
    ),
    ("DraftGate.positions", "torch.zeros_like(positions)", "positions.clamp(max=last - 1)"),
    ("DraftGate.drafts", "drafts.masked_fill(closed, 0)", "drafts"),
    ("DraftGate.drafts", "chances[:, :, 0].masked_fill_(closed, 1.0)", "pass"),
    ("DraftGate.drafts", "chances.masked_fill_(closed[:, :, None], 0.0)", "pass"),
    (
        "DraftGate.__init__",
        "runner.num_spec_tokens + (drafter.method == 'dflash')",
        "runner.num_spec_tokens",
    ),
)


@pytest.fixture
def changed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The module with a mistake."""
    file = PATCHES / "draft-gate/files/vllm/v1/worker/draft_gate.py"
    names = run_edited(file, [request.param], draft_gate.__name__)
    with mock.patch.object(draft_gate, "DraftGate", names["DraftGate"]):
        yield


@pytest.mark.parametrize("changed", BUGS, indirect=True, ids=lambda bug: f"{bug[1]} -> {bug[2]}")
@pytest.mark.usefixtures("changed")
def test_a_mistake_is_noticed() -> None:
    long = 2 * LIMIT
    with pytest.raises((AssertionError, RuntimeError)):  # noqa: PT012 - one of them notices it
        for drafter in draft_gate.DRAFTERS:
            last = LIMIT - K - (drafter == "DFlashProposer")
            for lengths, counts in (
                ([8, LIMIT + 9, 30, last], [4, 4, 1, 4]),
                ([8, last + 1, last], [4, 4, 4]),
                ([long, 8], [long, 4]),
                ([long, LIMIT], [long, 1]),
            ):
                judge("0.33.0", MEND, Step(lengths, counts, drafter))


def test_what_it_does_is_counted() -> None:
    def counted() -> int:
        told = effects().get(draft_gate.FEATURE)
        return int(told["counts"].get(draft_gate.GATED, 0)) if told else 0

    before = counted()
    draft("0.33.0", MEND, Step([8, 9], [4, 4]))
    assert counted() == before
    draft("0.33.0", MEND, MIXED)
    assert counted() == before + 1


@pytest.mark.parametrize(("longest", "lines"), [(2 * LIMIT, 1), (LIMIT, 0)])
def test_a_request_that_is_too_long_is_told_of_once(longest: int, lines: int) -> None:
    """But not where the target's context ends there, too."""
    runner: Any = mock.MagicMock(
        effective_drafter_max_model_len=LIMIT,
        max_model_len=longest,
        num_spec_tokens=K,
        drafter=type("EagleProposer", (), {"method": "eagle3", "needs_extra_input_slots": False})(),
        optimistic_seq_lens_cpu=torch.tensor(MIXED.lengths),
        input_batch=SimpleNamespace(num_reqs=4),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        speculative_config=SimpleNamespace(disable_padded_drafter_batch=False),
    )
    gate = draft_gate.DraftGate(runner)
    with mock.patch.object(draft_gate, "logger") as logger:
        gate.close(metadata_of(Step([8, 9], [4, 4])))
        assert not logger.warning.called
        for _ in range(2):
            gate.close(metadata_of(MIXED))
        assert logger.warning.call_count == lines


def runner_with(**changes: Any) -> Any:
    """A runner as far as the gate asks whether it has something to do."""
    drafter = type(changes.pop("kind", "EagleProposer"), (), {})()
    drafter.method, drafter.needs_extra_input_slots = "eagle3", False
    ranks = changes.pop("ranks", 1)
    padded = changes.pop("padded", True)
    config = SimpleNamespace(disable_padded_drafter_batch=not padded)
    return SimpleNamespace(
        drafter=changes.pop("drafter", drafter),
        speculative_config=config,
        num_spec_tokens=K,
        parallel_config=SimpleNamespace(decode_context_parallel_size=ranks),
    )


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "active"),
        ({"drafter": None}, "idle"),
        ({"kind": "NgramProposer"}, "idle"),
        ({"padded": False}, "idle"),
        ({"ranks": 2}, "idle"),
    ],
    ids=str,
)
def test_the_effect_is_reported(changes: dict[str, Any], state: str) -> None:
    gate = draft_gate.DraftGate(runner_with(**changes))
    assert effects()[draft_gate.FEATURE]["state"] == state
    if state == "idle":
        assert gate.close(metadata_of(MIXED)).max_seq_len == max(MIXED.lengths)
