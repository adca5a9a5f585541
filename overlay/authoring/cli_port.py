"""``overlay port``: carry features to other releases; in a terminal, resolve conflicts by a key."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from overlay.authoring.commands import port as porting
from overlay.authoring.commands import port_session as sessions
from overlay.authoring.commands.port_report import open_lines
from overlay.authoring.commands.port_session import Key
from overlay.cli import cli, warn
from overlay.cli.options import (
    asks,
    looks_or_writes,
    refuse_to_look_and_write,
    releases_option,
    wants_json,
)
from overlay.errors import described
from overlay.report.lines import Line, paint
from overlay.report.progress import doing

if TYPE_CHECKING:
    from overlay.authoring.commands.port_report import OpenFile, PortReport
    from overlay.commands.request import Request

F = TypeVar("F", bound=Callable[..., Any])

#: The keys of the prompt, and what they do.
_KEYS = {
    "p": "put your lines before upstream's, and show the file again",
    "e": "edit the file, and take it",
    "k": "take the file as it is now: a clean merge, a proposal, or your edit",
    "t": "open git's merge tool, and show the file again",
    "u": "not needed in this release: take its own text, and carry nothing of this there",
    "r": "upstream has the whole feature: note that, from this release on",
    "s": "leave the feature as it is: it does not serve this release",
    "q": "stop here; the session stays, with what was written",
}


def context_option(text: str) -> Callable[[F], F]:
    """``--context N``: how many lines of context the hunks of a feature keep."""
    number = click.IntRange(0, 1000)
    return click.option("--context", type=number, metavar="N", help=text)


@cli.command("port")
@click.argument("words", metavar="[ID]... | [FOLDER]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Port every feature at hand.")
@releases_option("To which releases")
@looks_or_writes(
    "Write what lands exactly into the patches folders, and lay the rest out in ./port-RELEASE.",
    "Show what would become of it; write nothing, and lay nothing out.",
)
@click.option(
    "--accept",
    type=click.Choice(["merged"]),
    help="With --write: write what was merged, too, without reviewing it first.",
)
@click.option("--show", is_flag=True, help="Show what waits in a session: three views of a scope.")
@click.option(
    "--continue", "go_on", is_flag=True, help="Write what the edited files say; end the session."
)
@click.option("--abort", is_flag=True, help="Remove a session; the patches stay as they are.")
@click.option("--retire", metavar="ID", help="Upstream has this feature: note it, and go on.")
@click.option("--skip", metavar="ID", help="Leave this feature as it is, and go on.")
@click.option("--tool", is_flag=True, help="Resolve conflicts in git's merge.tool.")
@click.option(
    "--resolver",
    metavar="CMD",
    help="Let a command propose: it gets the base, yours, the release's and the result as files.",
)
@context_option(
    "Keep N lines of context in the hunks that are merged, or edited before --continue "
    "(default: as many as they had)."
)
@asks
def port(request: Request, /, words: tuple[str, ...], **options: Any) -> PortReport:
    """Carry features to a release, hunk by hunk, in the safest way that holds.

    In this order: upstream has it; it lands exactly; a three-way merge in its scope is clean; the
    scope moved and the merge is clean there; else it is a conflict. Nothing merged is written
    before a person looked at it. What waits is laid out in ./port-RELEASE: edit the files there,
    then --continue; or --retire ID, --skip ID, --abort. In a terminal each conflict is asked about.

    \b
    Example:
      overlay port --all --releases 0.34.0 --dry-run     # what would become of every feature
      overlay port our-fix --releases 0.34.0 --write     # the rest waits in ./port-0.34.0
      overlay port --show                                # ... shown; edit the files; then
      overlay port --continue
    """
    actions = [name for name in _ACTIONS if options[name]]
    if len(actions) > 1:
        raise click.UsageError(f"{_option(actions[0])} and {_option(actions[1])}: one of them.")
    if wants_json() and options["tool"]:
        raise click.UsageError("--tool needs a terminal: omit --json, or use --resolver CMD.")
    if options["context"] is not None and actions not in ([], ["go_on"]):
        raise click.UsageError("--context goes with ID... --releases RANGE, or --continue.")
    if actions:
        if options["releases"] or options["dry_run"]:
            used = "--releases" if options["releases"] else "--dry-run"
            raise click.UsageError(f"{used} begins a port: omit it, or {_option(actions[0])}.")
        with doing(None if actions[0] in _PROGRAMS else request.progress, "carrying features"):
            report = _session(words, request, actions[0], options)
    else:
        ids, releases = _ids_and_releases(words, options["releases"], options["everything"])
        refuse_to_look_and_write("port", write=options["write"], dry_run=options["dry_run"])
        with doing(request.progress, "carrying features"):
            report = porting.port(
                request.of_ids(ids),
                releases,
                write=options["write"],
                lay_out=not options["dry_run"],
                accept_merged=options["accept"] is not None,
                context=options["context"],
            )
    return report if options["show"] else asked(request, report)


def asked(request: Request, report: PortReport) -> PortReport:
    """A report after the person at the terminal was asked about each file that waits."""
    if not wants_json() and sys.stdin.isatty() and sys.stdout.isatty():
        return sessions.ask(request, report, _ask, lambda text: click.echo(text, err=True))
    return report


#: What runs another program, which may ask on the terminal; nothing is drawn over that.
_PROGRAMS = ("tool", "resolver")
_ACTIONS = ("show", "go_on", "abort", "retire", "skip", *_PROGRAMS)


def _option(name: str) -> str:
    return "--continue" if name == "go_on" else f"--{name}"


def _ids_and_releases(
    words: tuple[str, ...], releases: str | None, everything: bool
) -> tuple[tuple[str, ...], str]:
    """The ids and the releases that the arguments name, in the former spelling the last of them."""
    if releases is None and words:
        words, releases = words[:-1], words[-1]
        if words or everything:
            warn("port names releases by --releases RANGE now, not by its last argument")
    if releases is None or bool(words) is everything:
        raise click.UsageError("expected ID... --releases RANGE, or --all --releases RANGE.")
    return words, releases


def _session(
    words: tuple[str, ...], request: Request, action: str, options: dict[str, Any]
) -> PortReport:
    if len(words) > 1:
        raise click.UsageError(f"{_option(action)} takes at most the session's folder.")
    folder = words[0] if words else None
    if action == "abort":
        return sessions.abort(folder)
    if action in ("retire", "skip"):
        retires = action == "retire"
        return sessions.leave(request, folder, str(options[action]), retires=retires)
    if action == "go_on":
        return sessions.proceed(request, folder, options["context"])
    if action == "show":
        return sessions.show(request, folder)
    return sessions.resolve(request, folder, options[action] if action == "resolver" else None)


def _ask(file: OpenFile, place: str) -> Key:
    """Show a file that waits and ask what to do with it; ``e`` edits it first."""
    click.echo(f"{place}:", err=True)
    _show(list(open_lines(file)))
    keys = _KEYS if file.file is not None else {key: _KEYS[key] for key in "rsq"}
    for key, meaning in keys.items():
        click.echo(f"  [{key}] {meaning}", err=True)
    try:
        key = str(click.prompt("what", type=click.Choice(list(keys)), show_choices=False, err=True))
    except click.Abort:  # control and C or D: the session stays, and the answer says where
        click.echo(err=True)
        return Key("q")
    if key == "e" and file.file is not None:
        click.edit(filename=str(file.file))
    return Key(key)


def _show(lines: list[Line]) -> None:
    """Show lines, through a pager where the terminal has not that many."""
    if len(lines) < shutil.get_terminal_size().lines - len(_KEYS) - 2:
        paint(lines, sys.stdout)
        return
    try:
        program = shlex.split(os.environ.get("PAGER", ""))
        if not program:
            click.echo_via_pager(f"{line}\n" for line in lines)
            return
        text = "".join(f"{line}\n" for line in lines)
        settings = {"LESS": "-R", **os.environ}
        pager = subprocess.Popen(program, stdin=subprocess.PIPE, env=settings)
        pager.communicate(text.encode("utf-8", "replace"))
        code = pager.returncode
        why = f"the pager {program[0]} ended with {code}" if code else ""
    except OSError as error:
        why = f"the pager cannot be run: {described(error)}"
    except ValueError as error:  # a quote without its end
        why = f"the pager cannot be run: {error}"
    if why:  # whoever reads to the end, or leaves before it, has a pager that ends with 0
        click.echo(f"{why}; without it:", err=True)
        paint(lines, sys.stdout)
