"""The running vLLM processes of this user, and what each says it runs.

A process is vLLM's if it is a Python that mapped vLLM's compiled extension or says so in its title;
one without a record is listed all the same, since a process that the plugin never reached is the
one process that needs attention most.  What only starts vLLM (a shell, an init, ``timeout``) is
none of them, though its command names vLLM.  Linux only: elsewhere the kernel does not tell.

``family`` has the processes of one server.  Data flow of metrics: patched code in an engine adds to
numbers in anonymous memory; the process record says what each number means; when an API server is
scraped, it reads the records of its own server's processes and their numbers.  Nothing is kept
between two scrapes, so several API servers answer alike, and a process that is started again begins
a series of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from overlay import _processes
from overlay._processes import CodeState, Effect, Meaning, ProcessRecord, counts_of
from overlay.errors import OverlayError
from overlay.results import Way

#: What a process title or argument of vLLM's own begins with or holds.
_TITLES = ("VLLM::", "vllm serve", "vllm.entrypoints")


@dataclass(frozen=True)
class LiveProcess:
    """One running process of vLLM.

    :ivar engine: pid of the first vLLM process among its ancestors; peers share it.
    :ivar record: ``None`` where the plugin did not run.
    :ivar problem: why somebody should look at it, or ``None``.
    :ivar counts: how often each feature did what it counts: (feature, name, number).
    :ivar root: the folder that holds the ``vllm/`` that it loaded, ``None`` where it is not known.
    :ivar note: what is worth knowing about it and is no problem.
    """

    pid: int
    title: str
    engine: int
    record: ProcessRecord | None
    problem: str | None
    counts: tuple[tuple[str, str, int], ...] = ()
    root: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class _Seen:
    pid: int
    parent: int
    title: str


def processes(proc: Path = Path("/proc")) -> tuple[LiveProcess, ...]:
    """Every running vLLM process of this user, by engine and pid.

    :raises OverlayError: where there is no ``/proc``.
    """
    if not (proc / "self").exists():
        raise OverlayError(
            f"expected the running processes under {proc}, found none; --live needs Linux"
        )
    by_pid = {record.pid: record for record in _processes.read_all()}
    every = {process.pid: process for process in _own(proc)}
    ours = {
        pid: process for pid, process in every.items() if pid in by_pid or _is_vllm(proc, process)
    }
    engines = {pid: _engine(pid, ours, every) for pid in ours}
    return tuple(
        LiveProcess(
            pid,
            ours[pid].title,
            engines[pid],
            by_pid.get(pid),
            problem(by_pid.get(pid), [by_pid.get(p) for p in ours if engines[p] == engines[pid]]),
            counts_of(by_pid.get(pid), proc),
            _root(proc, pid) if by_pid.get(pid) is None else by_pid[pid].root,
        )
        for pid in sorted(ours, key=lambda pid: (engines[pid], pid))
    )


def strangers_noted(processes: Iterable[LiveProcess], root: Path | None) -> tuple[LiveProcess, ...]:
    """Processes, those of another vLLM without the plugin with a note in the place of a problem.

    Nobody asked the overlay to patch those.  A peer with the plugin shows that somebody did.

    :param root: the folder that holds the ``vllm/`` that is asked about, ``None`` where there is
        none.
    """
    every = tuple(processes)
    engines = {process.engine for process in every if process.record is not None}
    ours = None if root is None else os.path.realpath(root)

    def noted(process: LiveProcess) -> LiveProcess:
        theirs = None if process.root is None else os.path.realpath(process.root)
        own = ours is not None and theirs == ours
        if process.problem is None or process.engine in engines or own:
            return process
        return replace(process, note=f"is another vLLM, {process.problem}", problem=None)

    return tuple(noted(process) for process in every)


def problem(mine: ProcessRecord | None, peers: Iterable[ProcessRecord | None]) -> str | None:
    """What is wrong with a process, seen beside its peers (itself among them)."""
    problems = [_differs(mine, peers)]
    if mine is not None and mine.left_out:
        problems.append(f"runs without {'; without '.join(mine.left_out)}")
    if mine is not None:
        problems += [
            f"{each.feature} is required and idle: {each.text}"
            for each in mine.effects
            if each.state is Effect.IDLE
            and (each.feature in mine.required or "all" in mine.required)
        ]
    return "; ".join(each for each in problems if each is not None) or None


def _differs(mine: ProcessRecord | None, peers: Iterable[ProcessRecord | None]) -> str | None:
    reporting = [peer for peer in peers if peer is not None]
    patched = [peer for peer in reporting if peer.way.patched]
    if mine is None:
        return (
            "runs without the overlay's plugin, its peers with it: start it in the same environment"
            if reporting
            else "runs without the overlay's plugin: is it installed there, and does VLLM_PLUGINS "
            "allow it?"
        )
    unpatched = [module.module for module in mine.modules if module.state is CodeState.UNPATCHED]
    if unpatched:
        return (
            f"{', '.join(unpatched)}: unpatched, loaded by another import hook than the overlay's"
        )
    differs = [module.module for module in mine.modules if module.state is CodeState.DIFFERS]
    if differs:
        return f"{', '.join(differs)}: other code than planned"
    if mine.way is Way.OFF:
        return "is off (OVERLAY=off), its peers patched" if patched else None
    if not mine.way.patched:
        return "runs unpatched, its peers patched" if patched else None
    differing = sorted(
        {
            f"{peer.pid} {peer.digest[:12] or peer.way.value}"
            for peer in reporting
            if not _same(mine, peer)
        }
    )
    if differing:
        return f"runs {mine.digest[:12]}, its peers differ: {', '.join(differing)}"
    return None


def _same(mine: ProcessRecord, peer: ProcessRecord) -> bool:
    return peer.digest == mine.digest and peer.vllm == mine.vllm


def _own(proc: Path) -> Iterable[_Seen]:
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        title = b" ".join(arguments).decode(errors="replace").strip()
        yield _Seen(int(folder.name), int(stat[1]), title)


def _is_vllm(proc: Path, process: _Seen) -> bool:
    if not _is_python(proc, process):
        return False
    if any(title in process.title for title in _TITLES):
        return True
    return _root(proc, process.pid) is not None


def _root(proc: Path, pid: int) -> str | None:
    """The folder that holds the ``vllm/`` whose compiled extension a process mapped."""
    try:
        maps = (proc / str(pid) / "maps").read_text(errors="surrogateescape")
    except OSError:
        return None
    for line in maps.splitlines():
        before, extension, _ = line.partition("/vllm/_C")
        if extension:
            return before.partition("/")[1] + before.partition("/")[2]
    return None


def _is_python(proc: Path, process: _Seen) -> bool:
    try:
        program = os.readlink(proc / str(process.pid) / "exe")
    except OSError:  # the kernel does not tell of every process of this user
        program = process.title.partition(" ")[0]
        if program.startswith(_TITLES[0]):  # what the process calls itself
            return True
    return "python" in os.path.basename(program)


def _engine(pid: int, ours: Mapping[int, _Seen], every: Mapping[int, _Seen]) -> int:
    first, at = pid, pid
    while at in every:
        if at in ours:
            first = at
        at = every[at].parent
    return first


#: The most ancestors that are followed.
_GENERATIONS = 64
#: The process of a Ray node that starts its workers, by the name that the system has of it.
_RAY = "raylet"


class Number(NamedTuple):
    """One number of a process.

    :ivar name: such as ``replays of loop``.
    :ivar meaning: ``None`` where the name is all that is known.
    """

    feature: str
    name: str
    number: int
    meaning: Meaning | None


class Member(NamedTuple):
    """A process of the server.

    :ivar problem: why somebody should look at it, or ``None``.
    """

    record: ProcessRecord
    numbers: tuple[Number, ...]
    problem: str | None


def family(pid: int, proc: Path = Path("/proc")) -> tuple[Member, ...]:
    """The processes of the server that process ``pid`` belongs to, by pid.

    They are those with a record that share the first recorded ancestor.  Workers of a Ray cluster
    that was there before the server have no ancestor in common with it: they belong to the servers
    without workers of their own.  Ray's are those that a ``raylet`` started: an engine in its
    caller's own process calls itself a worker, too.
    """
    parents = _Parents(proc)
    recorded = {record.pid: record for record in _processes.read_all()}
    first = {each: parents.first(each, recorded) for each in recorded}
    mine = parents.first(pid, recorded)
    members = [each for each in recorded if first[each] == mine]
    if all(recorded[each].rank is None for each in members):
        workers = [each for each in recorded if recorded[first[each]].role == "worker"]
        members += [each for each in workers if parents.under(each, _RAY)]
    peers = [recorded[each] for each in sorted({*members})]
    return tuple(Member(record, _numbers(record, proc), problem(record, peers)) for record in peers)


def _numbers(record: ProcessRecord, proc: Path) -> tuple[Number, ...]:
    counts = counts_of(record, proc)
    # A stranger's record may have fewer of them.
    meanings = (*record.meanings, *([None] * len(counts)))
    return tuple(
        Number(feature, name, number, meaning)
        for (feature, name, number), meaning in zip(counts, meanings, strict=False)
    )


class _Parents:
    """The ancestors of processes, each looked up once."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._stats: dict[int, tuple[str, int]] = {}

    def first(self, pid: int, recorded: Mapping[int, ProcessRecord]) -> int:
        """The first recorded process among ``pid`` and its ancestors; ``pid`` if there is none."""
        first = pid
        for at in self._line(pid):
            if at in recorded:
                first = at
        return first

    def under(self, pid: int, name: str) -> bool:
        """Whether ``pid`` or an ancestor of it has that name."""
        return any(self._stat(at)[0] == name for at in self._line(pid))

    def _line(self, pid: int) -> Iterator[int]:
        """``pid`` and its ancestors, process 1 among them: in a container it may be the server."""
        at = pid
        for _ in range(_GENERATIONS):
            if at < 1:
                return
            yield at
            at = self._stat(at)[1]

    def _stat(self, pid: int) -> tuple[str, int]:
        """The name of a process and its parent, which is 0 if it has ended or has none."""
        if pid not in self._stats:
            try:
                text = (self._proc / str(pid) / "stat").read_text(errors="replace")
                head, _, rest = text.rpartition(")")
                self._stats[pid] = head.partition("(")[2], int(rest.split()[1])
            except (OSError, ValueError, IndexError):  # it ended meanwhile
                self._stats[pid] = "", 0
        return self._stats[pid]
