"""Hooks for ``run_engine.py``: mutate the draft graphs' package while it is imported, and watch.

``mutate`` must come before anything that imports vLLM.  Nothing on disk is changed: each module of
the package that has changes is found as always, wherever vLLM has it, and executed from changed
source.  It says so in the log, because an engine that fails leaves nothing else behind.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tests.support.code_edits import edited

PACKAGE = "vllm.v1.spec_decode.draft_graphs"
#: A JSON object with ``name`` and ``changes``, a list of edits as in ``tests.support.code_edits``.
MUTATION_VARIABLE = "TEST_DRAFT_GRAPHS_MUTATION"
#: Results that are read late, and for how many GPU cycles the reading stream sleeps before each.
LATE_READS, CYCLES = 20, 40_000_000
Changes = dict[str, list[Sequence[str]]]

_late: list[tuple[Any, Any, Any]] = []
_in_entries: Counter[str] = Counter()
_in_bodies: Counter[str] = Counter()
_through_host: Counter[str] = Counter()


def executed_line(file: str, name: str) -> str:
    """What the log says once a changed module has been executed."""
    return f"Draft graphs, mutated: {file}, {name}"


class MutatedLoader(importlib.abc.Loader):
    """Executes a module from its changed source."""

    def __init__(self, stock: Any, file: str, name: str, changes: list[Sequence[str]]) -> None:
        self._stock, self._file, self._name, self._changes = stock, file, name, changes

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._stock.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        source = self._stock.get_source(module.__name__)
        text = edited(source, self._changes, self._file)
        module.__dict__["mutated_by"] = self._name
        exec(compile(text, module.__file__ or self._file, "exec", dont_inherit=True), vars(module))
        print(executed_line(self._file, self._name), flush=True)


class MutatingFinder(importlib.abc.MetaPathFinder):
    """Finds the changed modules where the finders behind it do."""

    def __init__(self, name: str, changes: Changes) -> None:
        self._name = name
        self._changes = {module_of(file): (file, each) for file, each in changes.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._changes:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                file, changes = self._changes[fullname]
                spec.loader = MutatedLoader(spec.loader, file, self._name, changes)
                return spec
        raise ImportError(f"{fullname} is to be mutated and cannot be found")


def module_of(file: str) -> str:
    """The name of the module that a file of the package is."""
    stem = file.removesuffix(".py")
    return PACKAGE if stem == "__init__" else f"{PACKAGE}.{stem}"


def _asked() -> tuple[str, Changes]:
    found = json.loads(os.environ[MUTATION_VARIABLE])
    changes: Changes = {}
    for file, *edit in found["changes"]:
        changes.setdefault(file, []).append(edit)
    return found["name"], changes


def mutate() -> None:
    """Let the package be imported with the changes that the environment asks for.

    :raises RuntimeError: if any of it was imported before.
    """
    before = [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]
    if before:
        raise RuntimeError(f"imported before they could be mutated: {', '.join(before)}")
    sys.meta_path.insert(0, MutatingFinder(*_asked()))


def check_mutated(llm: Any) -> list[str]:
    """The changed files whose modules the engine runs.

    :raises RuntimeError: if a module that should be changed is not the one that runs.
    """
    name, changes = _asked()
    for file in changes:
        found = getattr(sys.modules.get(module_of(file)), "mutated_by", None)
        if found != name:
            raise RuntimeError(f"{file} is mutated by {found!r}, not {name!r}")
    graphs = _graphs(llm)
    if (
        graphs is not None
        and type(graphs) is not sys.modules[f"{PACKAGE}.draft_graphs"].DraftGraphs
    ):
        raise RuntimeError(f"the engine's {type(graphs)} is not that of the mutated package")
    return sorted(changes)


def _graphs(llm: Any) -> Any:
    from overlay.proof import engine_compat

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    return getattr(engine_compat.drafter_of(runner), "draft_graphs", None)


# ---- what only a GPU has


def pool_bytes(llm: Any) -> dict[str, int] | None:
    """Bytes of the segments in the pool of the draft graphs; None if there are no graphs.

    Unlike the INFO line, which asks the device, this counts no neighbour's memory.
    """
    import torch

    captured = getattr(_graphs(llm), "captured", None)
    if captured is None:
        return None
    pool = tuple(captured.pool)
    segments = [
        each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == pool
    ]
    return {"segments": len(segments), "bytes": sum(each["total_size"] for each in segments)}


def _watch_entries(llm: Any, seen: Callable[[Any, Any, Any], Any]) -> None:
    """Call ``seen(entry, arguments, keywords)`` in place of each entry of the draft graphs."""
    graphs = _graphs(llm)
    for name in ("propose", "later_steps"):
        entry = getattr(graphs, name)
        setattr(graphs, name, lambda *args, _entry=entry, **named: seen(_entry, args, named))


def read_late(llm: Any) -> str:
    """Read the first results once more, on another stream and late."""
    import torch

    stream = torch.cuda.Stream()

    def seen(entry: Any, args: Any, named: Any) -> Any:
        result = entry(*args, **named)
        if result is not None and len(_late) < LATE_READS:
            at_once = result.clone()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)
                # Kept, so that the allocator does not give its memory away.
                _late.append((result, at_once, result.clone()))
        return result

    _watch_entries(llm, seen)
    return "results are read late"


def late_reads(llm: Any) -> dict[str, int]:
    """How many results were read late, and how many of them had changed by then."""
    import torch

    torch.cuda.synchronize()
    changed = sum(not bool(at_once.equal(late)) for _, at_once, late in _late)
    return {"read": len(_late), "changed": changed}


def slow_copies() -> None:
    """Let vLLM's own copy of the drafts to the host begin late, as on a stream that is busy."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stock = GPUModelRunner._copy_draft_token_ids_to_cpu

    def copy_late(self: Any, *args: Any, **named: Any) -> None:
        import torch

        if self.draft_token_ids_copy_stream is not None:
            with torch.cuda.stream(self.draft_token_ids_copy_stream):
                torch.cuda._sleep(CYCLES)
        stock(self, *args, **named)

    GPUModelRunner._copy_draft_token_ids_to_cpu = copy_late


def watch_bodies() -> None:
    """Before the engine starts: look at every operator of what the graphs hold."""
    from tests.gpu.operator_watch import OperatorWatch

    passes: Any = importlib.import_module(f"{PACKAGE}.passes").Passes
    stock = passes.body

    def body(self: Any, *args: Any, **named: Any) -> Callable[[], None]:
        inner = stock(self, *args, **named)

        def watched() -> None:
            with OperatorWatch(_in_bodies, _through_host):
                inner()

        return watched

    passes.body = body


def watch_entries(llm: Any) -> str:
    """Look at every operator inside the entries of the draft graphs, while serving."""
    from tests.gpu.operator_watch import OperatorWatch

    def seen(entry: Any, args: Any, named: Any) -> Any:
        with OperatorWatch(_in_entries, _through_host):
            return entry(*args, **named)

    _watch_entries(llm, seen)
    return "every operator is looked at"


def operators(llm: Any) -> dict[str, Any]:
    """How often which operator ran while serving; how many did in what graphs hold; and which of
    all of them copied to or from the host, or waited for it."""
    bodies = sum(_in_bodies.values())
    return {"serving": dict(_in_entries), "captured": bodies, "host": dict(_through_host)}


# ---- the rehearsal


def double() -> None:
    """On CPU: the graph double of ``tests/draft_graphs`` makes the graphs."""
    from tests.draft_graphs import dp_double

    dp_double.prepare()
    dp_double.install()
