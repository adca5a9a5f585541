"""What a process of vLLM runs after the overlay has started in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from overlay.results import Way

if TYPE_CHECKING:
    from overlay.on_disk.process_decision import FeatureDecision


class Activation(NamedTuple):
    """What this process runs.

    :ivar way: where the patched code comes from; ``NONE`` where no feature is active.
    :ivar scopes: module name -> scopes whose code the plan changes.
    :ivar modules: the modules that the hook serves.
    :ivar required: whether vLLM must not start without one of the features that are active.
    :ivar impossible: why nothing at all could be patched or verified, or ``None``.
    :ivar off_summary: the phrase for logs and tables where the overlay was told to do nothing and
        patched code is on disk, or may be; ``None`` otherwise.
    :ivar others: name and version of each package beside vLLM that has an active feature.
    """

    way: Way
    vllm: str
    root: str
    features: tuple[FeatureDecision, ...]
    digest: str
    scopes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    modules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    required: bool = False
    impossible: str | None = None
    off_summary: str | None = None
    others: tuple[tuple[str, str], ...] = ()

    @property
    def left_out(self) -> tuple[FeatureDecision, ...]:
        """The features that were asked for and do not run, though this vLLM could need them."""
        return tuple(
            each for each in self.features if each.asked and not each.active and not each.harmless
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
