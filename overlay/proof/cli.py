"""The commands that try the patches on the user's own models and GPU: ``verify`` and ``bench``."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlay.cli import cli, everywhere
from overlay.cli.options import json_option, verbose_option, with_request
from overlay.commands.output import write_output
from overlay.proof.commands import bench as benching
from overlay.proof.commands import bench_report
from overlay.proof.commands import verify as verifying
from overlay.proof.commands.question import BUDGET, BenchQuestion, Part
from overlay.proof.commands.verify_stage import VerifyQuestion
from overlay.proof.engine_compat import GraphMode
from overlay.report.progress import Meter

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.proof.commands.question import Schedule
    from overlay.report import Report


class NumberInRange(click.FloatRange):
    """A number of a range; ``nan`` is in none, and no comparison would stop it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number.

        :raises click.BadParameter: if it is none of the range.
        """
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


#: Every default is shown.
option = functools.partial(click.option, show_default=True)


@cli.command(
    epilog="Exit status: 0 the overlay gives what it must, 1 something differs, an engine with it "
    "died, or nothing of it was used, 2 no engine could be compared.",
)
@option("--model", metavar="MODEL", help="The model to serve: a folder, or an id on the hub.")
@option(
    "--draft",
    metavar="MODEL",
    help="Its draft, likewise; with --tiny only eagle3hid, eagle3 or p-eagle.",
)
@option(
    "--method",
    metavar="NAME",
    help="vLLM's name for the kind of draft, such as eagle3.",
    show_default="as the draft's configuration says",
)
@option("--k", type=click.IntRange(1), help="Draft tokens a step.", show_default="3")
@option("--tiny", is_flag=True, help="Make small models whose answer is known, and serve them.")
@option(
    "--mode",
    "modes",
    type=click.Choice(["off", "step", "loop", "whole", "overlay"]),
    multiple=True,
    help="Only this mode; repeatable. Models of your own are always compared with `off`; `overlay` "
    "compares all features with stock, as on model runner V2.",
    show_default="each that the configuration gets",
)
@option("--check", is_flag=True, help="Turn on the address check before every replay.")
@option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with a prompt on each line.",
    show_default="the sixteen that are built in",
)
@option("--tokens", type=click.IntRange(1), default=64, help="Tokens to generate for each prompt.")
@option(
    "--python",
    metavar="PATH",
    help="The interpreter whose vLLM is served.",
    show_default="the one that runs overlay",
)
@option(
    "--jobs",
    type=click.IntRange(1),
    help="Engines that run at a time.",
    show_default="1 for models of your own, 4 with --tiny",
)
@option(
    "--deadline",
    type=NumberInRange(1),
    default=900.0,
    help="Seconds after which an engine is killed.",
)
@option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep what the engines print."
)
@json_option
@verbose_option("Also show what the graphs did on every rank.")
@everywhere
@click.argument("arguments", metavar="[-- ENGINE ARGUMENTS]", nargs=-1)
@with_request
def verify(request: Request, /, modes: tuple[str, ...], **options: Any) -> Report:
    """Serve the same prompts with and without the overlay, and compare.

    Starts your own vLLM: on model runner V2 stock and the overlay as an engine gets it, on V1 with
    draft graphs off and in each mode that the configuration gets; and compares the tokens and the
    accepted drafts of every request. Prompts are answered greedily.
    Arguments behind -- go to vLLM's engine, as to `vllm serve`.

    \b
    Example:
      overlay verify --tiny                        # models of its own, with a known answer
      overlay verify --tiny --check --python .venv/bin/python
      overlay verify --model meta-llama/Llama-3.1-8B-Instruct \\
          --draft yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --method eagle3
      overlay verify --model ./target --draft ./draft -- --tensor-parallel-size 2
    """
    modes_asked = tuple(GraphMode[title.upper()] for title in modes)
    question = VerifyQuestion(modes=modes_asked, python=request.python, **options)
    meter = Meter()
    return verifying.verify(question, _on_engine(meter.line), meter.line)


def _on_engine(write: Callable[[str], None]) -> Callable[[str, float | None], None]:
    """Write a line when an engine, by its title, starts (``None``) or has ended after seconds."""

    def write_progress(title: str, seconds: float | None) -> None:
        event = "started" if seconds is None else f"ended after {seconds:.0f} s"
        write(f"engine {title}: {event}")

    return write_progress


@cli.command(
    epilog="Exit status: 0 measured, 1 the overlay is slower than what it is measured against, or "
    "captured no graph on V1, 2 the engines could not be compared.",
)
@option(
    "--shape",
    type=click.Choice(["1b", "8b", "moe", "trial"]),
    default="1b",
    help="The shape of the models, whose weights are dummies.",
)
@option("--model", metavar="MODEL", help="A model of your own in the place of a shape.")
@option("--draft", metavar="MODEL", help="Its draft; folders, or ids on the hub.")
@option(
    "--method",
    metavar="NAME",
    help="vLLM's name for the kind of draft.",
    show_default="as the draft's configuration says",
)
@option("--k", type=click.IntRange(1), default=3, help="Draft tokens a step.")
@option(
    "--only",
    type=click.Choice(["steps", "serving"]),
    help="Step times alone, or servers alone.",
    show_default="both",
)
@option(
    "--against",
    type=click.Choice(["default", "both", "stock", "v2"]),
    default="default",
    help="What the overlay is measured against: stock, both on the model runner that the release "
    "chooses; or, the overlay on V1, stock V1, V2 or both.",
)
@option("--v1", is_flag=True, help="Measure stock V1 and the overlay on V1 beside them, too.")
@option(
    "--drafts",
    type=click.Choice(["with", "without", "both"]),
    default="with",
    help="Serve with drafts, without, or measure engines of both kinds.",
)
@option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of a --model: a file with a prompt on each line.",
    show_default="questions about texts that this Python brings",
)
@option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    help="Number of requests at a time for step times; may be given several times.",
    show_default="1, 8, 32; of a --model 1, 16, 64, 256",
)
@option(
    "--concurrency",
    type=click.IntRange(1),
    multiple=True,
    help="Number of requests at a time for servers; may be given several times.",
    show_default="1, 16, 64; of a --model 256, too",
)
@option(
    "--prompt",
    type=click.IntRange(1),
    default=512,
    help="Tokens of each prompt that a server of a shape gets.",
)
@option(
    "--answer",
    type=click.IntRange(2),
    default=256,
    help="Tokens of each answer that a server gives; of a --model at most.",
)
@option(
    "--request-rate",
    "rate",
    type=NumberInRange(0),
    help="Requests a second while the time to the first token is taken; 0 leaves it out.",
    show_default="half of what the first engine answers",
)
@option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The port of the servers.",
    show_default="a free one",
)
@option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    help="Rounds, in each of which every engine starts and is measured.",
)
@option(
    "--repeats",
    type=click.IntRange(2),
    default=5,
    help="Repeats for each batch size in each round.",
)
@option(
    "--budget",
    type=NumberInRange(0),
    default=BUDGET,
    help="Seconds for everything: what takes longer is left out, and the report names it.",
)
@option(
    "--tokens",
    type=click.IntRange(16),
    default=192,
    help="Tokens that each request generates for step times.",
)
@option(
    "--accept",
    type=NumberInRange(0),
    help="Tokens a step by synthetic acceptance; 0: what the models accept.",
    show_default="2.5 for shapes, 0 for models",
)
@option("--mode", help="The cudagraph_mode of a shape.", show_default="as vLLM chooses")
@option("--engine", metavar="JSON", default="{}", help="Further arguments of vllm.LLM.")
@option(
    "--python",
    metavar="PATH",
    help="The interpreter whose vLLM is timed.",
    show_default="the one that runs overlay",
)
@option(
    "--deadline",
    type=NumberInRange(1),
    default=600.0,
    help="Seconds after which an engine is killed.",
)
@option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page as well."
)
@option("--svg", "plot", type=click.Path(path_type=Path, dir_okay=False), help="Write the plots.")
@option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep what the engines print."
)
@json_option
@everywhere
@click.argument("arguments", metavar="[-- ENGINE ARGUMENTS]", nargs=-1)
@with_request
def bench(
    request: Request, /, batches: tuple[int, ...], concurrency: tuple[int, ...], **options: Any
) -> Report:
    """Time stock and the overlay in turn, on one GPU: engine steps, and servers.

    Both use the model runner that the release chooses. A server is asked by vLLM's own client
    (`vllm bench serve`): output tokens a second by the number of requests at a time, and the time
    to the first token at one rate of requests; a model of your own is asked real text. Stock runs a
    copy of the release's own files, which is made for this; the installation stays as it is. Each
    engine is warmed up until repeats agree. Where the repeats of two engines overlap, no conclusion
    is drawn.

    \b
    Example:
      overlay bench                                # the shape of Llama 3.2 1B, with an EAGLE3 draft
      overlay bench --shape 8b --only serving --html bench.html
      overlay bench --model ./target --draft ./draft --drafts both -- --max-model-len 8192
    """
    own = (1, 16, 64, 256) if options["model"] is not None else ()
    options |= {"batches": batches or own or (1, 8, 32)}
    options |= {"concurrency": concurrency or own or (1, 16, 64)}
    options["python"] = request.python
    if options["only"] is not None:
        options["only"] = Part(options["only"])
    start, meter = time.monotonic(), Meter()

    def write(words: str) -> None:
        meter.line(f"[{time.monotonic() - start:4.0f} s] {words}")

    def on_plan(schedule: Schedule) -> None:
        meter.line(schedule.text)

    report = benching.bench(BenchQuestion(**options), _on_engine(write), on_plan, write)
    if options["page"] is not None:
        write_output("--html", options["page"], bench_report.page(report).encode())
    if options["plot"] is not None:
        write_output("--svg", options["plot"], bench_report.plot_file(report).encode())
    return report
