"""What apply and revert refuse, with nothing changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overlay.errors import RevertRefused, TransactionError
from overlay.on_disk import files
from overlay.on_disk.recovery import recover
from overlay.results import Plan
from tests.support import one_package
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, TWO, PatchSet, Site, snapshot


def test_a_link_that_leaves_the_target_is_refused(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "cache.py"
    (site.root / PROPOSER).rename(outside)
    (site.root / PROPOSER).symlink_to(outside)
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=r"spec_decode/proposer\.py leads out") as caught:
        site.apply()
    assert str(outside) in str(caught.value)
    assert snapshot(site.root) == before
    assert outside.read_bytes() == site.pristine[PROPOSER]


def test_a_linked_folder_that_leaves_the_target_is_refused(site: Site, tmp_path: Path) -> None:
    (site.root / "vllm/v1/draft").symlink_to(tmp_path)
    with pytest.raises(TransactionError, match="leads out of the target"):
        site.apply()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site"]


def test_a_linked_state_folder_is_refused(site: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (site.root / ".vllm-overlay").symlink_to(elsewhere)
    with pytest.raises(
        TransactionError, match="a folder of the overlay's own, found a symbolic link"
    ):
        site.apply()
    assert list(elsewhere.iterdir()) == []


def test_a_file_where_a_folder_is_needed(site: Site) -> None:
    (site.root / "vllm/v1/draft").write_bytes(b"a file\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=r"vllm/v1/draft: expected a folder"):
        site.apply()
    assert snapshot(site.root) == before


def test_a_folder_that_becomes_a_file_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for a look beforehand: everything is taken back."""

    make_folder = files.make_folder

    def make(root: Path, path: str, owner: files.Owner | None) -> None:
        if path.endswith("draft"):
            (root / path).write_bytes(b"a file\n")
        else:
            make_folder(root, path, owner)

    monkeypatch.setattr(files, "make_folder", make)
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match="as it was before the apply"):
        site.apply()
    recover(site.root)
    (site.root / "vllm/v1/draft").unlink()
    assert snapshot(site.root) == before


def test_revert_refuses_every_file_that_was_edited(site: Site) -> None:
    site.apply()
    for path in (PROPOSER, ADDED):
        with (site.root / path).open("ab") as file:
            file.write(b"# by hand\n")
    before = snapshot(site.root)
    with pytest.raises(RevertRefused) as caught:
        site.revert()
    assert sorted(caught.value.paths) == sorted([PROPOSER, ADDED])
    assert PROPOSER in str(caught.value)
    assert caught.value.exit_code == 1
    assert snapshot(site.root) == before


def test_apply_refuses_a_file_that_was_edited(site: Site) -> None:
    site.apply()
    with (site.root / PROPOSER).open("ab") as file:
        file.write(b"# by hand\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"{PROPOSER}: changed by somebody else"):
        site.apply(TWO)
    assert snapshot(site.root) == before


def test_apply_refuses_what_changed_since_the_plan(site: Site) -> None:
    (site.root / RUNNER).write_bytes(b"another\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"{RUNNER}: changed by somebody else"):
        site.apply()
    assert snapshot(site.root) == before


def test_a_plan_from_patched_files_is_not_applied(site: Site) -> None:
    """Or what revert restores would be patched already."""
    site.apply()
    before = snapshot(site.root)
    patched = {**site.pristine, PROPOSER: (site.root / PROPOSER).read_bytes()}
    with pytest.raises(TransactionError, match=PROPOSER):
        replace(site, pristine=patched).apply(PatchSet("6" * 64, {PROPOSER: b"# 6\n"}, {}))
    assert snapshot(site.root) == before


def test_a_plan_that_needs_attention_is_not_applied(site: Site) -> None:
    plan = ONE.plan(site.pristine)
    feature = plan.features[0]._replace(state=plan.features[0].state.DRIFTED)
    with pytest.raises(ValueError, match="drifted cannot be applied"):
        one_package.apply(site.root, Plan((feature,)), [ONE.feature()], release="0.26.0")


def test_a_link_to_another_package_of_the_same_folder_is_refused(site: Site) -> None:
    other = site.root / "other" / "module.py"
    other.parent.mkdir()
    (site.root / PROPOSER).rename(other)
    (site.root / PROPOSER).symlink_to(other)
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match="expected a file inside"):
        site.apply()
    assert snapshot(site.root) == before
