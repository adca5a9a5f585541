"""After a capture that failed PyTorch can go on, whether or not CUDA let it end.

No GPU: PyTorch's part is played by what its sources say of it (`CUDAGraph.cpp`, the caching
allocator and the generators), in the three forms that they have had. Needs vLLM.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs import drafters  # noqa: F401 - for what importing it does, see below

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1.spec_decode.draft_graphs import capabilities, graph_backend

POOL = (0, 7)
#: Who tells the allocator of a capture that CUDA has ended: nobody, `capture_end`, or `reset`.
FORMS = ("nobody", "capture_end", "reset")


class World:
    """What PyTorch remembers of captures.

    :ivar underway: pools that the allocator takes memory from for a capture.
    :ivar uses: of each pool, by graphs.
    :ivar random: whether the generators believe that they are captured.
    :ivar invalid: whether CUDA has ended the capture that goes on.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self.underway: list[Any] = []
        self.uses: Counter[Any] = Counter()
        self.random = False
        self.invalid = False

    def read_a_value(self) -> None:
        self.invalid = True
        raise RuntimeError("operation not permitted when stream is capturing")

    def end_allocate(self, device: int, pool: Any) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: Any) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0

    @contextmanager
    def graph(self, cuda_graph: Any, *, stream: Any, pool: Any = None) -> Iterator[None]:
        cuda_graph.begin(pool or (1, id(cuda_graph)))
        try:
            yield
        finally:
            cuda_graph.end()


def graph_of(world: World) -> type:
    class CudaGraph:
        def __init__(self) -> None:
            self.held: Any = None
            self.ended = False

        def begin(self, pool: Any) -> None:
            self.held = pool
            world.underway.append(pool)
            world.uses[pool] += 1
            world.random = True

        def end(self) -> None:
            failed, world.invalid = world.invalid, False
            if not failed or world.form == "capture_end":
                world.end_allocate(0, self.held)
            if failed:
                raise RuntimeError("operation failed due to a previous error during capture")
            world.random = False
            self.ended = True

        def pool(self) -> Any:
            if not self.ended:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding capture.")
            return self.held

        def reset(self) -> None:
            if self.ended:
                world.release(0, self.held)
            elif world.form == "reset" and self.held in world.underway:
                world.end_allocate(0, self.held)
                world.release(0, self.held)
            self.ended = False

        __del__ = reset

    return CudaGraph


@pytest.fixture(params=FORMS)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(request.param)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph_of(made))
    monkeypatch.setattr(torch.cuda, "graph", made.graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", made.end_allocate, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", made.release, raising=False)
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: None)
    monkeypatch.setattr(graph_backend, "announce_graph_pool", lambda pool: None)
    return made


def capture(function: Callable[[], None]) -> Any:
    return graph_backend.CudaGraphBackend().capture(function, POOL)


def test_a_capture_that_cuda_ends_leaves_nothing_behind(world: World) -> None:
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        capture(world.read_a_value)
    assert not world.underway
    assert not world.random
    # PyTorch itself holds on to the pool where only `capture_end` tells the allocator.
    assert world.uses[POOL] == (world.form == "capture_end")
    graph = capture(lambda: None)
    assert world.uses[POOL] == 1 + (world.form == "capture_end")
    del graph


def test_an_error_that_cuda_does_not_see_is_told_as_it_is(world: World) -> None:
    def fails() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        capture(fails)
    assert not world.underway
    assert not world.random
    assert not world.uses[POOL]


@pytest.mark.parametrize("undo", [True, False])
def test_a_platform_without_pytorchs_functions_tells_the_first_error(
    world: World, monkeypatch: pytest.MonkeyPatch, undo: bool
) -> None:
    """As torchada, which sends torch.cuda to another device, and `torch._C` it does not."""
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    row = dataclasses.replace(capabilities.PLATFORMS[0], undo_failed_capture=undo)
    monkeypatch.setattr(graph_backend.CudaGraphBackend, "platform", row)
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        capture(world.read_a_value)


def device(monkeypatch: pytest.MonkeyPatch, path: str) -> Any:
    """The backend on a platform whose class has this module and name."""
    module, _, name = path.rpartition(".")
    platform = type(name, (), {"__module__": module})()
    monkeypatch.setattr("vllm.platforms.current_platform", platform)
    return graph_backend.default_graph_backend()


def test_a_platform_is_known_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in capabilities.PLATFORMS:
        for path in row.classes:
            backend = device(monkeypatch, path)
            assert backend.platform == row
            assert backend.no_graphs() == (row.why or None)
    stranger = device(monkeypatch, "somewhere.NvmlCudaPlatform")
    assert stranger.platform is None
    assert "somewhere.NvmlCudaPlatform" in stranger.no_graphs()


def test_what_is_not_understood_is_not_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(device: int, pool: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fails, raising=False)
    with pytest.raises(RuntimeError, match="something else"):
        capture(world.read_a_value)
