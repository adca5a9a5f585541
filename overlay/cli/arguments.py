"""The command line: arguments in, exit codes out; the commands do the work and do not print.

Whatever a command needs is imported when it runs, so that ``--help`` and ``status`` stay fast."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from overlay import __version__

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.report.model import Report


F = TypeVar("F", bound=Callable[..., Any])

_TARGET = (
    "TARGET is a folder that holds vllm/ (site-packages, a checkout, an unpacked sdist), a wheel "
    "or sdist file, or a release such as 0.26.0; without it, the vLLM that this Python would "
    "import is meant."
)


@dataclass(frozen=True)
class Answer:
    """A report and how the user wants to see it."""

    report: Report
    json: bool = False
    verbose: bool = False


def _feature_option(command: F) -> F:
    return click.option(
        "--feature",
        "features",
        metavar="ID",
        multiple=True,
        help="Only this feature; may be given several times.",
    )(command)


def _output_options(command: F) -> F:
    command = click.option(
        "-v", "--verbose", is_flag=True, help="Also show every file and hunk, and where it lands."
    )(command)
    return click.option(
        "--json", "as_json", is_flag=True, help="Answer in JSON on standard output."
    )(command)


def _target_argument(command: F) -> F:
    return click.argument("target", required=False)(command)


class _InOrder(click.Group):
    """A group that lists its commands in the order in which they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of definition."""
        return list(self.commands)


@click.group(
    cls=_InOrder,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 nothing needs you, 1 something does, 2 usage or environment.",
)
@click.version_option(__version__, prog_name="overlay", message="%(prog)s %(version)s")
@click.option(
    "--patches",
    metavar="DIR",
    multiple=True,
    help="Also use the features in this folder; may be given several times. The folders in "
    "OVERLAY_PATCHES come first.",
)
@click.pass_context
def cli(context: click.Context, patches: tuple[str, ...]) -> None:
    """Source patches for an installed vLLM, applied by their anchors.

    \b
    Example:
      overlay check          # would the patches go onto the installed vLLM?
      overlay apply          # patch it
      overlay revert         # put every byte back
    """
    inherited = os.environ.get("OVERLAY_PATCHES", "").split(os.pathsep)
    context.obj = tuple(folder for folder in (*inherited, *patches) if folder)


def _request(context: click.Context, features: Sequence[str] = ()) -> Request:
    from overlay.commands.request import Request

    return Request(patches=context.obj, features=tuple(features))


@cli.command(epilog=_TARGET)
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option(
    "--releases",
    metavar="RANGE",
    help="Also check these releases of vLLM, fetched into your cache: 0.20.0..0.33.0, one "
    "release, or all.",
)
@_feature_option
@_output_options
@click.pass_context
def check(
    context: click.Context,
    targets: tuple[str, ...],
    releases: str | None,
    features: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Say whether the patches match; write nothing.

    \b
    Example:
      overlay check                                # the installed vLLM
      overlay check 0.26.0 ./vllm-0.27.0.tar.gz    # a release and a file
      overlay check --releases all                 # every release, as a table
    """
    from overlay.commands.check import check as command
    from overlay.report.progress import Meter

    with Meter() as progress:
        report = command(_request(context, features), targets, releases, progress)
    return Answer(report, as_json, verbose)


@cli.command()
@_target_argument
@_feature_option
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option(
    "--untested",
    is_flag=True,
    help="Also patch a release that is newer than those the patches were tested on.",
)
@_output_options
@click.pass_context
def apply(
    context: click.Context,
    target: str | None,
    features: tuple[str, ...],
    dry_run: bool,
    untested: bool,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Patch a vLLM: all of it or nothing.

    TARGET is a folder that holds vllm/; without it, the vLLM that this Python would import is
    meant. A feature that the release has already, or that is not made for it, is left out.

    \b
    Example:
      overlay apply                                # the installed vLLM
      overlay apply --feature draft-graphs /opt/venv/lib/python3.12/site-packages
    """
    from overlay.commands.apply import apply as command

    report = command(_request(context, features), target, dry_run=dry_run, untested=untested)
    return Answer(report, as_json, verbose)


@cli.command(short_help="Put every byte back.")
@_target_argument
@_output_options
@click.pass_context
def revert(context: click.Context, target: str | None, as_json: bool, verbose: bool) -> Answer:
    """Put back the exact bytes that apply found, and remove what it added.

    TARGET is a folder that holds vllm/; without it, the vLLM that this Python would import is
    meant. Refused where somebody edited a patched file since.

    \b
    Example:
      overlay revert
      overlay revert /opt/venv/lib/python3.12/site-packages
    """
    from overlay.commands.revert import revert as command

    return Answer(command(_request(context), target), as_json, verbose)


@cli.command()
@_target_argument
@click.option("--live", is_flag=True, help="Say what the running processes of vLLM have loaded.")
@_output_options
@click.pass_context
def status(
    context: click.Context, target: str | None, live: bool, as_json: bool, verbose: bool
) -> Answer:
    """Say what is applied, and whether it still stands.

    TARGET is a folder that holds vllm/; without it, the vLLM that this Python would import is
    meant.

    \b
    Example:
      overlay status
      overlay status --json | jq -r .verdict
      overlay status --live                        # what your running vLLM has loaded
    """
    if live:
        if target is not None:
            raise click.UsageError("--live speaks of running processes: leave TARGET out.")
        from overlay.commands.status import live as running

        return Answer(running(), as_json, verbose)
    from overlay.commands.status import status as command
    from overlay.report.progress import Meter

    with Meter() as progress:
        report = command(_request(context), target, progress)
    return Answer(report, as_json, verbose)


@cli.command(epilog=_TARGET, short_help="Print the change as one unified diff.")
@_target_argument
@_feature_option
@click.pass_context
def diff(context: click.Context, target: str | None, features: tuple[str, ...]) -> Answer:
    """Print the change to a pristine vLLM as one unified diff.

    \b
    Example:
      overlay diff 0.26.0 > draft-graphs.diff
      overlay diff ./vllm-checkout | git -C ./vllm-checkout apply
    """
    from overlay.commands.diff import diff as command
    from overlay.report.progress import Meter

    with Meter() as progress:
        return Answer(command(_request(context, features), target, progress))


@cli.command("list", short_help="Show the features and the releases they are made for.")
@_output_options
@click.pass_context
def list_(context: click.Context, as_json: bool, verbose: bool) -> Answer:
    """Show the features, the releases they are made for, and what upstream did with them.

    \b
    Example:
      overlay list
      overlay --patches ./our-patches list -v
    """
    from overlay.commands.list_ import list_ as command

    return Answer(command(_request(context)), as_json, verbose)


@cli.command()
@_output_options
@click.pass_context
def doctor(context: click.Context, as_json: bool, verbose: bool) -> Answer:
    """Show everything that a bug report needs, and what needs you.

    \b
    Example:
      overlay doctor
      overlay doctor --json > report.json
    """
    from overlay.commands.doctor import doctor as command

    return Answer(command(_request(context)), as_json, verbose)
