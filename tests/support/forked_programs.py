"""Programs in processes of their own, each forked from one that has imported what they need.

To start Python and import the overlay takes longer than what most commands do, and to import pytest
longer than most tests.  Each has its own session, variables, working folder and output, and ends as
``python -m PROGRAM`` does.

``python -m tests.support.forked_programs FD MODULE...`` imports modules and answers requests at a
socket: ``{"program", "words", "folder", "variables"}`` and the file that takes what it prints, with
the id of its process; and ``{"wait": id}`` with its status and its seconds of CPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import overlay
from tests.support.costs import spent_elsewhere
from tests.support.forks import run_and_exit

REPOSITORY = Path(__file__).resolve().parents[2]
#: Bytes that a request or an answer may have.
MOST = 1 << 20
#: What does something when it is imported, or is no module of the overlay's.
_NOT_EARLY = ("overlay.__main__", "overlay.patches", "overlay.plugin", "overlay.in_memory")


def modules_of(package: ModuleType, without: tuple[str, ...] = ()) -> list[str]:
    """The names of a package's modules, but for those that begin in some way."""
    modules = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in modules if not module.name.startswith(without)]


def commands() -> list[str]:
    """What the commands of the overlay import."""
    return modules_of(overlay, _NOT_EARLY)


class ForkedProgram:
    """A program that runs.

    :ivar pid: its process, which leads a session.
    :ivar returncode: as of ``subprocess``; None until it was waited for.
    """

    def __init__(self, pid: int, output: int, programs: ForkedPrograms) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._output, self._programs = output, programs

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it was waited for; it is there until then, ended or not."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float) -> bytes:
        """Wait until nobody holds its output any more, and for its end; what was printed.

        :raises TimeoutError: if somebody holds it after so many seconds.
        """
        deadline, output = time.monotonic() + timeout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                if not selector.select(deadline - time.monotonic()):
                    raise TimeoutError(f"{self.pid} printed {output!r} and does not end")
                part = os.read(self._output, MOST)
                if not part:
                    break
                output += part
        os.close(self._output)
        self.returncode = self._programs.wait(self.pid)
        return output


class ForkedPrograms:
    """The process that forks, as the one that started it sees it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.seconds = 0.0

    def start(
        self, program: str, words: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> ForkedProgram:
        """Start a program, the module of which is named."""
        reader, writer = os.pipe()
        request = {
            "program": program,
            "words": list(words),
            "folder": str(folder),
            "variables": dict(variables),
        }
        try:
            socket.send_fds(self._link, [json.dumps(request).encode()], [writer])
        finally:
            os.close(writer)
        return ForkedProgram(json.loads(self._link.recv(MOST)), reader, self)

    def wait(self, pid: int) -> int:
        """Wait for a program; its status."""
        self._link.sendall(json.dumps({"wait": pid}).encode())
        status, seconds = json.loads(self._link.recv(MOST))
        self.seconds += seconds
        spent_elsewhere(seconds)
        return int(status)


@contextlib.contextmanager
def forked_programs(
    early: Iterable[str], root: Path = REPOSITORY, *options: str
) -> Iterator[ForkedPrograms]:
    """Start the process that forks; end it at the end.

    :param early: the modules that it imports; those that cannot be imported here are left out.
    :param root: the checkout that it is started in.
    :param options: Python's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            module = ("-m", "tests.support.forked_programs", str(theirs.fileno()))
            process = subprocess.Popen(
                [sys.executable, *options, *module, *early],
                cwd=root,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        programs = ForkedPrograms(ours)
        yield programs
    process.wait(timeout=60)
    spent_elsewhere(-programs.seconds)  # of its children; from now on the system counts them


def serve(link: socket.socket, early: Iterable[str]) -> None:
    """Import modules, and answer requests until nobody can make one."""
    for module in early:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    while True:
        text, files, _, _ = socket.recv_fds(link, MOST, 1)
        if not text:
            return
        request = json.loads(text)
        if "wait" in request:
            _, ended, used = os.wait4(request["wait"], 0)
            status = os.waitstatus_to_exitcode(ended)
            answer: Any = (status, used.ru_utime + used.ru_stime)
        else:
            answer = os.fork() or _run(link, files[0], request)
            os.close(files[0])
        link.sendall(json.dumps(answer).encode())


def _run(link: socket.socket, output: int, request: Mapping[str, Any]) -> NoReturn:
    """Be the process of a program."""
    os.setsid()
    link.close()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    os.dup2(output, 1)
    os.close(output)
    run_and_exit(functools.partial(_run_program, request["program"], request["words"]))


def _run_program(program: str, words: list[str]) -> None:
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = [program, *words]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
