"""Rests the garbage collector of every Python of a Ray cluster, which then starts twice as fast.

Ray starts its workers itself, in an environment that no test may change.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_file = Path(__file__).resolve().parents[2] / "support/rested_collector.py"
_spec = importlib.util.spec_from_file_location(_file.stem, _file)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_module.rest()
