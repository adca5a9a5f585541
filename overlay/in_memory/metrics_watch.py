"""Put the overlay's metrics into vLLM's own registry, and its line beside vLLM's own statistics.

A collector reads what the processes of this server have counted whenever vLLM's registry is
scraped, in multiprocess mode too; the line is read from the same numbers when vLLM logs its
statistics.  Every process of vLLM loads this file at its start, so what the values are lies in
``metrics``, which is imported when they are asked for.  ``prometheus_client`` is used where
vLLM has imported it, and nowhere else.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overlay.in_memory import log
from overlay.in_memory.import_watch import when_imported

if TYPE_CHECKING:
    from overlay.in_memory.metrics import MetricSample, Statistics

_REGISTRY_MODULE = "vllm.v1.metrics.prometheus"
_LOGGERS_MODULE = "vllm.v1.metrics.loggers"


def watch() -> None:
    """Register the collector in this process as soon as vLLM has its registry."""
    lost = "its /metrics has nothing of the overlay"
    when_imported(_REGISTRY_MODULE, _register, lost)
    lost = "its statistics in the log have nothing of the overlay"
    when_imported(_LOGGERS_MODULE, _watch_statistics, lost)


def _register(module: ModuleType) -> None:
    """Put the collector into the registry of the process, and into each of multiprocess mode.

    vLLM, and the instrumentation of its server, make a registry for multiprocess mode when they
    need one, always with ``multiprocess.MultiProcessCollector``.
    """
    wrapped = module.multiprocess.MultiProcessCollector
    inner = wrapped.__init__
    if getattr(inner, "_overlay_collects", False):
        return
    collector = Collector()
    module.REGISTRY.register(collector)

    @functools.wraps(inner)
    def init_then_register(self: Any, registry: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, registry, *args, **kwargs)
        if registry:
            registry.register(collector)

    init_then_register._overlay_collects = True  # type: ignore[attr-defined]  # as in ranks
    wrapped.__init__ = init_then_register


class Collector:
    """Gives a registry of ``prometheus_client`` the numbers of this server's processes."""

    def __init__(self) -> None:
        self._warned = False

    def describe(self) -> list[Any]:
        """Nothing: which metrics there are shows when they are collected."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every metric with its values now."""
        # vLLM has imported it; it is a dependency of vLLM's, and none of the overlay.
        core = importlib.import_module("prometheus_client.core")
        from overlay.in_memory.metrics import METRICS, OTHER, PREFIX

        families: dict[str, Any] = {}
        for sample in self._samples():
            kind = core.GaugeMetricFamily if sample.gauge else core.CounterMetricFamily
            name = PREFIX + sample.metric
            if name not in families:
                families[name] = kind(name, METRICS.get(sample.metric, OTHER).help)
            elif not isinstance(families[name], kind):
                continue  # two processes disagree on what it is; the first one's kind is told
            suffix = "" if sample.gauge else "_total"
            families[name].add_sample(name + suffix, sample.labels, sample.value)
        yield from families.values()

    def _samples(self) -> list[MetricSample]:
        """The values, or that they cannot be read: vLLM's own metrics must not suffer for it."""
        from overlay.in_memory.metrics import MetricSample, of_this_server

        try:
            samples = of_this_server()
        except Exception as error:  # noqa: BLE001 - whatever it is, vLLM's metrics go on
            if not self._warned:
                self._warned = True
                log.warn(f"metrics: what the processes count cannot be read: {error!r}")
            return [MetricSample("unreadable", {}, 1, gauge=True)]
        return [*samples, MetricSample("unreadable", {}, 0, gauge=True)]


def _watch_statistics(module: ModuleType) -> None:
    """Have the overlay's line follow vLLM's own, whenever vLLM logs its statistics."""
    wrapped = module.LoggingStatLogger
    inner = wrapped.log
    if getattr(inner, "_overlay_follows", False):
        return
    from overlay.in_memory.metrics import Statistics

    statistics = Statistics()

    @functools.wraps(inner)
    def log_then_follow(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, *args, **kwargs)
        _say(statistics)
        return result

    log_then_follow._overlay_follows = True  # type: ignore[attr-defined]  # as in ranks
    wrapped.log = log_then_follow


def _say(statistics: Statistics) -> None:
    """Log what was counted since the last line; nothing where nothing was."""
    try:
        text = statistics.text()
    except Exception as error:  # noqa: BLE001 - whatever it is, vLLM's statistics go on
        log.warn(f"what the processes count cannot be read: {error!r}")
        return
    if text:
        log.say([(logging.INFO, f"vllm-overlay: {text}")])
