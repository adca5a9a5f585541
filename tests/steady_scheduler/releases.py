"""The functions of a release beside the feature's. Needs vLLM."""

from __future__ import annotations

import functools
from types import ModuleType

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.batched_bookkeeping.mutations import Bug
from tests.batched_bookkeeping.releases import (
    assert_noticed,
    compiled,
    each_bug_of,
    method,
    text,
    torch,
)
from tests.support.beside_vllm import PATCHES, put_beside_vllm
from tests.support.code_edits import edited

put_beside_vllm("steady-scheduler")

__all__ = ["assert_noticed", "compiled", "each_bug_of", "method", "text", "torch"]

FEATURE = "steady-scheduler"


@functools.cache
def sources(release: str) -> dict[str, tuple[bytes, bytes]]:
    """The files that the feature changes, pristine and patched."""
    features = [each for each in load([shipped_folder()]) if each.id == FEATURE]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    return {c.path: (c.before, c.after) for c in changes if c.before is not None and c.after}


def with_bug(name: str, bug: Bug) -> ModuleType:
    """A module that the feature adds, with a bug."""
    file = PATCHES / FEATURE / "files" / f"{name.replace('.', '/')}.py"
    module = ModuleType(name)
    exec(compile(edited(file.read_text(), [bug]), file, "exec"), vars(module))
    return module
