"""The effect of each feature in this process: active where its code is used, else idle and why.

Patched code reports to ``vllm.v1.overlay_effects``, which features add to vLLM.  This module
subscribes there when it is imported, finds by itself that the engine uses a model runner that a
feature does not patch, and ends the engine's start where a required feature is idle.

A count costs the serving process one addition: the numbers lie in anonymous memory
(``memfd_create``) that readers open through ``/proc``, so nothing is written while vLLM serves.
The process record is written again only where a state changes or a new count begins."""

from __future__ import annotations

import functools
import logging
import mmap
import os
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overlay._features.sources import EFFECTS_MODULE
from overlay._features.vllm_defaults import asking
from overlay._processes import (
    COUNTS_NAME,
    Effect,
    EffectRecord,
    Meaning,
    of_features,
)
from overlay.errors import OverlayError
from overlay.in_memory import log
from overlay.in_memory.import_watch import when_imported
from overlay.results import ModelRunner
from overlay.settings import FORMER_IDS
from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.in_memory.running import RunningProcess

_WORKER_MODULE = "vllm.v1.worker.worker_base"

_WARM_UP = "compile_or_warm_up_model"

#: The base class of every model runner V2, of whichever platform (vLLM 0.20.0 to 0.33.0).
_V2_RUNNER = ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner")

_V1_RUNNER = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")

#: Why a feature is idle that has reported nothing by the time the model is ready.
UNREACHED = "its code was not reached while the model was loaded"


class RequiredIdle(OverlayError, RuntimeError):
    """A required feature has no effect in this process; the engine must not serve."""


class EffectWatch:
    """Watches what the features of one process do.

    :ivar ready: whether the model is loaded and warmed up, so that the states are final for now.
    """

    def __init__(self, process: RunningProcess) -> None:
        self._process = process
        self._module: ModuleType | None = None
        self._other_runner: dict[str, str] = {}
        self._counts_fd: int | None = None
        self._logged: dict[str, tuple[Effect, str]] = {}
        self.ready = False

    def start(self) -> None:
        """Watch for the imports of the module that reports, and of vLLM's worker."""
        when_imported(EFFECTS_MODULE, self._subscribe, "the effect of the patches is not reported")
        lost = "whether the patches take effect is not checked once the model is loaded"
        when_imported(_WORKER_MODULE, self._watch_worker, lost)

    def forget(self) -> None:
        """Forget in a forked child what its parent has logged and counted."""
        self._other_runner, self._logged, self.ready = {}, {}, False
        if self._counts_fd is not None:
            os.close(self._counts_fd)
        self._counts_fd = None  # made by the child's first report

    # What patched code reports

    def _subscribe(self, module: ModuleType) -> None:
        self._module = module
        module.subscribe(self._changed)

    @staticmethod
    def _memory(module: ModuleType) -> int | None:
        """Let the module count in memory that another process can read; return its descriptor."""
        if not hasattr(os, "memfd_create"):
            return None
        size = 8 * module.SLOTS
        try:
            descriptor = os.memfd_create(COUNTS_NAME)
            os.ftruncate(descriptor, size)
            module.count_in(memoryview(mmap.mmap(descriptor, size)).cast("Q"))
        except (OSError, ValueError):  # a sandbox without it: the counts stay in the process
            return None
        return descriptor

    def _changed(self) -> None:
        """Publish; called by patched code after each change of a state and each new count."""
        self._publish()
        if self.ready:
            self._say_changes()

    def _publish(self) -> None:
        if self._module is not None and self._counts_fd is None:
            self._counts_fd = self._memory(self._module)
        counters = () if self._module is None else tuple(self._module.counted())
        meanings = _meanings(self._module)[: len(counters)]
        self._process.publish(self.effects(), counters, self._counts_fd, meanings)

    def effects(self) -> tuple[EffectRecord, ...]:
        """Say what each feature of this process does now."""
        reported = {} if self._module is None else self._module.effects()
        parts: dict[str, list[str]] = {feature: [] for feature in self._process.features()}
        for name in reported:
            if reported[name]["state"]:
                parts.setdefault(FORMER_IDS.get(name, name), []).append(name)
        return of_features(
            self._effect(feature, reported.get(name))
            for feature, names in parts.items()
            for name in names or (feature,)
        )

    def _effect(self, feature: str, report: Mapping[str, Any] | None) -> EffectRecord:
        if feature in self._other_runner:
            return EffectRecord(feature, Effect.IDLE, self._other_runner[feature])
        if report is not None and report["state"] is not None:
            return EffectRecord(feature, Effect(report["state"]), str(report["text"]))
        declared = self._process.declared().get(feature)
        if declared is None or not declared.reports:
            return EffectRecord(feature, Effect.PATCHED, "it does not report what it does")
        if not self.ready:
            return EffectRecord(feature, Effect.PENDING, "the model is not loaded")
        return EffectRecord(feature, Effect.IDLE, UNREACHED)

    # What vLLM's worker shows

    def _watch_worker(self, module: ModuleType) -> None:
        wrapper = module.WorkerWrapperBase
        inner = wrapper.init_device
        if getattr(inner, "_overlay_watches", False):
            return

        @functools.wraps(inner)
        def init_device_then_look(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = inner(self, *args, **kwargs)
            watch.device_ready(self.worker)
            return result

        watch = self
        init_device_then_look._overlay_watches = True  # type: ignore[attr-defined]  # as in ranks
        wrapper.init_device = init_device_then_look

    def device_ready(self, worker: Any) -> None:
        """Look at the model runner, which exists before a weight is read.

        :raises RequiredIdle: if a required feature patches another model runner.
        """
        runner = model_runner(getattr(worker, "model_runner", None))
        if runner is not None:
            self._look_for_others(runner)
        inner = getattr(worker, _WARM_UP, None)
        if inner is None:
            return

        @functools.wraps(inner)
        def warm_up_then_look(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            self.model_ready()
            return result

        setattr(worker, _WARM_UP, warm_up_then_look)

    def _look_for_others(self, runner: ModelRunner) -> None:
        """Find the features that patch another model runner than this engine's."""
        patched = {name: self._process.runner(name) for name in self._process.features()}
        idle = {name: each for name, each in patched.items() if each not in (None, runner)}
        self._other_runner = dict.fromkeys(idle, f"model runner {runner.name}")
        for other in {*idle.values()} - {None}:  # there are two, so this is the other one
            self._publish()
            log.warn(
                f"{', '.join(sorted(idle))}: no effect here, since this engine uses model runner "
                f"{runner.name}; {asking(other)} asks vLLM for {other.name}"
            )
            self._refuse_idle()

    def model_ready(self) -> None:
        """Say and record what each feature does, now that the model is loaded and warmed up.

        :raises RequiredIdle: if a required feature is idle.
        """
        self.ready = True
        self._publish()
        self._refuse_idle()
        self._say_changes()

    def _say_changes(self) -> None:
        """Log in one line what was not logged yet; as a WARNING for a required feature."""
        news = [
            each
            for each in self.effects()
            if each.state in (Effect.ACTIVE, Effect.IDLE)
            and self._logged.get(each.feature) != (each.state, each.text)
        ]
        self._logged.update((each.feature, (each.state, each.text)) for each in news)
        if news:
            bad = any(
                each.state is Effect.IDLE and self._process.requires(each.feature) for each in news
            )
            level = logging.WARNING if bad else logging.INFO
            log.say([(level, f"vllm-overlay: {in_words(news)}")])

    def _refuse_idle(self) -> None:
        idle = [
            each
            for each in self.effects()
            if each.state is Effect.IDLE and self._process.requires(each.feature)
        ]
        if idle:
            raise RequiredIdle(
                f"vllm-overlay: OVERLAY_REQUIRED names features that have no effect in process "
                f"{os.getpid()}: {printable(in_words(idle))}. Remove the cause, remove the "
                "requirement, or set OVERLAY_REQUIRED_PRESENT instead, which requires the patched "
                "code, whether it is used or not"
            )


def _meanings(module: ModuleType | None) -> tuple[Meaning | None, ...]:
    """What each count says; nothing where patches of an older overlay are on disk."""
    ask = getattr(module, "meanings", None)
    if ask is None:
        return ()
    return tuple(None if meaning is None else Meaning(*meaning) for meaning in ask())


def in_words(effects: Iterable[EffectRecord]) -> str:
    """Effects as one phrase: ``draft-graphs is active: 14 graphs (loop); x is idle: why``."""
    return "; ".join(
        f"{each.feature} is {each.state.value}{f': {each.text}' if each.text else ''}"
        for each in effects
    )


def model_runner(runner: object) -> ModelRunner | None:
    """Which model runner an object is; ``None`` for any other than V1 and V2."""
    bases = {(each.__module__, each.__name__) for each in type(runner).__mro__}
    if _V2_RUNNER in bases:
        return ModelRunner.V2
    return ModelRunner.V1 if _V1_RUNNER in bases else None
