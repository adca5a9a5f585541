"""The collector in vLLM's own registries, as its API server makes and renders them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay import _processes
from overlay._processes import Effect, EffectRecord, Meaning, ProcessRecord
from overlay._processes.live import Member, Number
from overlay.in_memory import metrics, metrics_watch
from overlay.results import Way

prometheus_client: Any = pytest.importorskip("prometheus_client")

HOSTILE = 'a"b\\\n\ud800} 1'
MEMBER = Member(
    ProcessRecord(
        pid=41,
        started="1",
        host="h",
        role="worker",
        rank=0,
        vllm="0.32.0",
        root="/site",
        way=Way.DISK,
        digest="b" * 64,
        summary="x",
        effects=(EffectRecord(HOSTILE, Effect.IDLE, HOSTILE),),
    ),
    (
        Number("draft-graphs", "replays of first", 12, Meaning("replays", (("graph", "first"),))),
        Number("draft-graphs", "bytes", 4096, Meaning("graph_memory_bytes", gauge=True)),
        Number("mine", HOSTILE, 3, None),
        Number("mine", "other kind", 1, Meaning("shared", gauge=True)),
        Number("mine", "one kind", 2, Meaning("shared")),
    ),
    HOSTILE,
)


@pytest.fixture
def vllms_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module of registries, with the collector in it, and as it was afterwards."""
    module = importlib.import_module("vllm.v1.metrics.prometheus")
    wrapped = module.multiprocess.MultiProcessCollector
    monkeypatch.setattr(wrapped, "__init__", wrapped.__init__)
    monkeypatch.setattr(metrics, "family", lambda _: (MEMBER,))
    registry = module.REGISTRY
    before = set(registry._collector_to_names)
    metrics_watch._register(module)
    metrics_watch._register(module)  # a second time changes nothing
    yield module
    for collector in set(registry._collector_to_names) - before:
        registry.unregister(collector)


def scraped(registry: Any) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: name, feature and pid of each sample of the overlay."""
    text = prometheus_client.generate_latest(registry).decode()
    parser = importlib.import_module("prometheus_client.parser")
    return {
        (each.name, each.labels.get("feature", ""), each.labels.get("graph", "")): each.value
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
        if each.name.startswith(metrics.PREFIX) and each.labels.get("state") in (None, "idle")
    }


def expect_all(found: dict[tuple[str, ...], float]) -> None:
    assert found["vllm_overlay_replays_total", "draft-graphs", "first"] == 12
    assert found["vllm_overlay_graph_memory_bytes", "draft-graphs", ""] == 4096
    assert found["vllm_overlay_unreadable", "", ""] == 0
    assert found["vllm_overlay_attention", "", ""] == 1
    assert found["vllm_overlay_info", "", ""] == 1
    # One metric has one kind: the first one's.
    assert found["vllm_overlay_shared", "mine", ""] == 1
    assert ("vllm_overlay_shared_total", "mine", "") not in found


def test_a_server_alone(vllms_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    expect_all(scraped(vllms_module.get_prometheus_registry()))


def test_several_servers_with_the_files_of_multiprocess_mode(
    vllms_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    expect_all(scraped(vllms_module.get_prometheus_registry()))
    # As the instrumentation of vLLM's server does for each request of /metrics.
    registry = prometheus_client.CollectorRegistry()
    importlib.import_module("prometheus_client.multiprocess").MultiProcessCollector(registry)
    expect_all(scraped(registry))
    assert os.listdir(tmp_path) == []  # nothing that another server would add up again


def test_vllms_clean_up_leaves_the_collector(vllms_module: Any) -> None:
    vllms_module.unregister_vllm_metrics()
    expect_all(scraped(vllms_module.REGISTRY))


def test_what_cannot_be_read_takes_nothing_else_away(
    vllms_module: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: int) -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(metrics, "family", fail)
    own = prometheus_client.Counter("vllms_own", "x", registry=vllms_module.REGISTRY)
    try:
        for _ in range(2):
            found = scraped(vllms_module.REGISTRY)
            assert found == {("vllm_overlay_unreadable", "", ""): 1}
        assert b"vllms_own_total 0.0" in prometheus_client.generate_latest(vllms_module.REGISTRY)
        assert caplog.text.count("no /proc") <= 1
    finally:
        vllms_module.REGISTRY.unregister(own)


def test_vllms_statistics_are_followed_by_the_overlays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loggers = importlib.import_module("vllm.v1.metrics.loggers")
    said: list[str] = []
    monkeypatch.setattr(metrics, "family", lambda _: (MEMBER,))
    monkeypatch.setattr(
        metrics_watch.log, "say", lambda lines: said.extend(text for _, text in lines)
    )
    monkeypatch.setattr(loggers.LoggingStatLogger, "log", lambda _: said.append("vLLM's"))
    metrics_watch._watch_statistics(loggers)
    logger = object.__new__(loggers.LoggingStatLogger)
    loggers.LoggingStatLogger.log(logger)
    loggers.LoggingStatLogger.log(logger)
    assert said[0] == said[2] == "vLLM's"
    assert len(said) == 3  # nothing was counted since
    assert said[1].startswith("vllm-overlay: draft-graphs: replays of first 12; mine: ")


def test_the_records_of_this_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_processes, "read_all", lambda: iter((MEMBER.record,)))
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics_watch.Collector())
    assert scraped(registry)["vllm_overlay_unreadable", "", ""] == 0
