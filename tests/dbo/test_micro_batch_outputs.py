"""Outputs of micro-batches: what is joined is what one batch would have returned. Needs vLLM."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm
from tests.support.covering import each_release

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("dbo")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1 import overlay_effects
from vllm.v1.worker import micro_batch_outputs

FEATURE = "dbo-eagle3"
WRAPPER = "vllm/v1/worker/gpu_ubatch_wrapper.py"

#: Tensors of as many rows as the batch has tokens, in tuples and lists.
SHAPES = st.recursive(
    st.integers(1, 3),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(micro_batch_outputs.VARIABLE, raising=False)


def output(shape: Any, tokens: int) -> Any:
    """An output of a batch: each tensor other than every other one."""
    if isinstance(shape, int):
        output.made += 1  # type: ignore[attr-defined]  # a function that carries its own count
        # A function that carries its own count.
        first = 1000 * output.made  # type: ignore[attr-defined]
        return torch.arange(first, first + tokens * shape).view(tokens, shape)
    return type(shape)(output(each, tokens) for each in shape)


output.made = 0  # type: ignore[attr-defined]  # a function that carries its own count


def rows(value: Any, part: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[part]
    return type(value)(rows(each, part) for each in value)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return (
        type(a) is type(b)
        and len(a) == len(b)
        and all(same(*each) for each in zip(a, b, strict=True))
    )


def cut(shape: Any, sizes: list[int]) -> tuple[Any, list[Any]]:
    """An output of a whole batch, and those of its micro-batches."""
    whole = output(shape, sum(sizes))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return whole, [
        rows(whole, slice(at, at + size)) for at, size in zip(starts, sizes, strict=True)
    ]


@given(SHAPES, st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_any_output_is_joined_to_that_of_the_whole_batch(shape: Any, sizes: list[int]) -> None:
    whole, parts = cut(shape, sizes)
    assert same(micro_batch_outputs.joined(parts), whole)


def test_another_order_of_the_micro_batches_is_noticed() -> None:
    whole, parts = cut((2, [3, 3]), [2, 3])
    assert not same(micro_batch_outputs.joined(parts[::-1]), whole)


def test_different_numbers_of_tensors_are_an_error() -> None:
    one = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="zip"):
        micro_batch_outputs.joined([(one, [one]), (one, [one, one])])


def test_anything_else_is_an_error() -> None:
    with pytest.raises(TypeError):
        micro_batch_outputs.joined([{"a": 1}, {"a": 2}])


def test_the_switch_leaves_it_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    _, parts = cut((2, [3, 3]), [1, 2])
    monkeypatch.setenv(micro_batch_outputs.VARIABLE, "off")
    assert micro_batch_outputs.joined_outputs(parts) is None
    assert overlay_effects.effects()[FEATURE]["text"] == "OVERLAY_DBO_EAGLE3=off"
    monkeypatch.setenv(micro_batch_outputs.VARIABLE, "1")
    with pytest.raises(ValueError, match="OVERLAY_DBO_EAGLE3 is '1'; set it to on or off"):
        micro_batch_outputs.joined_outputs(parts)


# Against the releases


def patched(release: str, path: str = WRAPPER) -> ast.Module:
    features = [each for each in load([shipped_folder()]) if each.id == "dbo"]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    (after,) = [change.after for change in changes if change.path == path]
    assert after is not None
    return ast.parse(after)


class Thread:
    """A thread that runs when it is joined."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        """Wait to be joined."""

    def join(self) -> None:
        """Run."""
        self.target(*self.args)


class Context:
    """A micro-batch's context."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.compute_stream = self.comm_stream = None
        self.cpu_wait_event = SimpleNamespace(set=lambda: None)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def run(release: str, method: str, parts: list[Any]) -> Any:
    """What a release's own method, patched, makes of the outputs of its micro-batches."""
    # Over fifty lines: one step of the runner, whose parts share their state.
    tree = patched(release)
    (wrapper,) = [
        each
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name == "UBatchWrapper"
    ]
    wrapper.body = [
        each for each in wrapper.body if isinstance(each, ast.FunctionDef) and each.name == method
    ]
    functions = [
        each
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and each.name == "_cat_ubatch_outputs"
    ]
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module([*future, *functions, wrapper], [])

    @contextlib.contextmanager
    def nothing(*args: Any, **kwargs: Any) -> Any:
        yield

    cuda = SimpleNamespace(
        set_device=lambda device: None,
        current_blas_handle=lambda: None,
        stream=nothing,
        graph=nothing,
        CUDAGraph=lambda: None,
    )
    names: dict[str, Any] = {
        "torch": SimpleNamespace(
            cat=torch.cat,
            inference_mode=torch.inference_mode,
            cuda=cuda,
            accelerator=SimpleNamespace(set_device_index=lambda device: None),
        ),
        "threading": SimpleNamespace(Thread=Thread),
        "override_forward_context": nothing,
        "CUDAGraphMetaData": SimpleNamespace,
        "set_graph_pool_id": lambda pool: None,
        "current_platform": SimpleNamespace(graph_pool_handle=lambda: None),
        "get_offloader": lambda: SimpleNamespace(
            sync_prev_onload=lambda: None, join_after_forward=lambda: None
        ),
    }
    exec(compile(ast.unparse(module), WRAPPER, "exec"), names)
    this = SimpleNamespace(
        ready_barrier=SimpleNamespace(wait=lambda: None),
        device=None,
        graph_pool=None,
        cudagraphs={},
    )
    metadata = [
        SimpleNamespace(
            context=Context(number),
            input_ids=part,
            positions=None,
            intermediate_tensors=None,
            inputs_embeds=None,
            num_tokens=1,
        )
        for number, part in enumerate(parts)
    ]
    return getattr(names["UBatchWrapper"], method)(
        this, metadata, lambda input_ids, **others: input_ids
    )


@pytest.mark.network
@pytest.mark.parametrize("method", ["_run_ubatches", "_capture_ubatches"])
@pytest.mark.parametrize("release", each_release("dbo"))
def test_every_release_joins_what_its_targets_return(release: str, method: str) -> None:
    for shape, state in ((2, "idle"), ((2, [3, 3, 3]), "active"), ((2, 3), "active")):
        whole, parts = cut(shape, [3, 5])
        assert same(run(release, method, parts), whole)
        assert overlay_effects.effects()[FEATURE]["state"] == state
