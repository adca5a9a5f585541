"""Apply, revert and adopt as calls: each argument counts, for one package and for several."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import overlay
from overlay.errors import (
    LedgerError,
    OverlayError,
    PlanOutdated,
    RevertRefused,
    TransactionError,
    described,
)
from overlay.on_disk import files, journal, transaction
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.changes import Intent, to_apply
from overlay.on_disk.files import Site
from overlay.on_disk.journal import Journal
from overlay.on_disk.transaction import TransactionResult, Work
from overlay.package import VLLM, Package, package_named
from overlay.results import Change
from tests.support import one_package
from tests.support.small_targets import (
    ASCEND,
    EDITED,
    OWN,
    PATCHED,
    RECORD,
    Target,
    both,
    lose,
    target,
)
from tests.support.transactions import snapshot


def apply(place: Target, after: bytes = PATCHED, basis: str | None = None) -> TransactionResult:
    wanted = place.request(after)
    return one_package.apply(
        place.root,
        wanted.plan,
        wanted.features,
        release="0.26.0",
        record_file=wanted.record_file,
        basis=basis,
        package=place.package,
    )


def would(place: Target, after: bytes = PATCHED) -> bool:
    wanted = place.request(after)
    found = one_package.target(place.root, "0.26.0", wanted.record_file, place.package)
    return transaction.would_apply(found, wanted.plan, wanted.features)


@both
def test_an_apply_and_its_revert_take_every_argument(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    before = snapshot(place.root)
    assert would(place)
    assert snapshot(place.root) == before
    none = ledgers.digest(None)
    assert apply(place, basis=none) == TransactionResult(
        "apply", (place.patched, place.added), True
    )
    ledger = ledgers.load(place.root, package)
    assert ledger is not None
    assert (ledger.release, ledger.overlay) == ("0.26.0", overlay.__version__)
    assert ledger.record is not None
    assert ledger.record.path == RECORD
    assert ledger.features[0].digest == place.request().features[0].digest
    assert not would(place)
    assert would(place, EDITED)
    assert apply(place) == TransactionResult("apply")
    with pytest.raises(PlanOutdated):
        apply(place, basis=none)
    with pytest.raises(PlanOutdated):
        one_package.revert(place.root, basis=none, package=package)
    done = one_package.revert(place.root, basis=ledgers.digest(ledger), package=package)
    assert done == TransactionResult("revert", (place.patched, place.added), True)
    assert snapshot(place.root) == before


def test_a_link_out_is_refused_before_anything_is_applied(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    (place.root / place.patched).unlink()
    (place.root / place.patched).symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(TransactionError, match="leads out of the target"):
        would(place)


@both
def test_patches_that_are_there_are_adopted(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    before = snapshot(place.root)
    apply(place)
    applied = snapshot(place.root)
    folders = lose(place).ledger.folders
    (place.root / RECORD).write_bytes(f"{package.name}/a.py,,\n".encode())
    wanted = place.request()
    outcome = one_package.adopt(
        place.root,
        wanted.plan,
        wanted.features,
        list(folders),
        release="0.26.0",
        record_file=wanted.record_file,
        package=package,
    )
    assert outcome == TransactionResult("apply", (), True)
    assert snapshot(place.root) == applied
    one_package.revert(place.root, package=package)
    assert snapshot(place.root) == before


@both
def test_a_revert_of_a_lost_ledger_takes_record_and_what_rebuilds_it(
    tmp_path: Path, package: Package
) -> None:
    place = target(tmp_path, package)
    before = snapshot(place.root)
    apply(place)
    rebuilt = lose(place)
    assert not one_package.revert(place.root, rebuild=lambda: rebuilt, package=package).wrote
    record = place.root / RECORD
    done = one_package.revert(
        place.root, record_file=record, rebuild=lambda: rebuilt, package=package
    )
    assert done.wrote
    assert snapshot(place.root) == before


def test_a_revert_knows_of_the_release_and_of_edits(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    before = snapshot(place.root)
    apply(place)
    (place.root / place.patched).write_bytes(EDITED)
    with pytest.raises(RevertRefused):
        one_package.revert(place.root)
    edits = [Change(place.patched, EDITED, OWN)]
    assert one_package.revert(place.root, edits=edits).wrote
    assert snapshot(place.root) == before
    apply(place)
    (place.root / place.patched).write_bytes(EDITED)
    done = one_package.revert(place.root, release="0.27.0")
    assert done.changed == (place.added,)
    assert done.warnings[0].startswith(f"{place.patched} is not what the overlay wrote")


# Several packages


def two(folder: Path) -> list[Target]:
    """Two packages in two folders."""
    return [target(folder / "z", VLLM), target(folder / "b", ASCEND)]


def works(places: list[Target]) -> list[Work]:
    return [
        transaction.applying(
            one_package.target(place.root, "0.26.0", place.root / RECORD, place.package),
            place.request().plan,
            place.request().features,
        )
        for place in places
    ]


def test_each_package_has_its_outcome_in_the_order_of_the_works(tmp_path: Path) -> None:
    first, second = places = two(tmp_path)
    apply(second)
    outcomes = transaction.carry_out(works(places))
    assert outcomes == (
        TransactionResult("apply", (first.patched, first.added), True),
        TransactionResult("apply"),
    )
    assert [ledgers.load(place.root, place.package) is not None for place in places] == [True] * 2


def test_nothing_is_written_to_any_where_one_cannot_be(tmp_path: Path) -> None:
    _, second = places = two(tmp_path)
    (second.root / second.patched).write_bytes(EDITED)
    before = [snapshot(place.root) for place in places]
    with pytest.raises(TransactionError) as caught:
        transaction.carry_out(works(places))
    assert str(caught.value) == (
        f"{second.patched}: changed by somebody else, since the plan was made or since the overlay "
        "applied. Nothing was changed; run the command again, and see `overlay status`"
    )
    assert [snapshot(place.root) for place in places] == before


@pytest.mark.parametrize(
    "error",
    [TransactionError("It is full."), LedgerError("It is full"), RevertRefused("It is full", ())],
)
def test_an_error_says_what_was_written_before_it(tmp_path: Path, error: OverlayError) -> None:
    first, second = two(tmp_path)
    third = target(tmp_path / "c", package_named("plugin"))
    before = [snapshot(place.root) for place in (second, third)]
    done, planned, rest = works([first, second, third])
    answers = iter([to_apply(second.site, second.request())])

    def late(_: Site) -> Intent:
        for intent in answers:
            return intent
        raise error

    with pytest.raises((TransactionError, LedgerError)) as caught:
        transaction.carry_out([done, planned._replace(compute=late), rest])
    assert str(caught.value) == (
        f"It is full; that is about vllm-ascend in {second.root}; vLLM in {first.root} was written "
        f"before it, whole; nothing was written to plugin in {third.root}. Run the command again "
        "once this is settled; `overlay status` shows what is applied where"
    )
    assert ledgers.load(first.root, VLLM) is not None
    assert [snapshot(place.root) for place in (second, third)] == before


def test_an_outdated_plan_of_the_second_is_made_again(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    done, planned = works([first, second])
    answers = iter([to_apply(second.site, second.request())])

    def late(_: Site) -> Intent:
        for intent in answers:
            return intent
        raise PlanOutdated("It is outdated")

    with pytest.raises(PlanOutdated, match=r"^It is outdated$"):
        transaction.carry_out([done, planned._replace(compute=late)])


# Errors while it is written


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("call", ["create", "keep", "make_folder"])
def test_what_the_system_refuses_is_undone_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    places = two(tmp_path)
    before = [snapshot(place.root) for place in places]
    error = OSError(errno.ENOSPC, "No space left on device", "/a/place")
    with monkeypatch.context() as patch:
        real = getattr(files, call)

        def refuse(root: Path, path: str, *rest: object) -> None:
            if "overlay-" in path or not path.startswith("."):  # not the journal's own
                raise error
            real(root, path, *rest)

        patch.setattr(files, call, refuse)
        with pytest.raises(TransactionError, match="as it was before the apply") as caught:
            transaction.carry_out(works(places))
    assert str(caught.value).startswith(f"{described(error)}. ")
    assert "written before" not in str(caught.value)
    assert [snapshot(place.root) for place in places] == before


def test_an_interruption_is_undone_and_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = target(tmp_path, VLLM)
    before = snapshot(place.root)
    monkeypatch.setattr(files, "keep", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        apply(place)
    assert snapshot(place.root) == before


def test_a_target_that_cannot_be_looked_at_is_said_to_be_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = target(tmp_path, VLLM)
    error = OSError(errno.EIO, "Input/output error", "/x")
    work = Work(one_package.target(place.root), failing(error))
    with pytest.raises(TransactionError) as caught:
        transaction.carry_out([work])
    assert str(caught.value) == f"{described(error)}. Nothing was changed."


def test_all_that_is_made_has_the_owner_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = target(tmp_path, VLLM)
    mine = files.Owner(os.getuid(), os.getgid())
    monkeypatch.setattr(Site, "owner", mine)
    made: list[tuple[str, object]] = []
    real_folder, real_journal = files.make_folder, journal.write

    def make_folder(root: Path, path: str, owner: files.Owner | None = None) -> None:
        made.append((path, owner))
        real_folder(root, path, owner)

    def write(root: Path, begun: Journal, owner: files.Owner | None, package: Package) -> None:
        made.append(("journal", owner))
        real_journal(root, begun, owner, package)

    monkeypatch.setattr(files, "make_folder", make_folder)
    monkeypatch.setattr(journal, "write", write)
    apply(place)
    assert {"journal", "vllm/new"} <= {path for path, _ in made}
    assert {owner for _, owner in made} == {mine}


def test_the_old_bytes_are_kept_before_new_ones_are_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all new bytes are there, the transaction may be finished."""
    place = target(tmp_path, VLLM)
    calls: list[str] = []
    for name in ("make_folder", "keep", "create"):
        real = getattr(files, name)

        def note(*rest: object, name: str = name, real: Callable[..., None] = real) -> None:
            calls.append(name)
            real(*rest)

        monkeypatch.setattr(files, name, note)
    apply(place)
    order = [name for at, name in enumerate(calls) if at == 0 or calls[at - 1] != name]
    assert order == ["make_folder", "create", "make_folder", "keep", "create"]
