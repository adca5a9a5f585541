"""A release's own rejection sampler and what it needs of vLLM, run from their source on a CPU."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.targets.resolution import resolve
from tests.support import triton_by_hand
from tests.support.code_edits import Edit, edited

FEATURE = "vllm.v1.sample.greedy_verification"
SPLIT = "vllm.v1.sample.split_argmax"
EFFECTS = "vllm.v1.overlay_effects"
SWITCHES = "vllm.v1.overlay_switches"
#: The feature splits the argmax of small logits, too, where splitting would not pay.
SPLIT_ALWAYS: dict[str, Any] = {"_ONE_BLOCK": range(1, 1 << 20), "_FEW_ROWS": 1 << 20}
REJECTION = "vllm.v1.sample.rejection_sampler"
SAMPLER = "vllm.v1.sample.sampler"
BUILTIN = "vllm.v1.sample.logits_processor.builtin"
#: Modules that are taken from the release; of all others there are stand-ins only.
OWN = {
    FEATURE,
    SPLIT,
    EFFECTS,
    SWITCHES,
    REJECTION,
    SAMPLER,
    BUILTIN,
    "vllm.v1.sample.draft_sampling",
    "vllm.v1.sample.logits_processor.interface",
    "vllm.v1.sample.logits_processor.state",
    "vllm.v1.sample.metadata",
    "vllm.v1.sample.ops.bad_words",
    "vllm.v1.spec_decode.fly",
    "vllm.v1.spec_decode.metadata",
    "vllm.v1.outputs",
}


class LowestToken:
    """Instead of random bonus tokens: the least likely, which no greedy request would get."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, logits: Any, *_: Any) -> tuple[Any, None]:
        return logits.argmin(dim=-1), None


def without_prompts(logits: Any, prompt_token_ids: Any, *_: Any) -> Any:
    """Instead of penalties: nothing that is in the prompt."""
    return logits.scatter(1, prompt_token_ids, float("-inf"))


def _to_device(data: Any, device: Any = None, dtype: Any = None) -> Any:
    return torch.as_tensor(data, device=device, dtype=dtype)


def _given(launches: list[Any]) -> dict[str, dict[str, Any]]:
    """What the stand-ins have."""
    utils = {"async_tensor_h2d": _to_device, "PIN_MEMORY": False}
    return {
        "vllm.logger": {"init_logger": lambda _: SimpleNamespace()},
        "vllm.triton_utils": {
            "tl": triton_by_hand.tl,
            "triton": triton_by_hand.triton(launches),
        },
        "vllm.model_executor.warmup.jit_warmup_triton_helper": {
            "triton_kernel_dispatcher_with_warmup": triton_by_hand.dispatcher
        },
        "vllm.config.model": {
            "PROCESSED_LOGPROBS_MODES": ("processed_logits", "processed_logprobs")
        },
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm._aiter_ops": {"rocm_aiter_ops": SimpleNamespace(is_enabled=lambda: False)},
        "vllm.utils.platform_utils": {"is_pin_memory_available": lambda: False},
        "vllm.utils.torch_utils": utils,
        "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": lambda **_: contextlib.nullcontext()},
        "vllm.v1.sample.ops.logprobs": {
            "batched_count_greater_than": lambda found, least: (found >= least).sum(-1)
        },
        "vllm.v1.sample.ops.penalties": {"apply_all_penalties": without_prompts},
        "vllm.v1.spec_decode.utils": {"unconditional_to_conditional_rates": list},
        "vllm.v1.sample.ops.topk_topp_sampler": {
            "TopKTopPSampler": LowestToken,
            "apply_top_k_top_p": lambda logits, *_: logits,
        },
    }


class StandIn(ModuleType):
    """A module whose names are there to be imported, not to be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError(f"{self.__name__}.{name} is a stand-in")

        return type(name, (), {"__new__": refuse})


@contextlib.contextmanager
def registered(module: ModuleType) -> Iterator[None]:
    """Where ``dataclasses`` looks up annotations that are strings, and only as long as it does."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


class Modules:
    """Those of vLLM, by their names."""

    def module(self, name: str) -> Any:
        """The vLLM that is installed."""
        return importlib.import_module(name)

    def make(self, module: str, name: str, **values: Any) -> Any:
        """An object of a dataclass, of those of the values that it has in this release."""
        kind = getattr(self.module(module), name)
        return kind(**{n: v for n, v in values.items() if n in kind.__dataclass_fields__})


class World(Modules):
    """The modules of one release, imported by each other without ``sys.modules``.

    read: the text of a file of the release, or None. launches: of kernels, as they come.
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self.launches: list[Any] = []
        self._read = read
        self._modules: dict[str, Any] = {}
        self._given = _given(self.launches)
        self._builtins = vars(builtins) | {"__import__": self._import}

    def module(self, name: str) -> Any:
        """A module, run if it was not yet."""
        if name not in self._modules:
            text = self._read(name.replace(".", "/") + ".py") if name in OWN else None
            module = StandIn(name) if text is None else ModuleType(name)
            self._modules[name] = module
            vars(module).update(self._given.get(name, {}))
            if text is not None:
                # Builtins of a module made here.
                module.__builtins__ = self._builtins  # type: ignore[attr-defined]
                with registered(module):
                    exec(compile(text, f"{name} of the release", "exec"), vars(module))
                if name == SPLIT:
                    vars(module).update(SPLIT_ALWAYS)
        return self._modules[name]

    def _import(self, name: str, *others: Any) -> Any:
        # As `from name import ...` wants it; no module of OWN imports vLLM otherwise.
        if name.split(".", maxsplit=1)[0] == "vllm":
            return self.module(name)
        return builtins.__import__(name, *others)


@functools.cache
def texts(release: str) -> dict[str, tuple[bytes | None, bytes | None]]:
    """What the feature changes in a release: by path, before and after."""
    target = resolve(release)
    features = [one for one in load([shipped_folder()]) if one.id == "greedy-verification"]
    changes = plan(features, target, target.release).changes
    return {one.path: (one.before, one.after) for one in changes}


@functools.cache
def world(release: str, patched: bool, bug: Edit | None = None) -> World:
    """A release without or with the feature; bug: an edit of one of the feature's files."""
    target, changed = resolve(release), texts(release)

    def read(path: str) -> bytes | None:
        text = changed[path][patched] if path in changed else target.read(path)
        if bug is not None and path == bug[0]:
            assert text is not None
            return edited(text.decode(), [bug[1:]], path).encode()
        return text

    return World(read)


#: Of the sampler, what a greedy bonus token goes through.
_OF_SAMPLER = ("forward", "apply_logits_processors", "sample", "greedy_sample")


def code(release: str) -> tuple[str, str]:
    """The code of a release that the feature replaces, but for docstrings."""
    found = []
    for module in (REJECTION, SAMPLER):
        text = resolve(release).read(module.replace(".", "/") + ".py")
        assert text is not None
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        greedy = [n for n in functions if module == REJECTION or n.name in _OF_SAMPLER]
        found.append("\n".join(map(ast.unparse, greedy)))
    return found[0], found[1]
