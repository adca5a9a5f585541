"""Run modules of an environment, each in a process forked from one that imported vLLM.

Importing vLLM takes longer than most of the twins do. Nothing that a mutation changes is imported
before the fork, so each process sees the files as they are then, and what one does is kept from the
others.

``python -m tests.draft_graphs.forked_modules`` reads a JSON list a line, `[module, output, error,
argument...]`: the module to run as a program, the files that take what it prints, and its
arguments. It answers each with the exit status and the seconds of CPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.engine.engine_launch import (
    WRITERS,
    append_path,
    foreign_environment,
    link_packages,
)
from tests.support.costs import spent_elsewhere
from tests.support.forks import run_and_exit

TESTS = Path(__file__).resolve().parents[1]
#: Seconds after which a module that does not end is killed.
DEADLINE = 3600
#: What takes longest to import.
EARLY = (
    *("torch", "vllm.config", "vllm.model_executor.models.llama_eagle3"),
    "vllm.entrypoints.llm",
)
#: The package of the modules that draft-graphs adds, which mutations change.
CHANGED = "vllm.v1.spec_decode.draft_graphs"


class ForkedModules:
    """The process that forks, as the one that started it sees it."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, log: Path) -> None:
        self._process, self._folder, self._log = process, folder, log
        self._seconds = 0.0

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module as a program, to its end.

        :raises RuntimeError: if the process that forks has ended; holds what it printed.
        """
        files = [self._folder / name for name in ("output", "error")]
        command = [module, *map(str, files), *arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the process that forks has ended; it printed:\n{said[-4000:]}")
        status, seconds = answer.split()
        self._seconds += float(seconds)
        spent_elsewhere(float(seconds))
        output, error = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        return subprocess.CompletedProcess(command, int(status), output, error)

    def write_models(self, folder: Path, writer: str) -> None:
        """As `engine_launch.write_models`, without another import of PyTorch.

        :raises RuntimeError: if it fails.
        """
        ended = self.run(WRITERS[writer], str(folder.resolve()))
        if ended.returncode != 0:
            raise RuntimeError(f"{writer} ended with status {ended.returncode}:\n{ended.stderr}")

    def end(self) -> None:
        """End the process, for which its children's seconds count from then on."""
        self._process.communicate(timeout=60)
        spent_elsewhere(-self._seconds)


@contextlib.contextmanager
def forked_modules(python: Path) -> Iterator[ForkedModules]:
    """Start the process that forks, with the packages `overlay` and `tests`; end it at the end."""
    with tempfile.TemporaryDirectory(prefix="forked-") as work:
        folder = Path(work)
        code = link_packages(folder / "code", (TESTS,))
        log = folder / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [str(python), "-m", "tests.draft_graphs.forked_modules"],
                cwd=folder,
                # A file that is changed and changed back must not leave its bytecode behind.
                env={
                    **append_path(foreign_environment(), code),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
            )
        forks = ForkedModules(process, folder, log)
        try:
            yield forks
        finally:
            forks.end()


def serve() -> None:
    """Import vLLM, and run what is asked for until nothing more is.

    :raises RuntimeError: if what mutations change was imported, so that forks would see no change.
    """
    # What vLLM prints while it is imported goes to the errors, beside the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # which is read once, at the import
    for module in EARLY:
        importlib.import_module(module)
    if CHANGED in sys.modules:
        raise RuntimeError(f"{CHANGED} was imported before the fork, which would see no change")
    for line in sys.stdin:
        module, output, error, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            signal.alarm(DEADLINE)
            work = functools.partial(run, module, arguments)
            run_and_exit(work, Path(output), Path(error))
        _, ended, used = os.wait4(child, 0)
        seconds = used.ru_utime + used.ru_stime
        print(os.waitstatus_to_exitcode(ended), seconds, file=answers, flush=True)


def run(module: str, arguments: list[str]) -> None:
    """Run a module as a program."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()
