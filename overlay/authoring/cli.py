"""The commands of a patch's life: making features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from overlay.authoring.cli_port import F, asked, context_option
from overlay.authoring.commands import edit as sessions
from overlay.authoring.commands import reshape as reshaping
from overlay.authoring.commands.edit import begin_new
from overlay.authoring.commands.import_ import import_change
from overlay.authoring.commands.new import new_from_edits
from overlay.authoring.commands.port_report import PortReport
from overlay.authoring.commands.reshape import keep_context
from overlay.authoring.paths import PathRule
from overlay.cli import cli
from overlay.cli.options import (
    WRITABLE_HELP,
    asks,
    complete_features,
    complete_releases,
    folder_to_write,
    releases_option,
    target_argument,
)
from overlay.report.progress import doing
from overlay.settings import in_home

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.report import Report


_CONTEXT = context_option(
    "Keep N lines of context around each change (default: as many as its place needs)."
)


def _release_option(text: str, *names: str) -> Callable[[F], F]:
    """``--release RELEASE``, which may be called by another name in Python."""
    return click.option(
        "--release", *names, metavar="RELEASE", help=text, shell_complete=complete_releases
    )


def _file_option(text: str) -> Callable[[F], F]:
    return click.option("--file", "files", metavar="PATH", multiple=True, help=text)


@cli.command("import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--id", "id_", metavar="ID", required=True, help="The new feature's id.")
@click.option(
    "--base",
    "checkout",
    metavar="BASE",
    help="What has the text which it was made on: a checkout, one file of it, or a release "
    "(default: the release that fits).",
)
@releases_option("Only these releases may be served, by default all")
@click.option(
    "--partial",
    is_flag=True,
    help="Leave out what lies outside the package, and modes; do not refuse.",
)
@click.option("--each", is_flag=True, help="Make a feature of each commit; --id begins their ids.")
@click.option("--update", is_flag=True, help="Replace the feature of that id.")
@_CONTEXT
@click.option(
    "--strip",
    type=click.IntRange(min=0),
    metavar="N",
    help="Cut N folders off each path, as patch -pN does (default: as the releases' files tell).",
)
@click.option(
    "--directory",
    metavar="DIR",
    default="",
    help="The folder that the paths are relative to, such as vllm/v1 (default: found).",
)
@_release_option(
    "Place it on this release by hand, in ./port-RELEASE, where it lands on none.", "onto"
)
@asks
def import_(
    request: Request,
    sources: tuple[str, ...],
    id_: str,
    checkout: str | None,
    strip: int | None,
    directory: str,
    **options: Any,
) -> Report:
    """Make a feature of a change that was made elsewhere.

    SOURCE is a unified diff or a mailbox of `git format-patch`, - for standard input, the URL of a
    pull request or commit, or CHECKOUT@A..B for commits of a git checkout; several are laid on
    each other. The feature is written to the last folder that --patches, overlay.toml
    or OVERLAY_PATCHES names. Tests and documentation of the change are left out; each hunk is
    placed in the function that holds it; the range of releases is found by trying all of them.

    \b
    Example:
      overlay import 49391.diff --id stop-strings --patches ./our-patches
      overlay import https://github.com/vllm-project/vllm/pull/49391 --id stops --patches ours
      overlay import ~/src/vllm@main..fix --id our-fix --base ~/src/vllm --patches ours
    """
    with doing(request.progress, f"importing {id_}"):
        report = import_change(
            request,
            sources,
            id_,
            in_home(folder_to_write(request.patches)),
            checkout=None if checkout is None else in_home(checkout),
            paths=PathRule(strip, directory),
            **options,
        )
    return asked(request, report) if isinstance(report, PortReport) else report


@cli.command(epilog=WRITABLE_HELP)
@click.argument("id_", metavar="ID")
@target_argument
@_file_option("Lay out this file of a release, such as vllm/v1/utils.py, to be edited; repeatable.")
@_release_option("With --file: the release whose files are edited (default: the newest known one).")
@click.option(
    "--from-edits",
    is_flag=True,
    help="Take what differs from the release, or from the patches, in an installed vLLM.",
)
@click.option("--title", default="", help="What the change does, in a line (default: the ID).")
@releases_option("With --from-edits: only these releases may be served, by default all")
@click.option("--update", is_flag=True, help="With --from-edits: replace the feature of that id.")
@click.option(
    "--removals",
    is_flag=True,
    help="With --from-edits: a file that is missing was removed, not lost; the feature removes it.",
)
@_CONTEXT
@asks
def new(request: Request, /, id_: str, **options: Any) -> Report:
    """Make a feature: of a release's files that you edit, or of what was edited already.

    --file lays files of a release into ./ID@RELEASE: edit them there, then `overlay edit --commit`
    makes the feature. --from-edits takes what somebody edited in an installed vLLM: what is
    neither the release's own (by RECORD) nor what the overlay wrote; a module that was put there
    becomes an added module, and edits of a patched file stack on those patches. The edits stay in
    place. The feature is written to the last folder that --patches, overlay.toml or
    OVERLAY_PATCHES names.

    \b
    Example:
      overlay new stop-fix --file vllm/v1/engine/detokenizer.py --patches ./our-patches
      overlay edit --commit ./stop-fix@0.33.0
      overlay new stop-fix --from-edits --patches ./our-patches
      overlay revert --keep-as stop-fix --patches ./our-patches     # and take them out
    """
    _expect_one_way(id_, request.target or request.python, options)
    folder = folder_to_write(request.patches)
    of_files = {name: options.pop(name) for name in ("files", "release")}
    del options["from_edits"]
    with doing(request.progress, f"making {id_}"):
        if of_files["files"]:
            both = {name: options[name] for name in ("title", "context")}
            return begin_new(request, id_, **of_files, **both)
        return new_from_edits(request, id_, in_home(folder), **options)


def _expect_one_way(id_: str, target: str | None, options: Mapping[str, Any]) -> None:
    """Refuse arguments that do not say, in one way, what a new feature is made of."""
    if options["from_edits"] is bool(options["files"]):
        raise click.UsageError(
            f"say what {id_} is made of, in one way: --file vllm/... lays out files of a release "
            "to edit; --from-edits takes what was edited in an installed vLLM; `overlay import` "
            "takes a diff."
        )
    of_edits = ("releases", "update", "removals")
    if options["files"] and (target or any(options[name] for name in of_edits)):
        raise click.UsageError(
            "--file edits files of a release, named by --release; TARGET, --python, --releases, "
            "--update and --removals go with --from-edits."
        )
    if options["from_edits"] and options["release"]:
        raise click.UsageError("--release goes with --file; --from-edits takes a TARGET.")


@cli.command()
@click.argument("id_", metavar="ID", required=False, shell_complete=complete_features)
@_release_option(
    "The release whose files are edited (default: the newest that the feature serves)."
)
@_file_option("Also lay out this file, such as vllm/v1/utils.py; may be repeated, and given later.")
@click.option("--commit", metavar="FOLDER", help="Make the feature of the files as edited.")
@click.option("--abort", metavar="FOLDER", help="Remove a session with all edits in it.")
@click.option(
    "--rename", metavar="NEW", help="Give the feature another id, and place in the order."
)
@click.option("--fold", metavar="OTHER", help="Make one feature of this one and another.")
@click.option(
    "--split", metavar="TOPIC", multiple=True, help="With --into: take this topic out of it."
)
@click.option("--into", metavar="NEW", help="With --split: the id of the feature that gets them.")
@context_option(
    "Give the hunks N lines of context, where so many tell the place: those of ID, without a "
    "session, or with --commit those that were edited."
)
@asks
def edit(
    request: Request,
    /,
    id_: str | None,
    release: str | None,
    files: tuple[str, ...],
    commit: str | None,
    abort: str | None,
    context: int | None,
    **form: Any,
) -> Report:
    """Edit a feature as files of vLLM instead of as diffs.

    A folder ./ID@RELEASE gets the release's files with the feature, and those before it, applied.
    Edit them, add modules, remove added ones; --commit makes the hunks again, and checks that
    applying them gives these files byte for byte. The session stays until it is committed or
    aborted; a commit without a change keeps it.

    \b
    Example:
      overlay edit stop-fix --release 0.28.0 --patches ./our-patches
      overlay edit --commit ./stop-fix@0.28.0
      overlay edit --abort ./stop-fix@0.28.0
      overlay edit stop-fix --rename 10-stop-fix   # features are ordered by their ids
      overlay edit stop-fix --split 20-utils --into utils-fix
      overlay edit stop-fix --context 1                # a hunk drifted by a line beside its change
    """
    if any(form.values()):
        _expect_one_form(id_, (release, *files, commit, abort, context), form)
        if form["rename"] is not None:
            return reshaping.rename(request, str(id_), form["rename"])
        if form["fold"] is not None:
            return reshaping.fold(request, str(id_), form["fold"])
        return reshaping.split_off(request, str(id_), form["split"], form["into"])
    if sum(argument is not None for argument in (id_, commit, abort)) != 1:
        raise click.UsageError("give one of: ID, --commit FOLDER, --abort FOLDER.")
    if id_ is None and (release is not None or files):
        raise click.UsageError("--release and --file begin a session: name the feature's ID.")
    if context is not None:
        if abort is not None or release is not None or files:
            raise click.UsageError("--context goes with the feature's ID alone, or --commit.")
        if id_ is not None:
            return keep_context(request, id_, context, request.progress)
    with doing(request.progress, f"editing {id_ or commit or abort}"):
        if id_ is not None:
            return sessions.begin(request, id_, release, files)
        if commit is not None:
            return sessions.commit(request, in_home(commit), context)
    return sessions.abort(in_home(abort or ""))


def _expect_one_form(id_: str | None, session: tuple[object, ...], form: Mapping[str, Any]) -> None:
    """Refuse arguments that do not say, in one way, what is to become of a feature."""
    ways = [name for name in ("rename", "fold", "split") if form[name]]
    if (
        id_ is None
        or any(each is not None for each in session)
        or len(ways) != 1
        or bool(form["split"]) is not bool(form["into"])
    ):
        raise click.UsageError(
            "give ID and one of: --rename NEW, --fold OTHER, --split TOPIC... --into NEW."
        )
