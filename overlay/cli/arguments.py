"""The commands that patch a vLLM or say how it is patched; ``overlay.api`` does their work.

Whatever a command needs is imported when it runs, so that ``--help`` and ``status`` stay fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from overlay.cli.group import cli
from overlay.cli.options import (
    TARGET_HELP,
    WRITABLE_HELP,
    Answer,
    common_options,
    complete_releases,
    complete_target,
    feature_option,
    folder_to_write,
    patches_of,
    python_option,
    refuse_both,
    require_option,
    target_argument,
    without_option,
)

if TYPE_CHECKING:
    from overlay.api import Report

_ONLY = "Only this feature; may be given several times."


def _with_progress(work: Callable[..., Report], *arguments: Any, **options: Any) -> Report:
    """Run ``work`` with a meter on standard error, for what takes long."""
    from overlay.api import command_line

    with command_line.meter() as progress:
        return work(*arguments, progress=progress, **options)


def _refusable(work: Callable[..., Report], *arguments: Any, **options: Any) -> Report:
    """Run what raises where something needs the user; the command line answers with a report."""
    from overlay import api

    try:
        return work(*arguments, **options)
    except api.PatchRefused as refused:
        return refused.report


@cli.command(epilog=TARGET_HELP)
@click.argument("targets", metavar="[TARGET]...", nargs=-1, shell_complete=complete_target)
@click.option(
    "--releases",
    metavar="RANGE",
    help="Also check these releases of vLLM, fetched into your cache: 0.20.0..0.33.0, one "
    "release, all, or new (those on the package index that this overlay does not know); of "
    "another package with its name in front: vllm-ascend==all.",
    shell_complete=complete_releases,
)
@click.option("--pre", is_flag=True, help="With `--releases new`: pre-releases as well.")
@python_option
@feature_option(_ONLY)
@without_option
@common_options
@click.pass_context
def check(
    context: click.Context,
    targets: tuple[str, ...],
    releases: str | None,
    pre: bool,
    python: str | None,
    only: tuple[str, ...],
    without: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Say whether the patches match; write nothing.

    \b
    Example:
      overlay check                                # the installed vLLM
      overlay check 0.26.0 ./vllm-0.27.0.tar.gz    # a release and a file
      overlay check --python .venv/bin/python      # the vLLM of another environment
      overlay check --releases all                 # every release, as a table
      overlay check --releases new                 # what came out since this overlay
      overlay check vllm-ascend==0.23.0.post1      # a release of another package
    """
    from overlay.api import command_line

    refuse_both(targets, python)
    report = _with_progress(
        command_line.check_many,
        targets,
        releases=releases,
        pre=pre,
        python=python,
        only=only,
        without=without,
        patches=patches_of(context),
    )
    return Answer(report, as_json, verbose)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@feature_option("Apply only this feature, beside those that are applied; may be repeated.")
@without_option
@require_option
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option(
    "--untested",
    is_flag=True,
    help="Also patch a release that is newer than those the patches were tested on.",
)
@common_options
@click.pass_context
def apply(
    context: click.Context,
    target: str | None,
    python: str | None,
    only: tuple[str, ...],
    without: tuple[str, ...],
    require: tuple[str, ...],
    dry_run: bool,
    untested: bool,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Patch a vLLM: all of it or nothing.

    A feature that the release has already, or that is not made for it, is left out.

    \b
    Example:
      overlay apply                                # the installed vLLM
      overlay apply --require draft-graphs         # in an image build: fail unless it is in
      overlay apply --feature draft-graphs /opt/venv/lib/python3.12/site-packages
    """
    from overlay import api

    refuse_both(target, python)
    report = _refusable(
        api.apply,
        target,
        python=python,
        only=only,
        without=without,
        patches=patches_of(context),
        require=require,
        dry_run=dry_run,
        untested=untested,
    )
    return Answer(report, as_json, verbose)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@feature_option("Take off only this feature and leave the others; may be repeated.")
@click.option(
    "--keep-as",
    metavar="ID",
    help="Make a feature of what was edited since, in the last folder of patches; take it out too.",
)
@common_options
@click.pass_context
def revert(
    context: click.Context,
    target: str | None,
    python: str | None,
    only: tuple[str, ...],
    keep_as: str | None,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Put back the exact bytes that apply found, and remove what it added.

    Refused where somebody edited a patched file since, unless --keep-as ID makes a feature of the
    edits first. With --feature, what is left is byte for
    byte what applying the other features alone would have made.

    \b
    Example:
      overlay revert
      overlay revert --feature steady-inputs       # and leave the others
      overlay revert /opt/venv/lib/python3.12/site-packages
      overlay revert --keep-as my-fix --patches ./our-patches
    """
    from overlay import api

    refuse_both(target, python)
    folders = patches_of(context)
    if keep_as is not None:
        folder_to_write(folders)
    report = _refusable(
        api.revert, target, python=python, only=only, patches=folders, keep_as=keep_as
    )
    return Answer(report, as_json, verbose)


@cli.command(epilog=TARGET_HELP)
@target_argument
@require_option
@click.option("--live", is_flag=True, help="Say what the running processes of vLLM have loaded.")
@common_options
@click.pass_context
def status(
    context: click.Context,
    target: str | None,
    python: str | None,
    require: tuple[str, ...],
    live: bool,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Say what is applied, whether it is intact, and what the next process will run.

    \b
    Example:
      overlay status
      overlay status --require draft-graphs        # in a probe: 0 only where it is applied
      overlay status --json | jq -r .verdict
      overlay status --live                        # what your running vLLM has loaded
      overlay status --live --require draft-graphs # in a probe: 0 only where a model uses it
    """
    from overlay import api
    from overlay.api import command_line

    refuse_both(target, python)
    if live:
        if target is not None or python is not None:
            raise click.UsageError("--live speaks of running processes: omit TARGET.")
        answer = command_line.live(require, patches_of(context))
        return Answer(answer, as_json, verbose)
    report = _with_progress(
        api.status, target, python=python, patches=patches_of(context), require=require
    )
    return Answer(report, as_json, verbose)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@common_options
@click.pass_context
def adopt(
    context: click.Context, target: str | None, python: str | None, as_json: bool, verbose: bool
) -> Answer:
    """Take over patches that are in a vLLM without the overlay's ledger.

    For a vLLM that was patched with `overlay diff | git apply`, or whose folder .vllm-overlay was
    lost. No file of vLLM changes: only the ledger and the pristine copies are written, and only
    where the hashes in vLLM's own RECORD prove what each file was.

    \b
    Example:
      overlay adopt
      overlay adopt /opt/venv/lib/python3.12/site-packages
    """
    from overlay.api import command_line

    refuse_both(target, python)
    report = _refusable(command_line.adopt, target, python=python, patches=patches_of(context))
    return Answer(report, as_json, verbose)


@cli.command(epilog=TARGET_HELP)
@target_argument
@feature_option(_ONLY)
@without_option
@common_options
@click.pass_context
def diff(
    context: click.Context,
    target: str | None,
    python: str | None,
    only: tuple[str, ...],
    without: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Print the change to a pristine vLLM as one unified diff.

    \b
    Example:
      overlay diff 0.26.0 > draft-graphs.diff
      overlay diff ./vllm-checkout | git -C ./vllm-checkout apply
    """
    from overlay.api import command_line

    refuse_both(target, python)
    report = _with_progress(
        command_line.diff_report,
        target,
        python=python,
        only=only,
        without=without,
        patches=patches_of(context),
    )
    return Answer(report, as_json, verbose)


@cli.command("list")
@click.option("--releases", is_flag=True, help="Also ask the package index for its releases.")
@click.option("--pre", is_flag=True, help="With --releases: pre-releases as well.")
@click.option(
    "--package",
    metavar="NAME",
    help="Only features of this package, such as vllm-ascend, and its releases.",
)
@common_options
@click.pass_context
def list_(
    context: click.Context,
    releases: bool,
    pre: bool,
    package: str | None,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Show the features, the releases they are made for, and what upstream did with them.

    \b
    Example:
      overlay list
      overlay list -v --patches ./our-patches
      overlay list --releases                      # which releases are newer than this overlay?
      overlay list --releases --package vllm-ascend
    """
    from overlay.api import command_line

    report = command_line.catalogue(
        patches=patches_of(context), releases=releases, pre=pre, package=package
    )
    return Answer(report, as_json, verbose)
