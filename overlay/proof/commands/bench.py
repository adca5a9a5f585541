"""``overlay bench``: stock V1, the overlay and V2 in turn, on one GPU: step times and serving.

Arguments are checked here; ``bench_engines`` runs the engines, and ``report.benched`` says what
the repeats show.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from overlay.commands.output import write_output
from overlay.commands.request import Request
from overlay.commands.scene import resolve
from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.budget import Budget, Schedule
from overlay.proof.commands.device import device_of, expect_device
from overlay.proof.commands.engines import Measured, Stage
from overlay.proof.commands.question import Question
from overlay.proof.commands.sharing import free_memory, sharing
from overlay.proof.commands.stock_copy import make_stock_copy
from overlay.proof.commands.verify import interpreter, refuse_unknown_models
from overlay.proof.engine_launch import link_packages
from overlay.proof.reports.benched import BenchReport, benched
from overlay.results.invocation import command
from overlay.untrusted import parse_json


def bench(
    question: Question,
    told: Callable[[str, float | None], None],
    planned: Callable[[Schedule], None],
    said: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Run the engines and compare their repeats.

    :param told: is called with the title of an engine, and ``None`` or the seconds it took.
    :param planned: is called once, before the first engine starts.
    :param said: is called with what else is going on, in words.
    :raises UsageError: if the arguments do not go together, or name models that are not there.
    :raises OverlayError: if vLLM is not patched on disk, or the question's reference or the overlay
        does not serve; then the logs of the engines are kept and named.
    """
    budget = Budget(question.budget)
    check_question(question)
    expect_device(device_of(question.python, (*question.arguments, question.engine)), "bench")
    shared = sharing(question, free_memory())
    python = interpreter(question.python)
    root = resolve(Request(python=None if question.python is None else str(python))).root
    assert root is not None, "an environment's vLLM is in a folder"
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as folder:
        work = Path(folder)
        (work / "stock").mkdir()
        if make_stock_copy(root, work / "stock") is None:
            raise OverlayError(
                f"expected a vLLM that is patched on disk, found none in {root}: run "
                f"{command('apply')}; bench compares it with a copy of the release's own files"
            )
        planned(question.schedule._replace(sharing=shared))
        stage = Stage(question, python, work, work / "code", work, told, budget)
        stage.sharing, stage.said = shared, said
        measured = _measured(stage)
    report = BenchReport(
        benched(measured.timed, measured.served, measured.gaps),
        question.model or question.shape,
        question.k,
        measured.timed,
        measured.left,
        measured.served,
        (shared.text(question.rounds), *measured.notes),
        measured.gaps,
        dummy=question.model is None,
        budget=question.budget,
        side_by_side=shared.side_by_side,
        rounds=question.rounds,
    )
    _write_pages(question, report)
    return report


def check_question(question: Question) -> None:
    """Refuse what cannot be meant.

    :raises UsageError: naming what was expected and what was found.
    """
    if question.model is None:
        given = {"--draft": question.draft, "--method": question.method}
        named = [option for option, value in given.items() if value is not None]
        if named:
            raise UsageError(
                f"{' and '.join(named)}: expected --model as well, found none; a --shape has a "
                "draft of its own"
            )
    else:
        refuse_unknown_models(question.model, question.draft, question.arguments)
    try:
        options = parse_json(question.engine)
    except ValueError as error:
        raise UsageError(f"--engine: expected an object in JSON, found no JSON: {error}") from error
    if not isinstance(options, dict):
        raise UsageError(f"--engine: expected an object in JSON, found {question.engine}")
    for option, place in (("--html", question.page), ("--svg", question.plot)):
        if place is not None and not place.absolute().parent.is_dir():
            raise UsageError(f"{option} {place}: expected a file in a folder, there is no folder")


def _measured(stage: Stage) -> Measured:
    """Run the engines; where one fails, their logs are kept, and the error names them.

    :param stage: its logs are where the user wants them, or in a folder of their own.
    """
    logs = stage.question.logs
    if logs is None:
        logs = Path(tempfile.mkdtemp(prefix="overlay-bench-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    keep = stage.question.logs is not None
    stage.logs, stage.code = logs.resolve(), link_packages(stage.code)
    try:
        return stage.measure()
    except OverlayError as error:
        keep = True
        raise OverlayError(f"{error}\nwhat the engines printed is in {logs}") from error
    finally:
        if not keep:
            shutil.rmtree(logs)


def _write_pages(question: Question, report: BenchReport) -> None:
    from overlay.proof.reports import bench_page

    if question.page is not None:
        write_output("--html", question.page, bench_page.page(report).encode())
    if question.plot is not None:
        write_output("--svg", question.plot, bench_page.plot_file(report).encode())
