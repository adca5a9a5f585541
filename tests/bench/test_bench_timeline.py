"""What a trace of the GPU says of idle time, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from bench.profiling import timeline


def kernel(name: str, start: float, duration: float, call: int, graph: int = 0) -> dict[str, Any]:
    return {
        "cat": "kernel",
        "name": f"void {name}<float>(int)",
        "ts": start,
        "dur": duration,
        "args": {"correlation": call, "graph node id": graph},
    }


def launch(start: float, call: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return {
        "cat": "cuda_runtime",
        "name": name,
        "ts": start,
        "dur": 1,
        "args": {"correlation": call},
    }


def idle(events: list[dict[str, Any]], end: float) -> dict[str, Any]:
    return timeline.idle(timeline.on_gpu(events), timeline.called_at(events), 0, end, steps=1)


def test_a_pause_is_late_as_far_as_the_host_had_not_called() -> None:
    events = [
        kernel("sample", 0, 10, call=1),
        kernel("target", 30, 20, call=2, graph=7),
        launch(-5, 1),
        launch(18, 2, "cudaGraphLaunch"),
    ]
    found = idle(events, 50)
    assert (found["us_per_step"], found["late_us_per_step"]) == (20, 8)
    assert found["pauses"] == [
        {"after": "sample", "before": "target (graph)", "times": 1, "us": 20, "late_us": 8}
    ]


def test_work_that_overlaps_leaves_no_pause() -> None:
    events = [
        kernel("long", 0, 100, call=1),
        kernel("short", 10, 5, call=2),
        kernel("next", 100.5, 10, call=3),
    ]
    found = idle(events, 110)
    assert found["pauses"] == []
    assert found["us_per_step"] == found["below_1_us"] == pytest.approx(0.5)


def test_figures_are_per_step() -> None:
    events = [
        event
        for step in range(10)
        for event in (
            kernel("target", 100 * step, 60, call=2 * step, graph=1),
            kernel("sample", 100 * step + 70, 30, call=2 * step + 1),
            launch(100 * step - 10, 2 * step, "cudaGraphLaunch"),
            launch(100 * step - 5, 2 * step + 1),
        )
    ]
    found = timeline.launch_figures(events, steps=10)
    assert found["gpu_ms_per_step"] == pytest.approx(0.09)
    assert found["graph_launches_per_step"] == found["kernel_launches_per_step"] == 1
    assert found["gpu_busy"] == pytest.approx(0.9)
    assert found["gpu_kernels"] == [
        {"name": "target (graph)", "times": 1, "us": 60},
        {"name": "sample", "times": 1, "us": 30},
    ]
    assert found["gpu_idle"]["us_per_step"] == pytest.approx(10)
    assert found["gpu_idle"]["late_us_per_step"] == 0


def test_a_trace_without_gpu_work_says_nothing() -> None:
    assert timeline.launch_figures([launch(0, 1)], steps=1) == {}
