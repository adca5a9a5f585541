"""Whether a ledger answers for every feature there is, so that nothing has to be planned.

It does where each feature's folder is byte for byte the one that was read when we applied: a
feature's digest is worked out from nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import overlay
from overlay.fingerprint import fingerprint, left_behind
from overlay.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.auto.switches import Switches
    from overlay.transaction.ledger import Ledger, LedgerFeature


def needless(
    ledger: Ledger, release: str | None, switches: Switches, folders: Iterable[Path]
) -> tuple[LedgerFeature, ...] | None:
    """The features that are not on disk and need not be; ``None`` where only a plan can tell.

    :param ledger: its files stand as we wrote them; :param release: the release that stands.
    :param folders: the patches folders.
    """
    if ledger.overlay != overlay.__version__ or ledger.release != release:
        return None
    left = {one.result.feature: one for one in ledger.features}
    found = []
    for name, path in _features(folders):
        one = left.pop(name, None)  # one that is found twice is an error, which a plan reports
        if one is None or one.source != fingerprint([path]):
            return None
        if one.result.state is State.APPLIED:
            continue
        # By its files a feature can change while the release stays.
        if one.result.state not in (State.UPSTREAMED, State.INAPPLICABLE) or one.result.files:
            return None
        found.append(one)
    there = {one.result.feature for one in ledger.features} - set(left)
    if (switches.features or frozenset()) - there:
        return None  # OVERLAY_FEATURES names one that there is not: an error, too
    return tuple(found)


def _features(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """The name and path of all that may be a feature; what is none is in no ledger."""
    seen = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        try:
            names = sorted(os.listdir(place))
        except OSError:
            names = [""]  # whoever plans says what is wrong with the folder
        for name in names:
            beside = name.startswith(".") or name in ("__init__.py", "README.md")
            if not (beside or left_behind(name)):
                yield name, os.path.join(place, name)
