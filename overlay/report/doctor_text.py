"""Running processes, and the page of ``doctor``, as lines for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from overlay.report.lines import BLANK, MARK, Line, Span, labelled

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess


_HEAD = ("pid", "role", "rank", "vllm", "digest", "runs")


def processes(found: tuple[LiveProcess, ...], *, verbose: bool = False) -> Iterator[Line]:
    """A table for each engine; what is wrong with a process is below its row.

    :param verbose: whether each patched module and its scopes are shown too.
    """
    for engine in dict.fromkeys(one.engine for one in found):
        members = [one for one in found if one.engine == engine]
        yield Line(
            (Span(f"engine {engine}", "heading"), Span("  ")), (Span(members[0].title, "muted"),)
        )
        rows = [_HEAD, *(_row(one) for one in members)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        for row, one in zip(rows, (None, *members), strict=True):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            style = "muted" if one is None else "bad" if one.problem else ""
            yield Line((Span("  "), Span("  ".join(cells).rstrip(), style)))
            if one is not None and one.problem:
                yield labelled(4, f"{MARK} ", one.problem, "bad")
            if one is not None:
                yield from _effects(one)
            if one is not None and verbose:
                yield from _modules(one)
        yield BLANK


def _modules(process: LiveProcess) -> Iterator[Line]:
    """The patched modules of a process: where each came from, and the scopes that are patched."""
    for module in () if process.record is None else process.record.modules:
        scopes = ", ".join(f"{name} {state}" for name, state in module.scopes.items())
        scopes = scopes or "the whole module"
        yield labelled(4, f"{module.module} ({module.state}): ", scopes)


def _effects(process: LiveProcess) -> Iterator[Line]:
    """What each feature does in a process, with its counts."""
    for effect in () if process.record is None else process.record.effects:
        counts = [
            f"{name} {number}"
            for feature, name, number in process.counts
            if feature == effect.feature
        ]
        text = "; ".join([f"{effect.state.value}: {effect.text}", *counts])
        yield labelled(4, f"{effect.feature} is ", text)


def _row(one: LiveProcess) -> tuple[str, ...]:
    record = one.record
    if record is None:
        return (str(one.pid), "?", "", "", "", "no record")
    rank = "" if record.rank is None else str(record.rank)
    return (str(one.pid), record.role, rank, record.vllm, record.digest[:12], record.summary)


def doctor(data: Mapping[str, Any]) -> Iterator[Line]:
    """The page, section by section; the features and processes follow."""
    yield from _section("overlay", data["overlay"])
    yield from _section("python", data["python"])
    yield from _section("vllm", data["vllm"] or {"version": None})
    yield from _section("torch", data["torch"])
    yield from _section("devices", data["devices"])
    yield Line((Span("plugins", "heading"),))
    for plugin in data["plugins"]:
        runs = "runs" if plugin["runs"] else "does not run"
        yield labelled(
            2,
            f"{plugin['name']}: ",
            f"{runs} ({plugin['why']}); {plugin['value']} of {plugin['distribution']}",
        )
    if not data["plugins"]:
        yield labelled(2, "", "none")
    yield BLANK
    yield from _section("environment", data["environment"]["set"] or {"set": "none"})
    yield from _switches(data["environment"]["switches"])
    yield from _section("cache", data["cache"])
    yield Line((Span("model runner", "heading"), Span("  ")), (Span(data["model_runner"]),))
    yield BLANK


def problems(facts: Mapping[str, Any], sentences: Iterable[str]) -> Iterator[Line]:
    """What is worth knowing, and what needs somebody, last, where it is read first."""
    for note in facts["notes"]:
        yield labelled(0, "note: ", note)
    for problem in sentences:
        yield labelled(0, f"{MARK} ", problem, "bad")


def _switches(switches: list[dict[str, Any]]) -> Iterator[Line]:
    """The variables that features declare, and what they are set to."""
    yield Line((Span("switches", "heading"),))
    for switch in switches:
        value = switch["value"] or f"{switch['default']} (default)"
        values = "|".join(switch["values"]) or "any text"
        yield labelled(2, f"{switch['name']}: ", f"{value}; {values}: {switch['text']}")
    if not switches:
        yield labelled(2, "", "none")
    yield BLANK


def _section(title: str, values: dict[str, Any]) -> Iterator[Line]:
    yield Line((Span(title, "heading"),))
    for name, value in values.items():
        if name == "problem" and value is None:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        # The name of a variable stays as it is.
        label = name.replace("_", " ") if name.islower() else name
        yield labelled(2, f"{label}: ", "none" if text in ("None", "") else text)
    yield BLANK
