"""What the drafter of a micro-batched target is given in a dummy run. Needs vLLM."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.features.folder import load
from overlay.features.sources import shipped_folder
from overlay.package import KNOWN_RELEASES
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import State
from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm

pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("dbo-drafts")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1 import overlay_effects
from vllm.v1.worker import dbo_drafts

FEATURE = "dbo-drafts"


def runner(**changes: Any) -> Any:
    """A model runner whose dummy runs may be split."""
    parts: dict[str, Any] = {
        "parallel_config": SimpleNamespace(use_ubatching=True),
        "speculative_config": object(),
        "drafter": SimpleNamespace(dummy_run=print),
    }
    return SimpleNamespace(**{**parts, **changes})


def effect() -> tuple[str, str]:
    told = overlay_effects.effects()[FEATURE]
    return told["state"], told["text"]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dbo_drafts.VARIABLE, raising=False)


MAPPINGS = [{"layer": "first half"}, {"layer": "second half"}]


def test_of_a_list_the_first_mapping_is_given() -> None:
    assert dbo_drafts.drafter_slot_mappings(runner(), MAPPINGS) is MAPPINGS[0]
    assert effect() == ("active", "the drafter takes dummy runs that are split into micro-batches")
    assert overlay_effects.effects()[FEATURE]["counts"] == {
        "dummy runs of the drafter beside micro-batches": 1
    }


@pytest.mark.parametrize("given", [None, {}, {"layer": "slots"}])
def test_anything_else_is_given_as_it_is(given: Any) -> None:
    assert dbo_drafts.drafter_slot_mappings(runner(), given) is given
    assert effect()[0] == "active"


def test_of_no_mappings_none_is_given() -> None:
    assert dbo_drafts.drafter_slot_mappings(runner(), []) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parallel_config": SimpleNamespace(use_ubatching=False)}, "micro-batching is off"),
        ({"speculative_config": None}, "no speculative decoding"),
        ({"drafter": object()}, "object drafts without a draft model"),
    ],
)
def test_elsewhere_it_is_idle_and_changes_nothing(changes: dict[str, Any], reason: str) -> None:
    assert dbo_drafts.drafter_slot_mappings(runner(**changes), MAPPINGS) is MAPPINGS
    state, text = effect()
    assert (state, text.startswith(reason)) == ("idle", True)


def test_a_runner_without_speculation_has_no_drafter() -> None:
    bare = SimpleNamespace(
        parallel_config=SimpleNamespace(use_ubatching=True), speculative_config=None
    )
    assert dbo_drafts.idle_reason(bare, {}) == "no speculative decoding"


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dbo_drafts.VARIABLE, "off")
    assert dbo_drafts.drafter_slot_mappings(runner(), MAPPINGS) is MAPPINGS
    assert effect() == ("idle", "OVERLAY_DBO_DRAFTS=off")
    monkeypatch.setenv(dbo_drafts.VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"OVERLAY_DBO_DRAFTS is 'fast'; set it to on or off"):
        dbo_drafts.drafter_slot_mappings(runner(), MAPPINGS)


# Against the releases


class Changed:
    """A release in which upstream has changed a text."""

    root = None

    def __init__(self, release: str, path: str, old: str, new: str) -> None:
        self.target = resolve(release)
        self.path, self.old, self.new = path, old.encode(), new.encode()
        self.name = release

    def read(self, path: str) -> bytes | None:
        data = self.target.read(path)
        if path != self.path or data is None:
            return data
        assert data.count(self.old) == 1
        return data.replace(self.old, self.new)


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_the_drafter_is_given_what_the_hook_returns(release: str) -> None:
    """The hook is the last to assign what `_dummy_run` hands to the drafter."""
    features = [each for each in load([shipped_folder()]) if each.id == FEATURE]
    target = resolve(release)
    path = "vllm/v1/worker/gpu_model_runner.py"
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    (after,) = [change.after for change in changes if change.path == path]
    assert after is not None
    (run,) = [
        node
        for node in ast.walk(ast.parse(after))
        if isinstance(node, ast.FunctionDef) and node.name == "_dummy_run"
    ]
    assigned = [
        (node.lineno, ast.unparse(node.value))
        for node in ast.walk(run)
        if isinstance(node, ast.Assign)
        and any(ast.unparse(each) == "slot_mappings" for each in node.targets)
    ]
    (call,) = [
        node
        for node in ast.walk(run)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.drafter.dummy_run"
    ]
    line, value = max(assigned)
    assert line < call.lineno
    assert value == "drafter_slot_mappings(self, slot_mappings)"
    assert "slot_mappings" in [ast.unparse(each.value) for each in call.keywords]


@pytest.mark.network
def test_it_retires_where_vllm_has_merged_its_own_fix() -> None:
    """As the pull request describes it: the drafter takes the first mapping of a list."""
    features = [each for each in load([shipped_folder()]) if each.id == FEATURE]
    merged: Any = Changed(
        "0.33.0",
        "vllm/v1/spec_decode/llm_base_proposer.py",
        "        only_one_forward_pass = is_graph_capturing or self.parallel_drafting\n",
        "        if isinstance(slot_mappings, list):\n"
        "            slot_mappings = slot_mappings[0] if slot_mappings else None\n"
        "        only_one_forward_pass = is_graph_capturing or self.parallel_drafting\n",
    )
    (result,) = plan(features, merged, merged.target.release, {}, Syntax()).features
    assert result.state is State.UPSTREAMED
