"""``overlay bench``: stock V1, the overlay and V2 in turn, on one GPU: step times and serving.

Arguments are checked here; ``engines`` runs the engines, and ``report.benched`` says what
the repeats show.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.budget import Budget, Schedule
from overlay.proof.commands.device import device_of, expect_device
from overlay.proof.commands.engines import BenchStage
from overlay.proof.commands.installation import interpreter, make_stock_copy, root_of
from overlay.proof.commands.launch import Launch
from overlay.proof.commands.question import BenchQuestion
from overlay.proof.commands.verify import refuse_unknown_models
from overlay.proof.engine_launch import link_packages
from overlay.proof.reports.benched import BenchReport, benched
from overlay.report.words import count
from overlay.results.invocation import command
from overlay.untrusted import parse_json


def bench(
    question: BenchQuestion,
    on_engine: Callable[[str, float | None], None],
    on_plan: Callable[[Schedule], None],
) -> BenchReport:
    """Run the engines and compare their repeats.

    :param on_engine: is called with the title of an engine, and ``None`` or the seconds it took.
    :param on_plan: is called once, before the first engine starts.
    :raises UsageError: if the arguments do not go together, or name models that are not there.
    :raises OverlayError: if vLLM is not patched on disk, or the question's reference or the overlay
        does not serve; then the logs of the engines are kept and named.
    """
    budget = Budget(question.budget)
    check_question(question)
    expect_device(device_of(question.python, (*question.arguments, question.engine)), "bench")
    python = interpreter(question.python)
    root = root_of(None if question.python is None else str(python))
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as folder:
        work = Path(folder)
        (work / "stock").mkdir()
        if not make_stock_copy(root, work / "stock"):
            raise OverlayError(
                f"expected a vLLM that is patched on disk, found none in {root}: run "
                f"{command('apply')}; bench compares it with a copy of the release's own files"
            )
        on_plan(question.schedule)
        with _logs(question.logs) as logs:
            code = link_packages(work / "code")
            launch = Launch(question, python, work, code, logs, budget)
            measured = BenchStage(launch, on_engine).measure()
    return BenchReport(
        benched(measured.timed, measured.served, measured.gaps),
        question.model or question.shape,
        question.k,
        measured.timed,
        measured.left,
        measured.served,
        (f"engines started in each of {count(question.rounds, 'round')}", *measured.notes),
        measured.gaps,
        dummy=question.model is None,
        budget=question.budget,
        rounds=question.rounds,
    )


def check_question(question: BenchQuestion) -> None:
    """Refuse what cannot be meant.

    :raises UsageError: naming what was expected and what was found.
    """
    if question.model is None:
        draft_options = {"--draft": question.draft, "--method": question.method}
        options = [option for option, value in draft_options.items() if value is not None]
        if options:
            raise UsageError(
                f"{' and '.join(options)}: expected --model as well, found none; a --shape has a "
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


@contextmanager
def _logs(folder: Path | None) -> Iterator[Path]:
    """The folder for what engines print; where one fails, it is kept, and the error names it.

    :param folder: the user's own, which is kept in any case; ``None``: one that is made.
    """
    logs = folder or Path(tempfile.mkdtemp(prefix="overlay-bench-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    keep = folder is not None
    try:
        yield logs.resolve()
    except OverlayError as error:
        keep = True
        raise OverlayError(f"{error}\nwhat the engines printed is in {logs}") from error
    finally:
        if not keep:
            shutil.rmtree(logs)
