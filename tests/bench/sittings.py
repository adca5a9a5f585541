"""A sitting of the benchmarks, as its command line makes it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.meeting import Meeting
from bench.sitting import Sitting


def sitting(tmp_path: Path, **more: Any) -> Sitting:
    """One with folders that need not be there; ``more`` comes instead of what it would be given."""
    given: dict[str, Any] = {
        "out": tmp_path / "result.json",
        "stock": Path("/stock"),
        "patched": Path("/patched"),
        "site": Path("/site"),
        "overlay_site": Path("/overlay"),
        "cache_root": tmp_path / "cache",
        "shared_cache": False,
        "timeout": 30.0,
        "sample_dir": None,
        "trace_dir": None,
        "batch": "1",
        "repeats": 3,
        "in_turn": None,
        "turns": 3,
        "beside": Meeting(None, 0, 1),
        "more": "",
    } | more
    return Sitting(argparse.Namespace(**given))
