"""The modules that the feature adds to vLLM, imported without vLLM.

Only those that need neither torch nor vLLM can be imported so: `keys`, `policy` and `report`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "patches/draft-graphs/files/vllm/v1/spec_decode"


def added(name: str) -> ModuleType:
    """The module `vllm.v1.spec_decode.draft_graphs.<name>`, as `draft_graphs.<name>`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(f"draft_graphs.{name}")
