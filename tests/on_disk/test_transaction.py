"""Apply and revert on fake installations: what they leave."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import TransactionError
from overlay.package import VLLM
from tests.support import one_package, transactions
from tests.support.faults import FaultyOs, failing, faulty
from tests.support.sites import stamps
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, TWO, PatchSet, Site, snapshot


def test_apply_writes_what_the_plan_says(site: Site) -> None:
    outcome = site.apply()
    assert outcome.wrote
    assert outcome.changed == (ADDED, PROPOSER, RUNNER)
    assert outcome.warnings == ()
    for change in ONE.plan(site.pristine).changes:
        assert (site.root / change.path).read_bytes() == change.after


def test_revert_leaves_nothing(site: Site) -> None:
    before = snapshot(site.root)
    site.apply()
    outcome = site.revert()
    assert outcome.changed == (ADDED, PROPOSER, RUNNER)
    assert snapshot(site.root) == before


def test_a_second_apply_writes_nothing(site: Site) -> None:
    site.apply()
    before = stamps(site.root)
    with faulty(FaultyOs()) as system:
        outcome = site.apply()
    assert system.names == []
    assert stamps(site.root) == before
    assert (outcome.changed, outcome.wrote) == ((), False)


def test_reverting_what_is_not_applied_writes_nothing(site: Site) -> None:
    before = stamps(site.root)
    with faulty(FaultyOs()) as system:
        outcome = site.revert()
    assert system.names == []
    assert stamps(site.root) == before
    assert (outcome.changed, outcome.wrote) == ((), False)


def test_another_version_is_applied_from_pristine(site: Site, tmp_path: Path) -> None:
    direct = site.copy(tmp_path / "direct")
    direct.apply(TWO)
    site.apply(ONE)
    outcome = site.apply(TWO)
    assert outcome.changed == tuple(
        sorted([ADDED, PROPOSER, RUNNER, "vllm/v1/other/loop.py", "vllm/v1/worker/__init__.py"])
    )
    assert snapshot(site.root) == snapshot(direct.root)


ACTIONS = {
    "one": lambda site: site.apply(ONE),
    "two": lambda site: site.apply(TWO),
    "nothing": lambda site: site.apply(PatchSet("3" * 64, {}, {})),
    "revert": lambda site: site.revert(),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, max_size=6))
def test_only_the_last_action_counts(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    """Law: whatever was done before, the target is what the last action alone makes of it."""
    folder = tmp_path_factory.mktemp("law")
    with transactions.memory_folder(folder) as folder, faulty(FaultyOs()):
        start = transactions.installed(folder / "start")
        alone, after_all = start.copy(folder / "alone"), start.copy(folder / "all")
        ACTIONS[actions[-1]](alone)
        for action in actions:
            ACTIONS[action](after_all)
        assert snapshot(after_all.root) == snapshot(alone.root)


def test_a_checkout_does_not_see_our_folder_as_its_own(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    site.apply()
    assert (site.root / ".vllm-overlay/.gitignore").read_bytes() == b"*\n"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444])
def test_modes_are_kept(site: Site, mode: int) -> None:
    (site.root / PROPOSER).chmod(mode)
    before = snapshot(site.root)
    site.apply()
    assert stat.S_IMODE((site.root / PROPOSER).stat().st_mode) == mode
    site.revert()
    assert snapshot(site.root) == before


def test_others_may_read_what_is_added_whatever_the_umask(site: Site) -> None:
    old = os.umask(0o077)
    try:
        site.apply()
    finally:
        os.umask(old)
    for path in (ADDED, VLLM.ledger_path):
        assert stat.S_IMODE((site.root / path).stat().st_mode) == 0o644
    for path in (
        "vllm/v1/draft",
        "vllm/v1/draft/parts",
        VLLM.state_folder,
        VLLM.pristine_folder,
    ):
        assert stat.S_IMODE((site.root / path).stat().st_mode) == 0o755


def test_a_hard_link_is_broken_and_not_written_through(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache.py"
    os.link(site.root / PROPOSER, cache)
    site.apply()
    assert cache.read_bytes() == site.pristine[PROPOSER]
    assert cache.stat().st_nlink == 1
    site.revert()
    assert cache.read_bytes() == site.pristine[PROPOSER]


def test_a_folder_that_somebody_uses_stays(site: Site) -> None:
    site.apply()
    theirs = (site.root / ADDED).parent / "notes.txt"
    theirs.write_text("mine\n")
    site.revert()
    assert theirs.read_text() == "mine\n"
    assert not (site.root / ADDED).exists()
    assert not (site.root / ".vllm-overlay").exists()


def test_a_link_inside_the_target_is_followed(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    real = site.root / "vllm/v1/spec_decode/real.py"
    (site.root / PROPOSER).rename(real)
    (site.root / PROPOSER).symlink_to("real.py")
    before = snapshot(site.root)
    site.apply()
    assert (site.root / PROPOSER).is_symlink()
    assert real.read_bytes().endswith(b"PATCHED = 1\n")
    site.revert()
    assert snapshot(site.root) == before


def test_a_linked_root_is_the_root(installed: Site, tmp_path: Path) -> None:
    before = snapshot(installed.root)
    link = tmp_path / "link"
    link.symlink_to(installed.root)
    record = link / installed.record.relative_to(installed.root)
    replace(installed, root=link, record=record).apply()
    assert ADDED.encode() in installed.record.read_bytes()
    one_package.revert(link)
    assert snapshot(installed.root) == before


def test_what_was_edited_before_us_comes_back_as_it_was(installed: Site) -> None:
    edited = installed.pristine[PROPOSER] + b"# by hand, before\n"
    (installed.root / PROPOSER).write_bytes(edited)
    before = snapshot(installed.root)
    replace(installed, pristine={**installed.pristine, PROPOSER: edited}).apply()
    installed.revert()
    assert snapshot(installed.root) == before


def test_a_rolled_back_apply_gives_back_the_very_files(installed: Site) -> None:
    """Not copies of them: hard links stay links, and nothing looks modified."""

    def identity(path: str) -> tuple[int, int]:
        status = (installed.root / path).stat()
        return status.st_ino, status.st_mtime_ns

    before = [identity(path) for path in (PROPOSER, RUNNER)]
    with faulty(FaultyOs()) as counting:
        installed.copy(installed.root.parent / "counted").apply()
    last = max(at for at, name in enumerate(counting.names, 1) if name == "replace")
    with faulty(FaultyOs(last, failing(errno.EIO))), pytest.raises(TransactionError):
        installed.apply()
    assert [identity(path) for path in (PROPOSER, RUNNER)] == before


def test_a_file_that_was_removed_comes_back(site: Site) -> None:
    before = snapshot(site.root)
    site.apply()
    (site.root / PROPOSER).unlink()
    (site.root / ADDED).unlink()
    site.revert()
    assert snapshot(site.root) == before
