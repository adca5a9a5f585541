"""Whatever a stranger leaves in a target: nothing outside it changes, nothing waits or crashes.

The law: for any bytes in ``.vllm-overlay/`` and any links and special files below a target, no
command changes a byte, a mode or a time outside it, none takes five seconds, none ends in a
traceback; commands that read change nothing at all.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlay.cli.run import run
from tests.support import fake_vllm, hostile
from tests.support.cli import ADDED, CAPTURE, PROPOSE, PROPOSER
from tests.support.faults import Dead, faulty
from tests.support.hostile import (
    DECODE,
    JOURNAL,
    LEDGER,
    STATE,
    Edit,
    content,
    edits,
    link,
    special,
    stamps,
)
from tests.support.patches import write_feature
from tests.support.transactions import memory_folder

READING = (
    ("check",),
    ("status",),
    ("diff",),
    ("apply", "--dry-run"),
)
WRITING = (("apply",), ("revert",), ("adopt",))
STARTS = ("pristine", "applied", "interrupted", "interrupted revert")
COMPUTING_SECONDS, WAITING_SECONDS = 5, 30


class Hang(BaseException):
    """A command took too long."""


def _hang(*_: object) -> None:
    raise Hang


class Lab:
    """A folder for sandboxes, and the targets that they start from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.team = folder / "team"
        self._numbers = itertools.count()
        write_feature(self.team, {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id="team-capture")
        hostile.outside(folder / "outside")
        for start in STARTS:
            site = fake_vllm.site_packages(folder / start)
            if start in ("applied", "interrupted revert"):
                assert self.run("apply", site)[0] == 0
            if start.startswith("interrupted"):
                action = start.partition(" ")[2] or "apply"
                with faulty(hostile.KilledRenaming()), contextlib.suppress(Dead):
                    self.run(action, site)
                assert (site / JOURNAL).exists()

    def run(self, *command: str | Path) -> tuple[int, str]:
        """Run a command in this process; its exit code and what it printed."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["--patches", str(self.team), *map(str, command)])
            out.flush()
            err.flush()
        printed = out.buffer.getvalue() + err.buffer.getvalue()  # type: ignore[attr-defined]  # BytesIO
        return code, printed.decode("utf-8", "backslashreplace")

    @contextlib.contextmanager
    def sandbox(self, start: str) -> Iterator[Path]:
        """A fresh target and canary, each for itself."""
        sandbox = self.folder / f"sandbox-{next(self._numbers)}"
        sandbox.mkdir()
        try:
            shutil.copytree(self.folder / start, sandbox / "site", symlinks=True)
            hostile.outside(sandbox / "outside")
            yield sandbox
        finally:
            shutil.rmtree(sandbox)

    def try_out(self, start: str, done: list[Edit], commands: list[tuple[str, ...]]) -> None:
        """Do a stranger's edits, run commands, and look at what became of everything."""
        with self.sandbox(start) as sandbox:
            for edit in done:
                edit.do(sandbox)
            canary = stamps(sandbox, but="site")
            for command in commands:
                before = stamps(sandbox / "site")
                began = time.monotonic()
                code, printed = self.bounded(command, sandbox / "site")
                said = f"{' '.join(command)} (exit {code}, {time.monotonic() - began:.1f} s)"
                said += f":\n{printed}"
                assert stamps(sandbox, but="site") == canary, said
                assert code in (0, 1, 2), said
                assert "Traceback" not in printed, said
                assert printed.strip(), said
                if command in READING or command == ("doctor",):
                    assert stamps(sandbox / "site") == before, said

    def bounded(self, command: tuple[str, ...], site: Path) -> tuple[int, str]:
        """As ``run`` on a target.

        :raises Hang: if it computes for five seconds, or waits for thirty: a machine that does
            other things, too, can keep it waiting for a while.
        """
        signals = (signal.SIGALRM, signal.SIGPROF)
        previous = [signal.signal(number, _hang) for number in signals]
        signal.setitimer(signal.ITIMER_PROF, COMPUTING_SECONDS)
        signal.alarm(WAITING_SECONDS)
        try:
            if command == ("doctor",):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "path", [str(site), *sys.path])
                    return self.run(*command)
            return self.run(*command, site)
        finally:
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            for number, handler in zip(signals, previous, strict=True):
                signal.signal(number, handler)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with (
        memory_folder(tmp_path_factory.mktemp("lab")) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        shipped = folder / "shipped"
        write_feature(
            shipped, {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
        )
        patch.setattr("overlay._features.sources.shipped_folder", lambda: shipped)
        patch.delenv("OVERLAY_PATCHES", raising=False)
        patch.setenv("OVERLAY_CACHE", str(folder / "cache"))
        yield Lab(folder)


def _journal(path: str, before: str | None, after: str | None) -> Edit:
    step = {"path": path, "before": before, "after": after}
    document = {"schema": 1, "action": "apply", "overlay": "0.1.0", "steps": [step]}
    return content(JOURNAL, hostile.encoded({**document, "made": [], "dropped": []}))


EMPTY = hostile.sha256(b"")

THROUGH_A_LINK = [link("vllm/zz", "outside", False), _journal("vllm/zz/empty.py", EMPTY, None)]

LINKED_BYTECODE = [link(f"{DECODE}/__pycache__", f"outside/{DECODE}/__pycache__", False)]


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
# A journal that deletes through a link (an empty file, whose hash everybody knows).
@example("pristine", THROUGH_A_LINK, [("check",), ("apply",)])
@example("applied", LINKED_BYTECODE, [("revert",), ("apply",)])
@example("pristine", LINKED_BYTECODE, [("apply",), ("revert",)])
@example("applied", [content(LEDGER, b"[" * 200_000)], [("status",), ("check",), ("revert",)])
@example("applied", [special(LEDGER, "pipe")], [("status",), ("check",), ("apply",)])
@example("interrupted", [link(DECODE, f"outside/{DECODE}", False)], [("status",), ("apply",)])
@example("interrupted", [special(JOURNAL, "huge")], [("status",), ("apply",), ("revert",)])
@example("applied", [link(STATE, f"outside/{STATE}", True)], [("status",), ("revert",)])
@example("applied", [link(PROPOSER, "/dev/zero", False)], [("check",), ("revert",)])
@given(
    st.sampled_from(STARTS),
    st.lists(edits, min_size=1, max_size=4),
    st.lists(st.sampled_from([*READING, *WRITING]), min_size=1, max_size=3),
)
def test_nothing_outside_a_target_changes(
    lab: Lab, start: str, done: list[Edit], commands: list[tuple[str, ...]]
) -> None:
    lab.try_out(start, done, commands)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(STARTS), st.lists(edits, min_size=1, max_size=3))
def test_doctor_changes_nothing_either(lab: Lab, start: str, done: list[Edit]) -> None:
    lab.try_out(start, done, [("doctor",)])


@pytest.mark.thorough  # more examples of the law above
@settings(max_examples=5000, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(STARTS),
    st.lists(edits, min_size=1, max_size=5),
    st.lists(st.sampled_from([*READING, *WRITING]), min_size=1, max_size=3),
)
def test_nothing_outside_a_target_changes_in_thousands_of_cases(
    lab: Lab, start: str, done: list[Edit], commands: list[tuple[str, ...]]
) -> None:
    lab.try_out(start, done, commands)


def test_the_canary_notices_a_change(lab: Lab) -> None:
    """The proof that the proof would fail: a change outside is seen, whatever it is."""
    changes: list[Callable[[Path], object]] = [
        lambda outside: (outside / "empty.py").unlink(),
        lambda outside: (outside / "emptydir").rmdir(),
        lambda outside: (outside / PROPOSER).chmod(0o600),
        lambda outside: os.utime(outside / PROPOSER),
        lambda outside: (outside / PROPOSER).write_bytes(b"x"),
        lambda outside: (outside / "new").touch(),
    ]
    for change in changes:
        with lab.sandbox("pristine") as sandbox:
            before = stamps(sandbox, but="site")
            change(sandbox / "outside")
            assert stamps(sandbox, but="site") != before
