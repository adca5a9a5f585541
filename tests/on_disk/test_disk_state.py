"""What the ledger says about a target, whatever became of it since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from overlay import __version__
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import (
    Condition,
    PristineView,
    assess,
    conditions,
    from_ledger,
    void,
    with_edits,
)
from overlay.on_disk.ledger import Ledger
from overlay.results import FeatureResult, FileResult, Notice, Plan, State
from tests.support import transactions
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, TWO, PatchSet, Site


@dataclass(frozen=True)
class Disk:
    """A folder as a tree."""

    root: Path

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = transactions.installed(tmp_path / "site")
    site.apply()
    return site


def ledger_of(site: Site) -> Ledger:
    found = ledgers.load(site.root)
    assert found is not None
    return found


def assessed(site: Site, patches: PatchSet = ONE, release: str = "0.26.0") -> Plan:
    plan = patches.plan(site.pristine)
    features = [patches.feature()]
    return assess(plan, ledgers.load(site.root), Disk(site.root), features, release)


def edit(site: Site, path: str) -> None:
    with (site.root / path).open("ab") as file:
        file.write(b"# by hand\n")


def put_back(site: Site, path: str) -> None:
    (site.root / path).write_bytes(site.pristine[path])


def states(plan: Plan) -> dict[str, State]:
    (feature,) = plan.features
    return {file.path: file.state for file in feature.files}


def test_without_a_ledger_the_plan_is_the_answer(tmp_path: Path) -> None:
    site = transactions.installed(tmp_path / "site")
    assert assessed(site) == ONE.plan(site.pristine)


def test_the_pristine_view_is_the_pristine_target(site: Site) -> None:
    view = PristineView(Disk(site.root), ledger_of(site), ledgers.copies(site.root))
    for path, content in site.pristine.items():
        assert view.read(path) == content
    assert view.read(ADDED) is None


def test_the_pristine_view_shows_what_was_edited(site: Site) -> None:
    edit(site, PROPOSER)
    view = PristineView(Disk(site.root), ledger_of(site), ledgers.copies(site.root))
    assert view.read(PROPOSER) == (site.root / PROPOSER).read_bytes()
    assert view.read(RUNNER) == site.pristine[RUNNER]


def test_what_stands_is_applied(site: Site) -> None:
    plan = assessed(site)
    assert plan.state is State.APPLIED
    assert set(states(plan).values()) == {State.APPLIED}
    assert plan.changes == ONE.plan(site.pristine).changes
    assert plan.notices == ()
    hunk = plan.features[0].files[0].hunks[0]
    assert (hunk.state, hunk.line) == (State.APPLIED, 3)


def test_the_fast_way_says_the_same(site: Site) -> None:
    for change in (lambda: None, lambda: edit(site, PROPOSER), lambda: put_back(site, RUNNER)):
        change()
        fast = from_ledger(ledger_of(site), Disk(site.root), "0.26.0")
        assert fast is not None
        assert fast.features == assessed(site).features


def of_pristine(site: Site, release: str | None = "0.26.0") -> tuple[Plan, Plan]:
    """A plan for the pristine text, and the same with what the ledger says of edits."""
    plan = ONE.plan(site.pristine)
    return plan, with_edits(plan, ledgers.load(site.root), Disk(site.root), release)


def test_a_plan_for_the_pristine_text_is_corrected_only_where_files_were_edited(
    site: Site, tmp_path: Path
) -> None:
    plan, corrected = of_pristine(site)
    assert corrected == plan
    assert plan.state is State.PRISTINE
    edit(site, PROPOSER)
    plan, corrected = of_pristine(site)
    assert corrected.features == assessed(site).features
    assert corrected.changes == plan.changes
    assert of_pristine(site, "0.27.0")[1] == plan  # the ledger is void: another release is there
    (site.root / RUNNER).unlink()
    assert states(of_pristine(site)[1])[RUNNER] is State.MISSING
    without = transactions.installed(tmp_path / "without")
    plan, corrected = of_pristine(without)
    assert corrected == plan


def test_an_edited_file_is_drifted_and_named(site: Site) -> None:
    edit(site, PROPOSER)
    plan = assessed(site)
    assert plan.state is State.DRIFTED
    assert states(plan) == {
        PROPOSER: State.DRIFTED,
        RUNNER: State.APPLIED,
        ADDED: State.APPLIED,
    }
    reason = plan.features[0].files[0].reason
    assert reason is not None
    assert f"{PROPOSER} was edited" in reason.text
    assert reason.next_step is not None


def test_a_file_put_back_is_partial(site: Site) -> None:
    put_back(site, PROPOSER)
    plan = assessed(site)
    assert plan.state is State.PARTIAL
    assert states(plan)[PROPOSER] is State.PRISTINE
    assert site.apply().changed == (PROPOSER,)
    assert assessed(site).state is State.APPLIED


def test_a_file_removed_is_missing(site: Site) -> None:
    (site.root / RUNNER).unlink()
    assert assessed(site).state is State.MISSING


def test_an_added_module_removed_is_partial(site: Site) -> None:
    (site.root / ADDED).unlink()
    assert assessed(site).state is State.PARTIAL


def test_a_reinstalled_vllm_makes_the_ledger_void(site: Site) -> None:
    put_back(site, PROPOSER)
    put_back(site, RUNNER)
    plan = assessed(site)
    assert plan.features == ONE.plan(site.pristine).features
    said, left = plan.notices
    assert "the release's own again" in said.text
    assert ADDED in left.text
    assert from_ledger(ledger_of(site), Disk(site.root), "0.26.0") is None
    site.revert()
    assert not (site.root / ADDED).exists()
    assert not (site.root / ".vllm-overlay").exists()


def test_a_replaced_vllm_makes_the_ledger_void(site: Site) -> None:
    newer = {path: content + b"# newer\n" for path, content in site.pristine.items()}
    for path in (PROPOSER, RUNNER):
        (site.root / path).write_bytes(newer[path])
    site = replace(site, pristine=newer)
    plan = assessed(site, release="0.27.0")
    assert plan.state is State.PRISTINE
    assert "vLLM 0.26.0 was replaced by 0.27.0" in plan.notices[0].text
    outcome = site.apply(release="0.27.0")
    assert outcome.changed == (PROPOSER, RUNNER)
    assert assessed(site, release="0.27.0").state is State.APPLIED
    site.revert()
    assert Disk(site.root).read(PROPOSER) == newer[PROPOSER]


def test_reverting_after_a_replacement_leaves_the_new_files(site: Site) -> None:
    (site.root / PROPOSER).write_bytes(b"of 0.27.0\n")
    (site.root / RUNNER).write_bytes(b"also of 0.27.0\n")
    from tests.support import one_package

    outcome = one_package.revert(site.root, release="0.27.0")
    assert outcome.changed == (ADDED,)
    assert sorted(outcome.warnings)[0].startswith(PROPOSER)
    assert Disk(site.root).read(PROPOSER) == b"of 0.27.0\n"
    assert not (site.root / ".vllm-overlay").exists()


def test_a_release_that_is_called_otherwise_is_still_ours(site: Site) -> None:
    """Hashes are the truth: what the metadata says may change without a file changing."""
    assert assessed(site, release="0.26.1").state is State.APPLIED


def test_other_patches_are_applied_with_a_warning(site: Site) -> None:
    plan = assessed(site, TWO)
    assert plan.state is State.APPLIED
    (notice,) = plan.notices
    assert "applied in another form" in notice.text
    site.apply(TWO)
    assert assessed(site, TWO).notices == ()


def test_other_patches_that_do_not_fit_are_said_to(site: Site) -> None:
    plan = TWO.plan(site.pristine)
    plan = plan._replace(features=(plan.features[0]._replace(state=State.DRIFTED),), changes=())
    found = assess(plan, ledger_of(site), Disk(site.root), [TWO.feature()], "0.26.0")
    assert found.state is State.APPLIED
    assert "the present form is drifted here" in found.notices[0].text


def test_an_applied_feature_that_is_not_at_hand_is_left_to_the_commands(site: Site) -> None:
    """They name it with its folder, once: test_what_a_folder_that_is_not_at_hand_applied..."""
    assert assess(Plan(()), ledger_of(site), Disk(site.root), [], "0.26.0") == Plan(())


CHANGES: list[tuple[Callable[[Site], object], Condition]] = [
    (lambda site: None, Condition.OURS),
    (lambda site: edit(site, PROPOSER), Condition.EDITED),
    (lambda site: put_back(site, PROPOSER), Condition.PRISTINE),
    (lambda site: (site.root / PROPOSER).unlink(), Condition.GONE),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_conditions(site: Site, change: Callable[[Site], object], expected: Condition) -> None:
    change(site)
    found = conditions(ledger_of(site), Disk(site.root).read)
    assert found == {PROPOSER: expected, RUNNER: Condition.OURS, ADDED: Condition.OURS}
    assert void(ledger_of(site), found, "0.26.0") is None


# What is said of each file

EDITED_NEXT = (
    "run `overlay revert --keep-as ID`, which makes a feature of the edit and takes everything "
    "off, or reinstall vLLM"
)


@pytest.mark.parametrize(
    ("change", "state", "hunks", "text", "next_step"),
    [
        (
            put_back,
            State.PRISTINE,
            (State.PRISTINE,),
            f"the release's own bytes are here again since vllm-overlay {__version__} applied",
            "`overlay apply` writes it again",
        ),
        (
            lambda site, path: (site.root / path).unlink(),
            State.MISSING,
            (),
            f"removed since vllm-overlay {__version__} applied",
            "`overlay revert` restores the release's own",
        ),
        (
            edit,
            State.DRIFTED,
            (),
            (
                f"{PROPOSER} was edited since vllm-overlay {__version__} applied: expected the "
                "bytes that it wrote"
            ),
            EDITED_NEXT,
        ),
    ],
)
def test_a_file_that_changed_says_how_and_what_to_do(
    site: Site,
    change: Callable[[Site, str], object],
    state: State,
    hunks: tuple[State, ...],
    text: str,
    next_step: str,
) -> None:
    change(site, PROPOSER)
    file = assessed(site).features[0].files[0]
    assert file.path == PROPOSER
    assert (file.state, tuple(hunk.state for hunk in file.hunks)) == (state, hunks)
    assert file.reason is not None
    assert (file.reason.text, file.reason.next_step) == (text, next_step)
    assert file.patch == "draft/01-x/a.patch"


def test_a_feature_that_is_not_applied_is_as_the_plan_says(site: Site) -> None:
    """Beside one that is, and whatever became of a file that both name."""
    planned = ONE.plan(site.pristine)
    file = FileResult(PROPOSER, State.UPSTREAMED)
    other = FeatureResult("other", State.UPSTREAMED, (file,))
    plan = planned._replace(features=(other, *planned.features))
    edit(site, PROPOSER)
    ledger = ledger_of(site)
    result = assess(plan, ledger, Disk(site.root), [ONE.feature()], "0.26.0")
    assert result.features[0] == other
    assert result.features[1].state is State.DRIFTED
    entry = ledger.features[0]
    ledger = ledger._replace(features=(entry._replace(result=other), entry))
    fast = from_ledger(ledger, Disk(site.root), "0.26.0")
    assert fast is not None
    assert fast.features[0] == other


def test_a_file_that_the_ledger_does_not_list_stays_as_it_was(site: Site) -> None:
    """Such as one that upstream has: the overlay wrote nothing there."""
    ledger = ledger_of(site)
    (entry,) = ledger.features
    upstreamed = FileResult("vllm/other.py", State.UPSTREAMED)
    result = entry.result._replace(files=(*entry.result.files, upstreamed))
    ledger = ledger._replace(features=(entry._replace(result=result),))
    edit(site, PROPOSER)
    plan = from_ledger(ledger, Disk(site.root), "0.26.0")
    assert plan is not None
    assert plan.features[0].files[-1] == upstreamed
    assert plan.features[0].state is State.DRIFTED


def test_a_notice_about_an_edited_file_gives_way_to_its_state(site: Site) -> None:
    kept, dropped = Notice(RUNNER, "about the runner"), Notice(PROPOSER, "about the proposer")
    plan = ONE.plan(site.pristine)._replace(notices=(dropped, kept))
    edit(site, PROPOSER)
    result = assess(plan, ledger_of(site), Disk(site.root), [ONE.feature()], "0.26.0")
    assert result.notices == (kept,)
    assert with_edits(plan, ledger_of(site), Disk(site.root), "0.26.0").notices == (kept,)


def test_each_feature_in_another_form_is_named_with_what_apply_would_do(site: Site) -> None:
    ledger = ledger_of(site)
    (entry,) = ledger.features
    second = entry._replace(result=entry.result._replace(feature="second"))
    ledger = ledger._replace(features=(entry, second))
    features = [ONE.feature(), replace(TWO.feature(), id="second")]
    result = assess(ONE.plan(site.pristine), ledger, Disk(site.root), features, "0.26.0")
    (notice, *_) = result.notices
    assert notice.text == (
        f"feature second was applied in another form, by vllm-overlay {__version__}; `overlay "
        "apply` writes it again from the pristine files"
    )
