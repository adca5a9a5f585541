"""``overlay status --live``: the running processes of vLLM, and what each has loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay._features.switches import declarations
from overlay._processes import Effect
from overlay._processes import live as running_processes
from overlay.commands.request import expect_known
from overlay.errors import OverlayError
from overlay.package import VLLM
from overlay.report import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, aligned, count, enumeration, labelled
from overlay.targets.environments import resolve_installed

if TYPE_CHECKING:
    from overlay._processes.live import LiveProcess
    from overlay.commands.request import Request

_HEAD = ("pid", "role", "rank", "vllm", "digest", "runs")


@dataclass(frozen=True)
class ProcessesReport(Report):
    """The running vLLM processes of this user, and what each has loaded."""

    _command: ClassVar[str] = "status"
    processes: tuple[LiveProcess, ...]
    lacking: tuple[Lacking, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """A table for each engine, and what is required and not active."""
        yield from process_lines(self.processes, verbose=verbose)
        for each in self.lacking:
            place = "" if each.pid is None else f" in process {each.pid}"
            yield labelled(0, f"{MARK} ", f"{each.feature} is required{place}: {each.why}", "bad")

    def own_data(self) -> dict[str, Any]:
        """The processes, under ``processes``; what is lacking, where something was required."""
        data: dict[str, Any] = {"processes": [process_data(each) for each in self.processes]}
        if self.lacking:
            data["lacking"] = plain(self.lacking)
        return data


class Lacking(NamedTuple):
    """A required feature that is not active.

    :ivar pid: the process that holds a model and does not use it; ``None`` where none holds one.
    """

    feature: str
    pid: int | None
    why: str


def live(request: Request) -> ProcessesReport:
    """Every running vLLM process of this user, and what is wrong with it.

    :param request: with the features that have to be active.
    :raises UsageError: if a required feature does not exist.
    :raises OverlayError: where the system does not tell which processes run.
    """
    processes = of_this_vllm()
    if not request.require:
        return ProcessesReport(running(processes), processes)
    expect_known(request.require, request.at_hand())
    situational = {each.id for each in declarations(request.folders) if each.situational}
    lacking = not_active(processes, request.require, situational)
    return ProcessesReport(running(processes, lacking), processes, lacking)


def of_this_vllm() -> tuple[LiveProcess, ...]:
    """Every running vLLM process of this user; those of another vLLM have notes, no problems.

    :raises OverlayError: where the system does not tell which processes run.
    """
    everywhere = running_processes.processes()
    if not any(process.problem for process in everywhere):
        return everywhere
    try:
        root = resolve_installed(VLLM).root
    except OverlayError:
        root = None
    return running_processes.strangers_noted(everywhere, root)


def not_active(
    processes: Sequence[LiveProcess], require: Sequence[str], situational: Collection[str] = ()
) -> tuple[Lacking, ...]:
    """The required features that processes with a model do not use.

    A feature that does not report counts as active where its code is there.

    :param require: ids, or ``all``: every feature that any of them has, but those that are rightly
        idle in most configurations (``situational``).
    """
    holders = [
        (process.pid, {effect.feature: effect for effect in process.record.effects})
        for process in processes
        if process.record is not None and process.record.rank is not None
    ]
    every = sorted({name for _, effects in holders for name in effects} - {*situational})
    names = [name for name in require if name != "all"]
    if "all" in require:
        names += every
    if not holders or not names:
        why = "no process of vLLM has loaded a model" if not holders else "no process has a feature"
        return tuple(Lacking(name, None, why) for name in dict.fromkeys(require))
    lacking = []
    for name in dict.fromkeys(names):
        for pid, effects in holders:
            effect = effects.get(name)
            if effect is None:
                lacking.append(Lacking(name, pid, "its code is not there"))
            elif effect.state not in (Effect.ACTIVE, Effect.PATCHED):
                lacking.append(Lacking(name, pid, f"{effect.state.value}: {effect.text}"))
    return tuple(lacking)


def running(processes: Sequence[LiveProcess], lacking: Sequence[Lacking] = ()) -> Verdict:
    """The verdict of ``status --live``.

    :param lacking: what ``not_active`` gave for the features of ``--require``.
    """
    if lacking:
        names = enumeration(tuple(dict.fromkeys(each.feature for each in lacking)))
        where = {each.pid for each in lacking}
        text = (
            f"Action needed: {names} required, and no process of vLLM has loaded a model."
            if where == {None} and not any(process.record for process in processes)
            else f"Action needed: {names} required, and not active in every process with a model."
        )
        return Verdict(Code.REQUIRED_MISSING, text)
    if not processes:
        return Verdict(Code.NOT_RUNNING, "No vLLM of this user is running.")
    needy = [process for process in processes if process.problem is not None]
    engines = len({process.engine for process in processes})
    what = f"{count(len(processes), 'process', 'processes')} of vLLM"
    if needy:
        return Verdict(Code.NEEDS_ATTENTION, f"Action needed on {len(needy)} of {what}.")
    patched = sum(
        process.record is not None and process.record.way.patched for process in processes
    )
    strangers = sum(process.note is not None for process in processes)
    strangers_text = f"{strangers} of another vLLM" if strangers else ""
    added = "".join(f"; {words}" for words in (strangers_text, _active(processes)) if words)
    return Verdict(
        Code.RUNNING,
        f"{what} in {count(engines, 'engine')}, {patched} patched, none needs you{added}.",
    )


def _active(processes: Sequence[LiveProcess]) -> str:
    """Which features are active in any process, and which in none, where they report it."""
    states: dict[str, set[Effect]] = {}
    for process in processes:
        for effect in () if process.record is None else process.record.effects:
            states.setdefault(effect.feature, set()).add(effect.state)
    words = []
    for state in (Effect.ACTIVE, Effect.IDLE):
        names = sorted(
            feature
            for feature, effects in states.items()
            if state in effects and (state is Effect.ACTIVE or Effect.ACTIVE not in effects)
        )
        if names:
            words.append(f"{state.value}: {', '.join(names)}")
    return "; ".join(words)


def process_lines(processes: tuple[LiveProcess, ...], *, verbose: bool = False) -> Iterator[Line]:
    """A table for each engine; what is wrong with a process is below its row.

    :param verbose: whether its vLLM, its digest and each patched module are shown too.
    """
    for engine in dict.fromkeys(process.engine for process in processes):
        members = [process for process in processes if process.engine == engine]
        yield Line(
            (Span(f"engine {engine}", "heading"), Span("  ")), (Span(members[0].title, "muted"),)
        )
        rows = [[Span(name, "muted") for name in _HEAD], *map(_row, members)]
        header, *lines = aligned(rows, indent=2)
        yield header
        for line, process in zip(lines, members, strict=True):
            yield line
            if process.problem:
                yield labelled(4, f"{MARK} ", process.problem, "bad")
            if process.note:
                yield labelled(4, "note: ", process.note)
            yield from _effects(process)
            if verbose:
                yield from _modules(process)
        yield BLANK


def _row(process: LiveProcess) -> list[Span]:
    record, pid = process.record, str(process.pid)
    cells = [pid, "?", "", "", "", "no record"]
    if record is not None:
        rank = "" if record.rank is None else str(record.rank)
        cells = [pid, record.role, rank, record.vllm, record.digest[:12], record.summary]
    return [Span(cell, "bad" if process.problem else "") for cell in cells]


def _modules(process: LiveProcess) -> Iterator[Line]:
    """The vLLM of a process, what it runs, and its patched modules with the scopes.

    Where the files on disk are patched, there are no modules to tell of.
    """
    if process.root is not None:
        yield labelled(4, "root: ", process.root)
    if process.record is not None:
        yield labelled(4, "digest: ", process.record.digest)
    for module in () if process.record is None else process.record.modules:
        scopes = ", ".join(f"{name} {state.value}" for name, state in module.scopes.items())
        scopes = scopes or "the whole module"
        yield labelled(4, f"{module.module} ({module.state.value}): ", scopes)


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


def process_data(process: LiveProcess) -> dict[str, Any]:
    """A running process with what it recorded; ``null`` where it has no record."""
    record = process.record
    data: dict[str, Any] = {
        "pid": process.pid,
        "engine": process.engine,
        "title": process.title,
        "problem": process.problem,
        "record": None,
    }
    if process.note is not None:
        data["note"] = process.note
    if record is not None:
        modules = [
            {"module": module.module, "state": module.state.value, **by_fields(module, "module")}
            for module in record.modules
        ]
        names = ("host", "role", "rank", "vllm", "root", "way", "digest", "summary")
        data["record"] = {
            **{name: plain(getattr(record, name)) for name in names},
            "modules": modules,
            "effects": plain(record.effects),
            "counts": [
                {"feature": feature, "count": name, "number": number}
                for feature, name, number in process.counts
            ],
        }
    return data
