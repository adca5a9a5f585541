"""A graph on CPU that behaves like a CUDA graph, so that capture and replay can be tested there.

Capture records every leaf operator, with the memory that its tensors lie in and the numbers that
it got, and leaves all memory as it was: nothing has run. Replay runs exactly those operators on
exactly that memory, with no Python of the captured code. What capture allocated holds poison
before each replay of any graph of the same pool, unless somebody outside still holds it.

It refuses what a capture refuses (`CaptureRefused`: the host reads a value, a shape depends on
data, fresh host data comes in) and what a replay would silently get wrong (`ReplayRefused`:
memory that only the graph still owns, because somebody assigned a new tensor to the name).

It cannot show: copies between host and device that are missing, races between streams, two
tensors of one graph that share memory because their lives do not overlap.

Longer than other modules: recording and replaying are two halves of one state.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.draft_graphs.graph_operators import (
    always_runs,
    has_python_kernel,
    is_allocation,
    is_composite,
    leaves_of,
    refusal,
    with_tensors,
    written_tensors,
)

# These never reach the dispatcher for a tensor that already is on the host.
HOST_ESCAPES: dict[Any, str] = {
    torch.Tensor.tolist: "Tensor.tolist",
    torch.Tensor.numpy: "Tensor.numpy",
    torch.Tensor.__array__: "Tensor.__array__",
    torch.Tensor.__dlpack__: "Tensor.__dlpack__",
    torch.Tensor.cpu: "Tensor.cpu",
    torch.Tensor.pin_memory: "Tensor.pin_memory",
    torch.tensor: "torch.tensor",
}
# Functions without a tensor argument: no mode sees them.
HOST_SOURCES = ("from_numpy", "frombuffer")


class CaptureRefused(RuntimeError):
    """A CUDA graph capture would have failed here; the message names the operator."""


class ReplayRefused(RuntimeError):
    """A CUDA graph replay would have silently used memory that nobody means any more."""


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory under a new tensor: a later `t.data = ...` does not move it."""
    alias = torch.empty(0, dtype=tensor.dtype)
    return alias.set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


# external: was there before; pool: allocated by the capture; constant: a number baked into a kernel
Role = Literal["external", "pool", "constant"]


@dataclass
class Memory:
    """One storage that the recording uses."""

    everything: torch.Tensor  # the whole storage, flat, in the dtype of its first user
    storage: torch.UntypedStorage
    role: Role
    first_user: str
    references: int = 1  # the recording's own: `everything`, and what its operations hold
    poisoned: bool = False  # and nobody can have written it since
    before: torch.Tensor | None = None  # contents to be put back when the capture ends

    def owned_elsewhere(self, held: Mapping[int, int]) -> bool:
        """Whether anything but recordings holds this memory.

        :param held: `references_held`.
        """
        count: int = torch._C._storage_Use_Count(self.storage._cdata)
        # The handle `storage` is one and the same for all recordings.
        return count > 1 + held.get(int(self.storage._cdata), 0)

    def orphaned(self, held: Mapping[int, int]) -> bool:
        """Whether memory that the graph was given has lost its owner."""
        return self.role == "external" and not self.owned_elsewhere(held)

    def poison(self) -> None:
        """Fill with what no honest value is: NaN, or an integer beyond any index and length."""
        tensor = self.everything
        if tensor.dtype.is_floating_point and tensor.element_size() > 1:
            tensor.fill_(float("nan"))
        elif tensor.dtype in (torch.int16, torch.int32, torch.int64):
            # Not -1, which is a lawful slot for padding.
            tensor.fill_(torch.iinfo(tensor.dtype).max - 4242)
        elif tensor.numel():
            tensor.view(torch.uint8).fill_(0xDB if tensor.dtype != torch.bool else 1)

    def describe(self) -> str:
        shape = tuple(self.everything.shape)
        return f"{self.everything.dtype}{list(shape)}, first used by {self.first_user}"


def references_held() -> Mapping[int, int]:
    """Count by storage how often all recordings together refer to it."""
    for graph in list(RecordedGraph.changed):
        graph._counted = {key: memory.references for key, memory in graph.memory.items()}
        RecordedGraph.held.update(graph._counted)
    RecordedGraph.changed.clear()
    return RecordedGraph.held


@dataclass
class Operation:
    """One recorded call: frozen arguments, and the memory that its results go to."""

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def run(self) -> None:
        out = self.func(*self.args, **self.kwargs)
        if self.results:
            flat = leaves_of(out)
            for position, destination in self.results:
                destination.copy_(flat[position])

    def tensors(self) -> Iterator[torch.Tensor]:
        leaves = leaves_of((self.args, self.kwargs))
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        yield from (destination for _, destination in self.results)


class GraphPool:
    """Graphs that share memory: the replay of one may spoil what another holds for nobody."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[RecordedGraph] = weakref.WeakSet()

    def add(self, graph: RecordedGraph) -> None:
        self._graphs.add(graph)

    def poison(self, replayed: RecordedGraph, held: Mapping[int, int]) -> None:
        """Poison all that `replayed` allocated, and of its neighbours what nobody else holds.

        Only what may have changed since it was poisoned last: what nobody else holds, a replay
        alone can write, and `RecordedGraph.touch_memory` says that it does.

        :param held: `references_held`.
        """
        for graph in list(self._graphs):
            for memory in graph.memory.values():
                if memory.role != "pool" or (memory.poisoned and graph is not replayed):
                    continue
                if graph is replayed or not memory.owned_elsewhere(held):
                    memory.poison()
                    memory.poisoned = True


def _is_host_memory(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is a tensor that a GPU's code would keep on the host."""
    graph = RecordedGraph.capturing
    known = {} if graph is None else graph._host
    return bool(args) and isinstance(args[0], torch.Tensor) and _key(args[0]) in known


class _HostEscapes(TorchFunctionMode):  # type: ignore[misc]  # mypy sees no PyTorch
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in HOST_ESCAPES and not _is_host_memory(args):
            raise CaptureRefused(f"{HOST_ESCAPES[func]}: a value crosses between host and device")
        if func is torch.as_tensor and not isinstance(args[0], torch.Tensor):
            raise CaptureRefused("torch.as_tensor: fresh host data")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # mypy sees no PyTorch
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if has_python_kernel(func):
            self.graph.entered[str(func)] += 1
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
            with self:
                return func.redispatch(keys, *args, **kwargs)
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        return self.graph._record(func, args, kwargs)


@contextlib.contextmanager
def _know_host_sources(host: dict[int, torch.Tensor]) -> Iterator[None]:
    """Inside, what is made of host data is host memory, whose use by the device is refused."""

    def know(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **kwargs: Any) -> torch.Tensor:
            with _disable_current_modes():
                tensor = original(*args, **kwargs)
            host[_key(tensor)] = tensor  # kept, so that nothing else gets its key
            return tensor

        return made

    originals = {name: getattr(torch, name) for name in HOST_SOURCES}
    try:
        for name in HOST_SOURCES:
            setattr(torch, name, know(originals[name]))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


class RecordedGraph:
    """One recording; `capture` once, `replay` any number of times.

    `host_only`: tensors that the captured code must not touch (on a GPU they would be host
    memory, or memory that belongs to somebody else). `host`: tensors that on a GPU would be host
    memory, too, but may be computed with: that work is the host's, it is done at once and not
    recorded, and its results may be read. Raises `CaptureRefused`, `ReplayRefused`.
    """

    capturing: ClassVar[RecordedGraph | None] = None
    #: What `references_held` counts, of all recordings but those that changed since.
    held: ClassVar[Counter[int]] = Counter()
    changed: ClassVar[weakref.WeakSet[RecordedGraph]] = weakref.WeakSet()
    recorder: ClassVar[type[_Recorder]] = _Recorder

    def __init__(
        self,
        name: str = "graph",
        pool: GraphPool | None = None,
        host_only: Iterable[torch.Tensor] = (),
        host: Iterable[torch.Tensor] = (),
    ) -> None:
        self.name = name
        self.pool = pool or GraphPool()
        self.pool.add(self)
        self.operations: list[Operation] = []
        self.memory: dict[int, Memory] = {}
        self._counted: dict[int, int] = {}
        self.entered: Counter[str] = Counter()
        self.replays = 0
        self.captured = False
        self._host_only = {_key(tensor): tensor for tensor in host_only}
        self._host = {_key(tensor): tensor for tensor in host}

    def __del__(self) -> None:
        self._uncount()

    def _uncount(self) -> None:
        """Take from `held` what this recording refers to."""
        for key, number in self._counted.items():
            self.held[key] -= number
            if not self.held[key]:
                del self.held[key]
        self._counted = {}

    def count_again(self) -> None:
        """See to it that `references_held` counts what this recording refers to from now on."""
        self._uncount()
        self.changed.add(self)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Record what runs inside; all memory is as before when it ends."""
        if self.captured or RecordedGraph.capturing is not None:
            raise CaptureRefused(f"{self.name}: captured already, or another capture is running")
        RecordedGraph.capturing = self
        try:
            # Below autograd, because C++ operators that are registered as composites run at the
            # autograd key, above the mode, which would never see them.
            with (
                _know_host_sources(self._host),
                torch.no_grad(),
                torch._C._AutoDispatchBelowAutograd(),
                _HostEscapes(),
                self.recorder(self),
            ):
                yield
        except BaseException:
            self._undo()
            self.reset()
            raise
        finally:
            RecordedGraph.capturing = None
        self._undo()
        self._count_references()
        held = references_held()
        for memory in self.memory.values():
            if memory.orphaned(held):
                description = memory.describe()
                self.reset()
                raise CaptureRefused(
                    f"{self.name}: {description}, was made inside the capture by something "
                    "that no dispatcher sees (host data, compiled code)"
                )
        self.captured = True

    def replay(self) -> None:
        """Run what was recorded, on the memory that it was recorded on."""
        held = references_held()
        self.check_replay(held)
        with torch.no_grad(), _disable_current_modes():
            self.pool.poison(self, held)
            self.touch_memory()
            for operation in self.operations:
                operation.run()
        self.replays += 1

    def touch_memory(self) -> None:
        """Take nothing for poisoned that this recording is about to write."""
        for memory in self.memory.values():
            memory.poisoned = False

    def check_replay(self, held: Mapping[int, int]) -> None:
        """Refuse a replay that would use memory that nobody means any more.

        :param held: `references_held`.
        """
        if not self.captured or RecordedGraph.capturing is not None:
            raise ReplayRefused(f"{self.name}: not captured, or replayed inside a capture")
        for memory in self.memory.values():
            if memory.orphaned(held):
                raise ReplayRefused(
                    f"{self.name}: only the graph still owns {memory.describe()}: "
                    "the name was assigned a new tensor after capture"
                )

    def reset(self) -> None:
        """Forget the recording, as `CUDAGraph.reset` does."""
        self._uncount()
        self.operations.clear()
        self.memory.clear()
        self._host.clear()
        self.captured = False

    def allocated_bytes(self) -> int:
        """Bytes that the capture allocated."""
        return sum(m.everything.nbytes for m in self.memory.values() if m.role == "pool")

    def _know(self, tensor: torch.Tensor, user: str, role: Role) -> Memory:
        key = _key(tensor)
        if key not in self.memory:
            storage = tensor.untyped_storage()
            items = storage.nbytes() // tensor.element_size()
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (items,), (1,))
            self.memory[key] = Memory(flat, storage, role, user)
        return self.memory[key]

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(func)
        if self._is_host_work(name, args, kwargs):
            return self._on_host(func, args, kwargs)
        reason = refusal(func, args, kwargs)
        if reason:
            raise CaptureRefused(f"{name}: {reason}")
        inputs = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func._schema.name == "aten::lift_fresh":
            return self._constant(func, inputs[0])
        self._note_inputs(name, inputs)
        self._keep_contents(func, args, kwargs)
        operation = Operation(func, with_tensors(args, _alias), with_tensors(kwargs, _alias))
        out = func(*args, **kwargs)
        for position, result in enumerate(leaves_of(out)):
            if isinstance(result, (bool, int, float)):
                raise CaptureRefused(f"{name}: returns a number to the host")
            if isinstance(result, torch.Tensor) and _key(result) not in self.memory:
                memory = self._know(result, name, "pool")
                if is_allocation(func):
                    memory.poison()
                else:
                    operation.results.append((position, _alias(result)))
        if operation.results or always_runs(func):
            self.operations.append(operation)
        return out

    def _is_host_work(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not self._host:
            return False
        leaves = leaves_of((args, kwargs))
        sides = {_key(leaf) in self._host for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if len(sides) == 2:
            raise CaptureRefused(f"{name}: mixes memory of the host and of the device")
        return True in sides

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        for result in leaves_of(out):
            if isinstance(result, torch.Tensor):
                self._host[_key(result)] = result  # kept, so that nothing else gets its key
        return out

    def _note_inputs(self, name: str, inputs: list[torch.Tensor]) -> None:
        for tensor in inputs:
            if _key(tensor) in self._host_only:
                raise CaptureRefused(f"{name}: touches a tensor that the graph must not use")
            self._know(tensor, name, "external")

    def _keep_contents(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of what is about to be written, so that the capture can leave it as it was."""
        for tensor in written_tensors(func, args, kwargs):
            memory = self.memory[_key(tensor)]
            if memory.role == "external" and memory.before is None:
                memory.before = memory.everything.clone()

    def _constant(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """`x[a:b] = 3.0` wraps the number so; a kernel gets it baked. Anything larger is data."""
        if tensor.dim():
            raise CaptureRefused(f"{func}: fresh host data")
        self._know(tensor, str(func), "constant")
        out: torch.Tensor = func(tensor)
        return out

    def _undo(self) -> None:
        with torch.no_grad():
            for memory in self.memory.values():
                if memory.role == "pool":
                    memory.poison()
                elif memory.before is not None:
                    memory.everything.copy_(memory.before)
                    memory.before = None

    def _count_references(self) -> None:
        self.count_again()
        uses = Counter(_key(t) for operation in self.operations for t in operation.tensors())
        for key, memory in self.memory.items():
            memory.references = 1 + uses[key]
