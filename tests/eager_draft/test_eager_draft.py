"""enforce_eager of the draft holds on model runner V2. Needs vLLM.

Each release's own speculators, handed a mode by its own runner, note of which modes they make their
graphs; and each mistake that was put in is noticed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.support.covering import each_release
from tests.support.shipped_features import EAGER, feature

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.releases import compiled
from tests.support.beside_vllm import PATCHES, put_beside_vllm
from tests.support.code_edits import run_edited

put_beside_vllm(EAGER)

# isort: split
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import eager_draft

pytestmark = pytest.mark.network

FOLDER = "vllm/v1/worker/gpu/"
METHOD = "init_cudagraph_manager"
NONE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.FULL_AND_PIECEWISE


@functools.cache
def texts(release: str, *, patched: bool) -> dict[str, str]:
    """The runner and the speculators of a release, by path."""
    target = resolve(release)
    changes = plan([feature(EAGER)], target, target.release, target.record, Syntax()).changes
    after = {change.path: change.after for change in changes if patched}
    return {
        path: (after.get(path) or target.read(path) or b"").decode()
        for path in target.paths()
        if path == f"{FOLDER}model_runner.py"
        or (path.startswith(f"{FOLDER}spec_decode/") and path.endswith("speculator.py"))
    }


def modes(release: str, *, patched: bool, eager: bool | None, mode: Any = FULL) -> list[list[Any]]:
    """The modes of which each speculator of a release makes graphs, at the runner's call."""
    found = texts(release, patched=patched)
    call = next(
        node
        for node in ast.walk(ast.parse(found[f"{FOLDER}model_runner.py"]))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "self.speculator is not None"
        if f"speculator.{METHOD}(" in ast.unparse(node)
    )
    run = ast.parse("def run(self, cudagraph_mode): pass").body[0]
    assert isinstance(run, ast.FunctionDef)
    run.body = [call]
    start = compiled(release, [run], {})["run"]
    config = SimpleNamespace(enforce_eager=eager)
    made = []
    for path, text in found.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == METHOD:
                if "CudaGraphManager(" not in ast.unparse(node):
                    continue  # it never has graphs
                speculator = drafter(release, node, config, mode)
                start(SimpleNamespace(speculator=speculator, speculative_config=config), mode)
                assert speculator.modes, path
                made.append(speculator.modes)
    return made


def drafter(release: str, node: ast.FunctionDef, config: Any, mode: Any) -> Any:
    """A speculator with a release's own function, whose graphs are doubles."""
    noted: list[Any] = []

    def manager(_config: Any, _device: Any, of: Any, *_: Any, **_named: Any) -> Any:
        noted.append(of)
        return SimpleNamespace(pool=None)

    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    world: dict[str, Any] = {name: manager for name in names if name.endswith("CudaGraphManager")}
    world |= {"CUDAGraphMode": CUDAGraphMode, "AttentionCGSupport": AttentionCGSupport}
    world |= {"is_breakable_cudagraph_enabled": lambda: False}
    always = SimpleNamespace(min_cg_support=AttentionCGSupport.ALWAYS)
    self = SimpleNamespace(
        **dict.fromkeys(("device", "num_query_per_req", "dflash_causal")),
        modes=noted,
        speculative_config=config,
        num_speculative_steps=3,
        attn_cg_support=always,
        vllm_config=SimpleNamespace(compilation_config=SimpleNamespace(cudagraph_mode=mode)),
    )
    setattr(self, METHOD, MethodType(compiled(release, [node], world)[METHOD], self))
    return self


@pytest.mark.parametrize("release", each_release(EAGER))
def test_every_release_captures_a_draft_that_is_to_run_eagerly(release: str) -> None:
    stock = modes(release, patched=False, eager=True)
    assert stock
    assert all(NONE not in each for each in stock)


@pytest.mark.parametrize("release", each_release(EAGER))
def test_it_has_no_graphs(release: str) -> None:
    law(release)


def law(release: str) -> None:
    """Who asks for an eager draft gets no graphs, and everybody else what upstream makes."""
    assert all(set(each) == {NONE} for each in modes(release, patched=True, eager=True))
    for mode in (NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY, FULL):
        for eager in (None, False):
            stock = modes(release, patched=False, eager=eager, mode=mode)
            assert modes(release, patched=True, eager=eager, mode=mode) == stock


def test_switched_off_it_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(eager_draft.VARIABLE, "off")
    stock = modes("0.33.0", patched=False, eager=True)
    assert modes("0.33.0", patched=True, eager=True) == stock


@pytest.mark.parametrize(
    ("eager", "mode", "state"), [(True, FULL, "active"), (None, FULL, "idle"), (True, NONE, "idle")]
)
def test_the_effect_is_reported(eager: bool | None, mode: Any, state: str) -> None:
    eager_draft.mode_of_draft(SimpleNamespace(enforce_eager=eager), mode)
    assert effects()[EAGER]["state"] == state


#: Mistakes, each noticed: a scope, what it has, and what it gets instead.
BUGS = (
    ("mode_of_draft", "not config.enforce_eager", "config.enforce_eager"),
    ("mode_of_draft", "not config.enforce_eager", "config.enforce_eager is False"),
    ("mode_of_draft", "return type(mode).NONE", "pass"),
    ("mode_of_draft", "return mode", "return type(mode).NONE"),
)


@pytest.fixture
def changed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The module with a mistake."""
    file = PATCHES / "eager-draft/files/vllm/v1/worker/eager_draft.py"
    names = run_edited(file, [request.param], eager_draft.__name__)
    with mock.patch.object(eager_draft, "mode_of_draft", names["mode_of_draft"]):
        yield


@pytest.mark.parametrize("changed", BUGS, indirect=True, ids=lambda bug: f"{bug[1]} -> {bug[2]}")
@pytest.mark.usefixtures("changed")
def test_a_mistake_is_noticed() -> None:
    with pytest.raises(AssertionError):
        law("0.33.0")
