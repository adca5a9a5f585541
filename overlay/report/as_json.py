"""Reports as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from overlay.package import VLLM
from overlay.report.model import (
    CacheReport,
    DiffReport,
    DoctorReport,
    FeatureEntry,
    ListReport,
    ProcessesReport,
    Report,
    TargetReport,
)
from overlay.report.problems import explained
from overlay.results import FeatureResult, FileResult, HunkResult, Reason

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess


#: Version of the JSON, described by ``schema-2.json``.  Under the same number, keys and codes are
#: only ever added.
SCHEMA = 2


def as_json(report: Report) -> str:
    """The report as one JSON document that ends with a newline."""
    return json.dumps(as_data(report), indent=2, ensure_ascii=True) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data, as ``schema-2.json`` describes it.

    Beside the keys that are always there: ``error`` in a report whose exit is 2, ``features`` in
    that of ``list``, ``processes`` and ``doctor`` in those of ``status --live`` and ``doctor``, and
    ``reason``, ``next`` and ``untested`` in a feature or a file of which there is something to say.
    """
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "command": report.command,
        "exit": int(report.exit),
        "code": report.code.value,
    }
    if report.error is not None:
        data["error"] = report.error
    data["verdict"] = report.verdict
    data["targets"] = [_target(target) for target in report.targets]
    if isinstance(report, DiffReport):
        data["diff"] = report.diff.decode("utf-8", "backslashreplace")
    if isinstance(report, ListReport):
        data["features"] = [_entry(entry) for entry in report.features]
        if report.releases is not None:
            data["releases"] = [entry._asdict() for entry in report.releases]
    if isinstance(report, ProcessesReport | DoctorReport):
        data["processes"] = [_process(process) for process in report.processes]
    if isinstance(report, DoctorReport):
        data["doctor"] = {**report.facts, "problems": list(report.problems)}
    data.update(report.own_data())
    if isinstance(report, CacheReport):
        data["cache"] = {
            "folder": str(report.folder),
            "parts": [
                {"name": part.name, "entries": part.entries, "bytes": part.size}
                for part in report.parts
            ],
        }
    return data


def _process(process: LiveProcess) -> dict[str, Any]:
    """A running process with what it recorded; ``null`` where it has no record."""
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
            {
                "module": module.module,
                "state": module.state,
                "sha256": module.sha256,
                "scopes": module.scopes,
            }
            for module in record.modules
        ]
        names = ("host", "role", "rank", "vllm", "root", "way", "digest", "summary")
        data["record"] = {
            **{name: getattr(record, name) for name in names},
            "modules": modules,
            "effects": [
                {"feature": each.feature, "state": each.state.value, "text": each.text}
                for each in record.effects
            ],
            "counts": [
                {"feature": feature, "count": name, "number": number}
                for feature, name, number in process.counts
            ],
        }
    return data


def _target(target: TargetReport) -> dict[str, Any]:
    data: dict[str, Any] = {
        "target": target.target,
        "package": target.package,
        "vllm": target.vllm,
        "root": None if target.root is None else str(target.root),
        "state": target.state.value,
        "applied": list(target.applied),
        "interrupted": target.interrupted,
        "warnings": [str(notice) for notice in target.notices],
        "features": [
            _feature(feature, writable=target.root is not None) for feature in target.features
        ],
    }
    if target.obstacles:
        data["obstacles"] = [
            {"code": obstacle.code.value, **_reason(obstacle.reason)}
            for obstacle in target.obstacles
        ]
    if target.left_out:
        data["left_out"] = list(target.left_out)
    if target.in_memory:
        data["in_memory"] = list(target.in_memory)
    return data


def _feature(feature: FeatureResult, *, writable: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"feature": feature.feature, "state": feature.state.value}
    reason = feature.reason
    if not feature.files:  # nothing smaller explains it
        reason = explained(feature.state, reason, writable=writable)
    data.update(_reason(reason))
    if feature.untested:
        data["untested"] = True
    data["files"] = [_file(file, writable=writable) for file in feature.files]
    return data


def _file(file: FileResult, *, writable: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"path": file.path, "state": file.state.value, "patch": file.patch}
    reason = file.reason
    if not any(hunk.state.needs_attention for hunk in file.hunks):
        reason = explained(file.state, reason, writable=writable)
    data.update(_reason(reason))
    data["hunks"] = [_hunk(hunk, writable=writable) for hunk in file.hunks]
    return data


def _reason(reason: Reason | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason.text, "next": reason.next_step}


def _hunk(hunk: HunkResult, *, writable: bool) -> dict[str, Any]:
    reason = explained(hunk.state, hunk.reason, writable=writable)
    return {
        "scope": hunk.scope,
        "state": hunk.state.value,
        "line": hunk.line,
        **(_reason(reason) or {"reason": None, "next": None}),
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
        "reason": entry.reason,
        "warnings": list(entry.warnings),
        **({} if entry.package == VLLM.name else {"package": entry.package}),
    }
