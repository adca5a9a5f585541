"""``overlay bench``: stock and the overlay in turn, on one GPU: step times and serving.

Arguments are checked here; ``engines`` runs the engines, and ``report.benched`` says what
the repeats show.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.budget import Budget, Schedule
from overlay.proof.commands.device import device_of, expect_device
from overlay.proof.commands.engines import BenchStage
from overlay.proof.commands.installation import interpreter, make_stock_copy, root_of
from overlay.proof.commands.launch import Launch
from overlay.proof.commands.pair import Pair, expect_pair, pair_of
from overlay.proof.commands.question import BenchQuestion
from overlay.proof.commands.verify import prompt_lines, refuse_unknown_models
from overlay.proof.engine_launch import link_packages
from overlay.proof.reports.benched import BenchReport
from overlay.proof.texts import docstrings, questions
from overlay.results.invocation import command
from overlay.untrusted import parse_json

#: Passages that a model is asked about, five questions each: more than several runs have requests.
_PASSAGES = 1600


def bench(
    question: BenchQuestion,
    on_engine: Callable[[str, float | None], None],
    on_plan: Callable[[Schedule], None],
    on_remark: Callable[[str], None],
) -> BenchReport:
    """Run the engines and compare their repeats.

    :param on_engine: is called with the title of an engine, and ``None`` or the seconds it took.
    :param on_plan: is called once, before the first engine starts.
    :param on_remark: takes a sentence that the user should read before the engines have ended.
    :raises UsageError: if the arguments do not go together, or name models that are not there.
    :raises OverlayError: if vLLM is not patched on disk, or the question's reference or the overlay
        does not serve; then the logs of the engines are kept and named.
    """
    budget = Budget(question.budget)
    check_question(question)
    pair = _pair(question)
    remark = expect_pair(pair)
    if remark is not None:
        on_remark(remark)
    texts = _texts(question)

    def on_end(engine: str, seconds: float | None) -> None:
        on_engine(engine, seconds)
        if seconds is not None:
            expect_pair(pair)  # what vLLM has downloaded can be read now

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
            place = work / "texts.json" if texts else None
            if place is not None:
                place.write_text(json.dumps(texts), encoding="utf-8")
            launch = Launch(question, python, work, code, logs, budget, place)
            return BenchStage(launch, on_end).measure()


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
    elif question.drafts != "without" or question.draft is not None:
        refuse_unknown_models(question.model, question.draft, question.arguments)
    if question.model is None and question.prompts is not None:
        raise UsageError("--prompts: expected --model as well; a --shape is asked random tokens")
    if question.v1 and question.against != "default":
        raise UsageError(
            f"--v1 and --against {question.against} both choose engines: give one of them"
        )
    try:
        options = parse_json(question.engine)
    except ValueError as error:
        raise UsageError(f"--engine: expected an object in JSON, found no JSON: {error}") from error
    if not isinstance(options, dict):
        raise UsageError(f"--engine: expected an object in JSON, found {question.engine}")
    for option, place in (("--html", question.page), ("--svg", question.plot)):
        if place is not None and not place.absolute().parent.is_dir():
            raise UsageError(f"{option} {place}: expected a file in a folder, there is no folder")


def _pair(question: BenchQuestion) -> Pair | None:
    """The user's own model and its draft, where any engine has it."""
    if question.drafts == "without":
        return None
    return pair_of(question.model, question.draft, question.method, question.arguments)


def _texts(question: BenchQuestion) -> tuple[str, ...]:
    """What a model is asked; empty for a shape."""
    if question.model is None:
        return ()
    if question.prompts is not None:
        return prompt_lines(question.prompts)
    return tuple(each.text for each in questions(0, islice(docstrings(), _PASSAGES)))


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
