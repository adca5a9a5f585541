# SPDX-License-Identifier: Apache-2.0
"""Debug mode: check before each replay that the tensors of its graph lie where it was captured.

What the model's modules hold is looked at without it, before each batch: see `reads`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import upstream
from .buffers import DraftBuffers
from .passes import Passes


class AddressError(RuntimeError):
    """A tensor that a graph reads has moved or is gone since the capture."""


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in `value` with its path, through mappings, sequences and dataclasses."""
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


class AddressCheck:
    """Addresses of tensors that the graphs read beside the weights, as they were at the capture."""

    def __init__(self, proposer: Any, buffers: DraftBuffers) -> None:
        self._proposer = proposer
        self._buffers = buffers
        self._lasting = {name: tensor.data_ptr() for name, tensor in self._read_by_all()}
        self._handed: dict[object, list[tuple[str, int, Callable[[], torch.Tensor | None]]]] = {}

    def observer(self, graph: object, passes: Passes, tokens: int) -> Callable[[str, Any], None]:
        """A callback that records what the passes of `graph` hand to the model.

        Each check makes the keyword arguments once more. Metadata objects are kept, so that the
        check notices a builder that swaps a tensor inside them.
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
        """Raise AddressError, naming the tensor, where one has moved since `graph` was captured."""
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
        for name, tensor in upstream.proposer_buffers(proposer).items():
            yield f"proposer.{name}", tensor
        for name, tensor in self._buffers.tensors().items():
            yield f"draft buffer {name}", tensor
        for index, group in enumerate(proposer.draft_attn_groups):
            for owner in (group, group.get_metadata_builder()):
                yield from _attributes(f"attention group {index}", owner)


def _attributes(owner: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, each in vars(value).items() if value is not None else ():
        if isinstance(each, torch.Tensor):
            yield f"{owner} {type(value).__name__}.{name}", each


def _argument(passes: Passes, tokens: int, name: str) -> Callable[[], torch.Tensor | None]:
    return lambda: passes.inputs(tokens).get(name)


def _path(kind: str, value: Any, name: str) -> Callable[[], torch.Tensor | None]:
    return lambda: dict(tensors_in(kind, value)).get(name)
