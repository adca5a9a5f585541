"""Faults before any call of a process that changes the disk, by Python's audit hooks.

Unlike ``faults``, which takes the place of ``os`` in one module, this sees what every module
does, those of the standard library included.  A hook cannot be taken out again, so all work is done
in forked processes.  Writes into an open file are not among these calls: ``limited`` bounds them.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.faults import in_child

#: The audit events of calls that change the disk; an ``open`` counts if it is for writing.
EVENTS = frozenset(
    "open os.mkdir os.rename os.remove os.rmdir os.link os.symlink os.truncate os.chmod "
    "os.chown os.utime os.mkfifo".split()
)

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: The exit status of work that was not reached by its fault.
REACHED_ITS_END = 0

Fault = Callable[[], None]


def killed() -> None:
    """SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    """SIGTERM to this process, which may answer it."""
    os.kill(os.getpid(), signal.SIGTERM)


def full() -> None:
    """What a full disk answers."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def changes_disk(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event is that of a call that changes the disk."""
    if event not in EVENTS:
        return False
    if event != "open":
        return True
    path, _, flags = arguments
    return bool(flags & _WRITING) and not str(path).startswith("/dev/")


def calls(work: Callable[[], object], folder: Path, ends: int = REACHED_ITS_END) -> list[str]:
    """The calls that change the disk in a forked process that does some work, in order.

    :param ends: the exit status of the work.
    """
    notes = folder / "calls"
    notes.write_bytes(b"")
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND)

    def counted() -> None:
        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if changes_disk(event, arguments):
                os.write(descriptor, f"{event} {arguments[0]}\n".encode("utf-8", "replace"))

        sys.addaudithook(hook)
        work()

    try:
        status = in_child(counted)
    finally:
        os.close(descriptor)
    assert status == ends, status
    listed = notes.read_text().splitlines()
    notes.unlink()
    return listed


def at_call(number: int, fault: Fault, work: Callable[[], object]) -> int:
    """Do some work in a forked process, with a fault before its call number ``number`` (1-based).

    :returns: the exit status, negative for a signal.
    """

    def faulty() -> None:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if changes_disk(event, arguments):
                seen += 1
                if seen == number:
                    fault()

        sys.addaudithook(hook)
        work()

    return in_child(faulty)


def limited(size: int, work: Callable[[], object]) -> int:
    """Do some work in a forked process whose files may have ``size`` bytes and no more.

    :returns: the exit status.
    """

    def bounded() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()

    return in_child(bounded)
