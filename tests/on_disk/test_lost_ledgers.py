"""Patches without a ledger: taken over, rebuilt from RECORD, or refused."""

from __future__ import annotations

import shutil

import pytest

from overlay.errors import TransactionError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction
from overlay.on_disk.changes import Rebuilt
from overlay.on_disk.ledger import LedgerLost
from tests.support import one_package
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, Site, snapshot

# Patches that are there without a ledger


def _without_a_ledger(site: Site) -> tuple[str, ...]:
    """Remove the state folder; the folders that its ledger listed."""
    ledger = ledgers.load(site.root)
    assert ledger is not None
    shutil.rmtree(site.root / ".vllm-overlay")
    return ledger.folders


def _adopt(site: Site, folders: tuple[str, ...]) -> transaction.TransactionResult:
    plan = ONE.plan(site.pristine)
    features = [ONE.feature()]
    return one_package.adopt(
        site.root, plan, features, folders, release="0.26.0", record_file=site.record
    )


def test_adopting_writes_what_apply_would_have_left(site: Site) -> None:
    """Byte for byte; the second time, nothing."""
    site.apply()
    patched = snapshot(site.root)
    folders = _without_a_ledger(site)
    outcome = _adopt(site, folders)
    assert (outcome.action, outcome.changed, outcome.wrote) == ("apply", (), True)
    assert snapshot(site.root) == patched
    assert _adopt(site, folders) == transaction.TransactionResult("apply")
    site.revert()
    assert not (site.root / ADDED).parent.exists()


def test_adopting_replaces_a_damaged_ledger(site: Site) -> None:
    site.apply()
    patched = snapshot(site.root)
    folders = tuple(ledgers.load(site.root).folders)  # type: ignore[union-attr]  # it was applied
    (site.root / ".vllm-overlay/ledger.json").write_bytes(b"{")
    assert _adopt(site, folders).wrote
    assert snapshot(site.root) == patched


@pytest.mark.parametrize("path", [PROPOSER, ADDED])
def test_nothing_is_adopted_where_a_file_has_other_bytes(site: Site, path: str) -> None:
    site.apply()
    folders = _without_a_ledger(site)
    (site.root / path).write_bytes(b"other\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"^{path}: changed by somebody else"):
        _adopt(site, folders)
    assert snapshot(site.root) == before


# A lost ledger


def _never() -> Rebuilt:
    raise AssertionError("nothing has to be rebuilt")


def test_nothing_is_rebuilt_where_a_ledger_is_there_or_nothing_was_applied(site: Site) -> None:
    outcome = one_package.revert(site.root, record_file=site.record, rebuild=_never)
    assert not outcome.wrote
    site.apply()
    assert one_package.revert(site.root, record_file=site.record, rebuild=_never).wrote


@pytest.mark.parametrize("lose", ["damaged", "gone"])
def test_a_lost_ledger_is_rebuilt_where_that_is_offered(installed: Site, lose: str) -> None:
    before = snapshot(installed.root)
    installed.apply()
    ledger = ledgers.load(installed.root)
    assert ledger is not None
    lost = installed.root / ".vllm-overlay/ledger.json"
    if lose == "damaged":
        lost.write_bytes(b"{")
    else:
        lost.unlink()
    with pytest.raises(LedgerLost):
        one_package.revert(installed.root, record_file=installed.record)
    rebuilt = Rebuilt(
        ledger._replace(record=None),
        {ledgers.sha256(data): data for data in installed.pristine.values()},
    )
    outcome = one_package.revert(
        installed.root, record_file=installed.record, rebuild=lambda: rebuilt
    )
    assert outcome.warnings[0].startswith("the ledger was lost")
    assert (outcome.action, outcome.changed) == ("revert", tuple(sorted((ADDED, PROPOSER, RUNNER))))
    assert snapshot(installed.root) == before


def test_a_reconstructed_ledger_does_not_cover_an_edit(installed: Site) -> None:
    installed.apply()
    ledger = ledgers.load(installed.root)
    assert ledger is not None
    (installed.root / ".vllm-overlay/ledger.json").write_bytes(b"{")
    (installed.root / RUNNER).write_bytes(b"by hand\n")
    before = snapshot(installed.root)
    rebuilt = Rebuilt(
        ledger._replace(record=None),
        {ledgers.sha256(data): data for data in installed.pristine.values()},
    )
    with pytest.raises(TransactionError, match=f"{RUNNER}: changed by somebody else"):
        one_package.revert(installed.root, record_file=installed.record, rebuild=lambda: rebuilt)
    assert snapshot(installed.root) == before


def test_rows_in_record_alone_make_a_lost_ledger(installed: Site) -> None:
    """The whole folder is gone: RECORD still tells that something was applied."""
    before = snapshot(installed.root)
    installed.apply()
    ledger = ledgers.load(installed.root)
    assert ledger is not None
    for path in sorted((installed.root / ".vllm-overlay").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (installed.root / ".vllm-overlay").rmdir()
    assert not one_package.revert(installed.root, record_file=installed.record).wrote
    rebuilt = Rebuilt(
        ledger._replace(record=None),
        {ledgers.sha256(data): data for data in installed.pristine.values()},
    )
    assert one_package.revert(
        installed.root, record_file=installed.record, rebuild=lambda: rebuilt
    ).wrote
    assert snapshot(installed.root) == before
