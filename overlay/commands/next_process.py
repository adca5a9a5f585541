"""What the plugin will add in memory in the next process of vLLM.

Files on disk are half of the answer: where the plugin is installed, it patches in memory what is
not applied on disk, so after ``apply --feature`` and after ``revert`` more runs than the files say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay import settings
from overlay._features.model import SHIPPED
from overlay.errors import OverlayError
from overlay.report.words import enumeration
from overlay.results import Notice, State

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.report.model import TargetReport
    from overlay.settings import Switches


def with_plugin(
    target: TargetReport,
    everything: TargetReport,
    features: Iterable[Feature],
    *,
    explicit: bool,
) -> TargetReport:
    """A target with the features that the plugin would patch in memory there.

    The variables of this process are taken for those of the next one.

    :param everything: the same target with the state of every feature.
    :param features: every feature that the command knows of.
    :param explicit: whether the user named the target; otherwise it is this Python's own vLLM.
    """
    switches = _switches()
    if (
        switches is None
        or everything.needs_attention
        or not plugin_patches(target, explicit=explicit)
    ):
        return target
    features = tuple(features)
    plugins_own = frozenset(known_to_plugin(features)) - _on_disk_only(everything, features)
    coming = tuple(
        result.feature
        for result in everything.features
        if result.state is State.PRISTINE
        and result.feature in plugins_own
        and switches.allows(result.feature)
        and (switches.untested or not result.untested)
    )
    return replace(target, in_memory=coming)


def _on_disk_only(target: TargetReport, features: tuple[Feature, ...]) -> frozenset[str]:
    """The features that the plugin leaves out: memory comes too late, or is no way for them."""
    if all(feature.shipped for feature in features):
        return frozenset()
    from packaging.version import InvalidVersion, Version

    from overlay._features.early_modules import not_in_memory

    try:
        release = None if target.vllm is None else Version(target.vllm)
    except InvalidVersion:
        release = None
    return frozenset(not_in_memory(target.features, features, release, target.package))


def with_running(changed: TargetReport) -> TargetReport:
    """A target that was just changed, with the processes that run what was there before."""
    from overlay._processes.live import processes

    root = None if changed.root is None else os.path.realpath(changed.root)
    try:
        running = processes()
    except OverlayError:
        return changed  # only Linux tells which processes run
    pids = [str(each.pid) for each in running if each.root and os.path.realpath(each.root) == root]
    if not pids:
        return changed
    several = len(pids) > 1
    text = (
        f"{'processes' if several else 'process'} {enumeration(pids)} of vLLM "
        f"{'run' if several else 'runs'} what was there before: restart vLLM there"
    )
    return replace(changed, notices=(*changed.notices, Notice(None, text)))


def plugin_patches(target: TargetReport, *, explicit: bool) -> bool:
    """Whether the plugin patches anything in memory in the next process on a target.

    :param explicit: as for ``with_plugin``.
    """
    if target.root is None:
        return False
    folders = [str(target.root)] if explicit else [str(target.root), *sys.path]
    return _switches() is not None and any(map(_has_plugin, folders))


def plugin_may_add(feature: str | None, folders: Iterable[str]) -> bool:
    """Whether the plugin may patch a feature, or any, in memory in a process that imports from
    folders."""
    switches = _switches()
    if switches is None or not (feature is None or switches.allows(feature)):
        return False
    return any(map(_has_plugin, folders))


def known_to_plugin(features: Iterable[Feature]) -> tuple[str, ...]:
    """The ids of the features that the plugin knows of, among those of a command.

    It reads the shipped ones and the folders in ``OVERLAY_PATCHES``, and neither ``--patches`` nor
    the file of a project.
    """
    names = os.environ.get("OVERLAY_PATCHES", "").split(os.pathsep)
    folders = {os.path.abspath(os.path.expanduser(folder)) for folder in names if folder}
    return tuple(feature.id for feature in features if feature.origin in folders | {SHIPPED})


def _switches() -> Switches | None:
    """What the environment asks of the plugin; ``None`` where it patches nothing in memory."""
    try:
        switches = settings.read()
    except OverlayError:
        return None  # no process would start so: doctor says why
    return switches if switches.mode is settings.Mode.AUTO and settings.plugin_allowed() else None


def _has_plugin(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return False  # sys.path holds archives and folders that do not exist
    return any(name.startswith("vllm_overlay-") and name.endswith(".dist-info") for name in names)
