"""A command's answer: the data that the JSON, the table and the exit code are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.model import FeatureResult, FileResult, HunkResult, TargetReport

if TYPE_CHECKING:
    from overlay.auto.live import LiveProcess

#: Version of the JSON.  Keys are only ever added under the same number.
SCHEMA = 1

OK, ATTENTION, ERROR, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class TopicEntry:
    """A topic as ``list`` shows it.

    :ivar variants: the closed ranges that it has a variant for, oldest first.
    :ivar holes: known releases inside the feature's range that no variant covers.
    """

    name: str
    variants: tuple[str, ...]
    holes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureEntry:
    """A feature as ``list`` shows it.

    :ivar upstream: the upstream change it goes back to; empty where there is none.
    :ivar retires: how a release is recognised that has the feature itself, one sentence each.
    :ivar added: the modules that it adds to vLLM.
    :ivar needs: what else must hold for it to have an effect, in words.
    """

    feature: str
    title: str
    why: str
    releases: str
    upstream: str
    retires: tuple[str, ...]
    topics: tuple[TopicEntry, ...]
    added: tuple[str, ...]
    origin: str
    digest: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a command found and did.

    :ivar exit: 0 nothing needs the user, 1 something does, 2 usage or environment.
    :ivar verdict: one sentence that agrees with ``exit``; the last line for human readers.
    :ivar error: why the command could not answer, where ``exit`` is 2.
    :ivar matrix: whether the targets are releases to be shown side by side.
    :ivar catalogue: what ``list`` shows; ``None`` for every other command.
    :ivar diff: what ``diff`` prints.
    :ivar processes: the running processes of vLLM; ``None`` where nobody asked.
    :ivar doctor: the parts of ``doctor``'s page that stand nowhere else, as plain data.
    """

    command: str
    exit: int
    verdict: str
    targets: tuple[TargetReport, ...] = ()
    error: str | None = None
    matrix: bool = False
    catalogue: tuple[FeatureEntry, ...] | None = None
    diff: bytes | None = None
    processes: tuple[LiveProcess, ...] | None = None
    doctor: dict[str, Any] | None = None


def failure(command: str, error: str) -> Report:
    """The report of a command that usage or the environment stopped.

    :param command: its name, or ``overlay`` where it is not known.
    """
    name = command if command == "overlay" else f"overlay {command}"
    return Report(command, ERROR, f"{name} stopped: see the error.", error=error)


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
        "root": target.root,
        "state": target.state.value,
        "warnings": list(target.warnings),
        "features": [_feature(feature) for feature in target.features],
    }


def _feature(feature: FeatureResult) -> dict[str, Any]:
    data: dict[str, Any] = {"feature": feature.feature, "state": feature.state.value}
    if feature.why is not None:
        data["why"] = feature.why
    if feature.untested:
        data["untested"] = True
    data["files"] = [_file(file) for file in feature.files]
    return data


def _file(file: FileResult) -> dict[str, Any]:
    data: dict[str, Any] = {"path": file.path, "state": file.state.value, "patch": file.patch}
    if file.why is not None:
        data["why"] = file.why
    data["hunks"] = [_hunk(hunk) for hunk in file.hunks]
    return data


def _hunk(hunk: HunkResult) -> dict[str, Any]:
    return {
        "scope": hunk.scope,
        "state": hunk.state.value,
        "line": hunk.line,
        "why": hunk.why,
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


def enumeration(words: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; of more than ``most`` words the first and how many others there are."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} others"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
