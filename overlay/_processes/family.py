"""The processes of one server: its API servers, engine cores and workers on this machine.

Data flow of metrics: patched code in an engine adds to numbers in anonymous memory; the process
record says what each number means; when an API server is scraped, it reads the records of its own
server's processes and their numbers.  Nothing is kept between two scrapes, so several API servers
answer alike, and a process that is started again begins a series of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from overlay._processes import records
from overlay._processes.live import problem
from overlay._processes.records import Meaning, ProcessRecord, counts_of

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
    recorded = {record.pid: record for record in records.read_all()}
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
