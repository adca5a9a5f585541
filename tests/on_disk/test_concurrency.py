"""Many processes at one target: they wait for each other, and readers see whole states."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk import journal, ledger
from overlay.on_disk import transaction as commit
from overlay.on_disk.disk_state import conditions
from overlay.on_disk.recovery import recover
from tests.support import transactions
from tests.support.faults import end_of_child, start_child
from tests.support.transactions import ONE, PROPOSER, RUNNER, TWO, Site, Snapshot, snapshot


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with transactions.memory_folder(tmp_path) as folder:
        yield transactions.installed(folder / "site")


def finish(children: list[int]) -> list[int]:
    """The exit status of every child."""
    return [end_of_child(child) for child in children]


def states_of(site: Site) -> list[transactions.Snapshot]:
    """The target pristine, with the patches ONE, and with the patches TWO."""
    found = [snapshot(site.root)]
    for number, patches in enumerate((ONE, TWO)):
        other = site.copy(site.root.parent / f"state-{number}")
        other.apply(patches)
        found.append(snapshot(other.root))
    return found


def in_use(take: Callable[[], AbstractContextManager[None]]) -> str:
    """What is said when a lock cannot be taken."""
    with pytest.raises(TransactionError, match="in use by another overlay command") as caught:
        take().__enter__()
    return str(caught.value)


def test_sixteen_apply_at_once(site: Site, tmp_path: Path) -> None:
    _, patched, _ = states_of(site)
    told = tmp_path / "told"
    told.mkdir()

    def work(number: int) -> None:
        outcome = site.apply()
        (told / str(number)).write_text(str(outcome.wrote))

    gate = os.open(site.root / "vllm", os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    children = [start_child(lambda number=number: work(number)) for number in range(16)]
    fcntl.flock(gate, fcntl.LOCK_UN)
    os.close(gate)
    assert finish(children) == [0] * 16
    assert snapshot(site.root) == patched
    assert sorted(path.read_text() for path in told.iterdir()) == ["False"] * 15 + ["True"]


def test_eight_change_while_eight_read(site: Site) -> None:
    """Readers only ever see a whole state, and the writers do get their turn."""
    whole = states_of(site)
    rounds = 6

    def write(number: int) -> None:
        for turn in range(rounds):
            (site.apply, site.revert, lambda: site.apply(TWO))[(number + turn) % 3]()

    def read() -> None:
        for _ in range(rounds * 3):
            with commit.reading(site.root) as said:
                assert said is None
                assert snapshot(site.root) in whole
                found = ledger.load(site.root)
                if found is not None:
                    states = conditions(found, lambda path: (site.root / path).read_bytes())
                    assert {state.name for state in states.values()} == {"OURS"}

    children = [start_child(lambda number=number: write(number)) for number in range(8)]
    children += [start_child(read) for _ in range(8)]
    assert finish(children) == [0] * 16
    assert snapshot(site.root) in whole


def outside(tree: Snapshot) -> Snapshot:
    """What lies outside the overlay's own folder."""
    return {path: entry for path, entry in tree.items() if not path.startswith(".vllm-overlay")}


def test_some_are_killed_among_many(site: Site) -> None:
    """Whoever comes next ends what a killed one left."""
    whole = states_of(site)

    def write(number: int) -> None:
        signal.alarm(60)
        for turn in itertools.count():
            (site.apply, site.revert, lambda: site.apply(TWO))[(number + turn) % 3]()

    children = [start_child(lambda number=number: write(number)) for number in range(4)]
    for child in children:
        time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        with commit.reading(site.root) as interrupted:
            # A reader may come first: it is told so, and removes nothing of the overlay's own.
            assert interrupted is not None or outside(snapshot(site.root)) in map(outside, whole)
    assert finish(children) == [-signal.SIGKILL] * 4
    recover(site.root)
    assert snapshot(site.root) in whole


def test_ctrl_c_at_any_moment(site: Site) -> None:
    """For real, between any two instructions of Python; what is left then, the next one ends."""
    whole = states_of(site)

    def endlessly(ready: int) -> None:
        os.write(ready, b"x")
        for turn in itertools.count():
            (site.apply, site.revert, lambda: site.apply(TWO))[turn % 3]()

    def change(ready: int) -> None:
        signal.alarm(60)
        # A shell that starts the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Python itself drops an interruption that falls into a finalizer: it comes again then.
        signal.signal(signal.SIGVTALRM, signal.default_int_handler)
        sys.unraisablehook = lambda _: signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
        with pytest.raises(KeyboardInterrupt):
            endlessly(ready)

    for turn in range(25):
        begun, ready = os.pipe()
        child = start_child(lambda ready=ready: change(ready))
        os.read(begun, 1)
        time.sleep(0.0037 * turn)
        os.kill(child, signal.SIGINT)
        assert finish([child]) == [0]
        os.close(begun)
        os.close(ready)
        recover(site.root)
        assert snapshot(site.root) in whole


def test_a_reader_waits_for_a_writer(site: Site) -> None:
    with journal.exclusive(site.root):
        begun = time.monotonic()
        in_use(lambda: journal.shared(site.root, timeout=0.2))
    assert 0.2 <= time.monotonic() - begun < 5


def test_the_holder_is_named(site: Site) -> None:
    with journal.shared(site.root):
        said = in_use(lambda: journal.exclusive(site.root, timeout=0.05))
    if Path("/proc/locks").exists():
        assert f"process {os.getpid()}" in said
    assert "Nothing was changed" in said


def test_readers_do_not_wait_for_each_other(site: Site) -> None:
    with journal.shared(site.root), journal.shared(site.root, timeout=0):
        pass


def test_the_lock_dies_with_its_process(site: Site) -> None:
    ready, done = os.pipe()

    def hold() -> None:
        with journal.exclusive(site.root):
            os.write(done, b"x")
            time.sleep(60)

    child = start_child(hold)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    with journal.exclusive(site.root, timeout=5):
        pass
    assert finish([child]) == [-signal.SIGKILL]


def test_a_process_forked_meanwhile_does_not_keep_the_lock(site: Site) -> None:
    with journal.exclusive(site.root):
        child = start_child(lambda: time.sleep(60))
    try:
        with journal.exclusive(site.root, timeout=0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        finish([child])


def test_locking_leaves_nothing(site: Site) -> None:
    before = snapshot(site.root)
    with journal.exclusive(site.root):
        assert snapshot(site.root) == before
    assert snapshot(site.root) == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TransactionError, match="cannot be opened to lock it"):
        journal.shared(tmp_path).__enter__()


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_folders_cannot_be_locked_a_file_is(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on network file systems; filelock keeps its own flock on its own file."""
    real = fcntl.flock

    def flock(handle: int, mode: int) -> None:
        if os.path.samestat(os.fstat(handle), os.stat(site.root / "vllm")):
            raise OSError(number, os.strerror(number))
        real(handle, mode)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = snapshot(site.root)
    site.apply()
    assert list((tmp_path / "cache/vllm-overlay/locks").iterdir())

    def other() -> None:
        in_use(lambda: journal.exclusive(site.root, timeout=0.05))

    with journal.exclusive(site.root):
        assert finish([start_child(other)]) == [0]
    site.revert()
    assert snapshot(site.root) == before


def test_an_apply_waits_until_others_have_read(site: Site) -> None:
    with journal.shared(site.root):
        child = start_child(lambda: site.apply() and None)
        time.sleep(0.2)
        for path in (PROPOSER, RUNNER):
            assert (site.root / path).read_bytes() == site.pristine[path]
        assert not (site.root / ".vllm-overlay").exists()
    assert finish([child]) == [0]
    assert (site.root / PROPOSER).read_bytes() != site.pristine[PROPOSER]
