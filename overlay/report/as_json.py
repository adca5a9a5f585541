"""Reports as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from overlay.report.model import FeatureEntry, Report, TargetReport
from overlay.results import FeatureResult, FileResult, HunkResult

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess


#: Version of the JSON.  Keys are only ever added under the same number.
SCHEMA = 1


def as_json(report: Report) -> str:
    """The report as one JSON document that ends with a newline."""
    return json.dumps(as_data(report), indent=2, ensure_ascii=True) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data.

    Beside the keys that are always there, ``error`` stands in a report whose exit is 2,
    ``features`` in that of ``list``, ``processes`` and ``doctor`` where they were asked for, and
    ``why`` and ``untested`` in a feature or a file of which there is something to say.
    """
    data: dict[str, Any] = {"schema": SCHEMA, "command": report.command, "exit": report.exit}
    if report.error is not None:
        data["error"] = report.error
    data["verdict"] = report.verdict
    data["targets"] = [_target(target) for target in report.targets]
    if report.catalogue is not None:
        data["features"] = [_entry(entry) for entry in report.catalogue]
    if report.processes is not None:
        data["processes"] = [_process(process) for process in report.processes]
    if report.doctor is not None:
        data["doctor"] = report.doctor
    return data


def _process(process: LiveProcess) -> dict[str, Any]:
    """A running process; its record's entries stand beside it, without one there is ``null``."""
    record = process.record
    data: dict[str, Any] = {
        "pid": process.pid,
        "engine": process.engine,
        "title": process.title,
        "problem": process.problem,
        "record": None,
    }
    if record is not None:
        modules = [
            {"module": one.module, "state": one.state, "sha256": one.sha256, "scopes": one.scopes}
            for one in record.modules
        ]
        names = ("host", "role", "rank", "vllm", "root", "way", "digest", "summary")
        data["record"] = {**{name: getattr(record, name) for name in names}, "modules": modules}
    return data


def _target(target: TargetReport) -> dict[str, Any]:
    return {
        "target": target.target,
        "vllm": target.vllm,
        "root": None if target.root is None else str(target.root),
        "state": target.state.value,
        "interrupted": target.interrupted,
        "warnings": [str(notice) for notice in target.notices],
        "features": [_feature(feature) for feature in target.features],
    }


def _feature(feature: FeatureResult) -> dict[str, Any]:
    data: dict[str, Any] = {"feature": feature.feature, "state": feature.state.value}
    if feature.reason is not None:
        data["why"] = str(feature.reason)
    if feature.untested:
        data["untested"] = True
    data["files"] = [_file(file) for file in feature.files]
    return data


def _file(file: FileResult) -> dict[str, Any]:
    data: dict[str, Any] = {"path": file.path, "state": file.state.value, "patch": file.patch}
    if file.reason is not None:
        data["why"] = str(file.reason)
    data["hunks"] = [_hunk(hunk) for hunk in file.hunks]
    return data


def _hunk(hunk: HunkResult) -> dict[str, Any]:
    return {
        "scope": hunk.scope,
        "state": hunk.state.value,
        "line": hunk.line,
        "why": None if hunk.reason is None else str(hunk.reason),
        "candidates": list(hunk.candidates),
    }


def _entry(entry: FeatureEntry) -> dict[str, Any]:
    return {
        "feature": entry.feature,
        "title": entry.title,
        "why": entry.why,
        "releases": entry.releases,
        "upstream": entry.upstream,
        "retires": list(entry.retires),
        "topics": [
            {"topic": topic.name, "variants": list(topic.variants), "holes": list(topic.holes)}
            for topic in entry.topics
        ],
        "needs": list(entry.needs),
        "added": list(entry.added),
        "origin": entry.origin,
        "digest": entry.digest,
    }
