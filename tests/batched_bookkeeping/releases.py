"""The functions of a release beside the feature's, and the batch of the installed vLLM.

Upstream's functions are those of the releases, pristine and patched, as their sources have them.
Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, seed, settings

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.batched_bookkeeping.mutations import Bug
from tests.support.beside_vllm import PATCHES, put_beside_vllm
from tests.support.code_edits import edited

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("batched-bookkeeping")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import batched_bookkeeping as shipped
from vllm.v1.worker.gpu_input_batch import InputBatch

FEATURE = "batched-bookkeeping"
NAME = "vllm.v1.worker.batched_bookkeeping"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
SAMPLER = "vllm/v1/sample/rejection_sampler.py"
WIDTH, VOCABULARY, K, MOST = 16, 50, 3, 6


@functools.cache
def text(release: str, path: str) -> bytes:
    """A file of a release that the feature leaves as it is."""
    content = resolve(release).read(path)
    assert content is not None
    return content


@functools.cache
def sources(release: str) -> dict[str, tuple[bytes, bytes]]:
    """The files that the feature changes, pristine and patched."""
    features = [each for each in load([shipped_folder()]) if each.id == FEATURE]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    return {c.path: (c.before, c.after) for c in changes if c.before is not None and c.after}


def method(source: bytes, owner: str, name: str) -> ast.FunctionDef:
    """A method of a class, without its docstring; of a large file nothing else is parsed."""
    start = re.search(rf"^class {owner}\b(?:.*\n)*?.*\n(?=    def {name}\()", source.decode(), re.M)
    assert start is not None
    text = source.decode()[start.end() :]
    end = re.search(r"\n(?=\S|    [@\w])", text)
    (node,) = ast.parse(textwrap.dedent(text[: end.start()] if end else text)).body
    assert isinstance(node, ast.FunctionDef)
    if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
        del node.body[0]
    return node


def compiled(release: str, nodes: Sequence[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
    """The functions or classes, in a module that has these names."""
    future = ast.parse("from __future__ import annotations").body
    for node in nodes:
        module = ast.Module([*future, node], [])
        exec(compile(ast.fix_missing_locations(module), release, "exec"), names)
    return names


def with_bug(name: str, bug: Bug) -> ModuleType:
    """A module that the feature adds, with a bug."""
    file = PATCHES / FEATURE / "files" / f"{name.replace('.', '/')}.py"
    module = ModuleType(name)
    exec(compile(edited(file.read_text(), [bug]), file, "exec"), vars(module))
    return module


@contextmanager
def feature(bug: Bug | None = None) -> Iterator[Any]:
    """The feature's module, or that with a bug, for batches of any size."""
    module: Any = shipped if bug is None else with_bug(NAME, bug)
    worker = sys.modules["vllm.v1.worker"]
    with (
        mock.patch.dict(sys.modules, {NAME: module}),
        mock.patch.object(worker, "batched_bookkeeping", module),
        mock.patch.multiple(module, FEWEST_ROWS=1, FEWEST_GOING_ON=1),
    ):
        yield module


def each_bug_of(bugs: list[Bug]) -> pytest.MarkDecorator:
    """The parametrization that runs a test once for each bug.

    One that changes the same part of a function as another one repeats it: those are `thorough`.
    """
    shown, parameters = set[tuple[str, str]](), []
    for bug in bugs:
        marks = pytest.mark.thorough if bug[:2] in shown else ()
        parameters.append(pytest.param(bug, id=f"{bug[1]} -> {bug[2]}", marks=marks))
        shown.add(bug[:2])
    return pytest.mark.parametrize("bug", parameters)


def assert_noticed(
    bug: Bug,
    law: Callable[..., None],
    examples: int,
    *errors: type[Exception],
    within: Callable[[Bug], AbstractContextManager[Any]] = feature,
) -> None:
    """Assert that a law fails, on the same examples each time, if the feature has a bug.

    :param law: what `given` returns, without settings.
    :param examples: how many are tried at most.
    :param errors: errors of Python, numpy or PyTorch that the bug may cause instead.
    :param within: puts the bug in.
    """
    seeded = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
    )(seed(1)(law))
    with within(bug), pytest.raises((AssertionError, *errors)):
        seeded()


def make_batch() -> Any:
    """An empty batch, with zeros where its memory would hold anything."""
    with mock.patch.object(torch, "empty", torch.zeros), mock.patch.object(np, "empty", np.zeros):
        return InputBatch(
            max_num_reqs=MOST + 1,
            max_model_len=WIDTH,
            max_num_batched_tokens=64,
            device=torch.device("cpu"),
            vocab_size=VOCABULARY,
            block_sizes=[4],
            max_num_blocks_per_req=[WIDTH // 4],
            num_spec_tokens=K,
        )


def plain(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All fields of a value, in values that `==` compares; what was seen before by its number."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return type(value).__name__, value
    if callable(value) and not hasattr(value, "__dict__"):
        return "callable"
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return "dict", [(plain(key, seen), plain(value[key], seen)) for key in value]
    if isinstance(value, set | frozenset):
        return "set", sorted(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(each, seen) for each in value]
    if isinstance(value, torch.device | torch.dtype) or callable(value):
        return str(type(value))
    if hasattr(value, "__dict__"):
        return type(value).__name__, plain(vars(value), seen)
    return type(value).__name__, [
        (name, plain(getattr(value, name, None), seen)) for name in getattr(value, "__slots__", ())
    ] or repr(value)


def counts(*names: str) -> dict[str, int]:
    """What the process has counted of the feature; 0 for these names if it has not."""
    told = effects().get(FEATURE)
    return dict.fromkeys(names, 0) | (told["counts"] if told else {})


def effect() -> tuple[str, str]:
    told = effects()[FEATURE]
    return told["state"], told["text"]
