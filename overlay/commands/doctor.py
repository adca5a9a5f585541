"""``overlay doctor``: one page with everything that a bug report needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.commands.request import Request
from overlay.errors import OverlayError
from overlay.report.diagnosis import DoctorReport, Page, diagnosed
from overlay.report.wording import attention

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


def doctor(request: Request) -> DoctorReport:
    """Collect what there is to know; what cannot be told becomes a problem, never an error.

    :raises OverlayError: if what is named is not an environment.
    """
    from overlay.commands import diagnosis
    from overlay.commands.variables import variables

    elsewhere = diagnosis.environment_of(request.target, request.python)
    target, missing = diagnosis.installed(elsewhere)
    plugins = diagnosis.plugins(elsewhere=elsewhere)
    environment, cache = variables(request.folders, target), diagnosis.cache()
    problems: list[str] = [missing] if missing is not None else []
    problems += diagnosis.plugin_problems(plugins)
    problems += environment.problems
    problems += [cache.problem] if cache.problem else []
    notes = list(environment.notes)
    if elsewhere is not None:
        notes.append(
            f"{elsewhere.prefix} was read from its files and nothing of it was run; python is the "
            "interpreter of this overlay, and the variables are those of this process"
        )
    installed = _installed(request, target, elsewhere and elsewhere.name, problems)
    processes = _processes(target, problems, notes)
    page = Page(
        overlay=diagnosis.this_overlay(request.patches),
        python=diagnosis.interpreter(),
        vllm=None if target is None else diagnosis.vllm(target, elsewhere),
        torch=diagnosis.torch(elsewhere),
        devices=diagnosis.devices(),
        plugins=plugins,
        environment=environment.facts,
        cache=cache,
        model_runner=diagnosis.model_runner(target, elsewhere=elsewhere),
        notes=tuple(notes),
    )
    first, others = (installed[0], installed[1:]) if installed else (None, ())
    conclusion = diagnosed(problems)
    return DoctorReport(conclusion, first, processes, page, tuple(problems), others)


def _installed(
    request: Request, target: Target | None, elsewhere: str | None, problems: list[str]
) -> tuple[TargetReport, ...]:
    """The state of vLLM and of each other package that is there and has features.

    :param elsewhere: another environment.
    :param problems: takes what needs the user.
    """
    if target is None:
        return ()
    from overlay.commands.status import of_files
    from overlay.features.model import packages_of
    from overlay.package import VLLM
    from overlay.targets.resolution import resolve_each
    from overlay.targets.target import Absent

    answers: list[TargetReport] = []
    try:
        features = request.at_hand()
        answers.append(of_files(target, features))
        further = [package for package in packages_of(features) if package != VLLM]
        if further:
            answers += [of_files(each, features) for each in resolve_each(elsewhere, further)]
    except Absent:
        pass  # features for a package that is not installed have nothing to do
    except OverlayError as error:
        problems.append(str(error))
    problems += [bad for answer in answers if (bad := attention(answer))]
    return tuple(answers)


def _processes(
    target: Target | None, problems: list[str], notes: list[str]
) -> tuple[LiveProcess, ...]:
    """The running processes; those of another vLLM without the plugin are notes, not problems."""
    from overlay.processes.live import processes, strangers_noted

    try:
        found = processes()
    except OverlayError as error:
        problems.append(str(error))
        return ()
    running = strangers_noted(found, None if target is None else target.root)
    for process in running:
        if process.note is not None:
            notes.append(f"process {process.pid} {process.note}")
        if process.problem is not None:
            problems.append(f"process {process.pid}: {process.problem}")
    return running
