"""``overlay doctor``: one page with everything that a bug report needs.

A section of the page is a named tuple whose fields are its lines and the keys of its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay._features.model import packages_of
from overlay._processes import live
from overlay.commands import diagnosis
from overlay.commands.diagnosis import EnvironmentFacts, SwitchFacts, variables
from overlay.commands.live import process_data, process_lines
from overlay.commands.request import Request
from overlay.commands.status import of_files
from overlay.errors import Absent, OverlayError
from overlay.package import VLLM
from overlay.report import Report, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, count, labelled
from overlay.report.wording import attention
from overlay.targets.resolution import resolve_each

if TYPE_CHECKING:
    from overlay._processes.live import LiveProcess
    from overlay.commands.diagnosis import (
        CacheFacts,
        DeviceFacts,
        OverlayFacts,
        PluginFacts,
        PythonFacts,
        TorchFacts,
        VllmFacts,
    )
    from overlay.report.model import TargetReport
    from overlay.targets import Target


class Page(NamedTuple):
    """The sections of the page.

    :ivar vllm: ``None`` where this Python would import none.
    :ivar model_runner: which one the release chooses, in words.
    :ivar notes: what is worth knowing and no problem.
    """

    overlay: OverlayFacts
    python: PythonFacts
    vllm: VllmFacts | None
    torch: TorchFacts
    devices: DeviceFacts
    plugins: tuple[PluginFacts, ...]
    environment: EnvironmentFacts
    cache: CacheFacts
    model_runner: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DoctorReport(Report):
    """What a bug report needs.

    :ivar installed: the vLLM that this Python would import; ``None`` where there is none.
    :ivar processes: the running vLLM processes of this user.
    :ivar problems: what needs the user, one sentence each.
    :ivar others: the other packages there that features are for.
    """

    _command: ClassVar[str] = "doctor"
    installed: TargetReport | None
    processes: tuple[LiveProcess, ...]
    page: Page
    problems: tuple[str, ...]
    others: tuple[TargetReport, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The installed vLLM, if there is one, and the other packages."""
        return () if self.installed is None else (self.installed, *self.others)

    def first_lines(self) -> Iterator[Line]:
        """The page, section by section."""
        return _page(self.page)

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The processes, and at the end, where it is read first, what needs somebody."""
        yield from process_lines(self.processes, verbose=verbose)
        table = {f"process {process.pid} {process.note}" for process in self.processes}
        for note in self.page.notes:
            if note not in table:
                yield labelled(0, "note: ", note)
        for problem in self.problems:
            yield labelled(0, f"{MARK} ", problem, "bad")

    def own_data(self) -> dict[str, Any]:
        """The processes, and the page with the problems under ``doctor``."""
        return {
            "processes": [process_data(process) for process in self.processes],
            "doctor": {**plain(self.page), "problems": plain(self.problems)},
        }


def doctor(request: Request, *, needs_vllm: bool = True) -> DoctorReport:
    """Collect what there is to know; what cannot be told becomes a problem, never an error.

    :param needs_vllm: whether it is a problem, and not a note, that there is no vLLM.
    :raises OverlayError: if what is named is not an environment.
    """
    elsewhere = diagnosis.environment_of(request.target, request.python)
    target, missing = diagnosis.installed(elsewhere)
    plugins = diagnosis.plugins(elsewhere)
    environment, cache = variables(request.folders, target), diagnosis.cache()
    lacks = [] if missing is None else [missing]
    problems = [*lacks] if needs_vllm else []
    problems += diagnosis.plugin_problems(plugins)
    problems += environment.problems
    problems += [cache.problem] if cache.problem else []
    notes = [*environment.notes, *([] if needs_vllm else lacks)]
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
        model_runner=diagnosis.model_runner(target, elsewhere),
        notes=tuple(notes),
    )
    first, rest = (installed[0], installed[1:]) if installed else (None, ())
    conclusion = diagnosed(problems)
    return DoctorReport(conclusion, first, processes, page, tuple(problems), rest)


def _installed(
    request: Request, target: Target | None, elsewhere: str | None, problems: list[str]
) -> tuple[TargetReport, ...]:
    """The state of vLLM and of each other package that is there and has features.

    :param elsewhere: another environment.
    :param problems: takes what needs the user.
    """
    if target is None:
        return ()
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
    try:
        everywhere = live.processes()
    except OverlayError as error:
        problems.append(str(error))
        return ()
    running = live.strangers_noted(everywhere, None if target is None else target.root)
    for process in running:
        if process.note is not None:
            notes.append(f"process {process.pid} {process.note}")
        if process.problem is not None:
            problems.append(f"process {process.pid}: {process.problem}")
    return running


def diagnosed(problems: Sequence[str]) -> Verdict:
    """The verdict of ``doctor``."""
    if problems:
        return Verdict(Code.PROBLEMS, f"{count(len(problems), 'problem')} found.")
    return Verdict(Code.NO_PROBLEM, "No problem found.")


def _page(page: Page) -> Iterator[Line]:
    for title, section in (
        ("overlay", page.overlay),
        ("python", page.python),
        ("vllm", page.vllm),
        ("torch", page.torch),
        ("devices", page.devices),
    ):
        yield from _section(title, {"version": None} if section is None else section._asdict())
    yield Line((Span("plugins", "heading"),))
    for plugin in page.plugins:
        runs = "runs" if plugin.runs else "does not run"
        text = f"{runs} ({plugin.why}); {plugin.value} of {plugin.distribution}"
        yield labelled(2, f"{plugin.name}: ", text)
    if not page.plugins:
        yield labelled(2, "", "none")
    yield BLANK
    yield from _section("environment", page.environment.set or {"set": "none"})
    yield from _switches(page.environment.switches)
    yield from _section("cache", page.cache._asdict())
    yield Line((Span("model runner", "heading"), Span("  ")), (Span(page.model_runner),))
    yield BLANK


def _switches(switches: Sequence[SwitchFacts]) -> Iterator[Line]:
    """The variables that features declare, and what they are set to."""
    yield Line((Span("switches", "heading"),))
    for switch in switches:
        value = switch.value or f"{switch.default} (default)"
        values = "|".join(switch.values) or "any text"
        yield labelled(2, f"{switch.name}: ", f"{value}; {values}: {switch.text}")
    if not switches:
        yield labelled(2, "", "none")
    yield BLANK


def _section(title: str, values: Mapping[str, Any]) -> Iterator[Line]:
    yield Line((Span(title, "heading"),))
    for name, value in values.items():
        if name == "problem" and value is None:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        # The name of a variable stays as it is.
        label = name.replace("_", " ") if name.islower() else name
        yield labelled(2, f"{label}: ", "none" if text in ("None", "") else text)
    yield BLANK
