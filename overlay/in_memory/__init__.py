"""Patch a process of vLLM while it imports the patched modules.

``plugin`` runs the start of a process, ``decision`` decides and turns off what is to be off;
``preparation`` plans, ``module_cache`` keeps patched text in a private cache, and vLLM's own caches
apart, ``import_hook`` hands it to the import system and compares what runs with the plan,
``import_watch`` waits for modules that stay as they are, ``ranks`` compares the ranks of an engine,
and ``log`` reaches vLLM's log.  What a process runs after the overlay has started in it is an
``Activation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from overlay.results import State, Way

#: States of a feature that is not active and needs not be.
HARMLESS = (State.UPSTREAMED, State.INAPPLICABLE)

#: Why a feature is not patched that ``OVERLAY_FEATURES`` leaves out.
NOT_ASKED = "OVERLAY_FEATURES does not name it"


class FeatureDecision(NamedTuple):
    """What became of one feature in a process.

    :ivar state: its state before the process did anything; :ivar active: whether its code runs.
    :ivar allowed: whether ``OVERLAY_FEATURES`` allows it, or it is on disk.
    :ivar why: everything that prevents it, a line for each.
    :ivar places: the file and scope of each of its hunks, where it is active.
    :ivar modules: those that it patches or adds, where it is patched in memory.
    """

    id: str
    digest: str
    state: State
    active: bool
    why: str | None = None
    allowed: bool = True
    places: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def harmless(self) -> bool:
        """Whether it needs no attention, active or not."""
        return self.state in HARMLESS

    @property
    def reason(self) -> str:
        """Why it is not active, a line for everything that is in its way."""
        return self.why or "not applied on disk"


class Activation(NamedTuple):
    """What this process runs.

    :ivar way: where the patched code comes from; ``NONE`` where no feature is active.
    :ivar scopes: module name -> scopes whose code the plan changes.
    :ivar modules: the modules that the hook serves.
    :ivar required: whether vLLM must not start without one of the features that are active.
    :ivar impossible: why nothing at all could be patched or verified, or ``None``.
    :ivar off_summary: the phrase for logs and tables where the overlay was told to do nothing and
        patched code is on disk, or may be; ``None`` otherwise.
    :ivar packages: name and version of each package beside vLLM that has an active feature.
    """

    way: Way
    vllm: str
    root: str
    features: tuple[FeatureDecision, ...]
    digest: str = ""
    scopes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    modules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    required: bool = False
    impossible: str | None = None
    off_summary: str | None = None
    packages: tuple[tuple[str, str], ...] = ()

    @property
    def left_out(self) -> tuple[FeatureDecision, ...]:
        """The features that were asked for and do not run, though this vLLM could need them."""
        return tuple(
            each for each in self.features if each.allowed and not each.active and not each.harmless
        )

    @property
    def summary(self) -> str:
        """One phrase for logs and tables."""
        if self.way is Way.OFF:
            return self.off_summary or "off (OVERLAY=off)"
        active = [feature.id for feature in self.features if feature.active]
        if not active:
            return "unpatched"
        way = "disk and memory" if self.way is Way.BOTH else self.way.value
        return f"{', '.join(active)} ({way})"
