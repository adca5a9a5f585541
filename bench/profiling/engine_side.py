"""What is measured inside vLLM's workers, in whichever process they run.

vLLM mixes ``ProfilingExtension`` into its worker class, as ``overlay.proof.engine_compat`` says.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.v1.worker import gpu_worker

from bench.profiling import sampling
from bench.profiling.timeline import launch_figures
from overlay.proof.engine_compat import BenchExtension, drafter_of

_seconds: dict[str, list[float]] = collections.defaultdict(list)
_kept: dict[str, Any] = {"capture bytes": None, "profiler": None}


def _timed(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        result = inner(*args, **kwargs)
        _seconds[name].append(time.perf_counter() - begun)
        return result

    return call


def _remember_capture() -> None:
    """Keep what ``capture_model`` says that the graphs took, from now on."""
    stock = gpu_worker.Worker.compile_or_warm_up_model

    def compile_or_warm_up_model(self: Any) -> Any:
        runner = self.model_runner
        inner = runner.capture_model

        def capture_model(*args: Any, **kwargs: Any) -> Any:
            _kept["capture bytes"] = inner(*args, **kwargs)
            return _kept["capture bytes"]

        runner.capture_model = capture_model
        try:
            return stock(self)
        finally:
            del runner.capture_model

    gpu_worker.Worker.compile_or_warm_up_model = compile_or_warm_up_model


_remember_capture()


def _tensors(held: Any) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, dict):
        held = list(held.values())
    return [tensor for part in held or () for tensor in _tensors(part)]


def _private_pool_bytes() -> int:
    """Bytes that PyTorch holds for graphs, in pools of their own."""
    return sum(
        segment["total_size"]
        # PyTorch has not typed this call, and mypy does not see PyTorch everywhere.
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call, unused-ignore]
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )


class ProfilingExtension(BenchExtension):
    """Mixed into vLLM's worker."""

    def bench_watch(self) -> dict[str, Any]:
        """Time the runner and the drafter from now on; tell what they are."""
        sampling.let_others_read_us()
        runner = self.model_runner
        drafter = drafter_of(runner)
        for owner, names in ((runner, ("execute_model", "sample_tokens")), (drafter, ("propose",))):
            for name in names:
                if hasattr(owner, name):
                    setattr(owner, name, _timed(name, getattr(owner, name)))
        return {**self.bench_describe(), "pid": os.getpid()}

    def bench_forget(self) -> None:
        """Drop the times taken so far."""
        _seconds.clear()

    def bench_host(self) -> dict[str, dict[str, float]]:
        """Median, mean and largest host milliseconds of each timed method."""
        return {
            name: {
                "median_ms": round(1000 * statistics.median(seconds), 3),
                "mean_ms": round(1000 * statistics.fmean(seconds), 3),
                "max_ms": round(1000 * max(seconds), 3),
            }
            for name, seconds in _seconds.items()
            if seconds
        }

    def bench_memory(self) -> dict[str, Any]:
        """What vLLM announced, and what is held now; bytes, but for the blocks.

        ``kv_available``: what vLLM's memory profile granted the KV cache; ``kv_held``: what its
        tensors take; ``graphs_estimated`` and ``graphs_taken``: vLLM's own figures before and at
        the capture; ``graph_pools``: PyTorch's pools for graphs; ``in_use``: of the whole device,
        by whomever.
        """
        runner = self.model_runner
        config = getattr(runner, "kv_cache_config", None)
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in _tensors(getattr(runner, "kv_caches", None))
        }
        memory: dict[str, Any] = {
            "kv_blocks": getattr(config, "num_blocks", None),
            "kv_tensors": sum(
                tensor.size for tensor in getattr(config, "kv_cache_tensors", None) or ()
            ),
            "kv_held": sum(storages.values()),
            "kv_available": getattr(self, "available_kv_cache_memory_bytes", None),
            "requested": getattr(self, "requested_memory", None),
            "weights": getattr(runner, "model_memory_usage", None),
            "graphs_estimated": getattr(self, "cudagraph_memory_estimate", None),
            "graphs_taken": _kept["capture bytes"],
        }
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            memory |= {
                "graph_pools": _private_pool_bytes(),
                "reserved": torch.cuda.memory_reserved(),
                "allocated": torch.cuda.memory_allocated(),
                "in_use": total - free,
                "total": total,
            }
        return memory

    def bench_profile(self) -> None:
        """Begin to record what the host launches and what the GPU does."""
        from torch.profiler import ProfilerActivity, profile

        _kept["profiler"] = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        _kept["profiler"].__enter__()

    def bench_profiled(self, steps: float, kept: str | None) -> dict[str, Any]:
        """End it; ``launch_figures`` of what was recorded.

        kept: file for the trace of the first rank, compressed; None to keep none.
        """
        profiler = _kept["profiler"]
        profiler.__exit__(None, None, None)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            trace = path.read_bytes()
        if kept is not None and getattr(self, "rank", 0) == 0:
            Path(kept).write_bytes(gzip.compress(trace))
        return launch_figures(json.loads(trace)["traceEvents"], steps)
