# SPDX-License-Identifier: Apache-2.0
"""Makes graphs on a device. Tests replace this module's backend and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch

from .capabilities import BACKENDS, Backend, Platform, platform_row
from .messages import reason_of


class Graph(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Launch the captured work on the current stream, without waiting for it."""


class GraphBackend(Protocol):
    """Makes graphs on one kind of device."""

    # What is known of attention backends.
    attention: tuple[Backend, ...]

    @property
    def platform(self) -> Platform | None:
        """The row of this machine's platform; None where the table has none."""

    def no_graphs(self) -> str | None:
        """The reason why this machine cannot make graphs; None where it can."""

    def new_pool(self) -> object:
        """A memory pool that graphs may share; it lives as long as the last of them."""

    def capture(self, function: Callable[[], None], pool: object) -> Graph:
        """Record `function()` without running it. Called inside vLLM's `graph_capture()`."""

    def capturing_again(self) -> AbstractContextManager[None]:
        """The context in which graphs are captured while vLLM serves; see `capture`."""

    def synchronize(self) -> None:
        """Wait until the device has finished all work that was launched."""

    def free_memory(self) -> int:
        """Free bytes of the device, after PyTorch has returned its unused blocks."""


class CudaGraphBackend:
    """Graphs of `torch.cuda` on the current stream: CUDA's, HIP's on ROCm, and MUSA's."""

    attention = BACKENDS
    # Arguments of `torch.cuda.graph`.
    _more: Mapping[str, Any] = {}

    @property
    def platform(self) -> Platform | None:
        """The row of this machine's platform; None where the table has none."""
        return platform_row(_platform_class())

    def no_graphs(self) -> str | None:
        """The reason why this platform gets no graphs; None where it may."""
        row = self.platform
        if row is None:
            return f"platform {_platform_class()} is not one that draft graphs were made for"
        return row.why or None

    def new_pool(self) -> object:
        """A pool id of PyTorch."""
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        """Record `function()` without running it. Called inside vLLM's `graph_capture()`.

        Raises whatever `function` or CUDA raises, the first of these errors where CUDA's own only
        tells that the capture failed; PyTorch can go on without this graph then.
        """
        cuda_graph: Any = torch.cuda.CUDAGraph()
        graph: Graph = cuda_graph
        with ExitStack() as stack:
            # Collecting garbage and emptying the cache at every capture takes most of the time
            # of capturing many small graphs; upstream patches them away, too.
            stack.enter_context(patch.object(gc, "collect", _do_nothing))
            for module in (torch.cuda, torch.accelerator):
                if hasattr(module, "empty_cache"):
                    stack.enter_context(patch.object(module, "empty_cache", _do_nothing))
            announce_graph_pool(pool)
            first: list[str] = []
            try:
                stream = torch.cuda.current_stream()
                with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, **self._more):
                    _call_noting_error(function, first)
            except Exception as error:
                if self.platform is None or self.platform.undo_failed_capture:
                    undo_capture(cuda_graph, pool)
                if first in ([], [reason_of(error)]):
                    raise
                # At the end of the capture CUDA only says that something in it was wrong.
                raise RuntimeError(first[0]) from error
        return graph

    @contextmanager
    def capturing_again(self) -> Iterator[None]:
        """The context in which graphs are captured while vLLM serves.

        Another thread of vLLM's may wait for an event of its own meanwhile, which a capture of
        PyTorch's usual kind forbids to all threads.
        """
        from vllm.distributed.parallel_state import graph_capture

        self._more = {"capture_error_mode": "thread_local"}
        try:
            with graph_capture(device=torch.device("cuda", torch.cuda.current_device())):
                yield
        finally:
            self._more = {}

    def synchronize(self) -> None:
        """Wait until the device has finished all work that was launched."""
        torch.cuda.synchronize()

    def free_memory(self) -> int:
        """Free bytes of the device, after PyTorch has returned its unused blocks."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


def default_graph_backend() -> GraphBackend:
    """The backend of this machine; `create_draft_graphs` looks it up by this name at each call."""
    return CudaGraphBackend()


def _platform_class() -> str:
    """Module and qualified name of the class of vLLM's platform."""
    from vllm.platforms import current_platform

    cls = type(current_platform)
    return f"{cls.__module__}.{cls.__qualname__}"


def announce_graph_pool(pool: object) -> None:
    """Tell NCCL's allocator for symmetric memory which pool the next graph is captured into."""
    from vllm.distributed.device_communicators.pynccl_allocator import set_graph_pool_id

    set_graph_pool_id(pool)


def undo_capture(cuda_graph: Any, pool: Any) -> None:
    """Make PyTorch forget a capture that failed, so that it can go on without this graph.

    Where CUDA itself ended the capture, for example because the host read a value, `capture_end`
    raises before it has told allocator and generators. Until PyTorch 2.12 (pytorch/pytorch#180395)
    the next release of memory is then an assertion, and the next random number an error.
    """
    try:
        cuda_graph.pool()
    except RuntimeError:  # a graph has no pool before its capture has ended
        cuda_graph.reset()
    else:
        return
    if not hasattr(torch._C, "_cuda_endAllocateToPool"):
        return  # a platform that takes the part of torch.cuda has nothing to be told
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError as error:
        if "not currently recording" not in str(error):
            raise
        # `capture_end` or `reset` has told the allocator.
    else:
        torch._C._cuda_releasePool(device, pool)
    # Any capture that succeeds tells the generators.
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.current_stream()):
        torch.zeros(1, device=f"cuda:{device}")


def _call_noting_error(function: Callable[[], None], errors: list[str]) -> None:
    """Call `function` and keep its error as text: the error itself would keep the graph alive."""
    try:
        function()
    except Exception as error:
        errors.append(reason_of(error))
        raise


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces a function that must not run during a capture."""
