"""The graph double behind the one seam of the draft graphs: `graph_backend.GraphBackend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tests.draft_graphs.recorded_graph import GraphPool, RecordedGraph


class RecordedBackend:
    """Makes recordings where the module would make CUDA graphs, and remembers them.

    mixed: whether the double's row grants graphs of mixed batches, where the user does.

    `before_replay` is called with the graph at each replay: what it does to memory stands for
    whatever else the device may have done there since the last one.
    """

    def __init__(self, *, mixed: bool = False) -> None:
        from vllm.v1.spec_decode.draft_graphs import capabilities

        attention = "tests.draft_graphs.graph_safe_attention."
        double = capabilities.Backend(
            names=("CPU_ATTN",),
            classes=(attention + "GraphSafeBackend",),
            builder=attention + "GraphSafeBuilder",
            evidence="gpu",
            where="the double itself",
            any_size="doubles",
            mixed="doubles" if mixed else None,
        )
        #: As on CUDA, with the double of an attention backend beside vLLM's own.
        self.platform: Any = capabilities.PLATFORMS[0]
        self.attention: tuple[Any, ...] = (*capabilities.BACKENDS, double)
        self.graphs: list[RecordedGraph] = []
        self.host_only: list[torch.Tensor] = []
        self.host: list[torch.Tensor] = []
        self.before_replay: Callable[[RecordedGraph], None] = lambda graph: None

    def no_graphs(self) -> str | None:
        """Recordings can be made anywhere."""
        return None

    def new_pool(self) -> object:
        return GraphPool()

    def capture(self, function: Callable[[], None], pool: object) -> RecordedGraph:
        """Record `function()`."""
        assert isinstance(pool, GraphPool)
        backend = self

        class Watched(RecordedGraph):
            def replay(self) -> None:
                backend.before_replay(self)
                super().replay()

        graph = Watched(f"graph {len(self.graphs)}", pool, self.host_only, self.host)
        with graph.capture():
            function()
        self.graphs.append(graph)
        return graph

    def capturing_again(self) -> AbstractContextManager[None]:
        """There are no streams."""
        return nullcontext()

    def synchronize(self) -> None:
        """Nothing runs beside the host."""

    def free_memory(self) -> int:
        """As if the device had 16 GiB, less what the recordings allocated."""
        return (1 << 34) - sum(graph.allocated_bytes() for graph in self.graphs)

    def memory(self) -> Iterator[int]:
        """Keys of all storages that the recordings allocated."""
        for graph in self.graphs:
            yield from (key for key, memory in graph.memory.items() if memory.role == "pool")

    def install(self) -> None:
        """Take the place of the machine's own backend, in this process, from now on."""
        from vllm.v1.spec_decode.draft_graphs import graph_backend

        graph_backend.default_graph_backend = lambda: self
