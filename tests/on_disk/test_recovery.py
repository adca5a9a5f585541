"""Which way an interrupted transaction goes, whatever lies on the disk, and what recovery says."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.errors import LedgerError, TransactionError
from overlay.on_disk import files, journal, recovery
from overlay.on_disk import journal as journals
from overlay.on_disk.journal import Journal, Step
from overlay.on_disk.recovery import recover
from overlay.package import VLLM, Package
from overlay.untrusted import sha256
from tests.support.faults import FaultyOs, faulty
from tests.support.pairs import ASCEND
from tests.support.sites import interrupt_in_the_middle
from tests.support.transactions import PROPOSER, Site, memory_folder

FOREIGN = b"of somebody else"


@dataclass(frozen=True)
class Case:
    """One file of a transaction, and what lies on the disk.

    :ivar before: its bytes before and ``after`` the transaction; ``None`` for no file.
    :ivar now: which of both it has (``before``, ``after``), or bytes of somebody else.
    :ivar new: whether its new bytes wait beside it; :ivar old: whether its old ones are kept there.
    """

    before: bytes | None
    after: bytes | None
    now: str
    new: bool
    old: bool

    @property
    def present(self) -> bytes | None:
        return {"before": self.before, "after": self.after}.get(self.now, FOREIGN)

    @property
    def goes_on(self) -> bool:
        """Whether this file lets the transaction be finished."""
        return self.now != "before" or self.after is None or self.new

    @property
    def goes_back(self) -> bool:
        """Whether this file lets the transaction be undone."""
        return self.now != "after" or self.before is None or self.old


def case(
    now: str, *, new: bool = True, old: bool = True, kinds: tuple[bytes | None, bytes | None]
) -> Case:
    return Case(*kinds, now, new, old)


CHANGED, ADDED, REMOVED = (b"1", b"2"), (None, b"2"), (b"1", None)
cases = st.builds(
    case,
    st.sampled_from(["before", "after", "foreign"]),
    new=st.booleans(),
    old=st.booleans(),
    kinds=st.sampled_from([CHANGED, ADDED, REMOVED]),
)


@contextmanager
def interrupted(files: list[Case], package: Package = VLLM) -> Iterator[tuple[Path, Journal]]:
    """A target in which a transaction of these files was interrupted."""
    with (
        memory_folder(Path(tempfile.gettempdir())) as memory,
        tempfile.TemporaryDirectory(dir=memory) as folder,
        faulty(FaultyOs()),  # fsync is left out
    ):
        root = Path(folder).resolve()
        (root / package.name).mkdir()
        steps = [
            Step(
                f"{package.name}/m{number}.py",
                None if file.before is None else sha256(file.before),
                None if file.after is None else sha256(file.after),
            )
            for number, file in enumerate(files)
        ]
        begun = Journal("apply", "0.1.0", tuple(steps))
        journals.write(root, begun, None, package)
        for step, file in zip(steps, files, strict=True):
            if file.present is not None:
                (root / step.path).write_bytes(file.present)
            if file.new and file.after is not None:
                (root / step.new).write_bytes(file.after)
            if file.old and file.before is not None:
                (root / step.old).write_bytes(file.before)
        (root / package.name / "__pycache__").mkdir()
        for number in range(len(files)):
            bytecode(root, number, package).write_bytes(bytes(16))  # by its time, of neither source
        yield root, begun


def bytecode(root: Path, number: int, package: Package = VLLM) -> Path:
    """Where Python keeps what it compiled from a file of ``interrupted``."""
    return root / f"{package.name}/__pycache__/m{number}.cpython-311.pyc"


@example([case("before", new=False, kinds=CHANGED), case("after", kinds=ADDED)])
@example([case("after", old=False, kinds=CHANGED), case("before", kinds=REMOVED)])
@example([case("foreign", kinds=CHANGED), case("after", old=False, kinds=CHANGED)])
@example([case("foreign", kinds=ADDED), case("after", kinds=CHANGED)])
@given(st.lists(cases, min_size=1, max_size=3))
def test_it_is_finished_where_it_can_be_and_else_undone(files: list[Case]) -> None:
    """The law of docs/architecture.md; bytes of somebody else are left, and turn it back."""
    forward = all(file.goes_on for file in files)
    back = all(file.goes_back for file in files)
    foreign = [n for n, file in enumerate(files) if file.now == "foreign"]
    with interrupted(files) as (root, begun):
        conditions = recovery.survey(root, begun)
        assert [now.value for now in conditions.values()] == [file.now for file in files]
        assert recovery.can_finish(root, begun, conditions) is forward
        assert recovery.can_undo(root, begun, conditions) is back
        if not forward and not back:
            with pytest.raises(TransactionError, match="can neither be finished nor undone"):
                recover(root)
            assert journals.exists(root)
            return
        way = "finished" if forward and (not foreign or not back) else "undone"
        said = f"an interrupted apply was {way} in {root}"
        if foreign:
            paths = ", ".join(f"vllm/m{number}.py" for number in foreign)
            said += f"; changed by others since, and left alone: {paths}"
        assert recover(root) == said
        for number, file in enumerate(files):
            expected = file.after if way == "finished" else file.before
            if file.now == "foreign":
                expected = FOREIGN
            place = root / f"vllm/m{number}.py"
            assert (place.read_bytes() if place.exists() else None) == expected
            untouched = file.now == "foreign" or (way == "undone" and file.now == "before")
            assert bytecode(root, number).exists() is untouched
        assert sorted(os.listdir(root)) == ["vllm"]
        assert not [name for name in os.listdir(root / "vllm") if "overlay" in name]
        assert recover(root) is None


@given(st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=3), st.booleans())
def test_the_state_of_a_stopped_transaction_is_told_as_it_is(nows: list[str], left: bool) -> None:
    """By the files; what is left to clean up is told, too."""
    with interrupted([case(now, kinds=CHANGED) for now in nows]) as (root, begun):
        if not left:
            (root / VLLM.journal_path).unlink()
            (root / VLLM.journal_path).parent.rmdir()
        rest = "; the next overlay command cleans up" if left else ""
        expected = {
            ("after",): f"The apply is complete{rest}.",
            ("before",): f"The target is as it was before the apply{rest}.",
        }.get(
            tuple(sorted(set(nows))),
            "The target is between two states; the next overlay command that can write there "
            "ends the apply or takes it back.",
        )
        assert recovery.state(root, begun) == expected
        assert recovery.state(root) == (expected if left else "The target is whole.")


def test_a_state_that_cannot_be_read_is_said_to(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    (installed.root / VLLM.journal_path).write_bytes(b"{")
    assert "is unknown" in recovery.state(installed.root)


def test_whoever_holds_the_target_is_waited_for_as_long_as_was_said(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    with (
        journal.shared(installed.root),
        pytest.raises(TransactionError, match=r"waited 0\.05 s"),
    ):
        recover(installed.root, timeout=0.05)


@pytest.mark.parametrize("place", ["", "/journal.json"], ids=["folder", "journal"])
def test_a_journal_that_others_could_have_written_is_not_followed(
    installed: Site, place: str
) -> None:
    interrupt_in_the_middle(installed)
    path = Path(f"{installed.root}/.vllm-overlay{place}")
    mode = path.stat().st_mode
    path.chmod(0o777)
    with pytest.raises(TransactionError) as caught:
        recover(installed.root)
    said = str(caught.value)
    assert f"{path} can be written by others (mode 0777)" in said
    assert f"as the user who owns {installed.root / 'vllm'}, and" in said
    path.chmod(mode)
    assert recover(installed.root)


def test_the_private_group_of_a_user_is_no_stranger(
    installed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with umask 002, where every file of a user may be written by the user's own group."""
    interrupt_in_the_middle(installed)
    (installed.root / ".vllm-overlay").chmod(0o775)
    monkeypatch.setattr("overlay.untrusted._private_group", lambda status: True)
    assert recover(installed.root)


@pytest.mark.parametrize("named", ["made", "dropped"])
def test_a_folder_behind_a_link_is_refused_where_a_journal_would_make_or_remove_it(
    installed: Site, named: str
) -> None:
    """Also where a folder that is named before it is not there at all."""
    folders = {named: ("vllm/a/gone/x", "vllm/b/link/x")}
    begun = Journal("apply", "0.1.0", (Step("vllm/new.py", None, "0" * 64),), **folders)
    journals.write(installed.root, begun, None)
    (installed.root / "vllm/b").mkdir()
    (installed.root / "vllm/b/link").symlink_to(installed.root.parent)
    with pytest.raises(TransactionError, match=r"vllm/b/link, which is a symbolic link"):
        recover(installed.root)


def test_recovery_that_fails_tells_the_state_of_the_journal_s_transaction(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    system = FaultyOs(never={"replace": 5, "unlink": 5})
    with faulty(system), pytest.raises(TransactionError) as caught:
        recover(installed.root)
    assert "The interrupted apply could not be ended here" in str(caught.value)
    assert "The target is between two states" in str(caught.value)
    assert recover(installed.root)


class NoUnlinkOfBytecode(FaultyOs):
    """A ``__pycache__`` that another user owns."""

    def unlink(self, name: str, **folder: int) -> None:
        if name.endswith(".pyc"):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        os.unlink(name, **folder)


@pytest.mark.parametrize("way", ["finished", "undone"])
def test_bytecode_that_cannot_be_removed_and_that_python_rejects_stops_no_recovery(
    way: str,
) -> None:
    """By its time or size it belongs to neither of the two sources."""
    files = [case("after", old=way == "undone", kinds=CHANGED)]
    files.append(case("before", new=way == "finished", kinds=CHANGED))
    with interrupted(files) as (root, _), faulty(NoUnlinkOfBytecode()):
        assert recover(root) == f"an interrupted apply was {way} in {root}"
        assert bytecode(root, 0).exists()


def test_a_journal_names_what_it_was_told(installed: Site) -> None:
    begun = Journal("revert", "0.1.0", (Step(PROPOSER, "1" * 64, None),), ("vllm/x",), ("vllm/y",))
    journals.write(installed.root, begun, None)
    assert journals.read(installed.root) == begun
    (installed.root / VLLM.journal_path).write_bytes(b"[" * 100_000)
    with pytest.raises(LedgerError, match="nested too deeply"):
        journals.read(installed.root)


def test_another_package_than_vllm_is_recovered_by_itself() -> None:
    for now in ("before", "after"):
        with interrupted([case(now, kinds=CHANGED)], ASCEND) as (root, _):
            assert recovery.state(root, None, ASCEND).endswith(
                "; the next overlay command cleans up."
            )
            assert recover(root, package=ASCEND) == f"an interrupted apply was finished in {root}"
            assert not journals.pending(root, ASCEND)
            assert recovery.state(root, None, ASCEND) == "The target is whole."
    with interrupted([case("before", new=False, kinds=CHANGED)], ASCEND) as (root, _):
        assert recover(root, package=ASCEND) == f"an interrupted apply was undone in {root}"
        assert not journals.pending(root, ASCEND)
    with (
        interrupted([case("before", kinds=CHANGED)], ASCEND) as (root, _),
        faulty(FaultyOs(never={"replace": errno.EBUSY})),
    ):
        assert recover(root, package=ASCEND) == f"an interrupted apply was undone in {root}"
        assert not journals.pending(root, ASCEND)


def test_recovery_that_fails_at_its_end_tells_that_the_files_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the transaction that it read: the journal has gone."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with interrupted([case("after", old=False, kinds=CHANGED)], ASCEND) as (root, _):
        monkeypatch.setattr(journals, "sweep", refuse)
        with pytest.raises(TransactionError, match="complete; the next overlay command cleans up"):
            recover(root, package=ASCEND)


def test_a_folder_that_cannot_be_cleaned_up_is_no_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(root: Path, package: Package) -> None:
        raise OSError(errno.EROFS, "read-only")

    with interrupted([case("before", kinds=CHANGED)]) as (root, _):
        (root / VLLM.journal_path).unlink()
        monkeypatch.setattr(journals, "sweep", refuse)
        assert recover(root) is None


@pytest.mark.parametrize("package", [VLLM, ASCEND])
@pytest.mark.parametrize(("old", "then"), [(True, b"1"), (False, b"2")])
def test_what_failed_is_taken_back_where_that_is_possible(
    old: bool, then: bytes, package: Package
) -> None:
    with interrupted([case("after", old=old, kinds=CHANGED)], package) as (root, begun):
        recovery.settle(root, begun, package)
        assert (root / begun.steps[0].path).read_bytes() == then
        assert not journals.pending(root, package)


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_what_failed_while_its_journal_was_removed_is_over(package: Package) -> None:
    with interrupted([case("after", kinds=CHANGED)], package) as (root, begun):
        (root / package.journal_path).unlink()
        recovery.settle(root, begun, package)
        assert (root / begun.steps[0].path).read_bytes() == b"2"
        assert not journals.pending(root, package)


def test_every_folder_of_a_transaction_is_synced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def sync(_: Path, folder: str) -> None:
        synced.append(folder)

    with interrupted([case("before", kinds=CHANGED), case("before", kinds=ADDED)]) as (root, begun):
        deeper = begun.steps[0]._replace(path="vllm/v1/worker/x.py")
        ledger = begun.steps[0]._replace(path="RECORD")
        monkeypatch.setattr(files, "sync_folder", sync)
        recovery.sync(root, begun._replace(steps=(*begun.steps, deeper, ledger)))
    assert synced == ["", "vllm", "vllm/v1/worker"]
