"""``overlay status``: what is applied, whether it is intact, and what the next process runs.

Files on disk are half of the answer: where the plugin is installed, it patches in memory what is
not applied on disk, so after ``apply --feature`` and after ``revert`` more runs than the files say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from overlay import settings
from overlay._features.model import SHIPPED, of_package
from overlay.commands.request import Request, expect_known
from overlay.commands.scene import OneTarget, report, survey, with_requirements, with_runner
from overlay.errors import OverlayError, command
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import from_ledger
from overlay.on_disk.journal import reading
from overlay.on_disk.ledger import damaged_copies, reinstall
from overlay.report.codes import Code
from overlay.report.lines import Line, enumeration, labelled
from overlay.report.model import Obstacle
from overlay.report.wording import status as status_verdict
from overlay.report.wording import together
from overlay.results import Notice, Reason, State
from overlay.settings import kept_out, plugin_allowed
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.report.model import TargetReport
    from overlay.settings import Switches
    from overlay.targets import Target


@dataclass(frozen=True)
class StatusReport(OneTarget):
    """What is applied to a target.

    :ivar patches: the folders of patches that were read beside the shipped one, in order.
    """

    _command: ClassVar[str] = "status"
    patches: tuple[str, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The folders of patches, if ``verbose``."""
        for folder in ("shipped", *self.patches) if verbose else ():
            yield labelled(0, "patches: ", folder)


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

    from overlay._features.vllm_defaults import not_in_memory

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


def status(request: Request) -> StatusReport:
    """What is applied to a target, whether it is intact, and what the next process will run.

    By the ledger alone where that says it all, else by a plan.

    :raises UsageError: if a required feature does not exist.
    :raises OverlayError: if the features, the target or its ledger cannot be read.
    """
    scene = survey(request)
    expect_known(request.require, scene.features)
    explicit = request.names_target
    answers = [of_files(target, scene.features) for target in scene.targets]
    answers = [
        with_runner(
            with_plugin(answer, answer, scene.features, explicit=explicit),
            scene.features,
            target.release,
        )
        for answer, target in zip(answers, scene.targets, strict=True)
    ]
    first, *rest = with_requirements(scene, answers, request.require, scene.with_absent(answers))
    if not explicit:
        first = replace(first, notices=(*first.notices, *_kept_out()))
    verdict = together([status_verdict(answer) for answer in (first, *rest)])
    return StatusReport(verdict, first, request.patches, others=tuple(rest))


def _kept_out() -> tuple[Notice, ...]:
    """A notice where vLLM's allow-list keeps our plugin from patching in memory."""
    if plugin_allowed():
        return ()
    why = kept_out(f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']} does not name overlay")
    return (Notice(None, why),)


def of_files(target: Target, features: tuple[Feature, ...]) -> TargetReport:
    """The state of the files of a target.

    :param features: all at hand, those of other packages too.
    """
    features = of_package(features, target.package)
    answer = _with_damaged_copies(target, features) or by_ledger(target, features)
    if answer is not None:
        return answer
    from overlay.commands.assess import examine

    return examine(target, features).report


def with_next_process(
    changed: TargetReport, target: Target, features: tuple[Feature, ...], *, explicit: bool
) -> TargetReport:
    """A target that was just changed, with what ``status`` would say of the next process.

    What was taken off is not all that the plugin adds: also what was never on disk.

    :param features: all at hand; :param explicit: whether the user named the target.
    """
    if not plugin_patches(changed, explicit=explicit):
        return changed
    try:
        everything = of_files(target, features)
    except OverlayError:
        return changed  # the change is done; status meets the error again, and says it
    return with_plugin(changed, everything, features, explicit=explicit)


def _with_damaged_copies(target: Target, features: tuple[Feature, ...]) -> TargetReport | None:
    """A target of which revert would fail, since a pristine copy is missing or damaged.

    Nothing can be planned there, so the ledger alone says what is applied.
    """
    if target.root is None:
        return None
    with reading(target.root, package=target.package) as interrupted:
        ledger = ledgers.load(target.root, target.package)
        if ledger is None or not (damaged := damaged_copies(target.root, ledger, target.package)):
            return None
        state = from_ledger(ledger, target, target.public)
    if state is None:
        return None  # the ledger says nothing about this vLLM any more
    at_hand = {feature.id for feature in features}
    results = tuple(
        result
        for result in state.features
        if result.feature in at_hand or result.state is State.APPLIED
    )
    answer = replace(report(target, state, features, interrupted), features=results)
    copies = "a pristine copy is" if len(damaged) == 1 else f"{len(damaged)} pristine copies are"
    obstacle = Obstacle(
        Code.COPIES_DAMAGED,
        f"{copies} missing or damaged",
        Reason(
            f"{command('revert')} would fail: expected the release's own bytes of "
            f"{enumeration(damaged)} in {target.package.pristine_folder}",
            reinstall(target.public, target.package),
        ),
    )
    return replace(answer, obstacles=(obstacle,))


def by_ledger(target: Target, features: tuple[Feature, ...]) -> TargetReport | None:
    """The state of a target by hashes alone, or ``None`` where only a plan can tell.

    :param features: all features, in order.
    """
    if target.root is None:
        return None
    features = of_package(features, target.package)
    with reading(target.root, package=target.package) as interrupted:
        ledger = ledgers.load(target.root, target.package)
        if ledger is None or not _covers(ledger, features):
            return None
        with all_unreadable((entry.path for entry in ledger.entries), target.read):
            state = from_ledger(ledger, target, target.public)
    if state is None:
        return None
    # What the ledger's version of the overlay was does not matter where the patches are the same.
    return report(target, state._replace(notices=()), features, interrupted)


def _covers(ledger: Ledger, features: tuple[Feature, ...]) -> bool:
    """Whether the ledger speaks of just these features, in the form that they have now."""
    return {entry.result.feature: entry.digest for entry in ledger.features} == {
        feature.id: feature.digest for feature in features
    }
