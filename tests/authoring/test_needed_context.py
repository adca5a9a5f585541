"""Real changes, landed with the context that they need on the releases' own texts.

``bench/needed_context.py`` asks more of them; the draw here is another one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.needed_context import draw, measure
from bench.real_changes import releases


@pytest.mark.network
@pytest.mark.slow
def test_less_context_lands_at_the_right_place(tmp_path: Path) -> None:
    """The release that took a change, and git's merge, say what is right."""
    texts = releases()
    figures = measure(texts, draw(texts, 8, 2606), tmp_path)
    counts = figures["counts"]
    assert figures["wrong"] == []
    assert figures["changes"] >= 7
    for name in ("needed", "of all"):
        right = counts[f"taker without it, {name}: right"]
        assert right >= counts.get("taker without it, usual: right", 0)
