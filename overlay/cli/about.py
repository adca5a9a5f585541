"""The commands about the overlay itself: what is wrong, its cache, completion and help."""

from __future__ import annotations

import click

from overlay.cli.group import cli, unknown
from overlay.cli.options import (
    TARGET_HELP,
    Answer,
    common_options,
    complete_releases,
    patches_of,
    refuse_both,
    target_argument,
)

#: Names of standard output.
_STANDARD_OUTPUT = frozenset({"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})


@cli.command()
@target_argument
@common_options
@click.pass_context
def doctor(
    context: click.Context, target: str | None, python: str | None, as_json: bool, verbose: bool
) -> Answer:
    """Show everything that a bug report needs, and what needs you.

    Of this Python's environment; where overlay lives elsewhere (uv tool, pipx), of the virtual
    environment or the interpreter that TARGET or --python names.

    \b
    Example:
      overlay doctor
      overlay doctor --python .venv/bin/python
      overlay doctor --json > report.json
    """
    from overlay.api import command_line

    refuse_both(target, python)
    answer = command_line.doctor(target, python=python, patches=patches_of(context))
    return Answer(answer, as_json, verbose)


@cli.command(epilog=TARGET_HELP)
@target_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write a page of HTML to this file, outside of any target; - is standard output.",
)
@click.option(
    "--releases",
    metavar="RANGE",
    help="Only these releases in the matrix: a closed range, one release, new, or all (the "
    "default).",
    shell_complete=complete_releases,
)
@click.option("--no-matrix", is_flag=True, help="Leave out the matrix, which reads every release.")
@common_options
@click.pass_context
def report(
    context: click.Context,
    target: str | None,
    python: str | None,
    output: str | None,
    releases: str | None,
    no_matrix: bool,
    as_json: bool,
    verbose: bool,
) -> Answer:
    """Collect what check, status, status --live, doctor and log --matrix answer.

    As one page of HTML with -o: it loads nothing, so it can be mailed or attached to an issue.
    What one of them cannot answer is told in its place.

    \b
    Example:
      overlay report -o report.html
      overlay report --python .venv/bin/python -o report.html
      overlay report --no-matrix --json
    """
    from overlay.api import command_line

    refuse_both(target, python)
    if no_matrix and releases is not None:
        raise click.UsageError("--releases speaks of the matrix: omit it, or --no-matrix.")
    if output in _STANDARD_OUTPUT:
        output = "-"
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both mean standard output: give one of them.")
    with command_line.meter() as progress:
        answer = command_line.collect(
            target,
            python=python,
            patches=patches_of(context),
            releases=releases,
            matrix=not no_matrix,
            output=output,
            progress=progress,
        )
    return Answer(answer, as_json, verbose)


@cli.command()
@click.argument("what", type=click.Choice(["dir", "size", "clean"]))
@common_options
def cache(what: str, as_json: bool, verbose: bool) -> Answer:
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
    from overlay.api import command_line

    return Answer(command_line.cache(what), as_json, verbose)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> str:
    """Print the lines that make a shell complete commands, options, features and releases.

    \b
    Example:
      overlay completion bash >> ~/.bashrc
      overlay completion zsh >> ~/.zshrc
      overlay completion fish > ~/.config/fish/completions/overlay.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click.Choice lets no other shell through"
    return kind(cli, {}, "overlay", "_OVERLAY_COMPLETE").source().strip()


@cli.command("help")
@click.argument("command", required=False)
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
    known = cli.get_command(context, command)
    if known is None:
        raise click.UsageError(unknown(command), root)
    return known.get_help(click.Context(known, info_name=command, parent=root))
