# SPDX-License-Identifier: Apache-2.0
"""Takes the target's LoRA adapters off the layers that the draft model shares with it.

An adapter belongs to the target. vLLM still hands the draft the target's embedding with its adapter
around it. In a later draft pass that layer uses the token map of the target's last batch: it adds
to rows that the pass does not have, beyond the end of its output. Model runner V2 shares the layer
below the adapter (from 0.24 on), and so do the draft graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

#: The name of the mark in the draft's `additional_config`.
MARK = "draft layers without adapters"


def _adapted(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str, torch.nn.Module]]:
    """(owner, attribute, path, layer) for each layer of `model` that carries a LoRA adapter."""
    from vllm.lora.layers import BaseLayerWithLoRA

    for path, owner in list(model.named_modules()):
        for attribute, layer in list(owner.named_children()):
            if isinstance(layer, BaseLayerWithLoRA):
                yield owner, attribute, f"{path}.{attribute}".lstrip("."), layer


def _below(layer: torch.nn.Module) -> torch.nn.Module | None:
    """The layer below an adapter, itself without one; None where there is none."""
    from vllm.lora.layers import BaseLayerWithLoRA

    found: Any = layer
    while isinstance(found, BaseLayerWithLoRA):
        found = getattr(found, "base_layer", None)
    return found if isinstance(found, torch.nn.Module) else None


def kept(proposer: Any) -> tuple[str, ...]:
    """Names of layers of the draft model from which an adapter cannot be taken off."""
    if proposer.vllm_config.lora_config is None:
        return ()
    return tuple(path for *_, path, layer in _adapted(proposer.model) if _below(layer) is None)


def take_off(proposer: Any) -> tuple[str, ...]:
    """Put the layer below in the place of each adapted layer of the draft model; their names.

    The target keeps its own layers. To be called before the draft model is compiled.
    """
    if proposer.vllm_config.lora_config is None:
        return ()
    taken = []
    for owner, attribute, path, layer in list(_adapted(proposer.model)):
        below = _below(layer)
        if below is not None:
            setattr(owner, attribute, below)
            taken.append(path)
    if taken:
        _keep_compiled_models_apart(proposer.model)
    return tuple(taken)


def _keep_compiled_models_apart(model: torch.nn.Module) -> None:
    """Let vLLM not load what it compiled ahead of time for the same draft with its adapters.

    vLLM finds such a model by a hash of its configuration and its forward, not of its layers.
    """
    for module in model.modules():
        config = vars(module).get("vllm_config")
        if config is None:
            continue
        before = config.additional_config
        marked = copy.copy(config)
        marked.additional_config = {
            **(before if isinstance(before, dict) else {"hash": before.compute_hash()}),
            MARK: True,
        }
        vars(module)["vllm_config"] = marked
