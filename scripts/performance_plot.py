"""The plot of docs/performance.md: step times and the GPU's share, one bar for each engine.

The only module here that wants matplotlib (the extra ``bench``).  The picture names the digest of
the data it was drawn from, so that whoever has no matplotlib can tell whether it is up to date.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from scripts.performance_data import BATCHES, ENGINES, Sitting, digest

_COLOURS = {
    "stock-v1": "#8c8c8c",
    "patched-step": "#9ecae1",
    "patched-loop": "#3182bd",
    "patched-loop-unsteady": "#6baed6",
    "auto-loop": "#31a354",
    "v2": "#e6842a",
}
_MARK = "data sha256 "


def digest_in(svg: str) -> str | None:
    """The digest that a picture names."""
    _, found, rest = svg.partition(_MARK)
    return rest[:64] if found else None


def draw(found: Sequence[Sitting]) -> str:
    """The picture, as SVG.

    :raises ModuleNotFoundError: if matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings: dict[str, Any] = {
        "svg.hashsalt": "vllm-overlay",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    height = 0.6 + sum(0.5 + 0.2 * len(sitting.rows) for sitting in found)
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(
            1, len(BATCHES) + 1, figsize=(11, max(height, 2.5)), sharey=True, layout="constrained"
        )
        for axis, batch in zip(axes, BATCHES, strict=False):
            _bars(axis, found, batch)
            axis.set_title(f"batch {batch}")
            axis.set_xlabel("ms per engine step")
        _bars(axes[-1], found, None)
        axes[-1].set_title("GPU busy, batch 1")
        axes[-1].set_xlabel("% of a step")
        axes[-1].set_xlim(0, 100)
        _label(axes[0], found)
        _legend(figure, found)
        stream = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Description": _MARK + digest(found)}
        figure.savefig(stream, format="svg", metadata=metadata)
        pyplot.close(figure)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _places(found: Sequence[Sitting]) -> list[tuple[float, int, int]]:
    """Where each bar stands, from above: its height, and the indices of sitting and row."""
    placed, below = [], 0.0
    for index, sitting in enumerate(found):
        for number in range(len(sitting.rows)):
            placed.append((below, index, number))
            below += 1
        below += 1.5
    return placed


def _bars(axis: Any, found: Sequence[Sitting], batch: int | None) -> None:
    """The bars of one batch size with the range of their repeats; without one, the GPU's share."""
    for height, index, number in _places(found):
        row = found[index].rows[number]
        colour = _COLOURS.get(row.engine, "#000000")
        if batch is None:
            if row.gpu_share is not None:
                axis.barh(height, 100 * row.gpu_share, color=colour)
        elif batch in row.times:
            times = row.times[batch]
            error = [[times.median - times.low], [times.high - times.median]]
            axis.barh(height, times.median, color=colour, xerr=error, error_kw={"elinewidth": 0.7})
    axis.grid(axis="x", linewidth=0.3)
    axis.set_axisbelow(True)


def _label(axis: Any, found: Sequence[Sitting]) -> None:
    """The names of the settings, each in the middle of its bars."""
    middles: dict[int, list[float]] = {}
    for height, index, _ in _places(found):
        middles.setdefault(index, []).append(height)
    axis.set_yticks([sum(heights) / len(heights) for heights in middles.values()])
    labels = [found[index].setting.words.replace(", FULL", ",\nFULL") for index in middles]
    axis.set_yticklabels(labels)
    if not axis.yaxis_inverted():
        axis.invert_yaxis()


def _legend(figure: Any, found: Sequence[Sitting]) -> None:
    from matplotlib.patches import Patch

    there = {row.engine for sitting in found for row in sitting.rows}
    handles = [Patch(color=_COLOURS[engine], label=engine) for engine in ENGINES if engine in there]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
