"""A transaction over one package, for the tests of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlay._features.model import Feature
from overlay.on_disk import lock
from overlay.on_disk.transaction import Outcome, adopting, applying, carry_out, reverting
from overlay.results import Plan


def apply(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    timeout: float = lock.TIMEOUT,
    **more: Any,
) -> Outcome:
    """Apply a plan to the target in ``root``.

    :param more: for `applying`.
    """
    return carry_out([applying(root, plan, features, **more)], timeout)[0]


def revert(root: Path, *, timeout: float = lock.TIMEOUT, **more: Any) -> Outcome:
    """Revert the target in ``root``.

    :param more: for `reverting`.
    """
    return carry_out([reverting(root, **more)], timeout)[0]


def adopt(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    folders: Sequence[str],
    *,
    timeout: float = lock.TIMEOUT,
    **more: Any,
) -> Outcome:
    """Adopt what is in the target in ``root``.

    :param more: for `adopting`.
    """
    return carry_out([adopting(root, plan, features, folders, **more)], timeout)[0]
