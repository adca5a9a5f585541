"""Run an engine in a process of its own, with all its workers, to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Reads which groups begin (+) and end (-), until whoever writes that is gone; kills the rest.
_GUARD = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for group in alive:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Guard:
    """Ends all engines with this process, however that ends.

    An engine that was stopped while another measures would otherwise keep its GPU for ever.
    """

    def __init__(self) -> None:
        # In a session of its own: what ends this process's group must not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def tell(self, sign: str, group: int) -> None:
        """Say that a process group has begun (+) or ended (-)."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(f"{sign}{group}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it; engines that have not ended are killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_child(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    seconds: float,
    tell: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Run one engine to its end or for that long; its RESULT, or how it failed.

    It leads a process group, which is killed with all its workers.

    :param tell: is told the process group when it begins (+) and when nothing is left of it (-).
    """
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            if tell is not None:
                tell("+", child.pid)
            status: int | str = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"not done after {seconds:.0f} s"
        finally:
            end_group(child)
            if tell is not None:
                tell("-", child.pid)
        output.seek(0)
        said = output.read()
    with log.open("a") as stream:  # vLLM logs to standard output
        stream.write(said)
    result = last_result(said)
    if result is None:
        return {"failed": status, "output": (log.read_text(errors="replace"))[-1500:]}
    return result if status == 0 else result | {"ended": status}


def last_result(said: str) -> dict[str, Any] | None:
    """Find the last RESULT that is whole; an engine may be killed while it writes one."""
    for line in reversed(said.splitlines()):
        if line.startswith("RESULT "):
            with contextlib.suppress(json.JSONDecodeError):
                result: dict[str, Any] = json.loads(line[7:])
                return result
    return None


def end_group(child: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process and of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
