"""From the capture to the withdrawal of one drafter's graphs, and what the log says of it.

No engine runs. Needs vLLM.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import FIRST, LATER, SHAPE, Drafter
from tests.draft_graphs.policy_table import names_a_remedy

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1.spec_decode.draft_graphs import capture, draft_graphs, hooks, ranks

pytestmark = pytest.mark.usefixtures("one_rank")

ROLES = frozenset({"first", "step", "loop"})


def test_a_capture_is_one_line_with_all_that_it_took(log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.keys == [f"first {n}" for n in FIRST] + [f"loop {n}" for n in LATER]
    (line,) = log
    assert re.fullmatch(
        r"INFO Draft graphs: mode auto, K=3; captured first 3 \(1, 2, 4 requests\); "
        r"loop 4 \(1, 2, 4, 6 requests\); \d+ MiB, \d+\.\d s\. As upstream: "
        r"first passes over 4 requests, the largest capture size being 16 tokens "
        r"\(set max_cudagraph_capture_size to more\)",
        line,
    ), line


def test_no_key_is_there_before_every_graph_is(log: list[str]) -> None:
    drafter = Drafter()
    seen: list[int] = []
    capture = drafter.backend.capture

    def watched(function: Callable[[], None], pool: object) -> Any:
        seen.append(len(drafter.keys))
        return capture(function, pool)

    # A double takes the place of the method.
    drafter.backend.capture = watched  # type: ignore[method-assign]
    drafter.capture()
    assert seen == [0] * (len(FIRST) + len(LATER))
    assert len(drafter.keys) == len(seen)


def test_nothing_is_drafted_before_the_capture() -> None:
    drafter = Drafter()
    assert drafter.propose() is None
    assert drafter.later_steps() is None


def test_what_graphs_hold_is_drafted_by_them() -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.propose().shape == (3, 3)
    assert drafter.later_steps().shape == (3, 3)


def test_a_kv_cache_that_is_made_again_withdraws_until_the_next_capture(log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.propose() is not None
    captured = weakref.ref(drafter.graphs.captured)
    # Equal groups, but other ones.
    drafter.proposer.draft_attn_groups = [*drafter.proposer.draft_attn_groups]
    for _ in range(3):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    assert drafter.keys == []
    gc.collect()
    assert captured() is None, "the graphs still hold their memory"
    (warning,) = [line for line in log if line.startswith("WARNING")]
    assert "KV cache was initialized again" in warning
    drafter.capture()
    assert drafter.propose() is not None
    drafter.proposer.draft_attn_groups = [*drafter.proposer.draft_attn_groups]
    assert drafter.propose() is None
    assert [line.split()[0] for line in log] == ["INFO", "WARNING", "INFO", "WARNING"]


@pytest.mark.parametrize("entry", ["propose", "later_steps"])
def test_either_entry_notices_it(entry: str, log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    drafter.proposer.draft_attn_groups = [*drafter.proposer.draft_attn_groups]
    assert getattr(drafter, entry)() is None
    assert len(log) == 2


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_capture_that_fails_leaves_nothing_and_says_so_once(number: int, log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()  # so that there are old keys, too
    log.clear()
    capture, calls = drafter.backend.capture, []

    def fails(function: Callable[[], None], pool: object) -> Any:
        calls.append(function)
        if len(calls) > number:
            raise RuntimeError("on purpose")
        return capture(function, pool)

    # A double takes the place of the method.
    drafter.backend.capture = fails  # type: ignore[method-assign]
    drafter.capture()
    assert len(calls) == number + 1, "it went on after a failure"
    for _ in range(2):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    assert drafter.keys == []
    assert drafter.graphs.captured is None
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn, the drafter runs as upstream: ")
    assert "RuntimeError: on purpose" in line


def test_nothing_is_captured_while_a_micro_batch_is_running(
    log: list[str], monkeypatch: Any
) -> None:
    from vllm.v1.worker import ubatching

    drafter = Drafter()
    monkeypatch.setattr(ubatching, "_CURRENT_CONTEXTS", [None, object()])
    drafter.capture()
    assert drafter.keys == []
    assert drafter.graphs.captured is None
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn, the drafter runs as upstream: ")
    assert "1 micro-batches of the target are still running" in line
    monkeypatch.setattr(ubatching, "_CURRENT_CONTEXTS", [None, None])
    drafter.capture()
    assert drafter.keys
    # The bug that this would catch: nobody looks.
    monkeypatch.setattr(ubatching, "_CURRENT_CONTEXTS", [object(), None])
    monkeypatch.setattr(capture, "require_no_micro_batch", lambda: None)
    drafter.capture()
    assert drafter.keys, "without the check graphs are captured"


def test_another_ranks_failure_is_a_failure(log: list[str], monkeypatch: Any) -> None:
    answers = iter([True, True, False])
    monkeypatch.setattr(ranks, "all_ranks_agree", lambda yes, **_: next(answers))
    drafter = Drafter()
    with mock.patch.object(ranks, "even_out_recorded_all_reduces") as evened:
        drafter.capture()
    assert drafter.keys == []
    assert len(drafter.backend.graphs) == 2
    evened.assert_called_once()
    assert "another tensor-parallel rank failed" in log[0]


def test_what_fails_behind_a_failure_is_told_with_it(log: list[str], monkeypatch: Any) -> None:
    drafter = Drafter()
    monkeypatch.setattr(drafter.backend, "capture", mock.Mock(side_effect=RuntimeError("first")))
    second = mock.Mock(side_effect=RuntimeError("second"))
    monkeypatch.setattr(ranks, "even_out_recorded_all_reduces", second)
    drafter.capture()
    assert drafter.propose() is None
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn")
    assert "RuntimeError: first" in line
    assert "RuntimeError: second" in line


def test_a_profile_keeps_nothing(log: list[str]) -> None:
    drafter = Drafter()
    assert drafter.graphs.profile(drafter.runner) > 0
    # The two largest of each role.
    assert len(drafter.backend.graphs) == 4
    assert drafter.keys == []
    assert log == []
    assert drafter.propose() is None


def test_a_refusal_at_the_capture_is_one_line(log: list[str]) -> None:
    drafter = Drafter()
    drafter.backend.attention = ()
    drafter.capture()
    (line,) = log
    assert line.startswith("INFO Draft graphs: none (mode auto)")
    assert "attention backend CPU_ATTN of the draft is not known" in line
    assert drafter.propose() is None


@pytest.mark.parametrize(("kept", "level"), [(False, "WARNING"), (True, "INFO")])
def test_what_no_gpu_has_shown_is_named_when_it_is_captured(
    log: list[str], kept: bool, level: str
) -> None:
    drafter = Drafter(untried=not kept)
    double = drafter.backend.attention[-1]
    shown = replace(double, evidence="reading", where="a page", kept=kept)
    drafter.backend.attention = (shown,)
    drafter.capture()
    assert drafter.keys
    (line,) = [each for each in log if "no GPU has shown" in each]
    assert line.startswith(f"{level} Draft graphs: ")
    assert "attention backend CPU_ATTN on platform cuda (reading: a page)" in line


def test_other_ranks_say_nothing_but_warnings(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "writes_log", lambda: False)
    drafter = Drafter()
    drafter.capture()
    assert log == []
    drafter.graphs.withdraw("a reason")
    drafter.graphs.withdraw("another one")
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn, the drafter runs as upstream: a reason")
    assert "OVERLAY_DRAFT_GRAPHS=off" in line


@pytest.mark.parametrize("call", ["capture", "profile"])
def test_a_plan_that_cannot_be_made_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, log: list[str], call: str
) -> None:
    def fails(*args: Any) -> Any:
        raise TypeError("something that this release lacks")

    monkeypatch.setattr(draft_graphs, "late_facts", fails)
    drafter = Drafter()
    if call == "profile":
        assert drafter.graphs.profile(drafter.runner) == 0
        assert log == []
        return
    drafter.capture()
    assert drafter.propose() is None
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn")
    assert "something that this release lacks" in line


def test_where_vllm_captures_nothing_the_first_draft_says_so(log: list[str]) -> None:
    """It may lower FULL_DECODE_ONLY to NONE, and then calls no capture."""
    from vllm.config import CUDAGraphMode

    drafter = Drafter()
    config = drafter.proposer.vllm_config.compilation_config
    config.cudagraph_mode = CUDAGraphMode.NONE
    for _ in range(3):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    (line,) = log
    assert line.startswith("INFO Draft graphs: none (mode auto), the drafter runs as upstream: ")
    assert "vLLM captured no graphs, cudagraph mode NONE (remove enforce_eager" in line


def test_what_a_module_holds_is_captured_again_with_the_check_on_as_well() -> None:
    """A quantized layer's workspace, say, is neither a parameter nor a buffer."""
    drafter = Drafter()
    module = drafter.proposer.model
    module.workspace = torch.zeros(2)
    drafter.graphs.check = True
    drafter.capture()
    captured = drafter.graphs.captured
    assert drafter.propose() is not None
    module.workspace = torch.zeros(2)
    assert drafter.propose() is not None
    assert drafter.graphs.captured is not captured


# What the plugin is told


def test_it_is_active_once_graphs_are_captured(effect: Callable[[], dict[str, Any]]) -> None:
    drafter = Drafter()
    drafter.graphs.profile(drafter.runner)
    assert effect() == {}, "a profile keeps no graphs"
    drafter.capture()
    assert (effect()["state"], effect()["text"]) == (
        "active",
        "7 graphs, K=3: first 3 (1, 2, 4 requests); loop 4 (1, 2, 4, 6 requests)",
    )


@pytest.mark.parametrize(
    ("mode", "replays"),
    [
        ("loop", {"replays of first": 1, "replays of loop": 2}),
        ("step", {"replays of first": 1, "replays of step": 4}),
    ],
)
def test_replays_are_counted_by_role(
    effect: Callable[[], dict[str, Any]], mode: str, replays: dict[str, int]
) -> None:
    drafter = Drafter(replace(SHAPE, mode=mode))
    drafter.capture()
    assert effect()["counts"] == {}
    assert drafter.propose() is not None
    assert drafter.later_steps() is not None
    assert effect()["counts"] == replays


def test_whatever_leaves_it_without_graphs_makes_it_idle(
    effect: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import CUDAGraphMode

    def told() -> tuple[str, str]:
        return effect()["state"], effect()["text"]

    drafter = Drafter()
    drafter.capture()
    drafter.graphs.withdraw("a reason")
    assert told() == ("idle", "withdrawn: a reason")
    drafter.backend.attention = ()
    drafter.capture()
    assert told()[0] == "idle"
    assert "attention backend CPU_ATTN of the draft is not known" in told()[1]

    never = Drafter()
    compilation = never.proposer.vllm_config.compilation_config
    monkeypatch.setattr(compilation, "cudagraph_mode", CUDAGraphMode.NONE)
    assert never.propose() is None
    state, text = told()
    assert state == "idle"
    assert text.startswith("vLLM captured no graphs, cudagraph mode NONE (")
    assert names_a_remedy(text)


def test_runners_that_draft_otherwise_or_not_at_all_are_idle(
    effect: Callable[[], dict[str, Any]],
) -> None:
    class NgramProposer:
        pass

    hooks.capture_draft_graphs(SimpleNamespace(speculative_config=None))
    assert (effect()["state"], effect()["text"]) == ("idle", "no speculative decoding")
    hooks.capture_draft_graphs(
        SimpleNamespace(speculative_config=object(), drafter=NgramProposer())
    )
    assert effect()["text"].startswith("NgramProposer drafts without a draft model")
    assert names_a_remedy(effect()["text"])
