"""``overlay bench``: the step time of stock V1, of the overlay and of V2, in turn, on one GPU.

Arguments become rounds, in each of which every engine runs once, in an order that moves on by one;
``proof.step_time`` measures, and ``report.benched`` says what the repeats show.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.commands.request import Request
from overlay.commands.stock_copy import make_stock_copy
from overlay.commands.verify import interpreter
from overlay.commands.verify_failures import told_of
from overlay.errors import OverlayError
from overlay.proof.engine_launch import append_path, link_packages
from overlay.proof.engine_pool import Ended, Job, run_jobs
from overlay.proof.repeats import Timed, order, read
from overlay.report.benched import OVERLAY, STOCK, V2, BenchReport, benched

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class Question:
    """What the user asked.

    :ivar shape: one of ``proof.shapes.SHAPES``; weights are dummies.
    :ivar batches: numbers of requests at a time.
    :ivar rounds: how often each engine is started; :ivar repeats: of each batch and round.
    :ivar accept: the mean number of tokens a step; the acceptance is synthetic.
    :ivar page: a file for the page of HTML; ``None`` for none.
    """

    shape: str
    k: int = 3
    batches: tuple[int, ...] = (1, 8, 32)
    rounds: int = 2
    repeats: int = 5
    tokens: int = 192
    accept: float = 2.5
    engine: str = "{}"
    mode: str = "FULL_AND_PIECEWISE"
    python: str | None = None
    deadline: float = 600.0
    page: Path | None = None
    logs: Path | None = None


def bench(question: Question, told: Callable[[str, float | None], None]) -> BenchReport:
    """Run the engines and compare their repeats.

    :raises OverlayError: if vLLM is not patched on disk, or stock V1 or the overlay does not serve.
    """
    python = interpreter(question.python)
    root = Request(python=None if question.python is None else str(python)).resolve(None).root
    assert root is not None, "an environment's vLLM is in a folder"
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as folder:
        work = Path(folder)
        (work / "stock").mkdir()
        if make_stock_copy(root, work / "stock") is None:
            raise OverlayError(
                f"expected a vLLM that is patched on disk, found none in {root}: run "
                "`overlay apply`; bench compares it with a copy of the release's own files"
            )
        stage = _Stage(question, python, work, link_packages(work / "code"), told)
        timed, left = stage.measure()
    report = BenchReport(benched(timed), question.shape, question.k, tuple(timed), left)
    if question.page is not None:
        from overlay.report.bench_page import page

        _write(question.page, page(report))
    return report


def _write(place: Path, text: str) -> None:
    """Write a file whole or not at all.

    :raises OverlayError: if it cannot be written.
    """
    from overlay.authoring.disk import write_over

    try:
        write_over(place, text.encode())
    except OSError as error:
        raise OverlayError(
            f"--html {place}: the page could not be written: {error.strerror}; name another file"
        ) from error


@dataclass(frozen=True)
class _Stage:
    """The place where the engines of one comparison run.

    :ivar code: a folder from which the engines import the overlay.
    """

    question: Question
    python: Path
    work: Path
    code: Path
    told: Callable[[str, float | None], None]

    def measure(self) -> tuple[list[Timed], dict[str, str]]:
        """What each engine took, and why an engine was left out, by name."""
        found: dict[str, list[Mapping[str, Any]]] = {STOCK: [], OVERLAY: [], V2: []}
        left: dict[str, str] = {}
        for round_ in range(self.question.rounds):
            for engine in order(tuple(found), round_):
                if engine in left:
                    continue
                ended = self._run(engine, round_)
                if ended.result is not None and ended.status == 0:
                    found[engine].append(ended.result)
                elif engine == V2:
                    left[V2] = told_of(ended)
                else:
                    raise OverlayError(f"{engine}: {told_of(ended)}")
        return [read(name, rounds) for name, rounds in found.items() if name not in left], left

    def _run(self, engine: str, round_: int) -> Ended:
        name = f"{engine}, round {round_ + 1}"
        folder = self.work / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        logs = folder if self.question.logs is None else self.question.logs.resolve()
        logs.mkdir(parents=True, exist_ok=True)
        out = folder / "result.json"
        log = logs / f"{folder.name}.log"
        job = Job(name, self._command(out), self._environment(engine), folder, log)

        def told(job: Job, ended: Ended | None) -> None:
            self.told(job.name, None if ended is None else ended.seconds)

        ended = run_jobs([job], at_a_time=1, deadline=self.question.deadline, told=told)
        return ended[name]

    def _command(self, out: Path) -> tuple[str, ...]:
        asked = self.question
        options = {
            "--shape": asked.shape,
            "--k": asked.k,
            "--batch": ",".join(map(str, asked.batches)),
            "--mode": asked.mode,
            "--tokens": asked.tokens,
            "--repeats": asked.repeats,
            "--accept": asked.accept,
            "--engine": asked.engine,
            # The same folder for all: a later engine uses what an earlier one has compiled.
            "--configs": self.work / "configs",
            "--out": out,
        }
        words = [str(word) for option in options.items() for word in option]
        return (str(self.python), "-m", "overlay.proof.step_time", "--wait", *words)

    def _environment(self, engine: str) -> dict[str, str]:
        """The variables of an engine: stock and V2 run the release's own files, without plugin."""
        made = dict(os.environ)
        made[_RUNNER] = "1" if engine == V2 else "0"
        if engine != OVERLAY:
            made["OVERLAY"] = "off"
            given = made.get("PYTHONPATH")
            stock = str(self.work / "stock")
            made["PYTHONPATH"] = f"{stock}{os.pathsep}{given}" if given else stock
        return append_path(made, self.code)
