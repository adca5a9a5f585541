"""Sample the stacks of a running engine, and fold them into milliseconds per function and step.

Sampling slows the program by the samples only, however many functions it calls, so the shares are
those of the undisturbed program.  Two samplers write the same file, one stack and its count a
line, as flame-graph tools read it:

- ``py-spy``: another process reads the interpreter's memory (https://github.com/benfred/py-spy);
  it can look into any process of this user.
- ``signal``: a timer signal in the main thread of this process; needs nothing, and is late by as
  long as a call into C takes, which it puts down to the function that made the call.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_LINE = re.compile(r"^(?P<name>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")
_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)


def fold(raw: str, ms_per_step: float, top: int = 60) -> dict[str, Any]:
    """Self and cumulative milliseconds per step of the most expensive functions.

    :param raw: lines ``outermost;...;innermost count``; where the first frame names a thread,
        only the main thread counts.
    :param ms_per_step: wall time of a step while the samples were taken, which they share out.
    :param top: how many functions by either measure.
    :raises ValueError: if nothing was sampled.
    """
    stacks = [(frames.split(";"), int(count)) for frames, _, count in _lines(raw)]
    if any(_is_thread(frames[0]) for frames, _ in stacks):
        stacks = [(frames[1:], count) for frames, count in stacks if _is_main(frames[0])]
    own: Counter[str] = Counter()
    all_below: Counter[str] = Counter()
    for frames, count in stacks:
        names = [_function(frame) for frame in frames]
        if names:
            own[names[-1]] += count
        for name in set(names):
            all_below[name] += count
    samples = own.total()
    if not samples:
        raise ValueError("the profile has no samples of the main thread")

    def milliseconds(counts: Counter[str]) -> dict[str, float]:
        return {
            name: round(ms_per_step * count / samples, 4) for name, count in counts.most_common(top)
        }

    return {
        "samples": samples,
        "ms_per_step": round(ms_per_step, 3),
        "self_ms": milliseconds(own),
        "cumulative_ms": milliseconds(all_below),
    }


#: Where the part of a path begins that is the same on every machine.
_PACKAGES = ("/site-packages/", "/vllm/", "/torch/", "/overlay/", "/bench/")


def _lines(raw: str) -> list[tuple[str, str, str]]:
    return [line.rpartition(" ") for line in raw.splitlines() if line.strip()]


def _is_thread(frame: str) -> bool:
    return frame.startswith("thread ")


def _is_main(frame: str) -> bool:
    return "MainThread" in frame


def _function(frame: str) -> str:
    """``file:function`` of ``function (file:line)``, the file from its package on.

    What torch.compile wrote is told as compiled/FILE.
    """
    match = _LINE.match(frame)
    if match is None:
        return frame
    file = match["file"]
    if "/inductor_cache/" in file:
        file = f"compiled/{file.rpartition('/')[2]}"
    for mark in _PACKAGES:
        _, package, tail = file.rpartition(mark)
        if package:
            file = tail if mark == "/site-packages/" else f"{mark[1:]}{tail}"
            break
    return f"{file}:{match['name']}"


def find_py_spy(given: str | None) -> str | None:
    """The program, from ``--py-spy``, the path or beside this Python; ``None`` if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return given or shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def let_others_read_us() -> None:
    """Allow any process of this user to read ours, where the kernel has the Yama module."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_PTRACER, _ANY, 0, 0, 0)


def with_py_spy(
    program: str, pid: int, out: Path, seconds: float, rate: int, work: Callable[[], object]
) -> None:
    """Sample process ``pid`` while ``work`` runs again and again; write the stacks to ``out``.

    :raises RuntimeError: if the program fails, with what it said.
    """
    command = [program, "record", "--pid", str(pid), "--rate", str(rate), "--nonblocking"]
    command += ["--duration", str(max(round(seconds), 1)), "--idle", "--threads"]
    command += ["--full-filenames", "--format", "raw", "--output", str(out)]
    out.unlink(missing_ok=True)
    with out.with_suffix(".log").open("w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        last = time.monotonic() + seconds + 60
        try:
            while child.poll() is None and time.monotonic() < last:
                work()
        finally:
            child.kill()
            child.wait()
        log.seek(0)
        if child.returncode or not out.exists():
            raise RuntimeError(f"py-spy ended with {child.returncode}: {log.read()[-600:]}")


class SignalSampler:
    """Samples the main thread of this process by ``SIGALRM``, from its making until ``stop``.

    :param rate: samples per second.
    """

    def __init__(self, rate: int) -> None:
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()
        self._before = signal.signal(signal.SIGALRM, self._take)
        signal.setitimer(signal.ITIMER_REAL, 1 / rate, 1 / rate)

    def _take(self, _number: int, frame: FrameType | None) -> None:
        stack: list[CodeType] = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def stop(self) -> str:
        """The stacks, one and its count a line."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        return "".join(
            f"{';'.join(_frame(code) for code in reversed(stack))} {count}\n"
            for stack, count in self._stacks.items()
        )


def with_signal(out: Path, seconds: float, rate: int, work: Callable[[], object]) -> None:
    """Sample the main thread of this process; as ``with_py_spy`` otherwise."""
    sampler = SignalSampler(rate)
    last = time.monotonic() + seconds
    try:
        while time.monotonic() < last:
            work()
    finally:
        stacks = sampler.stop()
    out.write_text(stacks, encoding="utf-8")


def _frame(code: CodeType) -> str:
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"


def sample(
    out: Path,
    *,
    sampler: str,
    py_spy: str | None,
    pid: int | None,
    seconds: float,
    rate: int,
    work: Callable[[], object],
    steps: Callable[[], float],
) -> dict[str, Any]:
    """Profile ``work``, run again and again, and fold the stacks.

    :param sampler: ``py-spy``, ``signal``, or ``auto`` for the first of them that works; what was
        used, and why not py-spy, is in the result.
    :param pid: the process to look into; ``None`` for this one.
    :param steps: how many engine steps there were until now.
    """
    result: dict[str, Any] = {}
    program = None if sampler == "signal" else find_py_spy(py_spy)
    if sampler == "py-spy" and program is None:
        raise FileNotFoundError("there is no py-spy on the path; name it with --py-spy")
    begun, before = time.perf_counter(), steps()
    if program is not None:
        let_others_read_us()
        try:
            with_py_spy(program, pid or os.getpid(), out, seconds, rate, work)
            result["sampler"] = "py-spy"
        except RuntimeError as error:
            if sampler == "py-spy" or pid is not None:
                raise
            result["not_py_spy"] = str(error)
            begun, before = time.perf_counter(), steps()
    if "sampler" not in result:
        with_signal(out, seconds, rate, work)
        result["sampler"] = "signal"
    ms_per_step = 1000 * (time.perf_counter() - begun) / (steps() - before)
    return result | {"rate": rate, **fold(out.read_text(encoding="utf-8"), ms_per_step)}
