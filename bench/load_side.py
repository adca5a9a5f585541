"""What is measured of a loaded engine inside vLLM's worker, in whichever process it runs.

vLLM mixes ``LoadExtension`` into its worker class (``worker_extension_cls``).
"""

from __future__ import annotations

import gc
import resource
import time
from dataclasses import asdict
from typing import Any

from bench.load_steps import Watch
from bench.metrics_cost import Counting
from bench.profiling.engine_side import ProfilingExtension
from bench.profiling.sampling import SignalSampler


class Collector:
    """Sums up what Python's garbage collector takes, from its making on.

    :ivar seconds: of all collections.
    :ivar runs: how many there were.
    """

    def __init__(self) -> None:
        self.seconds, self.runs, self._began = 0.0, 0, 0.0
        gc.callbacks.append(self._at)

    def _at(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.seconds += now - self._began
            self.runs += 1


def _graphs(config: Any) -> dict[str, Any]:
    """What a worker captures, and what features say of themselves in its process."""
    sizes = config.compilation_config.cudagraph_capture_sizes or []
    try:
        from vllm.v1.overlay_effects import effects
    except ImportError:
        told = {}
    else:
        told = {name: f"{each['state']}: {each['text']}" for name, each in effects().items()}
    return {"capture_sizes": len(sizes), "largest_capture_size": max(sizes, default=0)} | {
        "effects": told
    }


class LoadExtension(ProfilingExtension):
    """Mixed into vLLM's worker; keeps the steps, and samples the thread that takes them."""

    vllm_config: Any
    _watch: Watch
    _collector: Collector
    _sampler: SignalSampler
    _counting: Counting | None = None

    def load_watch(self) -> dict[str, Any]:
        """Keep every step from now on; tell what the runner and the drafter are."""
        description = self.bench_watch() | _graphs(self.vllm_config)
        self._watch, self._collector = Watch(self.model_runner), Collector()
        return description

    def load_clock(self) -> dict[str, float]:
        """What this thread and its process have used until now.

        Seconds of CPU of the thread, of the other threads and of the garbage collector; how often
        the thread gave up its core by itself (``waits``) and how often another took it
        (``preempted``).
        """
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        own = time.thread_time()
        return {
            "cpu": own,
            "other_threads": time.process_time() - own,
            "collector": self._collector.seconds,
            "collections": self._collector.runs,
            "waits": usage.ru_nvcsw,
            "preempted": usage.ru_nivcsw,
        }

    def load_steps(self) -> list[dict[str, Any]]:
        """The fields of each ``Step`` that was kept, which are forgotten then."""
        steps = [asdict(step) for step in self._watch.steps]
        self._watch.steps.clear()
        return steps

    def load_counting(self, on: bool) -> None:
        """Have all modules count as the overlay does, or not at all."""
        from vllm.v1 import overlay_effects

        if self._counting is None:
            self._counting = Counting(overlay_effects)
        self._counting.switch(on)

    def load_counted(self) -> int:
        """What all features of the overlay have counted until now, added up."""
        from vllm.v1 import overlay_effects

        return sum(sum(each["counts"].values()) for each in overlay_effects.effects().values())

    def load_sample(self, rate: int) -> None:
        """Begin to sample this thread, so many times a second."""
        self._sampler = SignalSampler(rate)

    def load_sampled(self) -> str:
        """End it; the stacks, as ``sampling.fold`` reads them."""
        return self._sampler.stop()
