"""Which way an interrupted transaction over two packages goes, by what lies in each."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlay.on_disk import files, recovery
from overlay.on_disk import journal as journals
from overlay.on_disk.journal import Journal, Member, Partner
from overlay.on_disk.recovery import Part, recover, recover_locked
from overlay.package import VLLM, Package
from tests.on_disk.test_recovery import ADDED, CHANGED, case, interrupted
from tests.support.pairs import ASCEND

READY = case("before", kinds=CHANGED)
DONE = case("after", kinds=CHANGED)
STUCK = case("after", old=False, kinds=CHANGED)


@contextmanager
def two(first: list[str], second: list[str], **more: bool) -> Iterator[tuple[Part, Part]]:
    """A transaction over two packages, and which bytes each file of both has."""
    one = [case(now, kinds=CHANGED, **more) for now in first]
    other = [case(now, kinds=CHANGED, **more) for now in second]
    with interrupted(one) as (root, begun), interrupted(other, ASCEND) as (beside, begun_beside):
        own = Part(root, named(begun, ASCEND.name), VLLM)
        partner = Part(beside, named(begun_beside, VLLM.name), ASCEND)
        for part in (own, partner):
            journals.write(part.root, part.begun, None, part.package)
        yield own, partner


def named(begun: Journal, partner: str) -> Journal:
    """The journal of one of two packages."""
    return begun._replace(id="0" * 32, partners=(Partner("../other", partner),))


def contents(part: Part) -> set[bytes]:
    """The bytes of the files of one package."""
    return {(part.root / step.path).read_bytes() for step in part.begun.steps}


def pending(part: Part) -> bool:
    return journals.pending(part.root, part.package)


def test_another_package_than_vllm_is_recovered_by_itself() -> None:
    for now, new, way in (("before", True, "finished"), ("after", True, "finished")):
        with interrupted([case(now, new=new, kinds=CHANGED)], ASCEND) as (root, begun):
            part = Part(root, begun, ASCEND)
            assert recovery.state(root, None, ASCEND).endswith(
                "; the next overlay command cleans up."
            )
            assert recover(root, package=ASCEND) == f"an interrupted apply was {way} in {root}"
            assert not pending(part)
            assert recovery.state(root, None, ASCEND) == "The target is whole."
    with interrupted([case("before", new=False, kinds=CHANGED)], ASCEND) as (root, begun):
        assert recover(root, package=ASCEND) == f"an interrupted apply was undone in {root}"
        assert not pending(Part(root, begun, ASCEND))


def test_both_go_the_same_way() -> None:
    with two(["before"], ["after"]) as parts:
        said = f"an interrupted apply was finished in {parts[0]} and {parts[1]}"
        assert recovery._ended(parts) == said
        assert [contents(part) for part in parts] == [{b"2"}, {b"2"}]
        assert not any(map(pending, parts))


@pytest.mark.parametrize(("now", "way"), [("after", "finished"), ("before", "undone")])
def test_without_its_partner_a_package_goes_on_only_where_all_is_done(now: str, way: str) -> None:
    with two(["after", now], ["after"]) as (part, _):
        assert recovery._lacks_partner([part])
        assert recovery._all_after([part]) is (now == "after")
        assert recovery._ended([part]).startswith(f"an interrupted apply was {way} in ")
        assert contents(part) == ({b"2"} if way == "finished" else {b"1"})


def test_a_finish_that_fails_is_undone_only_where_all_packages_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(recovery, "finish", refuse)
    with two(["after"], ["after"]) as (part, other):
        with pytest.raises(OSError, match="full"):
            recovery._ended([part])
        assert contents(part) == {b"2"}
        assert recovery._ended([part, other]).startswith("an interrupted apply was undone in ")
        assert contents(part) == contents(other) == {b"1"}
    with (
        two(["after", "after"], ["after"], old=False) as parts,
        pytest.raises(OSError, match="full"),
    ):
        recovery._ended(parts)


def test_transactions_of_their_own_are_ended_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with interrupted([READY]) as (one, _), interrupted([DONE], ASCEND) as (other, _):
        said = recover_locked([Member(one, VLLM), Member(other, ASCEND)])
        assert said == (
            f"an interrupted apply was finished in {one}; "
            f"an interrupted apply was finished in {other}"
        )

    # A folder that cannot be cleaned up hides no transaction behind it.
    with interrupted([READY]) as (one, _), interrupted([DONE], ASCEND) as (other, _):
        (one / VLLM.journal_path).unlink()
        sweep = journals.sweep

        def refuse(root: Path, package: Package) -> None:
            if root == one:
                raise OSError(errno.EROFS, "read-only")
            sweep(root, package)

        monkeypatch.setattr(journals, "sweep", refuse)
        said = recover_locked([Member(one, VLLM), Member(other, ASCEND)])
        assert said == f"an interrupted apply was finished in {other}"


def test_what_failed_is_taken_back_where_that_is_possible() -> None:
    with two(["after"], ["after"]) as parts:  # both journals are there: nothing is over yet
        recovery.settle(parts)
        assert [contents(part) for part in parts] == [{b"1"}, {b"1"}]
        assert not any(map(pending, parts))
    with two(["after"], ["after"], old=False) as parts:  # the old bytes are gone
        recovery.settle(parts)
        assert [contents(part) for part in parts] == [{b"2"}, {b"2"}]
        assert not any(map(pending, parts))


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("now", ["after", "before"])
def test_what_failed_while_journals_were_removed_was_over(now: str, gone: int) -> None:
    with two(["after", now], ["after", now]) as parts:
        over, left = parts[gone], parts[1 - gone]
        journal = over.root / over.package.journal_path
        journal.unlink()
        recovery.settle(parts)
        assert contents(left) == ({b"2"} if now == "after" else {b"1"})
        assert not journal.parent.exists()
        assert not pending(left)


def test_the_state_of_each_package_is_told() -> None:
    with two(["before"], ["after"]) as (first, second):
        states = [recovery.state(*part) for part in (first, second)]
        assert states[0].startswith("The target is as it was before the apply")
        assert states[1].startswith("The apply is complete")
        assert recovery.state_of([first]) == states[0]
        assert recovery.state_of([first, second]) == (f"{first}: {states[0]} {second}: {states[1]}")


def test_every_folder_of_a_transaction_is_synced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def sync(_: Path, folder: str) -> None:
        synced.append(folder)

    with interrupted([READY, case("before", kinds=ADDED)]) as (root, begun):
        deeper = begun.steps[0]._replace(path="vllm/v1/worker/x.py")
        ledger = begun.steps[0]._replace(path="RECORD")
        monkeypatch.setattr(files, "sync_folder", sync)
        recovery.sync(root, begun._replace(steps=(*begun.steps, deeper, ledger)))
    assert synced == ["", "vllm", "vllm/v1/worker"]
