"""The work of a forked process: run as the whole of it, with what it prints in files."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn


def run_and_exit(
    work: Callable[[], None], output: Path | None = None, error: Path | None = None
) -> NoReturn:
    """Run a function in this process and end the process, whatever becomes of the function.

    Nothing that the process it was forked from has registered runs at the end: only this fork's
    work does.  The exit status is that of ``SystemExit``, 0 at its end and 1 for any other error,
    whose traceback is printed.

    :param output: file for standard output, which stays what it is without one.
    :param error: file for the errors, if it is another one.
    """
    status = 1
    try:
        for number, file in ((1, output), (2, error)):
            if file is None:
                os.dup2(1, number)
                continue
            with file.open("wb") as stream:
                os.dup2(stream.fileno(), number)
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the file is the only place to tell it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_beside(works: Iterable[tuple[Callable[[], None], Path, Path]]) -> list[int]:
    """Run functions beside one another, each as the whole of a fork; their exit statuses.

    :param works: each with the files for its output and its errors.
    """
    children = []
    for work, output, error in works:
        child = os.fork()
        if not child:
            run_and_exit(work, output, error)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def returned(work: Callable[[], Any]) -> Any:
    """What a function returns in a fork, which keeps from this process whatever else it does.

    :raises RuntimeError: if it fails there; holds what was printed.
    """
    with TemporaryDirectory() as folder:
        answer, output, error = (Path(folder, name) for name in ("answer", "output", "error"))

        def keep() -> None:
            answer.write_bytes(pickle.dumps(work()))

        (status,) = run_beside([(keep, output, error)])
        if status != 0:
            raise RuntimeError(error.read_text(encoding="utf-8", errors="replace"))
        return pickle.loads(answer.read_bytes())
