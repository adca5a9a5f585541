"""Run an engine in a process of its own, with all its workers, to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_child(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    seconds: float,
    begun: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Run one engine to its end or for that long; its RESULT, or how it failed.

    It leads a process group, which is killed with all its workers.

    :param begun: is told the process group.
    """
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        if begun is not None:
            begun(child.pid)
        try:
            status: int | str = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"not done after {seconds:.0f} s"
        finally:
            end_group(child)
        output.seek(0)
        said = output.read()
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    with log.open("a") as stream:  # vLLM logs to standard output
        stream.write(said)
    if lines:
        found: dict[str, Any] = json.loads(lines[-1][7:])
        return found if status == 0 else found | {"ended": status}
    return {"failed": status, "output": (log.read_text(errors="replace"))[-1500:]}


def end_group(child: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process and of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
