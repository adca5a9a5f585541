"""A fake vLLM with a patch for it, and processes that load the plugin there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.support import fake_vllm
from tests.support.patches import hunk, patch_text

REPO = Path(__file__).resolve().parents[2]
PROPOSER = "vllm/v1/spec_decode/proposer.py"
HUNK = hunk(
    [
        " def _first(self, tokens):".replace(" def", "     def"),
        "-        return self.model(tokens)",
        "+        from vllm.v1.spec_decode.added import MARK",
        "+",
        "+        return MARK",
    ],
    "SpecDecodeBaseProposer._first",
)
FEATURE = """
id = "demo"
title = "A demo"
why = "To see that it runs."
upstream = "https://example.com/1"
releases = "0.25.0..0.26.0"
"""
#: What a process of the box does: it loads the plugin, and then runs what it should.
PATCHED = "register(); assert runs() == 'patched', runs()\n"
PRISTINE = "register(); assert runs() == 'pristine', runs()\n"


#: Another tool's finder: asks the whole import system, and puts ``changed(spec)`` for its loader.
OTHER_FINDER = """
import importlib.abc, importlib.machinery, importlib.util, sys
class Other(importlib.abc.MetaPathFinder):
    busy = False
    def find_spec(self, name, path=None, target=None):
        if Other.busy or not name.startswith("vllm."):
            return None
        Other.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            Other.busy = False
        if spec is not None:
            spec.loader = changed(spec)
        return spec
"""


class Box:
    """A fake vLLM in a site-packages, a patches folder, and an environment for child processes."""

    def __init__(self, folder: Path, more: Mapping[str, bytes] | None = None) -> None:
        files = {"vllm/__init__.py": b"__version__ = '0.26.0'\n", **(more or {})}
        self.site = fake_vllm.site_packages(folder / "site", "0.26.0", files)
        self.patches = folder / "team"
        demo = self.patches / "demo"
        (demo / "10-first").mkdir(parents=True)
        (demo / "feature.toml").write_text(FEATURE)
        (demo / "10-first/0.25.0..0.26.0.patch").write_text(patch_text(PROPOSER, HUNK))
        added = demo / "files/vllm/v1/spec_decode/added.py"
        added.parent.mkdir(parents=True)
        added.write_text("MARK = 'patched'\n")
        (folder / "empty").mkdir()
        self.empty = folder / "empty"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "OVERLAY_CACHE": str(folder / "cache"),
            "OVERLAY_PATCHES": str(self.patches),
            "PYTHONPATH": f"{self.site}{os.pathsep}{REPO}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.cache = folder / "cache"
        for name in ("home", "run"):
            (folder / name).mkdir(mode=0o700)

    def run(self, code: str, *options: str, **changes: str) -> str:
        """Load the plugin as vLLM does, then run ``code``; returns standard error."""
        done = self.attempt(code, *options, **changes)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def attempt(
        self, code: str, *options: str, path: list[str] | None = None, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        """The same, whether it succeeds or not; ``path`` goes before ``sys.path``."""
        head = (
            f"import sys; sys.path[:0] = {path or []!r}\n"
            "import logging; logging.basicConfig(level=logging.DEBUG)\n"
            "from pathlib import Path\n"
            "import overlay._features.folder\n"
            f"empty = Path({str(self.empty)!r})\n"
            "overlay._features.sources.shipped_folder = lambda: empty\n"
            "def runs():\n"
            "    from vllm.v1.spec_decode.proposer import SpecDecodeBaseProposer as P\n"
            "    p = P(1); p.model = lambda tokens: 'pristine'\n"
            "    return p.propose(None)[0]\n"
            "from overlay.plugin import register\n"
        )
        return subprocess.run(
            [sys.executable, *options, "-c", head + textwrap.dedent(code)],
            env=self.environment | changes,
            capture_output=True,
            text=True,
            check=False,
        )

    def fingerprint(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.site)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.site.rglob("*"))
            if path.is_file()
        }

    def overlay(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", OVERLAY, str(self.empty), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


OVERLAY = """
import sys
from pathlib import Path
import overlay._features.folder
shipped = Path(sys.argv.pop(1))
overlay._features.sources.shipped_folder = lambda: shipped
from overlay.__main__ import main
main()
"""
