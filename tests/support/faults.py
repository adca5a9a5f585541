"""Faults at the system calls of the modules that change the disk, one run each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from overlay.on_disk import files

#: Every call that changes the disk, or brings it there.
CALLS = frozenset(
    "open write fsync close replace link unlink mkdir rmdir chmod fchmod chown fchown".split()
)

Fault = Callable[[str, tuple[Any, ...]], None]


class Dead(BaseException):
    """Stands for a killed process inside a living one: no call works any more."""


class FaultyOs:
    """The module ``os``, with a fault from the call number ``at`` (1-based) on.

    :param lasting: whether every later call meets the fault too.
    :param never: names of calls that always fail with ``EPERM``.
    """

    def __init__(
        self,
        at: int = 0,
        fault: Fault | None = None,
        lasting: bool = False,
        never: dict[str, int] | None = None,
    ) -> None:
        self.at, self.fault, self.lasting, self.never = at, fault, lasting, never or {}
        self.count = 0
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            self.names.append(name)
            hit = self.count >= self.at if self.lasting else self.count == self.at
            if self.at and hit and self.fault is not None:
                if name == "close":
                    real(*args)
                self.fault(name, args)
            if name in self.never:
                raise OSError(self.never[name], os.strerror(self.never[name]), *args[:1])
            if name == "fsync":
                # What reaches the disk when is not what these tests are about, and it is slow.
                return None
            return real(*args, **kwargs)

        return call


@contextmanager
def faulty(system: FaultyOs, module: ModuleType = files) -> Iterator[FaultyOs]:
    """Let a module that changes the disk see ``system`` as its ``os``."""
    module.os = system  # type: ignore[attr-defined]  # no module, and not public
    try:
        yield system
    finally:
        module.os = os  # type: ignore[attr-defined]  # as above


def failing(number: int) -> Fault:
    """A fault that the operating system reports as ``number``; a write does half of its work."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if name == "write":
            os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
        named = [str(arg) for arg in args[:1] if isinstance(arg, str | os.PathLike)]
        raise OSError(number, os.strerror(number), *named)

    return fault


def killing(name: str, args: tuple[Any, ...]) -> None:
    """SIGKILL to this very process; a write does half of its work first."""
    if name == "write":
        os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def dying(name: str, args: tuple[Any, ...]) -> None:
    """As ``killing``, without a process of its own: needs ``lasting``."""
    if name == "write":
        os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
    raise Dead


def interrupting(name: str, args: tuple[Any, ...]) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def start_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; its id.

    A ``work`` that raises exits with 70, and its traceback is on standard error.
    """
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may leave the child but a status
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def end_of_child(child: int) -> int:
    """Wait for a child; its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process to its end; its exit status, negative for a signal."""
    return end_of_child(start_child(work))
