# SPDX-License-Identifier: Apache-2.0
"""The debug mode: does every tensor that a graph reads still lie where the graph reads it?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import compat
from .buffers import DraftBuffers
from .passes import Passes


class AddressError(RuntimeError):
    """A graph would read memory that is no longer what it was captured on."""


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in `value`, with the path to it: mappings, sequences, dataclasses, objects."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors_in(f"{name}[{key}]", each)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from tensors_in(f"{name}[{index}]", each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(f"{name}.{field.name}", getattr(value, field.name, None))


class Addresses:
    """What the graphs read, by name, and where it lay when they were captured."""

    def __init__(self, proposer: Any, buffers: DraftBuffers) -> None:
        self._proposer = proposer
        self._buffers = buffers
        self._lasting = {name: t.data_ptr() for name, t in self._read_by_all()}
        self._handed: dict[object, list[tuple[str, int, Callable[[], torch.Tensor | None]]]] = {}

    def observer(self, graph: object, passes: Passes, tokens: int) -> Callable[[str, Any], None]:
        """Takes down what the passes of `graph` hand to the model.

        Keyword arguments are made anew for each check. Metadata objects are kept, so that a
        builder that later swaps a tensor inside them is found out.
        """
        entries = self._handed.setdefault(graph, [])

        def observe(kind: str, value: Any) -> None:
            for name, tensor in tensors_in(kind, value):
                if kind == "keyword argument":
                    argument = name.removeprefix("keyword argument[").removesuffix("]")
                    current = _argument(passes, tokens, argument)
                else:
                    current = _path(kind, value, name)
                entries.append((name, tensor.data_ptr(), current))

        return observe

    def check(self, graph: object) -> None:
        """Raises AddressError, naming the tensor, where one is not where `graph` reads it."""
        now = dict(self._read_by_all())
        for name, address in self._lasting.items():
            self._compare(graph, name, address, now.get(name))
        for name, address, current in self._handed.get(graph, []):
            self._compare(graph, name, address, current())

    def _compare(
        self, graph: object, name: str, captured: int, tensor: torch.Tensor | None
    ) -> None:
        if tensor is None or tensor.data_ptr() != captured:
            now = "is gone" if tensor is None else f"lies at {tensor.data_ptr():#x}"
            raise AddressError(
                f"{graph}: {name} was captured at {captured:#x} and now {now}; a replay would "
                "read stale memory"
            )

    def _read_by_all(self) -> Iterator[tuple[str, torch.Tensor]]:
        proposer = self._proposer
        for name, tensor in compat.proposer_buffers(proposer).items():
            yield f"proposer.{name}", tensor
        for name, tensor in self._buffers.tensors().items():
            yield f"draft buffer {name}", tensor
        for name, tensor in proposer.model.named_parameters(remove_duplicate=False):
            yield f"parameter {name}", tensor
        for name, tensor in proposer.model.named_buffers(remove_duplicate=False):
            yield f"model buffer {name}", tensor
        for name, tensor in compat.kv_caches(proposer).items():
            yield f"KV cache of {name}", tensor
        for index, group in enumerate(proposer.draft_attn_groups):
            for where in (group, group.get_metadata_builder()):
                yield from _attributes(f"attention group {index}", where)
        for name, module in proposer.model.named_modules():
            yield from _attributes(f"module {name}", module)
        for name, layer in compat.draft_layers(proposer).items():
            yield from _attributes(f"layer {name}", layer)
            yield from _attributes(f"layer {name}", getattr(layer, "impl", None))


def _attributes(owner: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, each in vars(value).items() if value is not None else ():
        if isinstance(each, torch.Tensor):
            yield f"{owner} {type(value).__name__}.{name}", each


def _argument(passes: Passes, tokens: int, name: str) -> Callable[[], torch.Tensor | None]:
    return lambda: passes.inputs(tokens).get(name)


def _path(kind: str, value: Any, name: str) -> Callable[[], torch.Tensor | None]:
    return lambda: dict(tensors_in(kind, value)).get(name)
