"""After an interruption: what the next command finishes, undoes, or says."""

from __future__ import annotations

import errno
import os

import pytest

from overlay.errors import LedgerError, TransactionError
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from tests.support.faults import FaultyOs, faulty
from tests.support.sites import interrupt_in_the_middle, stamps
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, Site, snapshot


def test_what_others_wrote_into_an_interrupted_apply_is_left_alone(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    (installed.root / PROPOSER).write_bytes(b"a reinstalled release\n")
    said = recover(installed.root)
    assert said is not None
    assert "was undone" in said
    assert PROPOSER in said
    assert (installed.root / PROPOSER).read_bytes() == b"a reinstalled release\n"
    assert (installed.root / RUNNER).read_bytes() == installed.pristine[RUNNER]
    assert not (installed.root / ADDED).exists()
    assert not (installed.root / ".vllm-overlay").exists()


def test_leftovers_without_a_journal_make_room(site: Site) -> None:
    """Somebody removed our folder after an interruption, but not what lay beside the files."""
    before = snapshot(site.root)
    for word in ("new", "old"):
        (site.root / PROPOSER).with_name(f".proposer.py.overlay-{word}").write_bytes(b"cut off")
    site.apply()
    assert (site.root / PROPOSER).read_bytes() == site.pristine[PROPOSER] + ONE.patched[PROPOSER]
    site.revert()
    assert snapshot(site.root) == before


def test_what_cannot_be_finished_is_undone(installed: Site) -> None:
    before = snapshot(installed.root)
    interrupt_in_the_middle(installed)

    class NoReplacing(FaultyOs):
        def replace(self, source: str, destination: str, **folders: int) -> None:
            if source.endswith(".overlay-new"):
                raise OSError(errno.EBUSY, "Device or resource busy", source)
            os.replace(source, destination, **folders)

    with faulty(NoReplacing()):
        assert recover(installed.root) == f"an interrupted apply was undone in {installed.root}"
    assert snapshot(installed.root) == before


def test_what_cannot_be_ended_is_said(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    for left in installed.root.rglob(".*.overlay-*"):
        left.unlink()
    middle = snapshot(installed.root)
    with pytest.raises(TransactionError, match=r"neither be finished nor undone.*Reinstall"):
        recover(installed.root)
    assert snapshot(installed.root) == middle


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 1}', '{"schema": 99, "overlay": "9.0"}'],
)
def test_a_journal_that_cannot_be_read_is_said(installed: Site, text: str) -> None:
    interrupt_in_the_middle(installed)
    (installed.root / ".vllm-overlay/journal.json").write_text(text)
    middle = snapshot(installed.root)
    with pytest.raises(LedgerError, match=r"journal\.json cannot be read"):
        recover(installed.root)
    assert snapshot(installed.root) == middle


def test_a_journal_that_points_out_of_the_target_is_refused(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    journal = installed.root / ".vllm-overlay/journal.json"
    journal.write_text(journal.read_text().replace(f'"{PROPOSER}"', '"vllm/../../../etc/x"'))
    with pytest.raises(LedgerError, match="leaves the target"):
        recover(installed.root)


def test_a_reader_is_told_of_the_transaction_and_changes_nothing(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    middle, times = snapshot(installed.root), stamps(installed.root)
    with commit.reading(installed.root) as interrupted:
        assert interrupted is not None
        assert interrupted.action == "apply"
    assert (snapshot(installed.root), stamps(installed.root)) == (middle, times)
    assert recover(installed.root) == f"an interrupted apply was finished in {installed.root}"
    with commit.reading(installed.root) as interrupted:
        assert interrupted is None


def test_a_journal_that_names_files_behind_a_link_is_refused(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    folder = (installed.root / PROPOSER).parent
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    middle = snapshot(installed.root / "vllm/v1/moved")
    with pytest.raises(TransactionError, match="is a symbolic link: no overlay writes that"):
        recover(installed.root)
    assert snapshot(installed.root / "vllm/v1/moved") == middle
