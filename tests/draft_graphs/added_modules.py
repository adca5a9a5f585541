"""The modules that the feature adds to vLLM, imported without vLLM.

Only those that need neither torch nor vLLM can be imported so: `keys`, `policy` and `messages`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tests.support.code_edits import Edit, edited

FOLDER = Path(__file__).parents[2] / "patches/draft-graphs/files/vllm/v1/spec_decode"


def added(name: str) -> ModuleType:
    """The module `vllm.v1.spec_decode.draft_graphs.<name>`, as `draft_graphs.<name>`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(f"draft_graphs.{name}")


def require_fit(changes: Iterable[Edit]) -> None:
    """Demand that the edits can be made, one after the other.

    :raises EditError: if one does not fit the package.
    """
    texts: dict[str, str] = {}
    for file, *edit in changes:
        source = (FOLDER / "draft_graphs" / file).read_text(encoding="utf-8")
        texts[file] = edited(texts.get(file, source), [edit], file)
