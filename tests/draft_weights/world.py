"""A worker of a release, stock or mended, beside doubles of both model runners.

The worker's own functions that sleep, wake, load and reload are run; vLLM's memory pool is a double
that forgets at level 2 what was made when the models were loaded. Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.batched_bookkeeping.releases import compiled, method, torch
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-weights")

WORKER = "vllm/v1/worker/gpu_worker.py"
NAMES = ("sleep", "wake_up", "load_model", "reload_weights", "update_weights")
#: Further functions of the worker that some releases call in them.
HELPERS = ("_save_sleep_parameters", "_check_weight_transfer_engine")
LOST = -7.0


@functools.cache
def functions(release: str, mended: bool) -> dict[str, Any]:
    """The worker's functions, with doubles of all that they name."""
    target = resolve(release)
    content = target.read(WORKER)
    if mended:
        features = [each for each in load([shipped_folder()]) if each.id == "draft-weights"]
        changes = plan(features, target, target.release, target.record, Syntax()).changes
        content = next(change.after for change in changes if change.path == WORKER)
    assert content is not None
    nodes: list[ast.stmt] = [method(content, "Worker", name) for name in NAMES]
    nodes += [
        method(content, "Worker", name) for name in HELPERS if f"def {name}(".encode() in content
    ]
    device = SimpleNamespace(synchronize=lambda: None, get_memory_info=lambda: (0, 0))
    double = SimpleNamespace(
        accelerator=device,
        cuda=SimpleNamespace(mem_get_info=lambda: (0, 0)),
        Tensor=torch.Tensor,
        device=lambda name: nullcontext(),
        no_grad=torch.no_grad,
    )
    names: dict[str, Any] = {
        "torch": double,
        "time": SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None),
        "logger": mock.Mock(),
        "current_platform": mock.Mock(is_rocm=lambda: False),
        "format_gib": str,
        "fnmatch_filter": lambda names, pattern: [],
        "set_current_vllm_config": lambda config: nullcontext(),
    }
    for name in ("has_kv_transfer_group", "has_ec_transfer", "is_quantized_kv_cache"):
        names[name] = lambda *args: False
    for name in ("suspend_device_comms", "resume_device_comms", "set_torch_threads_for_runtime"):
        names[name] = lambda *args: None
    names["get_mem_allocator_instance"] = lambda: Pool.current
    return compiled(release, nodes, names)


class Pool:
    """vLLM's memory pool, by each name that the releases have for its functions."""

    current: Pool

    def __init__(self, models: list[Any]) -> None:
        self.models = models
        Pool.current = self

    def suspend(self, level: int) -> None:
        """Level 1 keeps weights elsewhere; level 2 forgets them."""
        if level == 2:
            for model in self.models:
                for module in model.modules():
                    held = (*module._parameters.values(), *module._buffers.values())
                    for tensor in (*held, *getattr(module, "packed", [])):
                        tensor.data.fill_(LOST)

    def sleep(self, offload_tags: tuple[str, ...]) -> None:
        """The allocator of earlier releases."""
        self.suspend(1 if offload_tags else 2)

    def resume(self, tags: list[str] | None = None) -> None:
        """Map the memory again."""

    wake_up = resume


class Target(torch.nn.Module):  # type: ignore[misc]
    """A model with an embedding, a head and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5)
        self.register_buffer("angles", torch.ones(3))
        self.load_weights(self.checkpoint(1.0))

    @staticmethod
    def checkpoint(value: float) -> list[tuple[str, float]]:
        """Its weights, all of one value."""
        return [(name, value) for name in ("embed.weight", "head.weight", "head.bias")]

    def load_weights(self, weights: Any) -> set[str]:
        """Load weights by their names."""
        parameters = dict(self.named_parameters())
        for name, value in weights:
            parameters[name].data.fill_(value)
        return set(parameters)


class Draft(torch.nn.Module):  # type: ignore[misc]
    """A draft that shares the target's embedding, with a buffer and tensors in a list."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.embed = target.embed
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((2,), 5.0))
        self.layer.packed = [torch.full((4,), 6.0)]
        self.layer.tied = [target.head.weight.detach()]
        self.layer.kv_cache = torch.ones(9)
        self.load_weights(self.checkpoint(2.0)[:-1])

    @staticmethod
    def checkpoint(value: float) -> list[tuple[str, float]]:
        """Its weights, all of one value; it has an embedding of its own, too."""
        return [(name, value) for name in ("layer.weight", "layer.bias", "embed.weight")]

    def load_weights(self, weights: Any) -> set[str]:
        """Load weights by their names, as vLLM's loaders do, where they ask a parameter how."""
        parameters = dict(self.named_parameters())
        for name, value in weights:
            parameter = parameters[name]
            getattr(parameter, "weight_loader", torch.Tensor.fill_)(parameter.data, value)
        return set(parameters)

    def values(self) -> list[float]:
        """All that it has of its own, a number a tensor."""
        own = (self.layer.weight, self.layer.bias, self.scale, self.layer.packed[0])
        return [float(tensor.detach().flatten()[0]) for tensor in own]


RIGHT = [2.0, 2.0, 5.0, 6.0]


class Runner(SimpleNamespace):
    """A model runner of which only what is asked for is there."""

    steps = 0

    def execute_model(self) -> None:
        """A step."""
        self.steps += 1


class Engine:
    """A worker with a target and a draft.

    :ivar loaded: the checkpoint of the draft on disk: the value of its weights, or an error.
    """

    def __init__(self, release: str, *, mended: bool = True, v2: bool = False) -> None:
        self.target = Target()
        self.draft = Draft(self.target)
        self.pool = Pool([self.target, self.draft])
        self.loaded: float | Exception = 2.0
        drafter = SimpleNamespace(model=self.draft)
        config = SimpleNamespace(model="draft", revision=None)
        speculative = SimpleNamespace(draft_model_config=config, draft_load_config=None)
        runner = self.runner = Runner(
            model=self.target,
            get_model=lambda: self.target,
            get_draft_model=lambda: self.draft,
            load_model=lambda load_dummy_weights: None,
            reload_weights=self._reload_target,
            post_kv_cache_wake_up=lambda: None,
            reset_lora_state=lambda: None,
            speculative_config=speculative,
            **({"speculator": drafter} if v2 else {"drafter": drafter}),
        )
        namespace = functions(release, mended)
        model_config = SimpleNamespace(
            model="target", sleep_preserve_parameter_names=[], enable_nccl_comm_suspend=False
        )
        self.worker = SimpleNamespace(
            model_runner=runner,
            model_config=model_config,
            device="cpu",
            cache_config=SimpleNamespace(cache_dtype="auto"),
            vllm_config=SimpleNamespace(
                speculative_config=speculative,
                model_config=model_config,
                weight_transfer_config=None,
                load_config=None,
            ),
            weight_transfer_engine=None,
            _weight_update_active=True,
            _is_checkpoint_format=True,
            _sleep_saved_buffers={},
            _sleep_saved_parameters={},
            _sleep_saved_draft_buffers={},
            _sleep_rebuild_draft_metadata_buffers=False,
            sleep_mode_backend=self.pool,
            _get_sleep_mode_backend=lambda: self.pool,
            get_draft_model=lambda: self.draft,
            synchronize_device=lambda: None,
            _maybe_get_memory_pool_context=lambda tag: nullcontext(),
            _scoped_allocator_max_split=lambda max_split_size_mb: nullcontext(),
        )
        for name in (*NAMES, *HELPERS):
            if name in namespace:
                setattr(self.worker, name, functools.partial(namespace[name], self.worker))
        self.worker.load_model(load_dummy_weights=False)

    def _reload_target(self, weights_iterator: Any = None, weights_path: str | None = None) -> None:
        self.target.load_weights(weights_iterator or Target.checkpoint(1.0))

    def step(self) -> None:
        """A step of the engine."""
        self.runner.execute_model()

    def call(self, name: str, *args: Any, **named: Any) -> None:
        """Call a function of the worker, beside doubles of vLLM's loader and of its allocator."""
        allocator = SimpleNamespace(CuMemAllocator=SimpleNamespace(get_instance=lambda: self.pool))
        layerwise = mock.Mock(get_layerwise_info=lambda layer: mock.Mock())
        loaders = SimpleNamespace(
            get_model_loader=lambda config: SimpleNamespace(get_all_weights=self._read)
        )
        modules = {
            "vllm.device_allocator.cumem": allocator,
            "vllm.model_executor.model_loader": loaders,
            "vllm.model_executor.model_loader.reload": SimpleNamespace(layerwise=layerwise),
            "vllm.config": SimpleNamespace(set_current_vllm_config=lambda config: nullcontext()),
        }
        with mock.patch.dict(sys.modules, modules):
            getattr(self.worker, name)(*args, **named)

    def _read(self, config: Any, model: Any) -> Any:
        """The draft's checkpoint; an error is one of opening it, or of reading on in it."""
        if isinstance(self.loaded, FileNotFoundError):
            raise self.loaded
        return self._weights()

    def _weights(self) -> Iterator[tuple[str, float]]:
        if isinstance(self.loaded, Exception):
            yield "layer.weight", LOST
            raise self.loaded
        yield from Draft.checkpoint(self.loaded)
