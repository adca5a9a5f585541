"""A killed command leaves no process, and holds no pipe of another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: A command that is busy in two workers, each of which says once that it works.
BUSY = """
import os, sys, time
from pathlib import Path
from overlay.commands import parallel
{before}
def work(number):
    Path({folder!r}, str(os.getpid())).touch()
    print("a worker speaks", flush=True)
    time.sleep({seconds})
    return number
def run(arguments):
    print(parallel.in_processes(work, range(4), 2), flush=True)
    return 0
import overlay.cli.run
overlay.cli.run.run = run
import overlay.__main__
overlay.__main__.main()
"""


def command(folder: Path, seconds: float, before: str = "") -> list[str]:
    code = textwrap.dedent(BUSY).format(folder=str(folder), seconds=seconds, before=before)
    return [sys.executable, "-c", code]


def workers(folder: Path, number: int = 2) -> list[int]:
    """The process ids of the workers, once there are as many."""
    deadline = time.monotonic() + 30
    while len(ids := [int(path.name) for path in folder.iterdir()]) < number:
        assert time.monotonic() < deadline, ids
        time.sleep(0.01)
    return ids


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


#: Seconds in which everything ends on a busy machine; what nobody ends takes 120.
PATIENCE = 30


def all_end(ids: list[int]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while any(map(alive, ids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


FALLBACK = "parallel._killed_by_the_kernel = lambda: False"


@pytest.mark.parametrize("before", ["", FALLBACK], ids=["prctl", "watching"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_leaves_no_worker(
    tmp_path: Path, number: signal.Signals, before: str
) -> None:
    with subprocess.Popen(
        command(tmp_path, 120, before), cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as process:
        ids = workers(tmp_path)
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE)  # no other process holds the pipe
    assert out == b""
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert all_end(ids)


def test_a_caller_that_loses_patience_gets_its_pipe_back(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            command(tmp_path, 120), cwd=REPOSITORY, capture_output=True, timeout=4, check=False
        )
    assert time.monotonic() - begun < 60
    assert all_end([int(path.name) for path in tmp_path.iterdir()])


def test_what_nobody_kills_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, 0), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")


@pytest.mark.parametrize(
    ("after", "number"),
    [
        pytest.param(
            after,
            number,
            # Each moment with one signal, each signal early and late.
            marks=pytest.mark.thorough if (place + turn) % 2 else (),
        )
        for place, after in enumerate((0.05, 0.2, 0.4, 0.6, 1.0))
        for turn, number in enumerate((signal.SIGTERM, signal.SIGKILL))
    ],
)
def test_check_of_many_targets_at_several_moments(
    tmp_path: Path, after: float, number: signal.Signals
) -> None:
    """The real command, in a session of its own, so that all of its processes are found."""
    from tests.support import fake_vllm

    names = [str(fake_vllm.site_packages(tmp_path / str(n), "0.26.0")) for n in range(24)]
    environment = {**os.environ, "OVERLAY_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "overlay", "check", *names],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        time.sleep(after)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in of_session(process.pid) if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    assert process.returncode in (0, 1, 2, -number, 128 + number)


def of_session(session: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                found.append(int(place.name))
    return found
