"""TARGET: what the user names, and the tree of files that it stands for.

A target is nothing (the vLLM that this Python would import), a folder that holds ``vllm/``, a wheel
or sdist file, or a release, which is fetched from the configured package index.  Nothing of a
target is ever executed.
"""

from __future__ import annotations

from overlay.targets.resolve import fetch_all, releases, resolve
from overlay.targets.target import Progress, Target

__all__ = ["Progress", "Target", "fetch_all", "releases", "resolve"]
