"""The Triton kernel of a steady step writes what its PyTorch version writes.

Triton's interpreter runs the kernel on the CPU, in a process that starts with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")  # in the environment of the engine
pytest.importorskip("triton")

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "steady_kernel_interpreted.py"


def test_the_kernel_equals_the_reference() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["cases"] > 50
    assert found["unequal"] == []
