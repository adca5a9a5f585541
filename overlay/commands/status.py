"""``overlay status``: what is applied, whether it is intact, and what the next process runs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay._features.model import of_package
from overlay.commands.next_process import plugin_patches, with_plugin
from overlay.commands.request import Request
from overlay.commands.required import expect_known, with_requirements
from overlay.commands.scene import survey
from overlay.commands.target_report import report, with_runner
from overlay.errors import OverlayError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import from_ledger
from overlay.on_disk.journal import reading
from overlay.on_disk.ledger import damaged_copies, reinstall
from overlay.report.codes import Code
from overlay.report.model import Obstacle
from overlay.report.targets import StatusReport
from overlay.report.wording import status as status_verdict
from overlay.report.wording import together
from overlay.report.words import enumeration
from overlay.results import Notice, Reason, State
from overlay.results.invocation import command
from overlay.settings import kept_out, plugin_allowed
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


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
