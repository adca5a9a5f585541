"""TARGET: what the user names, and the tree of files that it stands for.

A target is nothing (the vLLM that this Python would import), a folder that holds ``vllm/``, a wheel
or sdist file, or a release, which is fetched from the configured package index.  Nothing of a
target is ever executed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlay.targets.naming import fetch_all, releases, resolve
    from overlay.targets.target import Progress, Target

__all__ = ["Progress", "Target", "fetch_all", "releases", "resolve"]


def __getattr__(name: str) -> object:
    # On first use: a process of vLLM knows its target and needs nothing that turns names into one.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from overlay.targets import naming, target

    return getattr(target if name in ("Progress", "Target") else naming, name)
