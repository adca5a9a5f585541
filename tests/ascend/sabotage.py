"""Put the bugs of `mutations` into the process that runs the twin."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.ascend import npu_double
from tests.ascend.mutations import AscendMutation, Sabotage
from tests.support.code_edits import edited


@contextlib.contextmanager
def put_in(mutation: AscendMutation, module: ModuleType) -> Iterator[None]:
    """Have a mutation in a module of the feature, or in how graphs are updated."""
    if mutation.sabotage is not None:
        with _updates(mutation.sabotage):
            yield
        return
    source = inspect.getsource(module)
    exec(compile(edited(source, mutation.edits), module.__file__ or "", "exec"), vars(module))
    try:
        yield
    finally:
        exec(compile(source, module.__file__ or "", "exec"), vars(module))


@contextlib.contextmanager
def _updates(sabotage: Sabotage) -> Iterator[None]:
    """Update wrongly: of the task groups of each graph, those of the second and the third."""
    begin, record = npu_double.graph_task_update_begin, npu_double.ExternalEvent.record
    places: dict[int, int] = {}
    last: list[npu_double.TaskGroup] = []

    def begin_wrongly(stream: Any, handle: npu_double.TaskGroup) -> None:
        number = places[id(handle)] = handle.graph.groups.index(handle)
        last[:] = [handle]
        groups = handle.graph.groups
        if sabotage == "left out" and number == 1:
            handle = _Nowhere(handle)
        elif sabotage == "swapped" and number in (1, 2):
            handle = groups[3 - number]
        elif sabotage == "event first" and number == 1:
            record(_event(handle), stream)
        begin(stream, handle)

    def record_wrongly(event: npu_double.ExternalEvent, stream: Any) -> None:
        number = places.get(id(last[0])) if last else None
        if number != 1 or sabotage in ("left out", "swapped"):
            record(event, stream)
        elif sabotage == "recorded twice":
            record(event, stream)  # the graph goes on, so that the second is for its next replay
            record(event, stream)

    torch.npu.graph_task_update_begin = begin_wrongly
    setattr(npu_double.ExternalEvent, "record", record_wrongly)  # noqa: B010  (mypy: a method)
    try:
        yield
    finally:
        torch.npu.graph_task_update_begin = begin
        setattr(npu_double.ExternalEvent, "record", record)  # noqa: B010  (mypy: a method)


def _event(group: npu_double.TaskGroup) -> npu_double.ExternalEvent:
    """The event that the graph waits for ahead of a task group."""
    nodes = group.graph.operations[: group.first]
    wait = next(node for node in reversed(nodes) if type(node) is npu_double.Wait)
    return wait.event


class _Nowhere(npu_double.TaskGroup):
    """A handle whose updates reach no task."""

    def __init__(self, group: npu_double.TaskGroup) -> None:
        super().__init__(group.graph, group.first)
        self.end = group.end
        self._tasks = super().tasks()
        self.graph = SimpleNamespace(rebind=lambda *given: None)  # type: ignore[assignment]  # enough

    def tasks(self) -> list[npu_double.Task]:
        """Those of the group that it replaces."""
        return self._tasks
