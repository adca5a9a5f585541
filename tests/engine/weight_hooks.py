"""Hooks for ``run_engine.py``: what sleeps, wakes and trainers do to weights, and the drafts then.

On a CPU there is no memory pool of vLLM's: a double forgets what a sleep of level 2 forgets. On a
GPU (``tests/gpu/mends.py``) the engine's own sleep does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN
from tests.engine.mend_hooks import Added, serve

MODULE = "vllm.v1.worker.draft_weights"
#: What is done, in this order; a WARNING is logged once a process, so what leads to one comes last.
EVENTS = (
    *("before", "documented", "both_loaded", "draft_lost", "transferred_to_both"),
    *("not_there", "target_loaded", "iterated", "transferred"),
)
#: Those behind which the draft's weights are not of the target's load.
WARNED = ("not_there", "target_loaded")


def plain_layers() -> None:
    """Before the engine is made, on a CPU: layers keep their weights as on a GPU."""
    import torch
    from vllm.model_executor.layers import utils

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain


def worker_of(llm: Any) -> Any:
    """The worker of an engine that has it in its own process."""
    return llm.llm_engine.model_executor.driver_worker.worker


def draft_of(runner: Any) -> Any:
    """The draft model."""
    drafter = getattr(runner, "drafter", None) or runner.speculator
    return drafter.model


class ForgetfulMemory:
    """vLLM's memory pool on a CPU: at level 2 everything in it is lost."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def suspend(self, level: int) -> None:
        """Spoil weights and KV cache."""
        if level == 2:
            for model in (self.runner.get_model(), draft_of(self.runner)):
                spoil(model)
        for cache in self.runner.kv_caches:
            for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
                tensor.fill_(1)

    def resume(self, tags: list[str] | None) -> None:
        """Map the memory again, as it is."""


def spoil(model: Any) -> None:
    """Write over all that was made when a model was loaded."""
    import torch

    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        for tensor in held:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.data.fill_(0.5)


def lose_draft(runner: Any) -> None:
    """Write over the parameters of the draft that are its own."""
    import torch

    target = {id(each) for each in runner.get_model().parameters()}
    with torch.no_grad():
        for parameter in draft_of(runner).parameters():
            if id(parameter) not in target:
                parameter.data.fill_(0.5)


#: Bytes of a GPU that are in use before each sleep and within it.
used: list[int] = []


def llm_memory() -> int:
    """Bytes of the GPU that are in use."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def sleep(llm: Any, level: int) -> None:
    """A sleep of the engine."""
    import torch

    worker = worker_of(llm)
    if torch.cuda.is_available():
        used.append(llm_memory())
        llm.sleep(level=level)
        used.append(llm_memory())
        return
    from unittest import mock

    from vllm.v1.worker.gpu_worker import Worker

    worker._sleep_mode_backend = ForgetfulMemory(worker.model_runner)
    device = torch.accelerator
    with (
        mock.patch.object(device, "synchronize"),
        mock.patch.object(device, "get_memory_info", return_value=(0, 0)),
    ):
        Worker.sleep(worker, level)


def wake(llm: Any, tags: list[str] | None = None) -> None:
    """A wake of the engine."""
    import torch

    if torch.cuda.is_available():
        llm.wake_up(tags=tags)
        return
    from vllm.v1.worker.gpu_worker import Worker

    worker = worker_of(llm)
    worker.synchronize_device = lambda: None
    Worker.wake_up(worker, tags)


def checkpoint(folder: str) -> Iterator[tuple[str, Any]]:
    """The weights of a model's folder, as a trainer has them."""
    from safetensors.torch import load_file

    for file in sorted(Path(folder).glob("*.safetensors")):
        yield from load_file(file).items()


class Trainer:
    """Calls that frameworks for reinforcement learning make of an engine."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.worker = worker_of(llm)
        self.runner = self.worker.model_runner
        config = self.worker.vllm_config
        self.target = str(config.model_config.model)
        self.draft = str(config.speculative_config.draft_model_config.model)

    def before(self) -> None:
        """Nothing."""

    def documented(self) -> None:
        """What vLLM's pages on sleep say."""
        sleep(self.llm, 2)
        wake(self.llm, ["weights"])
        self.llm.collective_rpc("reload_weights")
        wake(self.llm, ["kv_cache"])

    def load(self, model: Any, folder: str) -> None:
        """Load weights in the worker, chunk by chunk, as verl, SkyRL and NeMo-RL do."""
        import torch

        with torch.no_grad():
            for weight in checkpoint(folder):
                model.load_weights([weight])

    def target_loaded(self) -> None:
        """A colocated trainer that knows of no draft."""
        sleep(self.llm, 2)
        wake(self.llm, ["weights"])
        self.load(self.runner.model, self.target)
        wake(self.llm, ["kv_cache"])

    def both_loaded(self) -> None:
        """A colocated trainer that trains the draft, too."""
        sleep(self.llm, 2)
        wake(self.llm)
        self.load(self.runner.model, self.target)
        self.load(draft_of(self.runner), self.draft)

    def draft_lost(self) -> None:
        """A reload behind which nothing may be left of the draft's weights before."""
        lose_draft(self.runner)
        self.llm.collective_rpc("reload_weights")

    def not_there(self) -> None:
        """A reload beside a draft whose checkpoint is gone."""
        config = self.worker.vllm_config.speculative_config.draft_model_config
        before, config.model = config.model, str(Path(self.draft, "gone"))
        self.llm.collective_rpc("reload_weights")
        config.model = before

    def iterated(self) -> None:
        """The target's weights by an iterator."""
        weights = list(checkpoint(self.target))
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def _transfer(self, model: Any, folder: str, *, to_draft: bool = False) -> None:
        class Engine:
            supports_draft_weight_update = True

            def __init__(self) -> None:
                self.model = model

            def update_weights(self, info: Any) -> None:
                with torch.no_grad():
                    for name, weight in checkpoint(folder):
                        model.load_weights([(name, weight)])

            def __getattr__(self, name: str) -> Callable[..., None]:
                return lambda *args: None

        import torch

        self.worker.weight_transfer_engine = Engine()
        start = "start_draft_weight_update" if to_draft else "start_weight_update"
        self.llm.collective_rpc(start)
        self.llm.collective_rpc("update_weights", args=({},))
        self.llm.collective_rpc("finish_weight_update")
        self.worker.weight_transfer_engine = None

    def transferred(self) -> None:
        """vLLM's own weight transfer, of the target."""
        self._transfer(self.runner.model, self.target)

    def transferred_to_both(self) -> None:
        """The same, of the target and of the draft."""
        self._transfer(self.runner.model, self.target)
        self._transfer(draft_of(self.runner), self.draft, to_draft=True)


class Warnings(logging.Handler):
    """What a module warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def weights(llm: Any) -> dict[str, Any]:
    """Tokens, drafts and warnings behind each event."""
    asked = {"temperature": 0.0, "max_tokens": 20}
    rounds: dict[str, Any] = {}
    trainer = Trainer(llm)
    warnings = Warnings()
    logging.getLogger(MODULE).addHandler(warnings)
    drafts = hasattr(trainer.worker, "start_draft_weight_update")
    for event in EVENTS:
        if event != "transferred_to_both" or drafts:
            getattr(trainer, event)()
        llm.reset_prefix_cache()
        added: Added = [
            (0, f"{event}:{row}", [FIRST_TOKEN + (row * 7 + n) % 90 for n in range(8)], asked)
            for row in range(3)
        ]
        result = serve(llm, added)
        rounds[event] = {
            "error": result["error"],
            "tokens": [result["tokens"].get(name) for _, name, _, _ in added],
            "steps": [result["steps"].get(name) for _, name, _, _ in added],
            "warnings": list(warnings.lines),
        }
        warnings.lines.clear()
    return {"rounds": rounds, "counts": result["counts"], "used": used}
