"""What the drafter of a micro-batched target is given in a dummy run. Needs vLLM."""

from __future__ import annotations

import ast
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import State
from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm
from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("dbo")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1 import overlay_effects
from vllm.v1.worker import dbo_drafts

FEATURE = "dbo-drafts"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"


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
    """A release in which upstream has changed texts, each the only one of its kind in its file."""

    root = None

    def __init__(self, release: str, *changes: tuple[str, str, str]) -> None:
        self.target = resolve(release)
        self.changes, self.name = changes, release

    def read(self, path: str) -> bytes | None:
        data = self.target.read(path)
        for changed, old, new in self.changes:
            if path == changed and data is not None:
                assert data.count(old.encode()) == 1
                data = data.replace(old.encode(), new.encode())
        return data


@functools.cache
def patched_methods(release: str) -> dict[str, ast.FunctionDef]:
    """The methods of a release's patched model runner that tests look at, by name."""
    features = [each for each in load([shipped_folder()]) if each.id == "dbo"]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    (after,) = [change.after for change in changes if change.path == RUNNER]
    assert after is not None
    tree = ast.parse(after)
    return {name: method(tree, name) for name in ("_dummy_run", "_build_attn_group_metadata")}


def method(tree: ast.Module, name: str) -> ast.FunctionDef:
    (found,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found


@pytest.mark.network
@pytest.mark.parametrize("release", each_release("dbo"))
def test_the_drafter_is_given_what_the_hook_returns(release: str) -> None:
    """The hook is the last to assign what `_dummy_run` hands to the drafter."""
    run = patched_methods(release)["_dummy_run"]
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


class Builder:
    """A metadata builder that can update a block table, and says what it did."""

    supports_update_block_table = True

    def build(self, common_prefix_len: int, common_attn_metadata: Any, **more: Any) -> str:
        return f"built for {common_attn_metadata.name}"

    def update_block_table(self, metadata: str, blocks: str, slots: str) -> str:
        return f"{metadata}, with {blocks}"


@pytest.mark.network
@pytest.mark.parametrize("switch", ["on", "off"])
@pytest.mark.parametrize("release", each_release("dbo"))
def test_every_release_builds_the_metadata_of_each_micro_batch(
    release: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own function, with two KV-cache groups of one kind and two micro-batches."""
    monkeypatch.setenv(dbo_drafts.VARIABLE, switch)
    build = patched_methods(release)["_build_attn_group_metadata"]
    group = SimpleNamespace(
        get_metadata_builder=lambda number: Builder(),
        layer_names=["layer"],
        # From 0.32 on the group builds, and maps block tables.
        build_metadata=lambda common, number: Builder().build(0, common),
        map_to_kernel_block_table=lambda blocks, number: blocks,
    )
    metadata: list[dict[str, str]] = [{}, {}]
    names: dict[str, Any] = {
        each.id: type(each.id, (), {})
        for each in ast.walk(build)
        if isinstance(each, ast.Name) and each.id[0].isupper()
    }
    names |= {
        "self": SimpleNamespace(attn_groups=[[group], [group]], model_config=None),
        "kv_cache_groups": [SimpleNamespace(kv_cache_spec="a kind")] * 2,
        "cached_attn_metadata": {},
        "cascade_attn_prefix_lens": None,
        "use_spec_decode": True,
        "for_cudagraph_capture": False,
        "attn_metadata": metadata,
    }
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.unparse(ast.Module([*future, build], [])), RUNNER, "exec"), names)

    def built(gid: int, number: int) -> str:
        name = f"{number} of group {gid}"
        common = SimpleNamespace(name=name, block_table_tensor=f"blocks {name}", slot_mapping="")
        names["_build_attn_group_metadata"](gid, 0, common, number)
        return metadata[number]["layer"]

    assert built(0, 0) == "built for 0 of group 0"
    second = built(0, 1)
    if switch == "off":
        assert second == "built for 0 of group 0, with blocks 1 of group 0", "upstream's defect"
        return
    assert second == "built for 1 of group 0"
    assert built(1, 0) == "built for 0 of group 0, with blocks 0 of group 1"
    assert built(1, 1) == "built for 1 of group 0, with blocks 1 of group 1"


#: As the pull request describes it: the drafter takes the first mapping of a list.
SLOTS = (
    "vllm/v1/spec_decode/llm_base_proposer.py",
    "        only_one_forward_pass = is_graph_capturing or self.parallel_drafting\n",
    (
        "        if isinstance(slot_mappings, list):\n"
        "            slot_mappings = slot_mappings[0] if slot_mappings else None\n"
        "        only_one_forward_pass = is_graph_capturing or self.parallel_drafting\n"
    ),
)
KEY = (
    RUNNER,
    "cache_key = (kv_cache_spec, type(builder))\n",
    "cache_key = (kv_cache_spec, type(builder), ubid)\n",
)


@pytest.mark.network
@pytest.mark.parametrize(
    ("changes", "retired"), [((SLOTS,), False), ((SLOTS, KEY), True)], ids=["one", "both"]
)
def test_its_topic_retires_where_vllm_has_mended_both(changes: Any, retired: bool) -> None:
    features = [each for each in load([shipped_folder()]) if each.id == "dbo"]
    merged: Any = Changed("0.33.0", *changes)
    (result,) = plan(features, merged, merged.target.release, None, Syntax()).features
    assert result.state is State.PRISTINE
    topics = {file.patch.split("/")[1] for file in result.files if file.patch}
    assert topics == {"20-eagle3", "30-lengths"} | (set() if retired else {"10-drafts"})
    assert ("upstream has 10-drafts (" in str(result.reason)) == retired
