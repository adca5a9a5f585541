"""The modules that the feature adds to vLLM, imported without vLLM.

Only those that need neither torch nor vLLM can be imported so: `keys`, `policy` and `messages`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "patches/draft-graphs/files/vllm/v1/spec_decode"


def added(name: str) -> ModuleType:
    """The module `vllm.v1.spec_decode.draft_graphs.<name>`, as `draft_graphs.<name>`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(f"draft_graphs.{name}")


def require_fit(changes: Iterable[tuple[str, str, str]]) -> None:
    """Demand that each change, (file of the package, old text, new text), can be made as meant."""
    for file, old, new in changes:
        source = (FOLDER / "draft_graphs" / file).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{file} was changed: {old!r}"
        compile(source.replace(old, new), file, "exec")
