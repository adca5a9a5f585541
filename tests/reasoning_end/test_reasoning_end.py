"""A grammar begins right behind the end of the reasoning, inside the drafts too. Needs vLLM.

Each release's own functions, stock and mended; and each mistake that was put in is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.package import KNOWN_RELEASES
from tests.support.covering import each_release

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.reasoning_end.world import (
    END,
    FEATURE,
    REASONERS,
    VOCABULARY,
    InDelta,
    K,
    Remembering,
    World,
    expected,
    served,
)
from tests.support.beside_vllm import PATCHES
from tests.support.code_edits import run_edited

# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.structured_output import reasoning_end

pytestmark = pytest.mark.network

#: What has the fault; 0.27.0 gives the tokens of a step to what asks whether the reasoning ends.
FAULTY = [str(each) for each in KNOWN_RELEASES if Version(str(each)) < Version("0.27.0")]
RELEASES = [each for each in each_release(FEATURE) if each.values[0] in FAULTY]
SEEDS, LUCK = range(30), (0.0, 0.6, 1.0)


def wrong(release: str, seeds: Any = SEEDS, **how: Any) -> list[tuple[int, float]]:
    """Of which seeds, and with how lucky drafts, a request is not served as without drafts."""
    reasoner = how.get("reasoner", InDelta)
    luck = how.pop("luck", LUCK)
    return [
        (seed, share)
        for seed in seeds
        for share in luck
        if not same(expected(seed, reasoner()), served(release, seed, share, **how))
    ]


def same(truth: Any, answer: Any) -> bool:
    """Whether an answer is right; its last step may have gone on a little."""
    size, told = len(truth.tokens), len(truth.told)
    return bool(answer.tokens[:size] == truth.tokens and answer.told[:told] == truth.told)


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("release", each_release(FEATURE))
def test_who_has_the_fault(release: str, ahead: bool) -> None:
    assert bool(wrong(release, patched=False, ahead=ahead)) == (release in FAULTY)


def test_without_drafts_nothing_is_wrong() -> None:
    for release in FAULTY:
        for patched in (False, True):
            assert not wrong(release, range(10), luck=[1.0], patched=patched, most=0)


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("key", ["json", "structural tag"])
@pytest.mark.parametrize("reasoner", REASONERS)
@pytest.mark.parametrize("release", RELEASES)
def test_it_is_mended(release: str, reasoner: Any, key: str, ahead: bool) -> None:
    assert not wrong(release, patched=True, ahead=ahead, reasoner=reasoner, key=key)


@settings(max_examples=200, deadline=None)
@given(
    release=st.sampled_from(FAULTY),
    seed=st.integers(0, 1 << 20),
    luck=st.floats(0, 1),
    ahead=st.booleans(),
    reasoner=st.sampled_from(REASONERS),
)
def test_an_answer_is_that_without_drafts(
    release: str, seed: int, luck: float, ahead: bool, reasoner: Callable[[], Any]
) -> None:
    assert not wrong(release, [seed], luck=[luck], patched=True, ahead=ahead, reasoner=reasoner)


def test_a_parser_that_remembers_does_not_see_drafts() -> None:
    """From 0.25 on upstream shows it drafts itself."""
    assert not wrong("0.24.0", luck=[1.0], patched=True, reasoner=Remembering)
    world = World("0.24.0", Remembering(), patched=True, ahead=False)
    world.manager.grammar_bitmask({"r": world.request}, ["r"], {"r": [4, END]})
    assert not world.manager.reasoner.pending


@pytest.mark.parametrize("release", RELEASES)
def test_switched_off_it_is_upstreams(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reasoning_end.VARIABLE, "off")
    assert wrong(release, patched=True) == wrong(release, patched=False)


def test_a_grammar_for_the_reasoning_too_is_left_to_upstream() -> None:
    world = World("0.24.0", InDelta(), patched=True, ahead=False)
    world.manager.enable_in_reasoning = True
    world.request.all_token_ids += [4, END, 5]
    tokens = [4, END, 5]
    assert reasoning_end.tokens_of_answer(world.manager, world.request, tokens) is tokens
    assert not reasoning_end.mask_window(world.manager, world.request, 0, tokens)
    assert world.request.structured_output_request.reasoning_ended is None


def test_a_request_without_a_grammar_is_left_to_upstream() -> None:
    world = World("0.24.0", InDelta(), patched=True, ahead=False)
    world.request.structured_output_request = None
    world.request.all_token_ids += [END, 5]
    assert reasoning_end.tokens_of_answer(world.manager, world.request, [END, 5]) == [END, 5]


def test_drafts_of_a_diffusion_model_are_left_to_upstream() -> None:
    world = World("0.24.0", InDelta(), patched=True, ahead=False)
    world.manager.vllm_config.model_config.is_diffusion = True
    assert not reasoning_end.mask_window(world.manager, world.request, 0, [END, 5])


def test_a_second_request_has_rows_of_its_own() -> None:
    world = World("0.24.0", InDelta(), patched=True, ahead=False)
    world.manager.vllm_config.num_speculative_tokens = 2 * K
    world.manager._grammar_bitmask = torch.ones(2 * K, VOCABULARY, dtype=torch.bool)
    drafts = {"r": [4, END, -1], "s": [END]}
    other = SimpleNamespace(**vars(world.request))
    mask = world.manager.grammar_bitmask({"r": world.request, "s": other}, ["r", "s"], drafts)
    assert mask.all(axis=1).tolist() == [True, True, False, True, True, False]


#: Mistakes, each noticed: a scope, what it has, and what it gets instead.
BUGS = (
    ("tokens_of_answer", "len(every) - len(tokens)", "len(every) - 1"),
    ("tokens_of_answer", "len(every) - len(tokens)", "0"),
    ("tokens_of_answer", "request.structured_output_request.reasoning_ended = True", "pass"),
    ("tokens_of_answer", "tokens[end:]", "tokens"),
    ("tokens_of_answer", "tokens[end:]", "tokens[end - 1:]"),
    ("tokens_of_answer", "tokens[end:]", "tokens[end + 1:]"),
    ("tokens_of_answer", "tokens[end:]", "[]"),
    ("mask_window", "_reasoner(manager, request) if drafts else None", "None"),
    ("_bitmask", "first += len(drafts) + 1", "first += len(drafts)"),
    ("begin_behind_reasoning", "not hasattr(manager, 'trim_reasoning_for_advance')", "False"),
    ("mask_window", "copy.copy(reasoner)", "reasoner"),
    ("mask_window", "every + known", "every + known[:-1]"),
    ("mask_window", "grammar.validate_tokens(known[end:])", "grammar.validate_tokens(known)"),
    ("mask_window", "grammar.validate_tokens(known[end:])", "known[end:]"),
    ("mask_window", "grammar.validate_tokens(known[end:])", "[]"),
    ("mask_window", "len(drafts) + 1", "len(drafts)"),
    ("mask_window", "0 <= row - end <= len(answer)", "row - end <= len(answer)"),
    ("mask_window", "0 <= row - end <= len(answer)", "0 < row - end <= len(answer)"),
    ("mask_window", "0 <= row - end <= len(answer)", "0 <= row - end < len(answer)"),
    ("mask_window", "first + row", "row"),
    ("mask_window", "grammar.accept_tokens(request.request_id, [answer[row - end]])", "pass"),
    ("mask_window", "grammar.rollback(len(answer))", "pass"),
    ("mask_window", "drafts[: drafts.index(-1)] if -1 in drafts else drafts", "drafts"),
    ("_reasoner", "asked.reasoning_ended", "False"),
    ("_reasoner", "manager.enable_in_reasoning", "False"),
    ("_end", "copy.copy(reasoner)", "reasoner"),
    ("_end", "range(1, len(step))", "range(len(step))"),
)


@pytest.fixture
def changed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The module with a mistake."""
    file = PATCHES / FEATURE / "files/vllm/v1/structured_output/reasoning_end.py"
    names = run_edited(file, [request.param], reasoning_end.__name__)
    functions = {
        name: names[name] for name in ("begin_behind_reasoning", "tokens_of_answer", "mask_window")
    }
    with mock.patch.multiple(reasoning_end, **functions):
        yield


@pytest.mark.parametrize("changed", BUGS, indirect=True, ids=lambda bug: f"{bug[1]} -> {bug[2]}")
@pytest.mark.usefixtures("changed")
def test_a_mistake_is_noticed() -> None:
    with pytest.raises((AssertionError, TypeError, IndexError)):  # noqa: PT012  (one of them)
        test_a_parser_that_remembers_does_not_see_drafts()
        test_a_grammar_for_the_reasoning_too_is_left_to_upstream()
        test_a_second_request_has_rows_of_its_own()
        for release in ("0.24.0", "0.26.0"):
            for reasoner in REASONERS:
                assert not wrong(release, range(12), patched=True, reasoner=reasoner)


def test_what_it_does_is_counted() -> None:
    wrong("0.24.0", patched=True)
    counts = effects()[FEATURE]["counts"]
    assert set(counts) == {reasoning_end.HEARD, reasoning_end.MASKED}


@pytest.mark.parametrize(
    ("drafts", "parser", "state"),
    [(object(), "qwen3", "active"), (None, "qwen3", "idle"), (object(), "", "idle")],
)
def test_the_effect_is_reported(drafts: Any, parser: str, state: str) -> None:
    outputs = SimpleNamespace(reasoning_parser=parser)
    config = SimpleNamespace(speculative_config=drafts, structured_outputs_config=outputs)
    reasoning_end.report_effect(SimpleNamespace(vllm_config=config))
    assert effects()[FEATURE]["state"] == state
