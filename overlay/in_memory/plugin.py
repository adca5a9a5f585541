"""Start the overlay in one process: check, activate, record, watch, and say so once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import overlay
from overlay import settings
from overlay.errors import OverlayError, TargetError, UsageError
from overlay.in_memory import metrics_watch, ranks
from overlay.in_memory.activation import Activation
from overlay.in_memory.running import RunningProcess
from overlay.results import Way

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.on_disk.process_decision import Question, SwitchRow
    from overlay.targets.target import Target

    Environment = dict[str, str] | os._Environ[str]


#: Where this process remembers which overlay it runs, whatever was imported or reloaded since.
_MARK = "_vllm_overlay"


class TwoOverlays(OverlayError, RuntimeError):
    """Another overlay is at work in this process already."""


_process: RunningProcess | None = None


def start(environment: Environment = os.environ) -> None:
    """Do for this process what the environment asks for; a second call does nothing.

    :raises OverlayError: if a required feature cannot run here, a variable has an unknown value, a
        patches folder is malformed, or another overlay is at work in this process.
    """
    try:
        _start(environment)
    except OverlayError as error:
        from overlay.in_memory.log import escape

        escape(error)
        raise


def _start(environment: Environment) -> None:
    global _process  # noqa: PLW0603  (one process has one state)
    if _process is not None:
        _process.say_after_fork()
        return
    if _has_started():
        return
    asked = settings.read(environment)
    settings.carry_to_ray(environment)
    process = RunningProcess(asked)
    activation = _off(environment) if asked.mode is settings.Mode.OFF else _decide(asked, process)
    _process = process
    setattr(sys, _MARK, _identity())
    if activation.modules:  # patched in memory
        from overlay.in_memory import vllm_caches

        if vllm_caches.concerned(activation.modules):
            vllm_caches.keep_apart(activation.digest, activation.required)
    os.register_at_fork(after_in_child=process.after_fork)
    process.activated(activation)
    if activation.way is not Way.OFF:
        ranks.watch(process.rank_report, activation.required)
        metrics_watch.watch()
    if any(feature.active for feature in activation.features):
        from overlay.in_memory.effects import EffectWatch

        process.effects = EffectWatch(process)
        process.effects.start()
    process.say()


def _decide(asked: settings.Switches, process: RunningProcess) -> Activation:
    """Carry out what the environment asks for; return what this process runs.

    The variables that features declare are checked first, before a weight is read.

    :raises UsageError: for values that no feature accepts.
    """
    question = _question(asked)
    kept = None if question is None else question.answer()
    if kept is not None:
        warnings = _checked(asked, kept.switches)
        activation = Activation.of_receipt(kept, asked.all)
        return activation._replace(warnings=(*warnings, *activation.warnings))
    from overlay.on_disk.process_decision import declared_switches

    warnings = _checked(asked, declared_switches(asked) if asked.further else ())
    evidence = None if question is None else question.evidence()
    activation = _activation(asked, process)
    if question is not None and evidence is not None and activation.inputs is not None:
        decision = activation.to_receipt(declared_switches(asked))
        question.keep(decision, activation.inputs, evidence)
    return activation._replace(warnings=(*warnings, *activation.warnings))


def _checked(asked: settings.Switches, switches: Iterable[SwitchRow]) -> tuple[str, ...]:
    """The warnings about the variables that are set.

    :param switches: those that features declare.
    :raises UsageError: for values that no feature accepts.
    """
    if not asked.further:
        return asked.warnings
    from overlay.features.switches import Declaration, Switch, check_values

    declared = Declaration("", "", tuple(Switch(*row) for row in switches), None, False)
    checked = check_values(asked.all, [declared])
    if checked.wrong:
        raise UsageError("vllm-overlay: " + "\n".join(checked.wrong))
    return (*asked.warnings, *checked.unknown, *checked.former)


def _question(asked: settings.Switches) -> Question | None:
    """What to ask a receipt about the vLLM that this process has imported.

    :returns: ``None`` before it has imported one, and where there is no cache.
    """
    vllm = sys.modules.get("vllm")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    root = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(file))))
    from overlay.on_disk.process_decision import Question

    try:
        return Question(asked, Path(root))
    except (OverlayError, RuntimeError):  # no shipped patches, or no home folder
        return None


def _activation(asked: settings.Switches, process: RunningProcess) -> Activation:
    from overlay.in_memory.activator import activate, impossible

    try:
        target = running_vllm()
    except TargetError as error:  # in an archive, frozen, or nothing that could be patched
        return impossible(str(error), asked)
    try:
        others = further_packages(asked)
    except TargetError as error:  # as for vLLM: half of what was asked for is not brought about
        return impossible(str(error), asked, target)
    return activate((target, *others), asked, process)


def further_packages(asked: settings.Switches) -> tuple[Target, ...]:
    """The packages beside vLLM that features are for, as this process would import them.

    A package that is not there is passed over.

    :raises TargetError: if one is there and cannot be patched.
    """
    from overlay.on_disk.patch_folders import further_packages, patches_folders
    from overlay.package import package_named
    from overlay.targets.environments import resolve_installed
    from overlay.targets.installations import target_at
    from overlay.targets.target import Absent

    found = []
    for name in further_packages(patches_folders(asked)):
        try:
            package = package_named(name)
        except ValueError:
            continue  # loading the feature says so
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isfile(file):
            place = Path(os.path.dirname(os.path.abspath(file)))
            root = os.path.dirname(os.path.realpath(place))
            found.append(target_at(place, root, package, path=sys.path))
            continue
        try:
            found.append(resolve_installed(package))
        except Absent:
            continue
    return tuple(found)


def _off(environment: Environment) -> Activation:
    """Leave this process alone; where patched code is on disk, turn its switches off."""
    vllm = sys.modules.get("vllm")
    version = str(getattr(vllm, "__version__", "unknown"))
    off = Activation(Way.OFF, version, "", (), "")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str):
        return off
    root = Path(os.path.dirname(os.path.dirname(os.path.abspath(file))))
    from overlay.in_memory import switched_off

    return switched_off.activation(off, root, environment)


def running_vllm() -> Target:
    """The vLLM that this process imported; before it did, the one that it would import.

    :raises TargetError: if there is none, or it is not a plain folder.
    """
    vllm = sys.modules.get("vllm")
    file = getattr(vllm, "__file__", None)
    from overlay.package import VLLM

    if not isinstance(file, str) or not os.path.isfile(file):
        from overlay.targets.environments import resolve_installed

        return resolve_installed(VLLM)
    from overlay.targets.installations import target_at

    place = Path(os.path.dirname(os.path.abspath(file)))
    root = os.path.dirname(os.path.realpath(place))
    return target_at(place, root, VLLM, stated=getattr(vllm, "__version__", None))


def _identity() -> tuple[str, str]:
    return overlay.__version__, os.path.realpath(__file__)


def _has_started() -> bool:
    """Whether this overlay has started in this process, before its modules were loaded again.

    :raises TwoOverlays: if another one has.
    """
    other = getattr(sys, _MARK, None)
    if other is None or other == _identity():
        return other is not None
    raise TwoOverlays(
        f"vllm-overlay: two overlays are installed: {other[0]} ({other[1]}) is at work in this "
        f"process, and {overlay.__version__} ({_identity()[1]}) was loaded after it; uninstall one "
        "of them, or name the one you want in VLLM_PLUGINS"
    )
