"""The figures of the performance page are those of the committed JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/render_performance.py"


def test_the_page_shows_what_the_json_says() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run scripts/render_performance.py"
