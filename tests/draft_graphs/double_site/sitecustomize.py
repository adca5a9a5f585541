"""Give an engine that a user starts on CPU the graph double; Python imports this by itself.

On the path of an engine's Python (``tests.draft_graphs.double_environment`` puts it there) it waits
until vLLM's engine is imported, and then makes the machine one that has graphs: the CPU platform
keeps the cudagraph mode, the draft graphs are recordings, and the worker captures at the end of its
start.  ``TEST_MUTATED`` names a folder whose files take the place of modules of vLLM: each is named
as the module that it replaces.  ``TEST_DOUBLE=interpreted`` has no graphs: Triton's interpreter
runs the kernels of model runner V2, and steps are scheduled asynchronously.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

#: What an engine in Python imports; what each process of a server does before it is configured.
ENGINE, SERVER = "vllm.v1.engine.llm_engine", "vllm.engine.arg_utils"
#: What looks for a device on which Triton compiles.
TRITON = "vllm.triton_utils.importing"
WANTED = {"1": (ENGINE,), "server": (SERVER,), "interpreted": (TRITON, SERVER)}


class Finder:
    """Finds mutated modules, and tells when the engine has been imported."""

    def __init__(self, mutated: Path | None) -> None:
        self._mutated = mutated

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._mutated is not None and (file := self._mutated / f"{name}.py").is_file():
            return importlib.util.spec_from_file_location(name, file)
        double = os.environ.get("TEST_DOUBLE", "")
        if name not in WANTED.get(double, ()):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            inner: Any = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                inner(module)
                if name == TRITON:
                    setattr(module, "HAS_TRITON", True)  # noqa: B010 - mypy forbids the other way
                elif double == "interpreted":
                    importlib.import_module("tests.engine.steady_hooks").schedule_asynchronously()
                else:
                    give_graphs()

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - mypy forbids the other way
        return spec


def give_graphs() -> None:
    """Make this process one whose device has graphs."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    from tests.draft_graphs import cpu_engine
    from tests.draft_graphs.recorded_backend import RecordedBackend

    cpu_engine.prepare()
    if importlib.util.find_spec("vllm.v1.spec_decode.draft_graphs") is None:
        return  # the release's own files
    RecordedBackend().install()
    inner = CPUWorker.compile_or_warm_up_model

    @functools.wraps(inner)
    def compile_or_warm_up_model(self: Any) -> Any:
        result = inner(self)
        cpu_engine.capture(self.model_runner)
        return result

    CPUWorker.compile_or_warm_up_model = compile_or_warm_up_model


folder = os.environ.get("TEST_MUTATED")
if folder or "TEST_DOUBLE" in os.environ:
    sys.meta_path.insert(0, Finder(Path(folder) if folder else None))
