"""The command line: arguments in, streams and exit codes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from overlay import __version__
from overlay.commands import is_there, load

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


#: The first version that takes no spelling which was former in 0.2.0.
UNTIL = "0.4.0"


class Deprecation(NamedTuple):
    """A former spelling of an option of a command.

    :ivar option: the spelling now; :ivar until: the first version that no longer takes the former.
    """

    command: str
    former: str
    option: str
    until: str


#: Every former spelling that works.
DEPRECATIONS = (
    Deprecation("check", "--format", "--output-format", UNTIL),
    Deprecation("import", "--onto", "--release", UNTIL),
    Deprecation("prune", "--oldest", "--releases", UNTIL),
)


def current_spelling(command: str, arguments: list[str]) -> list[str]:
    """Arguments of a command with each former spelling as it is spelt now.

    A line on standard error says of each what to write; what stands behind ``--`` is left alone.
    """
    former = {each.former: each for each in DEPRECATIONS if each.command == command}
    words: list[str] = []
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    rest = arguments[len(options) :]
    for word in options:
        name, equals, value = word.partition("=")
        words.append(f"{former[name].option}{equals}{value}" if name in former else word)
    for name in dict.fromkeys(word.partition("=")[0] for word in options):
        if name in former:
            warn(f"{name} is {former[name].option} now", former[name].until)
    return words + rest


def warn(text: str, until: str = UNTIL) -> None:
    """Say on standard error, in one line, what will not work any more.

    :param until: the first version in which it does not.
    """
    click.echo(f"warning: {text}; the former spelling goes with {until}", err=True)


def warn_of_writing(command: str) -> None:
    """Say that a command that proposes, unless told to write, will write unless told not to."""
    click.echo(
        f"warning: `overlay {command}` will write from {UNTIL} on, as every other command does: "
        "say --dry-run to look, or --write",
        err=True,
    )


F = TypeVar("F", bound=Callable[..., Any])


class View:
    """How the user wants to see an answer; the object of click's contexts.

    :ivar json: as JSON; :ivar verbose: with every file and hunk; :ivar quiet: the last line alone.
    :ivar color: ``always``, ``never``, or ``auto``: on a terminal.
    """

    json = False
    verbose = False
    quiet = False
    color = "auto"


class CommandEntry(NamedTuple):
    """A command in the overview.

    :ivar module: the module that defines it.
    :ivar summary: what it does, in one sentence; shown in the overview and by shells.
    :ivar group: the heading below which the overview lists it.
    """

    module: str
    summary: str
    group: str


#: The modules that define commands.
_CORE = "overlay.cli.core"
_AUTHORING = "overlay.authoring.cli"
_PORTING = "overlay.authoring.cli_port"
_HISTORY = "overlay.authoring.cli_history"
_PROOF = "overlay.proof.cli"

#: The commands of each group: name, module and summary, in the order in which they are used.
_GROUPS = {
    "Use": (
        ("check", _CORE, "Say whether the patches match; write nothing."),
        ("apply", _CORE, "Patch a vLLM: all of it or nothing."),
        ("status", _CORE, "Say what is applied, and whether it is intact."),
        ("revert", _CORE, "Put every byte back."),
        ("list", _CORE, "Show the features and the releases they are made for."),
        ("show", _CORE, "Show one feature: its fault, releases, evidence and switch."),
        ("diff", _CORE, "Print the change as one unified diff."),
        ("adopt", _CORE, "Take over patches that were applied without a ledger."),
        ("doctor", _CORE, "Show everything that a bug report needs, and what needs you."),
        ("report", _CORE, "Write check, status, doctor and the matrix on one page."),
    ),
    "Author": (
        ("import", _AUTHORING, "Make a feature of a diff, of mails, or of a pull request."),
        ("new", _AUTHORING, "Make a feature: of files to edit, or of edits."),
        ("edit", _AUTHORING, "Edit a feature as files, in a session's folder."),
        ("port", _PORTING, "Carry features to another release."),
        ("log", _HISTORY, "Show a feature from release to release, or all as a matrix."),
        ("prune", _HISTORY, "Propose what a folder of patches no longer needs."),
        ("export", _HISTORY, "Write features as a mailbox that git am takes."),
    ),
    "Prove": (
        ("verify", _PROOF, "Serve your models with and without draft graphs; compare drafts."),
        ("bench", _PROOF, "Time stock vLLM and the overlay on your GPU, in turn."),
    ),
    "Other": (
        ("cache", _CORE, "Show or empty the cache: dir, size or clean."),
        ("completion", _CORE, "Print what makes your shell complete overlay's words."),
        ("help", _CORE, "Show the help of a command."),
    ),
}

#: Command -> its entry, in the order of the overview.
COMMANDS = {
    name: CommandEntry(module, summary, group)
    for group, entries in _GROUPS.items()
    for name, module, summary in entries
}


class OverlayCommand(click.Command):
    """A command that knows former spellings, and lists what it alone has before what all have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments in today's spelling."""
        return super().parse_args(ctx, current_spelling(str(self.name), args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for common, title in ((False, "Options"), (True, "Options of every command")):
            listed = [each for each in options if (each.name in _OF_EVERY_COMMAND) is common]
            rows = [row for each in listed if (row := each.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


#: The names of the parameters that every command has.
_OF_EVERY_COMMAND = frozenset({"patches", "json", "verbose", "quiet", "offline", "color"})


class _Commands(click.Group):
    """A group that imports the module of a command when the command is asked for."""

    command_class = OverlayCommand

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order in which commands are used."""
        return [name for name, entry in COMMANDS.items() if is_there(entry.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, with its summary; ``None`` where there is none."""
        entry = COMMANDS.get(cmd_name)
        if entry is not None:
            load(entry.module, f"overlay {cmd_name}")
        command = super().get_command(ctx, cmd_name)
        if command is not None and entry is not None:
            command.short_help = entry.summary
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name.

        :raises click.UsageError: if there is none, with the name that was probably meant.
        """
        is_name = args[0].isidentifier() and not ctx.resilient_parsing
        if is_name and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(unknown(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the overview; click would import every command for its first sentence."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for group in dict.fromkeys(COMMANDS[name].group for name in names):
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (f"{name:<{width}}", COMMANDS[name].summary)
                        for name in names
                        if COMMANDS[name].group == group
                    ]
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and then the options that all of them have."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


#: What others call a command whose name looks like that of its opposite.
_OPPOSITES = {name: ["revert"] for name in ("unapply", "unpatch", "undo", "uninstall", "remove")}


def unknown(command: str) -> str:
    """The error of a command that does not exist, with the name that was probably meant."""
    from difflib import get_close_matches

    close = _OPPOSITES.get(command) or get_close_matches(command, COMMANDS)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"No such command {command!r}.{hint}"


def completion_item(value: str, **attributes: str) -> CompletionItem:
    """An item of a shell's completion; what it is made of is imported only where a shell asks."""
    from click.shell_completion import CompletionItem

    return CompletionItem(value, **attributes)


def patches_option(command: F) -> F:
    """``--patches DIR`` behind the command; adds to those before it."""
    return click.option(
        "--patches",
        "patches",
        metavar="DIR",
        multiple=True,
        expose_value=False,
        callback=_add_patches,
        help="Also use the features in this folder; repeatable, here or before the command "
        "(default: those that OVERLAY_PATCHES and the project's overlay.toml name).",
        shell_complete=lambda *args: [completion_item(args[2], type="dir")],
    )(command)


def _look(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keep in the ``View`` what an option says; one before the command holds behind it, too."""
    view = context.ensure_object(View)
    if value not in (False, None):
        setattr(view, str(parameter.name), value)
    if view.quiet and view.verbose:
        raise click.UsageError("--quiet and --verbose: give one of them.", context)


def view_option(*names: str, text: str, **how: Any) -> Callable[[F], F]:
    """An option that says how an answer is to be shown, named as the attribute of ``View``."""
    return click.option(*names, expose_value=False, callback=_look, help=text, **how)


def _forbid_network(
    context: click.Context,  # noqa: ARG001 - click's signature
    parameter: click.Parameter,  # noqa: ARG001 - click's signature
    value: bool,
) -> None:
    if value:
        from overlay.errors import stay_offline

        stay_offline()


def everywhere(command: F) -> F:
    """``-q``, ``--offline`` and ``--color``, which hold before and behind every command."""
    quiet = view_option(
        "-q",
        "--quiet",
        is_flag=True,
        text="Only the last line, and errors; no progress, no notes.",
    )
    offline = click.option(
        "--offline",
        is_flag=True,
        expose_value=False,
        callback=_forbid_network,
        help="Use no network: what needs it ends with 2 and says so.",
    )
    color = view_option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        text="When to colour what is printed (default: auto, on a terminal and as NO_COLOR or "
        "FORCE_COLOR say).",
    )
    return quiet(offline(color(command)))


def _add_patches(
    context: click.Context,
    parameter: click.Parameter,  # noqa: ARG001 - click's signature
    value: Iterable[str],
) -> Iterable[str]:
    root = context.find_root()
    if "" in value:
        raise click.BadParameter("expected a folder of patches, found an empty name.")
    root.meta.setdefault("patches", []).extend(value)
    return value


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 nothing needs you, 1 something does, 2 usage or environment.",
)
@click.version_option(
    __version__, "-V", "--version", prog_name="overlay", message="%(prog)s %(version)s"
)
@patches_option
@everywhere
@click.pass_context
def cli(context: click.Context) -> str | None:
    """Source patches for an installed vLLM, applied by their anchors.

    \b
    Example:
      overlay check          # would the patches go onto the installed vLLM?
      overlay apply          # patch it
      overlay revert         # put every byte back
    """
    return context.get_help() if context.invoked_subcommand is None else None
