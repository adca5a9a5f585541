"""Fake installations as fixtures, and what tests of transactions look at and do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import FaultyOs, faulty
from tests.support.transactions import PROPOSER, RUNNER, Site


def stamps(root: Path) -> dict[str, int]:
    """The modification time of everything, in nanoseconds."""
    paths = [root, *root.rglob("*")]
    return {str(path): path.lstat().st_mtime_ns for path in paths}


def interrupt_in_the_middle(site: Site) -> None:
    """Leave the journal behind, one file patched and one not: the ledger would be the last."""
    from tests.support.faults import Dead, dying

    with faulty(FaultyOs()) as counting:
        site.copy(site.root.parent / "counted").apply()
    replaces = [at for at, name in enumerate(counting.names, 1) if name == "replace"]
    system = FaultyOs(replaces[-2], dying, lasting=True)
    with faulty(system), pytest.raises(Dead):
        site.apply()
    assert (site.root / ".vllm-overlay/journal.json").exists()
    patched = [
        (site.root / path).read_bytes() != site.pristine[path] for path in (PROPOSER, RUNNER)
    ]
    assert sorted(patched) == [False, True]
