"""A transaction over one package, for the tests of transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from overlay._features.model import Feature
from overlay.on_disk import journal
from overlay.on_disk.changes import Rebuilt
from overlay.on_disk.transaction import TransactionResult, adopting, applying, carry_out, reverting
from overlay.package import VLLM, Package
from overlay.results import Change, Plan
from overlay.targets import Target


def target(
    root: Path,
    release: str | None = None,
    record_file: Path | None = None,
    package: Package = VLLM,
) -> Target:
    """A target of which a transaction knows where it is and which release it has."""
    return Target.of(
        release, str(root), package, lambda path: None, root=root, record_file=record_file
    )


def apply(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    release: str,
    record_file: Path | None = None,
    basis: str | None = None,
    package: Package = VLLM,
    timeout: float = journal.TIMEOUT,
) -> TransactionResult:
    """Apply a plan to the target in ``root``."""
    place = target(root, release, record_file, package)
    return carry_out([applying(place, plan, features, basis)], timeout)[0]


def revert(
    root: Path,
    *,
    release: str | None = None,
    record_file: Path | None = None,
    rebuild: Callable[[], Rebuilt] | None = None,
    basis: str | None = None,
    edits: Sequence[Change] = (),
    package: Package = VLLM,
    timeout: float = journal.TIMEOUT,
) -> TransactionResult:
    """Revert the target in ``root``."""
    place = target(root, release, record_file, package)
    return carry_out([reverting(place, rebuild, basis, edits)], timeout)[0]


def adopt(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    folders: Sequence[str],
    *,
    release: str,
    record_file: Path | None = None,
    package: Package = VLLM,
    timeout: float = journal.TIMEOUT,
) -> TransactionResult:
    """Adopt what is in the target in ``root``."""
    place = target(root, release, record_file, package)
    return carry_out([adopting(place, plan, features, folders)], timeout)[0]
