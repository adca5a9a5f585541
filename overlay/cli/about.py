"""The commands about the overlay itself: what is wrong, its cache, completion and help."""

from __future__ import annotations

import click

from overlay.cli.group import cli, unknown
from overlay.cli.options import Answer, common_options, patches_of


@cli.command()
@common_options
@click.pass_context
def doctor(context: click.Context, as_json: bool, verbose: bool) -> Answer:
    """Show everything that a bug report needs, and what needs you.

    \b
    Example:
      overlay doctor
      overlay doctor --json > report.json
    """
    from overlay.api import command_line

    return Answer(command_line.doctor(patches=patches_of(context)), as_json, verbose)


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
