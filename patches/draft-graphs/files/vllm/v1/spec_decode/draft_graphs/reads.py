# SPDX-License-Identifier: Apache-2.0
"""Knows where the model's tensors lay that captured passes read, and notices when one has moved.

A graph has addresses baked. Weights that are loaded again may get others, as may what a model makes
of its weights, and vLLM tells nobody: trainers call `load_weights` of the draft's model,
`reload_weights`, `wake_up`, a weight transfer, or assign to a parameter. So before each batch all
is looked at that the passes reach through their modules: each parameter, buffer and plain
attribute, through lists, mappings and plain objects, the KV caches of its layers included.

Nothing here keeps a tensor alive that somebody has replaced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

#: How many objects, lists or mappings may lie between a module and a tensor: such as a module's
#: quantisation method, the kernel of that, and a list in it.
DEPTH = 3
#: What has no tensors, or leads to the whole engine.
_ENDS = (type, FunctionType, MethodType, ModuleType, torch.nn.Module, torch.device, torch.dtype)
_CONFIGURATION = ("vllm.config", "transformers")
#: What every module has by PyTorch itself.
_TORCH = frozenset(vars(torch.nn.Module()))


Differ = Callable[[Any, Any], bool]


class Link(NamedTuple):
    """A step on the way from a module to a tensor: `container[key]`, and what it was."""

    name: str
    container: Any
    key: Any
    value: Any


def links_of(modules: Mapping[str, torch.nn.Module]) -> Iterator[Link]:
    """All links from modules, by name, to tensors. Those of PyTorch come first in each module."""
    seen: set[int] = set()
    for path, module in modules.items():
        own = vars(module)
        owner = f"{type(module).__name__} {path}".rstrip()
        for kind in ("_parameters", "_buffers", "_modules"):
            for key, value in own[kind].items():
                if value is not None:
                    yield Link(f"{owner}.{key}", own[kind], key, value)
        for key in list(own):
            if key not in _TORCH:
                yield from _links(f"{owner}.{key}", own, key, DEPTH, seen)


def numbers_of(modules: Mapping[str, torch.nn.Module]) -> Iterator[Link]:
    """Links to floating-point numbers of modules: kernels get an FP8 cache's scales so."""
    for path, module in modules.items():
        for key, value in vars(module).items():
            if type(value) is float:
                yield Link(f"{type(module).__name__} {path}.{key}", vars(module), key, value)


def _links(name: str, container: Any, key: Any, depth: int, seen: set[int]) -> Iterator[Link]:
    """The link to `container[key]` and those below it; none where no tensor is below."""
    value = container[key]
    if isinstance(value, torch.Tensor):
        yield Link(name, container, key, value)
        return
    inside = _inside(value)
    if inside is None or depth == 0 or id(inside) in seen:
        return
    seen.add(id(inside))
    keys: Sequence[Any] = list(inside) if isinstance(inside, dict) else range(len(inside))
    below = [
        link
        for each in keys
        for link in _links(
            f"{name}.{each}" if inside is not value else f"{name}[{each}]",
            *(inside, each, depth - 1, seen),
        )
    ]
    if below:
        yield Link(name, container, key, value)
        yield from below


def _inside(value: Any) -> Any:
    """The dictionary, list or tuple in which the tensors of a value lie; None for none."""
    if isinstance(value, (dict, list, tuple)):
        return value
    if isinstance(value, _ENDS) or type(value).__module__.startswith(_CONFIGURATION):
        return None
    own = getattr(value, "__dict__", None)
    # An alias such as `tuple[Tensor, Tensor]` answers with what its class has, read-only.
    return own if isinstance(own, dict) else None


class Reads:
    """What the modules of captured passes held when this was made.

    modules: those of the draft model, with what it shares with the target.
    ranks_agree: whether other ranks have to come to the same answer in the same batch. Where an
        address is enough for one rank, they compare storages: a new one may lie at an old place on
        some of them. A storage that is compared with keeps its name, though not its memory.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module], *, ranks_agree: bool) -> None:
        links = list(links_of(modules))
        tensors = [link for link in links if isinstance(link.value, torch.Tensor)]
        others = [link for link in links if not isinstance(link.value, torch.Tensor)]
        self._names = [link.name for link in tensors]
        self._containers = [link.container for link in tensors]
        self._keys = [link.key for link in tensors]
        values = [link.value for link in tensors]
        self._strides = list(map(torch.Tensor.stride, values))
        self._addresses = list(map(torch.Tensor.data_ptr, values))
        self._storages: list[int] | None = None
        if ranks_agree:
            self._kept = [StorageWeakRef(value.untyped_storage()) for value in values]
            self._storages = _storages(values)
        self._other_names = [link.name for link in others]
        self._other_containers = [link.container for link in others]
        self._other_keys = [link.key for link in others]
        self._other_values = [link.value for link in others]
        numbers = list(numbers_of(modules))
        self._number_names = [link.name for link in numbers]
        self._number_owners = [link.container for link in numbers]
        self._number_keys = [link.key for link in numbers]
        self._number_values = [link.value for link in numbers]

    def __len__(self) -> int:
        """How many tensors are looked at."""
        return len(self._names)

    def moved(self) -> str | None:
        """What is another one, or lies elsewhere, than at the capture; None for nothing."""
        try:
            others = list(map(operator.getitem, self._other_containers, self._other_keys))
            now = list(map(operator.getitem, self._containers, self._keys))
            addresses = list(map(torch.Tensor.data_ptr, now))
            storages = None if self._storages is None else _storages(now)
        except (KeyError, IndexError, TypeError):
            return "something that a graph reads is gone"
        if not all(map(operator.is_, others, self._other_values)):
            return _first(self._other_names, others, self._other_values, operator.is_not)
        if addresses != self._addresses:
            return _first(self._names, addresses, self._addresses)
        if storages != self._storages:
            return _first(self._names, storages or [], self._storages or [])
        strides = list(map(torch.Tensor.stride, now))
        if strides != self._strides:
            return _first(self._names, strides, self._strides)
        numbers = list(map(dict.get, self._number_owners, self._number_keys))
        if numbers != self._number_values:
            return _first(self._number_names, numbers, self._number_values)
        return None


def _storages(tensors: list[torch.Tensor]) -> list[int]:
    """The identity of each tensor's storage, which no other one has while the first has a name."""
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def _first(
    names: Sequence[str], now: Sequence[Any], before: Sequence[Any], differ: Differ = operator.ne
) -> str:
    """The name of the first that differs."""
    return next(name for name, new, old in zip(names, now, before, strict=True) if differ(new, old))
