"""Commands in processes of their own, each forked from one that has imported what they need.

To start Python and import the overlay takes longer than what most commands do.  Each has its own
session, variables, working folder and output, and ends as ``python -m overlay`` does.

``python -m tests.support.forked_commands FD`` answers requests at a socket: ``{"words", "folder",
"variables"}`` and the file that takes what the command prints, with the id of its process; and
``{"wait": id}`` with its status and its seconds of CPU.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import overlay
from tests.support.costs import spent_elsewhere
from tests.support.forks import run_and_exit

REPOSITORY = Path(__file__).resolve().parents[2]
#: Bytes that a request or an answer may have.
MOST = 1 << 20
#: What does something when it is imported, or is no module of the overlay's.
NOT_EARLY = ("overlay.__main__", "overlay.patches", "overlay.plugin", "overlay.in_memory")


class ForkedCommand:
    """A command that runs.

    :ivar pid: its process, which leads a session.
    :ivar returncode: as of ``subprocess``; None until it was waited for.
    """

    def __init__(self, pid: int, output: int, commands: ForkedCommands) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._output, self._commands = output, commands

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
        self.returncode = self._commands.wait(self.pid)
        return output


class ForkedCommands:
    """The process that forks, as the one that started it sees it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.seconds = 0.0

    def start(
        self, words: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> ForkedCommand:
        """Start a command."""
        reader, writer = os.pipe()
        request = {"words": list(words), "folder": str(folder), "variables": dict(variables)}
        try:
            socket.send_fds(self._link, [json.dumps(request).encode()], [writer])
        finally:
            os.close(writer)
        return ForkedCommand(json.loads(self._link.recv(MOST)), reader, self)

    def wait(self, pid: int) -> int:
        """Wait for a command; its status."""
        self._link.sendall(json.dumps({"wait": pid}).encode())
        status, seconds = json.loads(self._link.recv(MOST))
        self.seconds += seconds
        spent_elsewhere(seconds)
        return int(status)


@contextlib.contextmanager
def forked_commands() -> Iterator[ForkedCommands]:
    """Start the process that forks; end it at the end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked_commands", str(theirs.fileno())],
                cwd=REPOSITORY,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        commands = ForkedCommands(ours)
        yield commands
    process.wait(timeout=60)
    spent_elsewhere(-commands.seconds)  # of its children; from now on the system counts them


def serve(link: socket.socket) -> None:
    """Import the overlay, and answer requests until nobody can make one."""
    for module in pkgutil.walk_packages(overlay.__path__, "overlay."):
        if not module.name.startswith(NOT_EARLY):
            with contextlib.suppress(ImportError):  # it is for an engine's process
                importlib.import_module(module.name)
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
    """Be the process of a command."""
    os.setsid()
    link.close()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    os.dup2(output, 1)
    os.close(output)
    run_and_exit(functools.partial(_run_program, request["words"]))


def _run_program(words: list[str]) -> None:
    """Run a command as the program that it is."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["overlay", *words]
    runpy.run_module("overlay", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
