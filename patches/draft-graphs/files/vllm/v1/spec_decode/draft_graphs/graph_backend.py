# SPDX-License-Identifier: Apache-2.0
"""The one place that makes graphs. Tests replace it; nothing else needs to be replaced."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol
from unittest.mock import patch

import torch

from . import compat
from .policy import AttentionRoles
from .report import told


class Graph(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Launch the captured work on the current stream; does not wait for it."""


class GraphBackend(Protocol):
    """How graphs are made on a device."""

    # By `AttentionBackend.get_name()`: graphs of which roles can build its drafting metadata
    # inside themselves.
    attention_backends: AttentionRoles

    def no_graphs(self) -> str | None:
        """Why no graph can be made on this machine; None where one can."""

    def new_pool(self) -> object:
        """A memory pool that graphs may share; it dies with the last of them."""

    def capture(self, function: Callable[[], None], pool: object) -> Graph:
        """Record `function()` without running it. Called inside vLLM's `graph_capture()`."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""

    def free_memory(self) -> int:
        """Bytes free on the device, after unused blocks were given back."""


class CudaGraphBackend:
    """CUDA graphs, and HIP graphs on ROCm, on the stream that is current."""

    attention_backends = compat.GRAPH_ATTENTION_BACKENDS

    def no_graphs(self) -> str | None:
        """Why no graph can be made on this machine; None where one can."""
        return compat.no_cuda_graphs()

    def new_pool(self) -> object:
        """A pool id."""
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        """Record `function()` without running it. Called inside vLLM's `graph_capture()`."""
        cuda_graph: Any = torch.cuda.CUDAGraph()
        graph: Graph = cuda_graph
        with ExitStack() as stack:
            # Collecting garbage and emptying the cache at every capture takes most of the time
            # of capturing many small graphs; upstream patches them away, too.
            stack.enter_context(patch.object(gc, "collect", _nothing))
            for module in (torch.cuda, torch.accelerator):
                if hasattr(module, "empty_cache"):
                    stack.enter_context(patch.object(module, "empty_cache", _nothing))
            compat.announce_graph_pool(pool)
            first: list[str] = []
            try:
                with torch.cuda.graph(cuda_graph, pool=pool, stream=torch.cuda.current_stream()):
                    _noting(function, first)
            except Exception as error:
                compat.undo_capture(cuda_graph, pool)
                if first in ([], [told(error)]):
                    raise
                # What CUDA says at the end of the capture is only that something was wrong in it.
                raise RuntimeError(first[0]) from error
        return graph

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        torch.cuda.synchronize()

    def free_memory(self) -> int:
        """Bytes free on the device, after unused blocks were given back."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


def _noting(function: Callable[[], None], errors: list[str]) -> None:
    """Call it, and note what it raises; the error itself would keep the graph alive."""
    try:
        function()
    except Exception as error:
        errors.append(told(error))
        raise


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for what is not to run during a capture."""


def default_graph_backend() -> GraphBackend:
    """The backend of this machine. `create_draft_graphs` asks for it by this name, each time."""
    return CudaGraphBackend()
