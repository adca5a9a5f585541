"""The commands of a patch's life: making features."""

from __future__ import annotations

import click

from overlay.cli.arguments import cli
from overlay.cli.options import Answer, common_options, complete_releases, patches_of


@cli.command("import", short_help="Make a feature of a diff, of mails, or of a pull request.")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--id", "id_", metavar="ID", required=True, help="The new feature's id.")
@click.option(
    "--base",
    metavar="CHECKOUT",
    help="A checkout of vLLM that has the text which the change was made on.",
)
@click.option(
    "--releases",
    metavar="RANGE",
    help="The releases that it may serve: a closed range, one release, or all (the default).",
    shell_complete=complete_releases,
)
@click.option(
    "--partial", is_flag=True, help="Leave out what is not a Python module of vLLM; do not refuse."
)
@click.option("--each", is_flag=True, help="Make a feature of each commit; --id begins their ids.")
@click.option("--update", is_flag=True, help="Replace the feature of that id.")
@common_options
@click.pass_context
def import_(
    context: click.Context,
    sources: tuple[str, ...],
    id_: str,
    base: str | None,
    releases: str | None,
    partial: bool,
    each: bool,
    update: bool,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Make a feature of a change that was made elsewhere.

    SOURCE is a unified diff or a mailbox of `git format-patch`, - for standard input, the URL of a
    pull request or commit, or CHECKOUT@A..B for commits of a git checkout; several are laid on
    each other. The feature is written to the last folder that --patches, overlay.toml
    or OVERLAY_PATCHES names. Tests and documentation of the change are left out; each hunk is
    placed in the function that holds it; the range of releases is found by trying all of them.

    \b
    Example:
      overlay import 49391.diff --id stop-strings --patches ./our-patches
      overlay import https://github.com/vllm-project/vllm/pull/49391 --id stop-strings
      overlay import ~/src/vllm@main..fix --id our-fix --base ~/src/vllm
    """
    from overlay.api import command_line

    folders = patches_of(context)
    if not folders:
        raise click.UsageError(
            "there is no folder to write to: name one with --patches DIR, or in overlay.toml."
        )
    with command_line.meter() as progress:
        report = command_line.import_change(
            sources,
            id_,
            folders[-1],
            releases=releases,
            checkout=base,
            partial=partial,
            each=each,
            update=update,
            progress=progress,
        )
    return Answer(report, as_json, verbose)
