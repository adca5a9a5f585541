"""Hooks of an engine run: what its processes say they run, asked while it serves."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def live(llm: Any) -> Any:
    """``overlay status --live --json``, in a process of its own, as a user would ask."""
    code = (
        "import json\n"
        "from dataclasses import asdict\n"
        "from overlay.auto import live\n"
        "print(json.dumps([asdict(one) for one in live.processes()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return json.loads(done.stdout)
