"""The command ``overlay``, which is ``python -m overlay`` too."""

import gc
import os
import signal
import sys
from types import FrameType

#: So many allocations pass between two rounds of the collector.
_ALLOCATIONS = 50_000

_stopped_by: list[int] = []


def main() -> None:
    """Run the command line of this process and leave with its exit code.

    What it needs is imported here, so that Ctrl-C and SIGTERM are answered from the first moment
    on.  SIGTERM ends a command as Ctrl-C does: what has to be put in order is, and nothing goes on
    in the background.
    """
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _stop)
        # A command makes no cycles to speak of, and much that lives as long as it does: looking all
        # of that through again and again took a sixth of a long one.
        gc.set_threshold(_ALLOCATIONS)
        from overlay.cli.run import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    if code == 128 + signal.SIGINT:
        _leave_at_once(128 + _stopped_by[0] if _stopped_by else code)
    sys.exit(code)


def _stop(number: int, _: FrameType | None) -> None:
    _stopped_by.append(number)
    raise KeyboardInterrupt


def _leave_at_once(code: int) -> None:
    """Leave without waiting for threads: one may hang on a download for minutes."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass  # nobody reads it any more
    os._exit(code)


if __name__ == "__main__":
    main()
