"""``overlay doctor``: one page with everything that a bug report needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.commands.request import Request
from overlay.errors import OverlayError
from overlay.report.model import DoctorReport
from overlay.report.wording import attention, diagnosed

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


def doctor(request: Request) -> DoctorReport:
    """Collect what there is to know; what cannot be told becomes a problem, never an error."""
    from overlay.commands import diagnosis

    target, missing = diagnosis.installed()
    plugins = diagnosis.plugins()
    environment, cache = diagnosis.environment(), diagnosis.cache()
    problems: list[str] = [missing] if missing is not None else []
    problems += diagnosis.plugin_problems(plugins)
    problems += [part["problem"] for part in (environment, cache) if part["problem"]]
    standing = _standing(request, target, problems)
    processes = _processes(problems)
    data: dict[str, Any] = {
        "overlay": diagnosis.this_overlay(request.patches),
        "python": diagnosis.interpreter(),
        "vllm": None if target is None else diagnosis.vllm(target),
        "torch": diagnosis.torch(),
        "devices": diagnosis.devices(),
        "plugins": plugins,
        "environment": environment,
        "cache": cache,
        "model_runner": diagnosis.model_runner(target),
    }
    return DoctorReport(diagnosed(problems), standing, processes, data, tuple(problems))


def _standing(request: Request, target: Target | None, problems: list[str]) -> TargetReport | None:
    if target is None:
        return None
    from overlay.commands import diagnosis
    from overlay.commands.status import of_files

    try:
        features = request.load()
        problems += diagnosis.unknown_features(feature.id for feature in features)
        standing = of_files(target, features)
    except OverlayError as error:
        problems.append(str(error))
        return None
    if bad := attention(standing):
        problems.append(bad)
    return standing


def _processes(problems: list[str]) -> tuple[LiveProcess, ...]:
    from overlay.processes.live import processes

    try:
        found = processes()
    except OverlayError as error:
        problems.append(str(error))
        return ()
    problems += [f"process {one.pid}: {one.problem}" for one in found if one.problem]
    return found
