"""From the capture to the withdrawal of one drafter's graphs, and what the log says of it.

No engine runs: it is the proposer of `upstream_twin.py`, with recordings for graphs. Needs vLLM.
"""

from __future__ import annotations

import gc
import random
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import vllm.v1.spec_decode  # noqa: E402
from added_modules import FOLDER  # noqa: E402

# As in a patched vLLM: the feature's modules lie beside vLLM's own.
if str(FOLDER) not in vllm.v1.spec_decode.__path__:
    vllm.v1.spec_decode.__path__.append(str(FOLDER))

import upstream_twin as twin  # noqa: E402
from recorded_backend import RecordedBackend  # noqa: E402
from twin_model import HIDDEN, WIDTH, Shape  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.v1.spec_decode.draft_graphs import compat, graph_backend, graphs, policy  # noqa: E402

SHAPE = Shape(k=3, mode="auto", max_num_seqs=6, max_capture_tokens=16)
FIRST, LATER = [1, 2, 4], [1, 2, 4, 6]
ROLES = frozenset({"first", "step", "loop"})


class Drafter:
    """A proposer and its draft graphs, not captured yet."""

    def __init__(self, shape: Any = SHAPE, **facts: Any) -> None:
        self.shape = shape
        config = VllmConfig()
        config.model_config = SimpleNamespace(uses_mrope=False)
        self.proposer = twin.make_proposer(shape, config, twin.Parts())
        self.backend = RecordedBackend()
        table = SimpleNamespace(get_device_tensor=lambda rows: torch.zeros(rows, WIDTH))
        self.runner = SimpleNamespace(input_batch=SimpleNamespace(block_table=[table]))
        self.graphs: Any = graphs.DraftGraphs(
            self.proposer,
            mode=shape.mode,
            backend=self.backend,
            check=False,
            facts=policy.Facts(num_speculative_tokens=shape.k, **facts),
        )

    def capture(self) -> None:
        self.graphs.capture(self.runner)

    @property
    def keys(self) -> list[str]:
        found = self.proposer.cudagraph_dispatcher.draft_keys
        return [f"{key.role} {key.num_reqs}" for key in found]

    def batch(self, reqs: int = 3) -> dict[str, Any]:
        """A uniform batch that a graph holds; smaller if the KV cache is."""
        lengths: Callable[..., list[int]] = lambda shape, dice, _: [shape.k + 1] * reqs  # noqa: E731
        dice = mock.Mock(wraps=random.Random(0))
        dice.randint.side_effect = [reqs, *[8] * reqs, *[0] * reqs]
        dice.random.return_value = 0.0
        return twin.make_batch(self.shape, dice, replace(twin.Parts(), lengths=lengths))

    def propose(self, **changes: Any) -> Any:
        return self.graphs.propose(**{**self.batch(), **changes})

    def later_steps(self, **changes: Any) -> Any:
        batch = self.batch()
        arguments = {
            "draft_token_ids": torch.tensor([1, 2, 3]),
            "positions": torch.tensor([4, 5, 6]),
            "hidden_states": torch.zeros(3, HIDDEN),
            "num_rejected_tokens_gpu": None,
        }
        shared = ("common_attn_metadata", "sampling_metadata")
        return self.graphs.later_steps(
            **{**arguments, **{name: batch[name] for name in shared}, **changes}
        )


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process, one rank, which writes the log."""
    twin.use_cpu_kernels()
    monkeypatch.setattr(compat, "all_ranks_agree", lambda yes: yes)
    monkeypatch.setattr(compat, "even_out_recorded_all_reduces", lambda backend: None)
    monkeypatch.setattr(compat, "is_speaker", lambda: True)
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        yield


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the module says, with its level."""
    lines: list[str] = []

    def say(level: str) -> Callable[..., None]:
        return lambda text, *values, **_: lines.append(f"{level} {text % values}")

    monkeypatch.setattr(graphs.logger, "info", say("INFO"))
    monkeypatch.setattr(graphs.logger, "warning", say("WARNING"))
    return lines


def test_a_capture_is_one_line_with_all_that_it_took(log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.keys == [f"first {n}" for n in FIRST] + [f"loop {n}" for n in LATER]
    (line,) = log
    assert re.fullmatch(
        r"INFO Draft graphs: mode auto, K=3; captured first 3 \(1, 2, 4 requests\); "
        r"loop 4 \(1, 2, 4, 6 requests\); \d+ MiB, \d+\.\d s\. As upstream: "
        r"first passes over 4 requests, the largest capture size being 16 tokens",
        line,
    ), line


def test_no_key_is_there_before_every_graph_is(log: list[str]) -> None:
    drafter = Drafter()
    seen: list[int] = []
    capture = drafter.backend.capture

    def watched(function: Callable[[], None], pool: object) -> Any:
        seen.append(len(drafter.keys))
        return capture(function, pool)

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


def test_a_kv_cache_that_is_made_anew_withdraws_until_the_next_capture(log: list[str]) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.propose() is not None
    captured = weakref.ref(drafter.graphs._captured)
    # Equal groups, but other ones.
    drafter.proposer.draft_attn_groups = [*drafter.proposer.draft_attn_groups]
    for _ in range(3):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    assert drafter.keys == []
    gc.collect()
    assert captured() is None, "the graphs still hold their memory"
    (warning,) = [line for line in log if line.startswith("WARNING")]
    assert "KV cache was initialized anew" in warning
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

    drafter.backend.capture = fails  # type: ignore[method-assign]
    drafter.capture()
    assert len(calls) == number + 1, "it went on after a failure"
    for _ in range(2):
        assert drafter.propose() is None
        assert drafter.later_steps() is None
    assert drafter.keys == []
    assert drafter.graphs._captured is None
    (line,) = log
    assert line.startswith("WARNING Draft graphs withdrawn, the drafter runs as upstream: ")
    assert "RuntimeError: on purpose" in line


def test_another_ranks_failure_is_a_failure(log: list[str], monkeypatch: Any) -> None:
    answers = iter([True, True, False])
    monkeypatch.setattr(compat, "all_ranks_agree", lambda yes: next(answers))
    drafter = Drafter()
    with mock.patch.object(compat, "even_out_recorded_all_reduces") as evened:
        drafter.capture()
    assert drafter.keys == []
    assert len(drafter.backend.graphs) == 2
    evened.assert_called_once()
    assert "another tensor-parallel rank failed" in log[0]


def test_a_profile_keeps_nothing(log: list[str]) -> None:
    drafter = Drafter()
    assert drafter.graphs.profile(drafter.runner) > 0
    # The two largest of each role.
    assert len(drafter.backend.graphs) == 4
    assert drafter.keys == []
    assert log == []
    assert drafter.propose() is None


def widened(batch: dict[str, Any]) -> dict[str, Any]:
    common = batch["common_attn_metadata"]
    table = torch.cat([common.block_table_tensor, common.block_table_tensor], 1)
    return {"common_attn_metadata": replace(common, block_table_tensor=table)}


def chosen_by_request(batch: dict[str, Any]) -> dict[str, Any]:
    common = batch["common_attn_metadata"]
    return {"common_attn_metadata": replace(common, causal=torch.ones(3, dtype=torch.bool))}


def with_an_image(batch: dict[str, Any]) -> dict[str, Any]:
    return {"mm_embed_inputs": ([torch.zeros(1, HIDDEN)], torch.ones(12, dtype=torch.bool))}


def narrower(batch: dict[str, Any]) -> dict[str, Any]:
    return {"target_hidden_states": batch["target_hidden_states"][:, : 2 * HIDDEN]}


@pytest.mark.parametrize("change", [widened, chosen_by_request, with_an_image, narrower])
def test_what_no_graph_holds_is_left_to_upstream(change: Any) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.propose(**change(drafter.batch())) is None
    assert drafter.propose() is not None, "it is not withdrawn for that"


@pytest.mark.parametrize("change", [widened, chosen_by_request])
def test_nor_are_its_later_passes_drafted(change: Any) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.later_steps(**change(drafter.batch())) is None
    assert drafter.later_steps() is not None


def test_drafts_that_are_sampled_are_upstreams() -> None:
    drafter = Drafter(probabilistic=True)
    drafter.capture()
    sampled = {"sampling_metadata": SimpleNamespace(all_greedy=False)}
    assert drafter.propose(**sampled) is None
    assert drafter.later_steps(**sampled) is None
    assert drafter.propose() is not None
    # Greedy drafts for sampled requests are what upstream drafts, too.
    greedy = Drafter()
    greedy.capture()
    assert greedy.propose(**sampled) is not None


def test_the_largest_batches_are_upstreams() -> None:
    drafter = Drafter()
    drafter.capture()
    for reqs in range(1, 7):
        drafts = drafter.graphs.propose(**drafter.batch(reqs))
        assert (drafts is not None) == (reqs <= max(FIRST)), reqs


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_a_loop_serves_its_own_k_only(k: int) -> None:
    drafter = Drafter()
    drafter.capture()
    drafts = drafter.propose(num_speculative_tokens=k)
    # With K=1 there is no later pass, and nothing to differ.
    assert (drafts is not None) == (k in (1, 3))
    assert drafts is None or drafts.shape == (3, k)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_steps_serve_every_k_up_to_the_configured_one(k: int) -> None:
    drafter = Drafter(replace(SHAPE, mode="step"))
    drafter.capture()
    drafts = drafter.propose(num_speculative_tokens=k)
    assert (drafts is not None) == (1 <= k <= 3)
    assert drafts is None or drafts.shape == (3, k)


# ---- what vLLM calls when the draft model has been loaded


def create(monkeypatch: pytest.MonkeyPatch, *, facts: Any = None, **variables: str) -> Any:
    for name in ("OVERLAY_DRAFT_GRAPHS", "OVERLAY_DRAFT_GRAPHS_CHECK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = facts or policy.Facts(num_speculative_tokens=3)
    monkeypatch.setattr(graphs, "early_facts", lambda proposer, backend: found)
    monkeypatch.setattr(graph_backend, "default_graph_backend", RecordedBackend)
    return graphs.create_draft_graphs(Drafter().proposer)


@pytest.mark.parametrize(
    ("variable", "said"),
    [("OVERLAY_DRAFT_GRAPHS", "off, step, loop, auto"), ("OVERLAY_DRAFT_GRAPHS_CHECK", "0 or 1")],
)
def test_an_unknown_value_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    with pytest.raises(ValueError, match=f"{variable} is 'fast'.*{said}"):
        create(monkeypatch, **{variable: "fast"})


@pytest.mark.parametrize("mode", ["", "step", "loop", "auto"])
def test_the_mode_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, log: list[str], mode: str
) -> None:
    variables = {"OVERLAY_DRAFT_GRAPHS": mode} if mode else {}
    made = create(monkeypatch, **variables)
    assert (made.mode, made.check) == (mode or "auto", False)
    assert create(monkeypatch, OVERLAY_DRAFT_GRAPHS_CHECK="1").check
    assert log == [], "that they are captured is said when they are"


def test_off_is_one_line_and_no_graphs(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    assert create(monkeypatch, OVERLAY_DRAFT_GRAPHS="off") is None
    (line,) = log
    assert line == (
        "INFO Draft graphs: none (mode off), the drafter runs as upstream: "
        "OVERLAY_DRAFT_GRAPHS=off."
    )


def test_a_refusal_is_one_line_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    facts = policy.Facts(num_speculative_tokens=3, lora=True, eplb=True)
    assert create(monkeypatch, facts=facts) is None
    (line,) = log
    assert line.startswith("INFO ")
    assert "LoRA is on" in line
    assert "expert load balancing" in line


def test_a_refusal_at_the_capture_is_one_line(log: list[str]) -> None:
    drafter = Drafter()
    drafter.backend.attention_backends = {"OTHER": ROLES}  # type: ignore[misc]
    drafter.capture()
    (line,) = log
    assert line.startswith("INFO Draft graphs: none (mode auto)")
    assert "attention backend CPU_ATTN of the draft is not known" in line
    assert drafter.propose() is None


def test_other_ranks_say_nothing_but_warnings(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "is_speaker", lambda: False)
    drafter = Drafter()
    drafter.capture()
    assert log == []
    drafter.graphs.withdraw("a reason")
    drafter.graphs.withdraw("another one")
    assert log == [
        "WARNING Draft graphs withdrawn, the drafter runs as upstream: a reason",
    ]
