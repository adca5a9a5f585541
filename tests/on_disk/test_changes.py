"""The writes that an apply, an adoption and a revert need, for any package."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import RevertRefused, TransactionError
from overlay.on_disk.changes import Intent, to_adopt, to_apply, to_revert
from overlay.on_disk.ledger import LedgerLost
from overlay.package import VLLM, Package
from overlay.results import Change
from tests.support.small_targets import (
    EDITED,
    OWN,
    PATCHED,
    RECORD,
    Target,
    both,
    lose,
    target,
)
from tests.support.transactions import Snapshot, snapshot


@both
def test_each_package_is_changed_by_its_own_ledger(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    before = snapshot(place.root)
    place.apply()
    assert to_apply(place.site, place.request()) == Intent("apply")
    assert place.carry_out(to_apply(place.site, place.request(EDITED))) == (place.patched,)
    assert (place.root / place.patched).read_bytes() == EDITED
    assert place.carry_out(to_revert(place.site)) == (place.patched, place.added)
    assert snapshot(place.root) == before
    assert to_revert(place.site) == Intent("revert")


@both
def test_what_was_put_back_by_hand_is_written_again(tmp_path: Path, package: Package) -> None:
    """The ledger is the one that the plan makes; the files are not."""
    place = target(tmp_path, package)
    place.apply()
    applied = snapshot(place.root)
    (place.root / place.patched).write_bytes(OWN)
    assert place.carry_out(to_apply(place.site, place.request())) == (place.patched,)
    assert snapshot(place.root) == applied


@both
def test_a_folder_goes_with_the_added_module_that_it_was_made_for(
    tmp_path: Path, package: Package
) -> None:
    place = target(tmp_path, package)
    place.apply()
    request = place.request()
    plan = request.plan._replace(changes=request.plan.changes[:1])
    intent = to_apply(place.site, request._replace(plan=plan))
    assert f"{package.name}/new" in intent.dropped
    assert place.carry_out(intent) == (place.added,)
    assert not (place.root / package.name / "new").exists()


def test_a_row_that_somebody_added_to_record_stays_through_the_next_apply(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    place.apply()
    with (place.root / RECORD).open("ab") as file:
        file.write(b"bin/tool,,\n")
    place.carry_out(to_apply(place.site, place.request(EDITED)))
    assert b"\nbin/tool,,\n" in (place.root / RECORD).read_bytes()
    place.carry_out(to_revert(place.site))
    assert (place.root / RECORD).read_bytes() == b"vllm/a.py,,\nbin/tool,,\n"


@both
def test_an_adopted_target_is_as_an_applied_one(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    place.apply()
    applied = snapshot(place.root)
    plain = lose(place).ledger.folders
    (place.root / RECORD).write_bytes(f"{package.name}/a.py,,\n".encode())
    intent = to_adopt(place.site, place.request(), plain)
    assert intent.writes[-1].path == package.ledger_path
    assert (intent.changed, intent.dropped) == ((), ())
    place.carry_out(intent)
    assert snapshot(place.root) == applied
    assert to_adopt(place.site, place.request(), plain) == Intent("apply")


@both
def test_what_has_a_ledger_is_not_adopted(tmp_path: Path, package: Package) -> None:
    """Its ledger says more than an adoption knows, such as which folders were made."""
    place = target(tmp_path, package)
    place.apply()
    assert to_adopt(place.site, place.request(), ()) == Intent("apply")


@both
@pytest.mark.parametrize("recorded", [True, False])
def test_a_lost_ledger_is_reverted_by_a_reconstructed_one(
    tmp_path: Path, package: Package, recorded: bool
) -> None:
    """RECORD's rows tell that there was one, and are taken out."""
    place = target(tmp_path, package)
    before = snapshot(place.root)
    place.apply()
    rebuilt = lose(place)
    record = place.root / RECORD if recorded else None
    intent = to_revert(place.site, record_file=record, rebuild=lambda: rebuilt)
    if not recorded:
        assert intent == Intent("revert")
        return
    assert place.carry_out(intent) == (place.patched, place.added)
    assert snapshot(place.root) == before


@both
def test_a_damaged_ledger_is_reverted_without_a_record_too(
    tmp_path: Path, package: Package
) -> None:
    place = target(tmp_path, package)
    before = snapshot(place.root)
    place.apply()
    rebuilt = place.rebuilt()
    (place.root / package.ledger_path).write_bytes(b"{")
    with pytest.raises(LedgerLost):
        to_revert(place.site)
    (place.root / RECORD).unlink()
    intent = to_revert(place.site, record_file=place.root / RECORD, rebuild=lambda: rebuilt)
    assert place.carry_out(intent) == (place.patched, place.added)
    left = snapshot(place.root)
    assert left == {path: kept for path, kept in before.items() if path != RECORD}


# Edits that are saved elsewhere


def edited(place: Target) -> tuple[Snapshot, tuple[Change, ...]]:
    """Edit every file of an applied target; how it was before, and the edits to take out."""
    before = snapshot(place.root)
    place.apply()
    mine = f"{place.package.name}/mine.py"
    for path in (place.patched, mine):
        (place.root / path).write_bytes(EDITED)
    (place.root / place.other).unlink()
    return before, (
        Change(place.patched, EDITED, OWN),
        Change(place.other, None, OWN),
        Change(mine, EDITED, None),
    )


@both
def test_edits_that_are_saved_are_taken_out_with_the_rest(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    before, edits = edited(place)
    intent = to_revert(place.site, edits=edits)
    everything = (place.patched, place.other, f"{package.name}/mine.py", place.added)
    assert place.carry_out(intent) == everything
    assert snapshot(place.root) == before


def test_edits_are_taken_out_where_nothing_is_applied(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    (place.root / place.other).write_bytes(EDITED)
    (place.root / place.other).chmod(0o600)
    edits = (Change(place.other, EDITED, OWN), Change(place.patched, EDITED, OWN))
    assert place.carry_out(to_revert(place.site, edits=edits)) == (place.other,)
    assert (place.root / place.other).read_bytes() == OWN
    assert (place.root / place.other).stat().st_mode & 0o777 == 0o600


@both
def test_an_edit_from_before_the_apply_is_taken_out_too(tmp_path: Path, package: Package) -> None:
    """What apply found there was the edit; the release's own bytes take its place."""
    place = target(tmp_path, package)
    place.apply()
    edits = (Change(place.patched, PATCHED, b"the release's own\n"),)
    assert place.carry_out(to_revert(place.site, edits=edits)) == (place.patched, place.added)
    assert (place.root / place.patched).read_bytes() == b"the release's own\n"


def test_what_is_left_over_goes_behind_a_removal_of_another_release(tmp_path: Path) -> None:
    """The file that was removed does not come back: it is that release's, which is gone."""
    place = target(tmp_path, VLLM)
    more = "vllm/new/d.py"
    request = place.request()
    changes = (
        Change(place.patched, OWN, None),
        *request.plan.changes[1:],
        Change(more, None, OWN),
    )
    place.carry_out(
        to_apply(place.site, request._replace(plan=request.plan._replace(changes=changes)))
    )
    (place.root / place.added).unlink()
    assert place.carry_out(to_revert(place.site, "0.27.0")) == (more,)
    assert not (place.root / place.patched).exists()
    assert not (place.root / "vllm/new").exists()


def test_an_edit_behind_a_link_is_taken_out_of_the_real_file(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    (place.root / place.patched).unlink()
    (place.root / place.patched).symlink_to("b.py")
    (place.root / place.other).write_bytes(EDITED)
    (place.root / place.other).chmod(0o600)
    place.carry_out(to_revert(place.site, edits=(Change(place.patched, EDITED, OWN),)))
    assert (place.root / place.patched).is_symlink()
    assert (place.root / place.other).read_bytes() == OWN
    assert (place.root / place.other).stat().st_mode & 0o777 == 0o600


@both
def test_a_file_that_is_edited_once_more_is_refused(tmp_path: Path, package: Package) -> None:
    place = target(tmp_path, package)
    _, edits = edited(place)
    (place.root / place.patched).write_bytes(b"edited once more\n")
    with pytest.raises(RevertRefused) as caught:
        to_revert(place.site, edits=edits)
    assert caught.value.paths == (place.patched,)
    assert str(caught.value) == (
        f"edited after the overlay applied: {place.patched}. Reverting would lose the edit, so "
        "nothing was changed. Run `overlay revert --keep-as ID`, which makes a feature of the edit "
        f"and takes everything off, or reinstall {package.title}"
    )


def test_a_file_that_changed_meanwhile_is_named_with_what_to_do(tmp_path: Path) -> None:
    place = target(tmp_path, VLLM)
    (place.root / place.patched).write_bytes(EDITED)
    with pytest.raises(TransactionError) as caught:
        to_apply(place.site, place.request())
    assert str(caught.value) == (
        f"{place.patched}: changed by somebody else, since the plan was made or since the overlay "
        "applied. Nothing was changed; run the command again, and see `overlay status`"
    )
