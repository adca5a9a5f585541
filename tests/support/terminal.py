"""A command in a pseudo-terminal: what it shows, and what a person types."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds to wait for a text; a busy machine is slow.
PATIENCE = 120.0


class Terminal:
    """A forked process whose standard streams are a terminal.

    :param work: gives its exit status; it inherits what the test has patched.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self.screen = ""
        self._read = 0  # how much of the screen was waited for
        self.process, self._handle = pty.fork()
        if self.process == 0:
            status = 70
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - ends with it
                sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
                sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
                status = work()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)

    def wait_for(self, text: str) -> None:
        """Wait until a text is shown behind what was waited for before."""
        end = time.monotonic() + PATIENCE
        while (at := self.screen.find(text, self._read)) < 0:
            assert time.monotonic() < end, f"no {text!r} after {self.screen!r}"
            assert self._more(), f"it ended without {text!r}: {self.screen!r}"
        self._read = at + len(text)

    def type(self, keys: str) -> None:
        """Type keys, once the process waits; ``\\r`` is the return key, ``\\x03`` control and C.

        An interrupt between the question and the wait for its answer would be noted only after the
        next line.
        """
        waits, end = 0, time.monotonic() + PATIENCE
        while waits < 5:
            assert time.monotonic() < end, f"it does not wait: {self.screen!r}"
            time.sleep(0.01)
            status = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8")
            waits = waits + 1 if status.rpartition(")")[2].split()[0] == "S" else 0
        os.write(self._handle, keys.encode())

    def end(self) -> int:
        """Wait for its end; its exit status, or the negative signal that killed it."""
        limit = time.monotonic() + PATIENCE
        while self._more():
            assert time.monotonic() < limit, self.screen
        os.close(self._handle)
        _, status = os.waitpid(self.process, 0)
        return os.waitstatus_to_exitcode(status)

    def _more(self) -> bool:
        """Read what is shown next; whether the terminal is open still."""
        if not select.select([self._handle], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._handle, 4096)
        except OSError:  # Linux says EIO once the other side is closed
            return False
        self.screen += data.decode("utf-8", "replace")
        return bool(data)
