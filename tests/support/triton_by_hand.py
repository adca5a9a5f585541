"""Triton kernels as plain Python: one program after the other, on tensors of the CPU.

As much of the language as the rejection samplers of the releases use. Reading or writing beyond a
tensor, which Triton would let happen, raises IndexError.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

_program: list[tuple[int, ...]] = []


@dataclass(frozen=True)
class Pointer:
    """A place, or places, in a tensor."""

    tensor: Any
    at: Any = 0

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.tensor.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.tensor, self.at + offset)

    def __sub__(self, offset: Any) -> Pointer:
        return Pointer(self.tensor, self.at - offset)

    def place(self) -> int | None:
        """Where the element is, if it is a single one: most are."""
        if isinstance(self.at, torch.Tensor) and self.at.ndim > 0:
            return None
        at = int(self.at)
        if not 0 <= at < self.tensor.numel():
            raise IndexError(f"{at} of {self.tensor.numel()} elements")
        return at

    def places(self, mask: Any) -> tuple[Any, Any, Any]:
        """The flat tensor, the indices in it, and which of them are meant."""
        flat, at = self.tensor.view(-1), torch.as_tensor(self.at)
        meant = torch.as_tensor(True if mask is None else mask).expand(at.shape)
        if (meant & ((at < 0) | (at >= flat.numel()))).any():
            raise IndexError(f"{self.at} of {flat.numel()} elements")
        return flat, at, meant


def _load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Any:
    if mask is None and (place := pointer.place()) is not None:
        return pointer.tensor.view(-1)[place].clone()
    flat, at, meant = pointer.places(mask)
    found = torch.full(at.shape, other, dtype=flat.dtype)
    found[meant] = flat[at[meant]]
    return found


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    if mask is None and (place := pointer.place()) is not None:
        pointer.tensor.view(-1)[place] = torch.as_tensor(value).expand(())
        return
    flat, at, meant = pointer.places(mask)
    flat[at[meant]] = torch.as_tensor(value).to(flat.dtype).expand(at.shape)[meant]


def _two(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: function(torch.as_tensor(one), torch.as_tensor(other))


def _max(values: Any, axis: int, return_indices: bool) -> Any:
    assert return_indices
    return torch.max(values, dim=axis)


tl = SimpleNamespace(
    constexpr=object,
    int32=torch.int32,
    int64=torch.int64,
    float32=torch.float32,
    float64=torch.float64,
    program_id=lambda axis: _program[-1][axis],
    load=_load,
    store=_store,
    zeros=torch.zeros,
    full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
    arange=torch.arange,
    where=torch.where,
    max=_max,
    maximum=_two(torch.maximum),
    minimum=_two(torch.minimum),
)


@dataclass
class Kernel:
    """A kernel, and what it was launched with: its name, the grid, and all arguments."""

    function: Callable[..., Any]
    launches: list[Any]

    @property
    def names(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            bound = inspect.signature(self.function).bind(*given, **named).arguments
            self.launches.append((self.function.__name__, grid, seen(bound)))
            pointed = {
                name: Pointer(value) if isinstance(value, torch.Tensor) else value
                for name, value in bound.items()
            }
            for program in itertools.product(*map(range, grid)):
                _program.append(program)
                try:
                    self.function(**pointed)
                finally:
                    _program.pop()

        return launch


def seen(value: Any) -> Any:
    """What anybody can see of a value, to be compared by ``==``: NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.stride(), str(value.tolist())]
    if isinstance(value, dict):
        return {name: seen(one) for name, one in value.items()}
    return [seen(one) for one in value] if isinstance(value, tuple) else value


def triton(launches: list[Any]) -> Any:
    """The module ``triton``, whose kernels note each launch."""

    def jit(function: Any = None, **_: Any) -> Any:
        return Kernel(function, launches) if function else jit_with

    def jit_with(function: Any) -> Kernel:
        return Kernel(function, launches)

    return SimpleNamespace(jit=jit)


def dispatcher(*, kernel: Kernel, warmup_inputs: Any) -> Callable[[Any], Any]:
    """vLLM's decorator from 0.30 on: a function that says with which grid a kernel is launched."""

    def decorate(dispatch: Any) -> Any:
        def launch(*given: Any, **named: Any) -> None:
            grid, constants = dispatch(*given, **named)
            arguments = inspect.signature(dispatch).bind(*given, **named).arguments
            held = {
                name if name in kernel.names else f"{name}_ptr": value
                for name, value in arguments.items()
            }
            kernel[grid](**{name: held[name] for name in kernel.names if name in held}, **constants)

        # A function carries it, as one of Triton does.
        launch.register_warmup = lambda **_: None  # type: ignore[attr-defined]
        return launch

    return decorate
