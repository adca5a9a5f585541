"""What the GPU did in a trace of ``torch.profiler``: busy time, launches, and where it idled.

Works on the events of the Chrome trace format (times in microseconds), without torch or a GPU.
"""

from __future__ import annotations

import collections
import re
from typing import Any

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BY_HOST = ("cuda_runtime", "cuda_driver")
# Shorter pauses are the hardware's own between two kernels, not worth a line each.
_WORTH_NAMING_US = 1.0
_SHOWN = 40

Event = dict[str, Any]


def launch_figures(events: list[Event], steps: float) -> dict[str, Any]:
    """GPU time, launches and idle time per step; the shares are of the trace without its ends.

    The profiler slows the host, so the busy share is too small; the GPU's milliseconds are not.
    """
    work = on_gpu(events)
    if not work:
        return {}
    calls = collections.Counter(e["name"] for e in events if e.get("cat") in _BY_HOST)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in work]
    first, last = spans[0][0], max(stop for _, stop in spans)
    begin, end = first + 0.3 * (last - first), first + 0.9 * (last - first)
    kernels = sum(count for name, count in calls.items() if "LaunchKernel" in name)
    return {
        "gpu_busy": round(_covered(spans, begin, end) / (end - begin), 3),
        "gpu_ms_per_step": round(_covered(spans, first, last) / 1000 / steps, 3),
        "graph_launches_per_step": round(calls.get("cudaGraphLaunch", 0) / steps, 2),
        "kernel_launches_per_step": round(kernels / steps, 2),
        "gpu_idle": idle(work, called_at(events), begin, end, 0.6 * steps),
        "gpu_kernels": busiest(work, steps),
    }


def on_gpu(events: list[Event]) -> list[Event]:
    """What ran on the GPU, by its beginning."""
    return sorted((e for e in events if e.get("cat") in _ON_GPU), key=lambda e: float(e["ts"]))


def called_at(events: list[Event]) -> dict[int, float]:
    """The time at which the host called for something on the GPU, by what links the two."""
    return {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in _BY_HOST and "correlation" in e.get("args", {})
    }


def busiest(work: list[Event], steps: float) -> list[dict[str, Any]]:
    """The kernels and copies that took most of the GPU's time, in microseconds a step.

    :param work: as from ``on_gpu``.
    """
    took: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for event in work:
        row = took[_name(event)]
        row[:] = row[0] + 1, row[1] + event["dur"]
    rows = sorted(took.items(), key=lambda item: -item[1][1])
    return [
        {"name": name, "times": round(times / steps, 2), "us": round(us / steps, 2)}
        for name, (times, us) in rows[:_SHOWN]
    ]


def idle(
    work: list[Event], called: dict[int, float], begin: float, end: float, steps: float
) -> dict[str, Any]:
    """The gaps of the GPU between ``begin`` and ``end``, in microseconds a step.

    A pause has a name where it is long enough: what ran before it and what after.  ``late_us`` of
    it passed before the host had called for what came after; the rest is the GPU's own.

    :param work: as from ``on_gpu``.
    :param called: as from ``called_at``.
    :param steps: how many engine steps lie between begin and end.
    """
    named: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    total = short = late = 0.0
    before, reached = "", begin
    for event in work:
        start, stop = event["ts"], event["ts"] + event["dur"]
        if start >= end:
            break
        pause = start - reached
        if before and pause > 0:
            asked = called.get(event.get("args", {}).get("correlation"), reached)
            waited = min(max(asked - reached, 0.0), pause)
            total, late = total + pause, late + waited
            if pause >= _WORTH_NAMING_US:
                row = named[before, _name(event)]
                row[:] = row[0] + 1, row[1] + pause, row[2] + waited
            else:
                short += pause
        if stop > reached:
            before, reached = _name(event), stop
    rows = sorted(named.items(), key=lambda item: -item[1][1])
    return {
        "us_per_step": round(total / steps, 1),
        "late_us_per_step": round(late / steps, 1),
        f"below_{_WORTH_NAMING_US:g}_us": round(short / steps, 1),
        "pauses": [
            {
                "after": after,
                "before": then,
                "times": round(times / steps, 2),
                "us": round(us / steps, 2),
                "late_us": round(waited / steps, 2),
            }
            for (after, then), (times, us, waited) in rows[:_SHOWN]
        ],
    }


def _name(event: Event) -> str:
    """The kernel's name without its arguments, and whether a graph launched it."""
    name = re.sub(r"[<(].*", "", str(event["name"]).removeprefix("void "))
    return f"{name[:60]} (graph)" if event.get("args", {}).get("graph node id") else name[:60]


def _covered(work: list[tuple[float, float]], begin: float, end: float) -> float:
    """How much of the time from begin to end some of the work covers; ``work`` is sorted."""
    covered, reached = 0.0, begin
    for start, stop in work:
        counted_from, counted_to = max(start, reached), min(stop, end)
        if counted_to > counted_from:
            covered, reached = covered + counted_to - counted_from, counted_to
    return covered
