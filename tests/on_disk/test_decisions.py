"""Which ledger counts: alive, void or lost; and what an apply or a revert does about each file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.errors import PlanOutdated, RevertRefused, TransactionError
from overlay.on_disk import journal, transaction
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import Condition, void
from overlay.on_disk.ledger import Entry, Ledger
from overlay.results import Plan, State
from tests.support import one_package
from tests.support.sites import interrupt_in_the_middle
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, TWO, PatchSet, Site, snapshot

OURS, PRISTINE, EDITED, GONE = Condition


# A void ledger


def _ledger(kinds: list[bool]) -> Ledger:
    """A ledger for 0.26.0 with an entry for each kind: whether we patched a file, or added it."""
    entries = tuple(
        Entry(f"vllm/{number}.py", "0" * 64 if patched else None, "1" * 64, 0o644, 1)
        for number, patched in enumerate(kinds)
    )
    return Ledger("0.1.0", "0.26.0", (), entries, (), None)


@example([(True, PRISTINE), (False, OURS)], "0.26.0")
@example([(False, PRISTINE)], "0.26.0")
@example([(False, PRISTINE), (False, OURS)], "0.27.0")
@example([(True, OURS), (False, EDITED)], "0.27.0")
@example([(True, EDITED)], None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(Condition)), max_size=4),
    st.sampled_from(["0.26.0", "0.27.0", None]),
)
def test_a_ledger_is_void_where_another_vllm_was_installed(
    files: list[tuple[bool, Condition]], release: str | None
) -> None:
    """By the files that were patched, or by the added ones where none was patched."""
    ledger = _ledger([patched for patched, _ in files])
    found = {f"vllm/{number}.py": one for number, (_, one) in enumerate(files)}
    telling = {one for patched, one in files if patched} or {one for _, one in files}
    reason = void(ledger, found, release)
    if telling == {PRISTINE}:
        assert reason == "its files are the release's own again"
    elif release == "0.27.0" and telling - {OURS}:
        assert reason == "vLLM 0.26.0 was replaced by 0.27.0"
    else:
        assert reason is None


# Files of a ledger that is alive, and of one that is void


def _replaced(site: Site, *paths: str) -> None:
    """Other bytes in files that we patched, as another release would have brought them."""
    for path in paths:
        (site.root / path).write_bytes(b"of another release\n")


def test_a_removed_file_comes_back_with_its_mode_while_the_ledger_is_alive(site: Site) -> None:
    (site.root / PROPOSER).chmod(0o640)
    before = snapshot(site.root)
    site.apply()
    (site.root / PROPOSER).unlink()
    site.revert()
    assert snapshot(site.root) == before


def test_a_removed_file_stays_away_where_another_release_was_installed(site: Site) -> None:
    site.apply()
    (site.root / PROPOSER).unlink()
    _replaced(site, RUNNER)
    outcome = one_package.revert(site.root, release="0.27.0", record_file=site.record)
    assert not (site.root / PROPOSER).exists()
    assert (site.root / RUNNER).read_bytes() == b"of another release\n"
    assert not (site.root / ADDED).exists()
    assert [warning.partition(" ")[0] for warning in outcome.warnings] == [RUNNER]


def test_the_same_without_a_release_is_refused(site: Site) -> None:
    """Where nothing tells the release, other bytes are somebody's edit."""
    site.apply()
    _replaced(site, RUNNER)
    before = snapshot(site.root)
    with pytest.raises(RevertRefused) as caught:
        one_package.revert(site.root, release=None, record_file=site.record)
    assert caught.value.paths == (RUNNER,)
    assert snapshot(site.root) == before


def test_what_the_plan_leaves_out_is_taken_out_and_an_edit_of_it_refused(site: Site) -> None:
    site.apply(ONE)
    (site.root / RUNNER).write_bytes(b"by hand\n")
    with pytest.raises(TransactionError, match=f"{RUNNER}: changed by somebody else"):
        site.apply(TWO)
    (site.root / RUNNER).write_bytes(site.pristine[RUNNER] + ONE.patched[RUNNER])
    outcome = site.apply(TWO)
    assert RUNNER in outcome.changed
    assert (site.root / RUNNER).read_bytes() == site.pristine[RUNNER]


def test_an_empty_plan_takes_everything_out(site: Site) -> None:
    before = snapshot(site.root)
    site.apply()
    outcome = one_package.apply(site.root, Plan(()), [], release="0.26.0", record_file=site.record)
    assert outcome.action == "apply"
    assert outcome.wrote
    assert snapshot(site.root) == before


def test_a_plan_without_changes_cannot_say_what_is_applied(site: Site) -> None:
    site.apply()
    (result,) = ONE.plan(site.pristine).features
    plan = Plan((result._replace(state=State.APPLIED),))
    with pytest.raises(ValueError, match="make it from pristine"):
        one_package.apply(site.root, plan, [ONE.feature()], release="0.26.0")


# What another command did since the plan was made


def _other(site: Site, basis: str | None, release: str = "0.26.0") -> transaction.TransactionResult:
    """Apply the feature ``other``, by a plan that wants nothing else."""
    other = replace(TWO.feature(), id="other")
    plan = TWO.plan(site.pristine)
    plan = plan._replace(features=(plan.features[0]._replace(feature="other"),))
    return one_package.apply(
        site.root, plan, [other], release=release, record_file=site.record, basis=basis
    )


def _present(site: Site) -> str:
    return ledgers.digest(ledgers.load(site.root))


def _applied(site: Site) -> list[str]:
    ledger = ledgers.load(site.root)
    return [] if ledger is None else [entry.result.feature for entry in ledger.applied]


ANOTHER_COMMAND: list[Callable[[Site], object]] = [
    lambda site: site.apply(),
    lambda site: site.apply(TWO),
    lambda site: site.apply(replace(ONE, digest="9" * 64)),
    Site.revert,
]


@pytest.mark.parametrize("act", ["apply", "revert"])
@pytest.mark.parametrize("first", [None, ONE], ids=["pristine", "applied"])
@pytest.mark.parametrize("other", ANOTHER_COMMAND, ids=["apply", "two", "form", "revert"])
def test_a_plan_is_carried_out_only_on_the_ledger_that_it_was_made_from(
    site: Site, first: PatchSet | None, other: Callable[[Site], object], act: str
) -> None:
    """The law; whatever another command did: what it applied stays, what it took off stays off."""
    if first is not None:
        site.apply(first)
    basis = _present(site)
    other(site)
    before = snapshot(site.root)

    def attempt() -> transaction.TransactionResult:
        if act == "apply":
            return _other(site, basis)
        return one_package.revert(site.root, record_file=site.record, basis=basis)

    if _present(site) == basis:  # it did nothing
        attempt()
        assert _applied(site) == (["other"] if act == "apply" else [])
        return
    with pytest.raises(PlanOutdated, match="another command has changed what is applied since"):
        attempt()
    assert snapshot(site.root) == before


def test_a_plan_for_any_ledger_takes_out_what_it_does_not_want(site: Site) -> None:
    site.apply()
    _other(site, None)
    assert not (site.root / ADDED).exists()
    assert _applied(site) == ["other"]


def test_a_plan_made_from_a_void_ledger_is_carried_out(site: Site) -> None:
    site.apply()
    for path in (PROPOSER, RUNNER):
        (site.root / path).write_bytes(site.pristine[path])
    _other(site, _present(site))
    assert _applied(site) == ["other"]


def test_the_ledger_follows_patches_that_write_the_same_bytes(site: Site) -> None:
    site.apply()
    assert site.apply(replace(ONE, digest="9" * 64)).wrote
    ledger = ledgers.load(site.root)
    assert ledger is not None
    assert [feature.digest for feature in ledger.applied] == ["9" * 64]


def test_patched_bytes_without_a_ledger_are_not_taken_for_ours(site: Site) -> None:
    (site.root / PROPOSER).write_bytes(site.pristine[PROPOSER] + ONE.patched[PROPOSER])
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"{PROPOSER}: changed by somebody else"):
        site.apply()
    assert snapshot(site.root) == before


def test_files_that_a_new_release_brought_are_left_to_it(site: Site) -> None:
    """Also by an apply that does not want them: the ledger is void by the release alone."""
    site.apply()
    _replaced(site, RUNNER)
    (site.root / PROPOSER).write_bytes(site.pristine[PROPOSER])
    outcome = site.apply(TWO, release="0.27.0")
    assert outcome.action == "apply"
    assert [warning.partition(" ")[0] for warning in outcome.warnings] == [RUNNER]
    assert (site.root / RUNNER).read_bytes() == b"of another release\n"


def test_a_mode_that_was_changed_since_is_kept(site: Site) -> None:
    """Only a file that was removed gets back the mode that the ledger noted."""
    site.apply()
    (site.root / PROPOSER).chmod(0o600)
    assert site.revert().action == "revert"
    assert (site.root / PROPOSER).stat().st_mode & 0o777 == 0o600


def test_what_is_so_already_is_an_apply_that_wrote_nothing(site: Site) -> None:
    site.apply()
    assert site.apply() == transaction.TransactionResult("apply")


# What an apply would do


def _would(site: Site, patches: PatchSet) -> bool | str:
    """What ``would_apply`` answers, or says."""
    try:
        place = one_package.target(site.root, "0.26.0", site.record)
        plan = patches.plan(site.pristine)
        return transaction.would_apply(place, plan, [patches.feature()], timeout=1)
    except TransactionError as error:
        return str(error)


def _does(site: Site, patches: PatchSet) -> bool | str:
    try:
        return site.apply(patches).wrote
    except TransactionError as error:
        return str(error)


NOTHING = PatchSet("3" * 64, {}, {})


def _link_out(site: Site) -> None:
    outside = site.root.parent / "outside.py"
    (site.root / PROPOSER).rename(outside)
    (site.root / PROPOSER).symlink_to(outside)


STATES: dict[str, Callable[[Site], object]] = {
    "pristine": lambda site: None,
    "applied": lambda site: site.apply(),
    "applied otherwise": lambda site: site.apply(TWO),
    "edited": lambda site: (site.root / PROPOSER).write_bytes(b"by hand\n"),
    "applied and edited": lambda site: (
        site.apply(),
        (site.root / PROPOSER).write_bytes(b"by hand\n"),
    ),
    "applied and put back": lambda site: (
        site.apply(),
        (site.root / PROPOSER).write_bytes(site.pristine[PROPOSER]),
    ),
    "a link out": _link_out,
}


@pytest.mark.parametrize("patches", [ONE, NOTHING], ids=["something", "nothing"])
@pytest.mark.parametrize("state", STATES)
def test_what_would_be_done_is_done(installed: Site, state: str, patches: PatchSet) -> None:
    """The law: the same answer, or the same words; and the question writes nothing."""
    STATES[state](installed)
    before = snapshot(installed.root)
    answer = _would(installed, patches)
    assert snapshot(installed.root) == before
    if state == "edited" and patches is ONE:
        # Where nothing is applied, would_apply leaves it to the plan to have read the files.
        assert answer is True
        return
    assert answer == _does(installed, patches)


def test_whoever_holds_a_target_is_waited_for_as_long_as_was_said(installed: Site) -> None:
    plan, features = ONE.plan(installed.pristine), [ONE.feature()]
    with journal.exclusive(installed.root):
        assert "waited 1 s" in str(_would(installed, ONE))
        with pytest.raises(TransactionError, match=r"waited 0\.05 s"):
            one_package.adopt(installed.root, plan, features, (), release="0.26.0", timeout=0.05)
    with (
        journal.shared(installed.root),
        pytest.raises(TransactionError, match=r"waited 0\.05 s"),
    ):
        one_package.apply(installed.root, plan, features, release="0.26.0", timeout=0.05)


def test_a_plan_that_needs_attention_is_refused(installed: Site) -> None:
    plan = ONE.plan(installed.pristine)
    plan = plan._replace(features=(plan.features[0]._replace(state=State.DRIFTED),))
    with pytest.raises(ValueError, match="a plan that is drifted cannot be applied"):
        one_package.apply(installed.root, plan, [ONE.feature()], release="0.26.0")


# What recovery said


ACTIONS: list[Callable[[Site], transaction.TransactionResult]] = [
    lambda site: site.apply(),
    Site.revert,
]


@pytest.mark.parametrize("act", ACTIONS, ids=["apply", "revert"])
def test_an_outcome_tells_what_recovery_did(
    installed: Site, act: Callable[[Site], transaction.TransactionResult]
) -> None:
    interrupt_in_the_middle(installed)
    said = f"an interrupted apply was finished in {installed.root}"
    outcome = act(installed)
    assert outcome.warnings == (said,)
    assert act(installed).warnings == ()


def test_recovery_alone_is_told_also_where_nothing_is_left_to_write(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    outcome = installed.apply()
    assert not outcome.wrote
    assert len(outcome.warnings) == 1
