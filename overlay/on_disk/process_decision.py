"""What a process of vLLM decides about the features on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.results import State

if TYPE_CHECKING:
    from overlay.on_disk.ledger import Ledger
    from overlay.settings import Switches
    from overlay.targets.target import Target

#: States of a feature that is not active and needs not be.
HARMLESS = (State.UPSTREAMED, State.INAPPLICABLE)


class FeatureDecision(NamedTuple):
    """What became of one feature in a process.

    :ivar state: its state before the process did anything; :ivar active: whether its code runs.
    :ivar asked: whether ``OVERLAY_FEATURES`` allows it, or it is on disk.
    """

    id: str
    digest: str
    state: State
    active: bool
    why: str | None = None
    asked: bool = True

    @property
    def harmless(self) -> bool:
        """Whether it needs no attention, active or not."""
        return self.state in HARMLESS

    @property
    def reason(self) -> str:
        """Why it is not active, a line for everything that is in its way."""
        return self.why or "not applied on disk"


def digest(features: Iterable[FeatureDecision], variables: Mapping[str, str]) -> str:
    """Hash what runs and every switch; equal wherever the same code runs, by whichever way."""
    active = sorted((each.id, each.digest) for each in features if each.active)
    settings = {name: value for name, value in variables.items() if name != "OVERLAY"}
    return hashlib.sha256(json.dumps([active, settings], sort_keys=True).encode()).hexdigest()


def from_disk(target: Target, ledger: Ledger) -> tuple[list[FeatureDecision], bool]:
    """Judge the features on disk.

    :returns: the features, none where the ledger is void; and whether a file of theirs is not as
        the overlay left it.
    """
    from overlay.on_disk.disk_state import Condition, conditions, void

    states = conditions(ledger, target.read)
    if void(ledger, states, _release(target)) is not None and all(
        state in (Condition.PRISTINE, Condition.GONE) for state in states.values()
    ):
        return [], False  # vLLM was installed again: as if nothing had been applied
    wrong = sorted(path for path, state in states.items() if state is not Condition.OURS)
    why = None
    if wrong:
        why = f"not as overlay apply left it: {', '.join(wrong)}; run `overlay status`"
    return [
        FeatureDecision(each.result.feature, each.digest, State.APPLIED, why is None, why)
        for each in ledger.applied
    ], why is not None


def needless(target: Target, ledger: Ledger, switches: Switches) -> list[FeatureDecision] | None:
    """The features that are not on disk and need not be; ``None`` where only a plan can tell."""
    from overlay.on_disk import patch_folders

    folders = patch_folders.patches_folders(switches)
    rest = patch_folders.needless(ledger, _release(target), switches, folders)
    if rest is None:
        return None
    decisions = []
    for each in rest:
        asked = switches.allows(each.result.feature)
        told = each.result.reason and str(each.result.reason)
        why = told if asked else patch_folders.NOT_ASKED
        decisions.append(
            FeatureDecision(each.result.feature, each.digest, each.result.state, False, why, asked)
        )
    return decisions


def further_roots(folders: Iterable[Path]) -> dict[str, Path]:
    """The packages beside vLLM that features are for and that this Python would import.

    Nothing is imported: the module that is there tells, or else whoever would find it.

    :param folders: the patches folders.
    :returns: import name -> the folder that holds the package, by name.
    """
    from overlay.on_disk.patch_folders import further_packages

    roots = {}
    for name in further_packages(folders):
        origin = getattr(sys.modules.get(name), "__file__", None) or _origin(name)
        if isinstance(origin, str) and os.path.basename(origin) == "__init__.py":
            roots[name] = Path(os.path.realpath(os.path.dirname(origin))).parent
    return roots


def _origin(name: str) -> str | None:
    """The file that the import of a package would begin with; ``None`` where there is none."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None else spec.origin


def _release(target: Target) -> str | None:
    return None if target.release is None else str(target.release)
