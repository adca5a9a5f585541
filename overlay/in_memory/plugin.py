"""Start the overlay in one process: check, activate, record, watch, and say so once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import overlay
from overlay import settings
from overlay.errors import OverlayError, TargetError, UsageError
from overlay.in_memory import ranks
from overlay.in_memory.activation import Activation, activate, impossible
from overlay.in_memory.decision import of_imported
from overlay.in_memory.running import RunningProcess
from overlay.processes import records

if TYPE_CHECKING:
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
    global _process  # noqa: PLW0603  (one process has one state)
    if _process is not None:
        _process.say_after_fork()
        return
    if _has_started():
        return
    asked = settings.read(environment)
    settings.carry_to_ray(environment)
    process = RunningProcess(asked)
    if asked.mode == "off":
        activation = _off(environment)
    else:
        warnings = _checked(asked)
        activation = _activation(asked, process)
        activation = activation._replace(warnings=(*warnings, *activation.warnings))
    _process = process
    setattr(sys, _MARK, _identity())
    if activation.modules:  # patched in memory
        from overlay.in_memory import vllm_caches

        if vllm_caches.concerned(activation.modules):
            vllm_caches.keep_apart(activation.digest, activation.required)
    os.register_at_fork(after_in_child=process.after_fork)
    process.activated(activation)
    if activation.way != records.OFF:
        ranks.watch(process.rank_report, activation.required)
    if any(feature.active for feature in activation.features):
        from overlay.in_memory.effects import EffectWatch

        process.effects = EffectWatch(process)
        process.effects.start()
    process.say()


def _checked(asked: settings.Switches) -> tuple[str, ...]:
    """What is to be said of the variables that features declare, before a weight is read.

    :raises UsageError: for values that no feature accepts.
    """
    if not asked.further:
        return asked.warnings
    from overlay.features.switches import check_values, declarations
    from overlay.in_memory.patch_folders import patches_folders

    checked = check_values(asked.all, declarations(patches_folders(asked)))
    if checked.wrong:
        raise UsageError("vllm-overlay: " + "\n".join(checked.wrong))
    return (*asked.warnings, *checked.unknown, *checked.former)


def _activation(asked: settings.Switches, process: RunningProcess) -> Activation:
    """What this process runs, after whatever is asked for has been done."""
    decision = of_imported(asked)
    kept = None if decision is None else decision.read()
    if kept is not None:
        return kept
    try:
        target = running_vllm()
    except TargetError as error:  # in an archive, frozen, or nothing that could be patched
        return impossible(str(error), asked)
    activation = activate(target, asked, process)
    if decision is not None:
        decision.write(activation)
    return activation


def _off(environment: Environment) -> Activation:
    """Leave this process alone; where patched code is on disk, turn its switches off."""
    vllm = sys.modules.get("vllm")
    version = str(getattr(vllm, "__version__", "unknown"))
    off = Activation(records.OFF, version, "", (), "")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str):
        return off
    root = Path(os.path.dirname(os.path.dirname(os.path.abspath(file))))
    from overlay.in_memory import switched_off

    return switched_off.activation(off, root, environment)


def running_vllm() -> Target:
    """The vLLM that this process imported; before it did, the one that it would import.

    :raises TargetError: if there is none, or it is no plain folder.
    """
    vllm = sys.modules.get("vllm")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        from overlay.targets.installed import resolve_installed

        return resolve_installed()
    from overlay.targets.folder import build

    package = Path(os.path.dirname(os.path.abspath(file)))
    return build(
        package,
        os.path.dirname(os.path.realpath(package)),
        fallback=lambda: getattr(vllm, "__version__", None),
    )


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
