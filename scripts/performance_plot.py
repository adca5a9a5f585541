"""Draw the two plots of docs/performance.md: a summary, and every setting with the GPU's share.

The only module here that needs matplotlib (the extra ``bench``).  Each picture names the digest of
the data that it was drawn from, so that a test without matplotlib can tell whether it is current.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.performance_data import BATCHES, ENGINES, SUMMARY_ENGINE, Sitting, digest

_COLOURS = {
    "stock-v1": "#8c8c8c",
    "patched-step": "#9ecae1",
    "patched-loop": "#3182bd",
    "patched-loop-unsteady": "#6baed6",
    "patched-loop-unbatched": "#08519c",
    "patched-loop-metrics": "#54278f",
    "auto-loop": "#31a354",
    "v2": "#e6842a",
}
_MARK = "data sha256 "


def digest_in(svg: str) -> str | None:
    """The digest that a picture names, or ``None``."""
    _, mark, rest = svg.partition(_MARK)
    return rest[:64] if mark else None


#: What the summary calls its engines.
_SUMMARY_NAMES = {
    "stock-v1": "vLLM, model runner V1",
    SUMMARY_ENGINE: "V1 with the overlay",
    "v2": "vLLM, model runner V2",
}
_SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "vllm-overlay",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_summary(models: Mapping[str, Sequence[Sitting]]) -> str:
    """Step times of stock V1, V1 with the overlay and V2, as SVG: the chart that opens the page.

    :param models: the sittings of each target model, as ``performance_data.summary`` gives them.
    :raises ModuleNotFoundError: if matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    sittings = [sitting for group in models.values() for sitting in group]
    labels = [
        f"{name}\n{sitting.setting.release}" for name, group in models.items() for sitting in group
    ]
    with matplotlib.rc_context(_SETTINGS):
        figure, panels = pyplot.subplots(
            1, 2, figsize=(9, 0.6 + 0.5 * len(sittings)), sharey=True, layout="constrained"
        )
        for axis, batch in zip(panels, (BATCHES[0], BATCHES[-1]), strict=True):
            _summary_bars(axis, sittings, batch)
            axis.set_title("1 request" if batch == 1 else f"{batch} requests")
            axis.set_xlabel("ms per step; lower is better")
        panels[0].set_yticks(range(len(labels)))
        panels[0].set_yticklabels(labels)
        panels[0].invert_yaxis()
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        return _svg(figure, sittings)


def _summary_bars(axis: Any, sittings: Sequence[Sitting], batch: int) -> None:
    """The bars of one batch size: three engines side by side for each setting."""
    for offset, (engine, name) in enumerate(_SUMMARY_NAMES.items(), -1):
        there = [
            (place + 0.27 * offset, row.times[batch].median)
            for place, sitting in enumerate(sittings)
            if (row := sitting.engine(engine)) is not None and batch in row.times
        ]
        bars = axis.barh(
            [place for place, _ in there],
            [ms for _, ms in there],
            height=0.25,
            color=_COLOURS[engine],
            label=name,
        )
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axis.grid(axis="x", linewidth=0.3)
    axis.set_axisbelow(True)


def _svg(figure: Any, sittings: Sequence[Sitting]) -> str:
    """A figure as SVG text that names the digest of its data and no date."""
    from matplotlib import pyplot

    stream = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Description": _MARK + digest(sittings)}
    figure.savefig(stream, format="svg", metadata=metadata)
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def draw(sittings: Sequence[Sitting]) -> str:
    """Every setting and engine, with the GPU's share of a step, as SVG.

    :raises ModuleNotFoundError: if matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    height = 0.6 + sum(0.5 + 0.2 * len(sitting.rows) for sitting in sittings)
    with matplotlib.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(
            1, len(BATCHES) + 1, figsize=(11, max(height, 2.5)), sharey=True, layout="constrained"
        )
        for axis, batch in zip(axes, BATCHES, strict=False):
            _bars(axis, sittings, batch)
            axis.set_title(f"batch {batch}")
            axis.set_xlabel("ms per engine step")
        _bars(axes[-1], sittings, None)
        axes[-1].set_title("GPU busy, batch 1")
        axes[-1].set_xlabel("% of a step")
        axes[-1].set_xlim(0, 100)
        _label(axes[0], sittings)
        _legend(figure, sittings)
        return _svg(figure, sittings)


def _places(sittings: Sequence[Sitting]) -> list[tuple[float, int, int]]:
    """The place of each bar, from the top: its height, and the indices of sitting and row."""
    placed, below = [], 0.0
    for index, sitting in enumerate(sittings):
        for number in range(len(sitting.rows)):
            placed.append((below, index, number))
            below += 1
        below += 1.5
    return placed


def _bars(axis: Any, sittings: Sequence[Sitting], batch: int | None) -> None:
    """The bars of one batch size with the range of their repeats; without one, the GPU's share."""
    for height, index, number in _places(sittings):
        row = sittings[index].rows[number]
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


def _label(axis: Any, sittings: Sequence[Sitting]) -> None:
    """The names of the settings, each in the middle of its bars."""
    middles: dict[int, list[float]] = {}
    for height, index, _ in _places(sittings):
        middles.setdefault(index, []).append(height)
    axis.set_yticks([sum(heights) / len(heights) for heights in middles.values()])
    labels = [sittings[index].setting.words.replace(", FULL", ",\nFULL") for index in middles]
    axis.set_yticklabels(labels)
    if not axis.yaxis_inverted():
        axis.invert_yaxis()


def _legend(figure: Any, sittings: Sequence[Sitting]) -> None:
    from matplotlib.patches import Patch

    there = {row.engine for sitting in sittings for row in sitting.rows}
    handles = [Patch(color=_COLOURS[engine], label=engine) for engine in ENGINES if engine in there]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
