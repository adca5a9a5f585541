"""The Grafana dashboard and the page on metrics: they name the metrics that there are."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlay.in_memory.metrics import METRICS, PREFIX

ROOT = Path(__file__).resolve().parents[2]
NAMES = {f"{PREFIX}{name}{'' if metric.gauge else '_total'}" for name, metric in METRICS.items()}
NAME = re.compile(rf"{PREFIX}\w+")
#: What Grafana's import asks of a dashboard and its panels.
SCHEMA = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[a-zA-Z0-9_-]+$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "description", "gridPos", "targets"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["stat", "timeseries", "table"]},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "properties": {
                            "x": {"type": "integer", "minimum": 0, "maximum": 23},
                            "w": {"type": "integer", "minimum": 1, "maximum": 24},
                        },
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["refId", "expr", "datasource"],
                        },
                    },
                },
            },
        },
    },
}


def dashboard() -> Any:
    return json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_the_dashboard_is_as_grafana_imports_it() -> None:
    board = dashboard()
    jsonschema.validate(board, SCHEMA)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


def test_every_query_asks_for_metrics_that_there_are() -> None:
    for query in queries():
        asked = set(NAME.findall(query))
        assert asked, query
        assert asked <= NAMES, query
        for opening, closing in ("()", "{}", "[]"):
            assert query.count(opening) == query.count(closing), query
        assert "rate(" in query or not any(name.endswith("_total") for name in asked), query


def test_every_query_of_the_dashboard_and_of_the_page_is_promql() -> None:
    # By name: the parser is compiled, and brings no types that mypy could read.
    parse = importlib.import_module("promql_parser").parse
    page = (ROOT / "docs/metrics.md").read_text()
    told = re.findall(r"`([^`]*vllm_overlay[^`]*[()][^`]*)`", page)
    assert len(told) >= 4
    for query in (*queries(), *told):
        # Grafana puts a duration into the place of its variable.
        assert parse(query.replace("$__rate_interval", "5m")), query
    for broken in ("sum(rate(x[5m])", "rate(x[5m]) >", "rate(x)"):
        with pytest.raises(ValueError, match=r"."):
            parse(broken)


def test_every_metric_but_one_for_failures_is_on_the_dashboard_and_all_on_the_page() -> None:
    shown = {name for query in queries() for name in NAME.findall(query)}
    rare = {f"{PREFIX}unreadable", f"{PREFIX}padded_steps_total"}
    assert shown == NAMES - rare
    page = (ROOT / "docs/metrics.md").read_text()
    table = set(re.findall(rf"^\| `({PREFIX}\w+)` \|", page, re.MULTILINE))
    assert table == NAMES
    assert set(NAME.findall(page)) == NAMES
