"""Run an engine of a sitting in a process of its own, with all its workers, to its end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlay.proof.engine_pool import ProcessGroup, Watchdog


def run_child(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    seconds: float,
    watchdog: Watchdog | None = None,
    on_begin: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Run one engine to its end or for that long; its RESULT, or how it failed.

    It leads a process group, which is killed with all its workers.

    :param log: takes what it prints.
    :param on_begin: is called with the process group when that begins.
    """
    with log.open("wb") as output:
        group = ProcessGroup(command, environment, output, watchdog=watchdog)
        try:
            on_begin(group.number)
            status = group.wait(seconds)
        finally:
            group.kill()
    text = log.read_text(encoding="utf-8", errors="replace")
    failure = f"not done after {seconds:.0f} s" if status is None else status
    result = last_result(text)
    if result is None:
        return {"failed": failure, "output": text[-1500:]}
    return result if status == 0 else result | {"ended": failure}


def last_result(text: str) -> dict[str, Any] | None:
    """Find the last RESULT that is whole; an engine may be killed while it writes one."""
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            with contextlib.suppress(json.JSONDecodeError):
                result: dict[str, Any] = json.loads(line[7:])
                return result
    return None
