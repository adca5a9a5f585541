"""A fork runs its work, and ends with its status and with what it printed in files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forks import returned, run_and_exit


def _says() -> None:
    print("said")
    print("warned", file=sys.stderr)


def _exits_with(code: object) -> Callable[[], None]:
    def work() -> None:
        sys.exit(code)  # type: ignore[arg-type]  # any object, as the interpreter takes it

    return work


def _fails() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(
    ("work", "status", "output", "error"),
    [
        (_says, 0, "said\n", "warned\n"),
        (_exits_with(None), 0, "", ""),
        (_exits_with(3), 3, "", ""),
        (_exits_with("no model"), 1, "", "no model\n"),
        (_fails, 1, "", "ValueError: broken\n"),
    ],
)
def test_status_and_output_of_the_work(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    work: Callable[[], None],
    status: int,
    output: str,
    error: str,
) -> None:
    with capfd.disabled():
        for name in (None, tmp_path / "error"):
            process = os.fork()
            if not process:
                sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
                run_and_exit(work, tmp_path / "output", name)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == status
            assert (tmp_path / "output").read_text().startswith(output)
            assert (name or tmp_path / "output").read_text().endswith(error)


def test_what_a_fork_returns_comes_home_and_its_failure_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with capfd.disabled():
        assert returned(os.getppid) == os.getpid()
        with pytest.raises(RuntimeError, match="ValueError: broken"):
            returned(_fails)
