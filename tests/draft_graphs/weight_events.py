"""What may happen to a draft model's weights while its graphs serve, each as an event of a worker.

vLLM mixes `WeightEvents` into its worker (``worker_extension_cls``), on a GPU as on CPU; then
``llm.collective_rpc("weight_event", args=(name, folder))`` lets it happen on every rank. Memory
that an event gives up is spoilt, so that whoever still reads it drafts nonsense.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

#: An event gets the worker and the folder of the draft's checkpoint; what it returns is a note.
Event = Callable[[Any, str], object]
#: What lies in a KV cache that nobody has written.
JUNK = 48
#: What an event returns that the release does not have.
NOT_HERE = "not in this release"


def _draft(worker: Any) -> Any:
    return worker.model_runner.drafter.model


def _target(worker: Any) -> Any:
    return worker.model_runner.get_model()


def _checkpoint(folder: str) -> list[tuple[str, torch.Tensor]]:
    from safetensors.torch import load_file

    files = sorted(Path(folder).glob("*.safetensors"))
    return [pair for file in files for pair in load_file(file).items()]


def _spoil(tensor: torch.Tensor) -> None:
    """Write what nobody may read any more."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0)


def _spoil_given_up(worker: Any, old: list[torch.Tensor]) -> None:
    """Spoil what was given up, unless the target or the draft has it under another name."""
    held = set()
    for model in (_target(worker), _draft(worker)):
        for module in model.modules():
            for value in (
                *module._parameters.values(),
                *module._buffers.values(),
                *vars(module).values(),
            ):
                several = value if isinstance(value, (list, tuple)) else [value]
                held |= {
                    each.untyped_storage().data_ptr()
                    for each in several
                    if isinstance(each, torch.Tensor)
                }
    for tensor in old:
        if tensor.untyped_storage().data_ptr() not in held:
            _spoil(tensor)


def load_weights(worker: Any, folder: str) -> None:
    """As trainers do that hold the draft's model."""
    with torch.no_grad():
        _draft(worker).load_weights(_checkpoint(folder))


def layerwise(worker: Any, folder: str) -> str | None:
    """As vLLM's weight transfer does it with a draft."""
    from vllm.config import set_current_vllm_config

    try:
        reload = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    except ImportError:
        return NOT_HERE
    runner, model = worker.model_runner, _draft(worker)
    with set_current_vllm_config(runner.vllm_config), torch.no_grad():
        reload.initialize_layerwise_reload(model)
        model.load_weights(_checkpoint(folder))
        reload.finalize_layerwise_reload(model, runner.speculative_config.draft_model_config)
    return None


def reload_weights(worker: Any, folder: str) -> None:
    """As a trainer does it with the target, whose embedding and head the draft may share."""
    worker.reload_weights()


def _own(worker: Any) -> Iterator[torch.nn.Module]:
    """The draft's modules that the target has not: its own graphs read what it has."""
    theirs = {id(module) for module in _target(worker).modules()}
    yield from (module for module in _draft(worker).modules() if id(module) not in theirs)


def moved_data(worker: Any, folder: str) -> None:
    """New memory under the draft's own parameters, as when they were offloaded and come back."""
    given_up = []
    for module in _own(worker):
        for parameter in module.parameters(recurse=False):
            old = parameter.data
            parameter.data = old.clone()
            given_up.append(old)
    _spoil_given_up(worker, given_up)


def moved_parameters(worker: Any, folder: str) -> None:
    """New parameters under the old names."""
    given_up = []
    for module in _own(worker):
        for name, old in list(module.named_parameters(recurse=False)):
            new = torch.nn.Parameter(old.data.clone(), requires_grad=False)
            new.__class__ = old.__class__  # such as vLLM's, which know how they are loaded
            vars(new).update(vars(old))
            module._parameters[name] = new
            given_up.append(old.data)
    _spoil_given_up(worker, given_up)


def moved_tensors(worker: Any, folder: str) -> int:
    """New buffers and plain attributes under the old names; how many."""
    given_up = []
    for module in _own(worker):
        for held in (module._buffers, vars(module)):
            for name, old in list(held.items()):
                if name == "kv_cache" or not isinstance(old, torch.Tensor):
                    continue
                held[name] = old.clone()
                given_up.append(old)
    _spoil_given_up(worker, given_up)
    return len(given_up)


def moved_head(worker: Any, folder: str) -> None:
    """New memory of the head, which the draft may share with the target.

    The target's logits are made outside of its graphs.
    """
    head = _draft(worker).lm_head
    old = head.weight.data
    head.weight.data = old.clone()
    _spoil_given_up(worker, [old])


def wake(worker: Any, folder: str) -> None:
    """What a sleep of level 2 and a wake leave, at the same addresses: all memory is new.

    The weights are loaded again, the KV cache is what it happens to be, its null block included:
    numbers, since kernels on CPU multiply what is masked by zero.
    """
    for model in (_target(worker), _draft(worker)):
        for parameter in model.parameters():
            _spoil(parameter.data)
    for cache in worker.model_runner.kv_caches:
        for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
            tensor.fill_(JUNK)
    reload_weights(worker, folder)
    load_weights(worker, folder)
    rebuild = getattr(getattr(_draft(worker), "model", None), "_build_fused_kv_buffers", None)
    if rebuild is not None:
        rebuild()


def given_back(worker: Any, folder: str) -> None:
    """What a sleep of level 2 takes from draft graphs where draft-weights is on."""
    graphs = getattr(worker.model_runner.drafter, "draft_graphs", None)
    if graphs is not None:
        graphs.give_back()
        if graphs.captured is not None:
            raise RuntimeError("the graphs were not given back")


EVENTS: dict[str, Event] = {
    each.__name__: each
    for each in (
        *(load_weights, layerwise, reload_weights),
        *(moved_data, moved_parameters, moved_tensors, moved_head, wake, given_back),
    )
}


class WeightEvents:
    """Mixed into vLLM's worker."""

    def weight_event(self, name: str, folder: str) -> object:
        """Let an event happen on this rank; its note, or None."""
        return EVENTS[name](self, folder)

    def draft_effects(self) -> dict[str, Any]:
        """What draft-graphs reports on this rank; empty where it is not there."""
        try:
            effects = importlib.import_module("vllm.v1.overlay_effects").effects()
        except ImportError:
            return {}
        return dict(effects.get("draft-graphs") or {})
