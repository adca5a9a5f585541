"""Reports as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from overlay.report import Report
from overlay.report.lines import vllm
from overlay.report.model import TargetReport
from overlay.report.problems import explained, next_steps
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State

#: Version of the JSON, described by ``schema-2.json``.  Under the same number, keys and codes are
#: only ever added.
SCHEMA = 2


def as_json(report: Report) -> str:
    """The report as one JSON document that ends with a newline."""
    return json.dumps(as_data(report), indent=2, ensure_ascii=True) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data, as ``schema-2.json`` describes it.

    Beside the keys that are always there: ``error`` in a report whose exit is 2, the keys of the
    report's own type, and ``reason``, ``next``, ``untested`` and ``runs`` in a feature or a file of
    which there is something to say.
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
    data.update(report.own_data())
    return data


def _target(target: TargetReport) -> dict[str, Any]:
    steps = next_steps(target)
    data: dict[str, Any] = {
        "target": target.target,
        "package": target.package,
        "vllm": target.vllm,
        "root": None if target.root is None else str(target.root),
        "state": target.state.value,
        "applied": list(target.applied),
        "interrupted": target.interrupted,
        "warnings": [str(notice) for notice in target.notices],
        "features": [_feature(feature, target, steps) for feature in target.features],
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
    if target.faults:
        data["faults"] = [{"feature": name, "symptom": symptom} for name, symptom in target.faults]
    if target.early:
        data["not_in_memory"] = [{"feature": name, "reason": why} for name, why in target.early]
    if target.runner is not None and target.runner.text:
        data["model_runner"] = f"{vllm(target)} {target.runner.text}"
    return data


def _feature(
    feature: FeatureResult, target: TargetReport, steps: Mapping[State, str]
) -> dict[str, Any]:
    data: dict[str, Any] = {"feature": feature.feature, "state": feature.state.value}
    reason = feature.reason
    if not feature.files:  # nothing smaller explains it
        reason = explained(feature.state, reason, steps)
    data.update(_reason(reason))
    if feature.untested:
        data["untested"] = True
    if target.runner is not None and feature.feature in target.runner.runs:
        data["runs"] = target.runner.runs[feature.feature].value
    data["files"] = [_file(file, steps) for file in feature.files]
    return data


def _file(file: FileResult, steps: Mapping[State, str]) -> dict[str, Any]:
    data: dict[str, Any] = {"path": file.path, "state": file.state.value, "patch": file.patch}
    reason = file.reason
    if not any(hunk.state.needs_attention for hunk in file.hunks):
        reason = explained(file.state, reason, steps)
    data.update(_reason(reason))
    data["hunks"] = [_hunk(hunk, steps) for hunk in file.hunks]
    return data


def _reason(reason: Reason | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason.text, "next": reason.next_step}


def _hunk(hunk: HunkResult, steps: Mapping[State, str]) -> dict[str, Any]:
    reason = explained(hunk.state, hunk.reason, steps)
    return {
        "scope": hunk.scope,
        "state": hunk.state.value,
        "line": hunk.line,
        **(_reason(reason) or {"reason": None, "next": None}),
        "candidates": list(hunk.candidates),
    }
