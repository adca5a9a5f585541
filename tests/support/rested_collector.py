"""Spare the engines of tests the full passes of Python's garbage collector.

vLLM asks for a dozen of them while an engine starts and ends. Once vLLM is imported each of them
visits a million objects, and together they take more CPU than everything else that a small engine
does; so do the passes that Python makes by itself while vLLM is imported. What an engine of a test
leaves behind is small, and its process ends soon.

A private copy of vLLM has this module among its packages, and calls `rest` whenever Python starts
there (`tests/engine/private_copy.py`). Programs of other environments call it themselves. It
imports nothing but `gc`.
"""

import gc

#: New objects before a pass over the youngest; passes over these before one over older ones.
THRESHOLDS = (20_000, 20, 100)

_collect = getattr(gc.collect, "stock", gc.collect)


def rest() -> None:
    """Let `gc.collect` do nothing in this process, and Python collect by itself more rarely."""
    ignored.stock = _collect  # type: ignore[attr-defined]  # for copies of this module
    setattr(gc, "collect", ignored)  # noqa: B010 - mypy forbids to assign to a function
    gc.set_threshold(*THRESHOLDS)


def ignored(generation: int = 2) -> int:
    """Collect nothing; 0, the number of objects that were unreachable."""
    return 0


def collect() -> int:
    """Make a full pass all the same; the number of objects that were unreachable.

    What is left, such as all that vLLM imported, is looked at by no later pass.
    """
    unreachable = int(_collect())
    gc.freeze()
    return unreachable
