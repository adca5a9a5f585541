"""Start the overlay in one process: check, activate, record, watch, and say so once."""

from __future__ import annotations

import os
import sys
from typing import TypeAlias

import overlay
from overlay import settings
from overlay.errors import OverlayError
from overlay.in_memory import decision, log, metrics_watch, ranks
from overlay.in_memory.running import RunningProcess
from overlay.results import Way

Environment: TypeAlias = "dict[str, str] | os._Environ[str]"


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
        log.escape(error)
        raise


def _start(environment: Environment) -> None:
    global _process  # noqa: PLW0603  (one process has one state)
    if _process is not None:
        _process.say_after_fork()
        return
    if _has_started():
        return
    switches = settings.read(environment)
    settings.carry_to_ray(environment)
    process = RunningProcess(switches)
    activation = decision.decide(switches, process, environment)
    _process = process
    setattr(sys, _MARK, _identity())
    if activation.modules:  # patched in memory
        from overlay.in_memory import module_cache

        if module_cache.concerned(activation.modules):
            module_cache.keep_apart(activation.digest, activation.required)
    os.register_at_fork(after_in_child=process.after_fork)
    process.activated(activation)
    if activation.way is not Way.OFF:
        ranks.watch(process.rank_report, activation.required)
        metrics_watch.watch()
    if any(feature.active for feature in activation.features):
        from overlay.in_memory.effects import EffectWatch

        effects = EffectWatch(process)
        os.register_at_fork(after_in_child=effects.forget)
        effects.start()
    process.say()


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
