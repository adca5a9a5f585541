"""Hooks of an engine run: what its processes say they run, asked while it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def ray_first() -> None:
    """Import Ray before vLLM does, so that at exit Ray ends after the executor, which needs it."""
    import ray  # noqa: F401 - for what importing it does at exit


def live(llm: Any) -> Any:
    """``overlay status --live --json``, in a process of its own, as a user would ask."""
    done = subprocess.run(
        [sys.executable, "-m", "overlay", "status", "--live", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # Other engines may run on this machine.
    return [
        process
        for process in json.loads(done.stdout)["processes"]
        if process["engine"] == os.getpid()
    ]
