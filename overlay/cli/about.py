"""The commands about the overlay itself: what is wrong, its cache, completion and help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from overlay.cli.group import cli, everywhere, unknown
from overlay.cli.options import (
    TARGET_HELP,
    asks,
    common_options,
    complete_releases,
    target_argument,
    wants_json,
)
from overlay.commands import lazy as commands

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.report.base import Report

#: Names of standard output.
_STANDARD_OUTPUT = frozenset({"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})


@cli.command()
@target_argument
@asks
def doctor(request: Request) -> Report:
    """Show everything that a bug report needs, and what needs you.

    Of this Python's environment; where overlay lives elsewhere (uv tool, pipx), of the virtual
    environment or the interpreter that TARGET or --python names.

    \b
    Example:
      overlay doctor
      overlay doctor --python .venv/bin/python
      overlay doctor --json > report.json
    """
    return commands.doctor(request)


@cli.command(epilog=TARGET_HELP)
@target_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write a page of HTML to this file, outside of any target; - is standard output (default: "
    "print text).",
)
@click.option(
    "--releases",
    metavar="RANGE",
    help="Only these releases in the matrix: a closed range, one release, new, or all (the "
    "default).",
    shell_complete=complete_releases,
)
@click.option("--no-matrix", is_flag=True, help="Leave out the matrix, which reads every release.")
@asks
def report(request: Request, output: str | None, releases: str | None, no_matrix: bool) -> Report:
    """Collect what check, status, status --live, doctor and log --matrix answer.

    As one page of HTML with -o: it loads nothing, so it can be mailed or attached to an issue.
    What one of them cannot answer is told in its place.

    \b
    Example:
      overlay report -o report.html
      overlay report --python .venv/bin/python -o report.html
      overlay report --no-matrix --json
    """
    if no_matrix and releases is not None:
        raise click.UsageError("--releases speaks of the matrix: omit it, or --no-matrix.")
    if output in _STANDARD_OUTPUT:
        output = "-"
    if output == "-" and wants_json():
        raise click.UsageError("-o - and --json both mean standard output: give one of them.")
    return commands.report(request, releases=releases, matrix=not no_matrix, output=output)


@cli.command()
@click.argument("what", type=click.Choice(["dir", "size", "clean"]))
@common_options
def cache(what: str) -> Report:
    """Say where the cache lies, how large it is, or empty it.

    The cache holds releases that were fetched, modules that were patched in memory and what was
    learnt of texts. All of it is made again where it is needed; what else lies in the folder is
    left alone.

    \b
    Example:
      overlay cache dir
      overlay cache size
      overlay cache clean
    """
    return commands.cache(what)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@everywhere
def completion(shell: str) -> str:
    """Print the lines that make a shell complete commands, options, features and releases.

    \b
    Example:
      overlay completion bash >> ~/.bashrc
      overlay completion zsh >> ~/.zshrc
      overlay completion fish > ~/.config/fish/completions/overlay.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click.Choice lets no other shell through"
    return kind(cli, {}, "overlay", "_OVERLAY_COMPLETE").source().strip()


@cli.command("help")
@click.argument("command", required=False)
@everywhere
@click.pass_context
def help_(context: click.Context, command: str | None) -> str:
    """Show the help of a command, or this overview.

    \b
    Example:
      overlay help apply
    """
    root = context.find_root()
    if command is None:
        return root.get_help()
    subject = cli.get_command(context, command)
    if subject is None:
        raise click.UsageError(unknown(command), root)
    return subject.get_help(click.Context(subject, info_name=command, parent=root))
