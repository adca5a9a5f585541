"""What is told where another overlay applied the patches, or another release was installed."""

from __future__ import annotations

import os
from pathlib import Path

import overlay
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import Condition, assess, conditions, from_ledger
from overlay.on_disk.ledger import Ledger
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, Site

# Files of a ledger that is alive, and of one that is void


def _replaced(site: Site, *paths: str) -> None:
    """Other bytes in files that we patched, as another release would have brought them."""
    for path in paths:
        (site.root / path).write_bytes(b"of another release\n")


# Another overlay's version


def _of_version(site: Site, version: str) -> Ledger:
    ledger = ledgers.load(site.root)
    assert ledger is not None
    return ledger._replace(overlay=version)


class _Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        place = self.root / path
        return place.read_bytes() if os.path.lexists(place) else None


def test_another_version_is_told_only_where_the_patches_are_not_at_hand(site: Site) -> None:
    site.apply()
    tree = _Tree(site.root)
    old = _of_version(site, "0.0.1")
    plan = from_ledger(old, tree, "0.26.0")
    assert plan is not None
    (notice,) = plan.notices
    assert notice.text == (
        f"applied by vllm-overlay 0.0.1, this is {overlay.__version__}; `overlay apply` brings the "
        "patches up to date if they differ"
    )
    same = from_ledger(_of_version(site, overlay.__version__), tree, "0.26.0")
    assert same is not None
    assert same.notices == ()
    at_hand = assess(ONE.plan(site.pristine), old, tree, [ONE.feature()], "0.26.0")
    assert at_hand.notices == ()


def test_a_replaced_release_is_told_with_what_is_left_over(site: Site) -> None:
    site.apply()
    _replaced(site, PROPOSER, RUNNER)
    ledger = ledgers.load(site.root)
    assert ledger is not None
    tree = _Tree(site.root)
    assert from_ledger(ledger, tree, "0.27.0") is None
    assert from_ledger(ledger, tree, "0.26.0") is not None
    found = assess(ONE.plan(site.pristine), ledger, tree, [ONE.feature()], "0.27.0")
    told = " ".join(notice.text for notice in found.notices)
    assert "was replaced by 0.27.0" in told
    left = f"left over from that: {ADDED}; `overlay revert` removes what the overlay added"
    assert left in told
    (site.root / ADDED).unlink()
    found = assess(ONE.plan(site.pristine), ledger, tree, [ONE.feature()], "0.27.0")
    assert "left over" not in " ".join(notice.text for notice in found.notices)
    assert conditions(ledger, tree.read)[ADDED] is Condition.PRISTINE
