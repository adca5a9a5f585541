"""What vLLM gets when the draft model has been loaded, and what the log says of it. Needs vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

# What is imported below needs both of them.
pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.policy_table import names_a_remedy
from tests.draft_graphs.recorded_backend import RecordedBackend

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1 import overlay_effects
from vllm.v1.spec_decode.draft_graphs import graph_backend, hooks, policy
from vllm.v1.spec_decode.eagle import EagleProposer

pytestmark = pytest.mark.usefixtures("one_rank")


def create(monkeypatch: pytest.MonkeyPatch, *, facts: Any = None, **variables: str) -> Any:
    for name in ("", "_CHECK", "_UNTRIED"):
        monkeypatch.delenv(f"OVERLAY_DRAFT_GRAPHS{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = facts or policy.Facts(num_speculative_tokens=3)
    monkeypatch.setattr(hooks, "early_facts", lambda proposer, backend: found)
    monkeypatch.setattr(graph_backend, "default_graph_backend", RecordedBackend)
    return hooks.create_draft_graphs(Drafter().proposer)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("OVERLAY_DRAFT_GRAPHS", "off, step, loop, auto"),
        ("OVERLAY_DRAFT_GRAPHS_CHECK", "on or off"),
        ("OVERLAY_DRAFT_GRAPHS_UNTRIED", "on or off"),
    ],
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


@pytest.mark.parametrize("value", ["on", "1"])
def test_the_user_may_grant_what_no_gpu_has_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Attention backends at present, which are known when vLLM captures."""
    assert not create(monkeypatch)._facts.untried
    assert create(monkeypatch, OVERLAY_DRAFT_GRAPHS_UNTRIED=value)._facts.untried


def test_a_class_that_drafts_by_its_own_code_is_one_line(log: list[str]) -> None:
    """As vllm-ascend's proposers, whose `load_model` asks for no graphs."""

    class Ascend(EagleProposer):  # type: ignore[misc]  # mypy sees no vLLM
        draft_graphs = None

    runner = SimpleNamespace(speculative_config=object(), drafter=object.__new__(Ascend))
    hooks.capture_draft_graphs(runner)
    (line,) = log
    assert line.startswith("INFO Draft graphs: none (mode auto), the drafter runs as upstream: ")
    assert "Ascend of tests." in line
    assert "loads its model and drafts by its own code" in line
    told = overlay_effects.effects()["draft-graphs"]
    assert (told["state"], told["text"] in line) == ("idle", True)
    assert names_a_remedy(told["text"])
    # One that asked has been answered by `create_draft_graphs`.
    runner.drafter.draft_graphs = None
    hooks.capture_draft_graphs(runner)
    assert len(log) == 1


def test_a_rank_without_a_drafter_says_so(log: list[str]) -> None:
    hooks.capture_draft_graphs(SimpleNamespace(speculative_config=object(), drafter=None))
    (line,) = log
    assert "this rank has no drafter (of several pipeline stages the last one has it)" in line


def test_off_is_one_line_and_no_graphs(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    assert create(monkeypatch, OVERLAY_DRAFT_GRAPHS="off") is None
    (line,) = log
    assert line == (
        "INFO Draft graphs: none (mode off), the drafter runs as upstream: "
        "OVERLAY_DRAFT_GRAPHS=off."
    )
    told = overlay_effects.effects()["draft-graphs"]
    assert (told["state"], told["text"]) == ("idle", "OVERLAY_DRAFT_GRAPHS=off")


def test_a_refusal_is_one_line_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    facts = policy.Facts(num_speculative_tokens=3, rswa=True, fast_prefill=True)
    assert create(monkeypatch, facts=facts) is None
    (line,) = log
    assert line.startswith("INFO ")
    assert "R-SWA takes" in line
    assert overlay_effects.effects()["draft-graphs"]["text"] in line
    assert "kv_sharing_fast_prefill" in line
