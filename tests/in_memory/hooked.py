"""A small package that the import hook patches, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

PRISTINE = '''\
"""A module."""
import functools


class Runner:
    def run(self):
        return "pristine"


def helper():
    return __file__
'''
PATCHED = PRISTINE.replace('"pristine"', "added()").replace(
    "import functools", "from vllm.new import added"
)
ADDED = "def added():\n    return 'patched'\n"

PRELUDE = f"""
import sys
sys.path[:0] = [ROOT, {str(REPO)!r}]
from pathlib import Path
from overlay.in_memory.import_hook import PatchFinder, install
from overlay.in_memory.import_watch import HookError, WatchFinder
from overlay.untrusted import sha256
from overlay.in_memory.module_cache import Store
PRISTINE = Path(ROOT, "vllm/mod.py").read_bytes()
seen = []
store = Store(Path(ROOT, "cache"))
TEXTS = {{
    "vllm/mod.py": (PATCHED.encode(), sha256(PRISTINE)),
    "vllm/new/__init__.py": (ADDED.encode(), None),
    "vllm/new/inner.py": (b"VALUE = 3\\n", None),
}}
entry = store.save("key", TEXTS, {{}})
passed = []

class Observer:
    def executed(self, name, module, stored):
        seen.append(name)

    def bypassed(self, name, text):
        passed.append((name, text))

finder = PatchFinder(Path(ROOT), entry.modules, Observer())
"""


def run(root: Path, code: str, *options: str, patched: str = PATCHED) -> None:
    """Run ``code`` after the prelude in a fresh interpreter; it asserts by itself."""
    head = f"ROOT = {str(root)!r}\nPATCHED = {patched!r}\nADDED = {ADDED!r}\n"
    done = subprocess.run(
        [sys.executable, *options, "-c", head + PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
