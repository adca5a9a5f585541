"""The arguments and options that commands share, and what a shell completes them to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from overlay.api import Report

F = TypeVar("F", bound=Callable[..., Any])

#: Said below the help of every command that takes a TARGET.
TARGET_HELP = (
    "TARGET is a virtual environment or the interpreter of one, a folder that holds vllm/ "
    "(site-packages, a checkout, an unpacked sdist), a wheel or sdist file, or a release such as "
    "0.26.0; without it, the vLLM that this Python would import is meant."
)

#: The same where the command writes.
WRITABLE_HELP = (
    "TARGET is a virtual environment or the interpreter of one, or a folder that holds vllm/; "
    "without it, the vLLM that this Python would import is meant."
)


# Named tuples: a data class would have to be compiled for every command, --help included.
class Answer(NamedTuple):
    """A report and how the user wants to see it."""

    report: Report
    json: bool = False
    verbose: bool = False


def completion_item(value: str, **attributes: str) -> CompletionItem:
    """An item of a shell's completion; what it is made of is imported only where a shell asks."""
    from click.shell_completion import CompletionItem

    return CompletionItem(value, **attributes)


def complete_features(
    context: click.Context,
    parameter: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """The ids of the features at hand, with their titles."""
    from overlay import api

    try:
        known = api.features(patches=patches_of(context, quiet=True))
    except (api.OverlayError, OSError):
        return []  # a shell has no place for the error; the command itself tells it
    return [
        completion_item(feature.id, help=feature.title)
        for feature in known
        if feature.id.startswith(incomplete)
    ]


def complete_releases(
    context: click.Context,  # noqa: ARG001 - click's signature
    parameter: click.Parameter,  # noqa: ARG001 - click calls it with it
    incomplete: str,
) -> list[CompletionItem]:
    """The releases that the shipped features are made for, and ``all``."""
    from overlay.api import command_line

    known = ("all", "new", *command_line.known_releases())
    return [completion_item(release) for release in known if release.startswith(incomplete)]


def complete_target(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Releases where a digit was typed, else files and folders."""
    if incomplete[:1].isdigit():
        return complete_releases(context, parameter, incomplete)
    return [completion_item(incomplete, type="file")]


def feature_option(text: str) -> Callable[[F], F]:
    """``--feature ID``, repeatable."""
    return click.option(
        "--feature",
        "only",
        metavar="ID",
        multiple=True,
        help=text,
        shell_complete=complete_features,
    )


#: ``--without ID``, repeatable.
without_option = click.option(
    "--without",
    metavar="ID",
    multiple=True,
    help="Leave this feature out; may be given several times. What is applied stays applied.",
    shell_complete=complete_features,
)

#: ``--require ID``, repeatable.
require_option = click.option(
    "--require",
    metavar="ID",
    multiple=True,
    help="End with 1 unless this feature is applied, or the release has it itself; may be given "
    "several times; `all` requires each feature that is made for the release.",
    shell_complete=complete_features,
)


def common_options(command: F) -> F:
    """``--patches``, ``--json`` and ``-v``, which every command has."""
    command = click.option(
        "-v", "--verbose", is_flag=True, help="Also show every file and hunk, and where it lands."
    )(command)
    command = click.option(
        "--json", "as_json", is_flag=True, help="Answer in JSON on standard output."
    )(command)
    return patches_option(command)


def patches_option(command: F) -> F:
    """``--patches DIR`` behind the command; adds to those before it."""
    return click.option(
        "--patches",
        "patches",
        metavar="DIR",
        multiple=True,
        expose_value=False,
        callback=_add_patches,
        help="Also use the features in this folder; may be given several times, here or before "
        "the command. An overlay.toml names folders once for a project.",
        shell_complete=lambda *given: [completion_item(given[2], type="dir")],
    )(command)


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


def patches_of(context: click.Context, *, quiet: bool = False) -> tuple[str | Path, ...]:
    """The patches folders of a command: the environment's, the project's, those of the options.

    :param quiet: whether to say nothing of a stranger's file that is passed over.
    :raises OverlayError: if the project's file is malformed.
    """
    from overlay.api import command_line

    inherited = os.environ.get("OVERLAY_PATCHES", "").split(os.pathsep)
    named = context.find_root().meta.get("patches", [])
    command_line.named_patches(named)
    project = command_line.project()
    for file in () if quiet else project.ignored:
        text = f"warning: {file} is not your own and was passed over: it names no patches of yours"
        click.echo(command_line.printable(text), err=True)
    return (*(folder for folder in inherited if folder), *project.patches, *named)


def folder_to_write(folders: Sequence[str | Path]) -> str | Path:
    """The folder of patches that a command writes to: the last one that was named.

    :raises click.UsageError: if none was.
    """
    if not folders:
        raise click.UsageError(
            "expected a folder of patches to write to, found none: name one with --patches DIR, or "
            "in overlay.toml."
        )
    return folders[-1]


def target_argument(command: F) -> F:
    """TARGET, and ``--python`` for another environment's vLLM."""
    command = python_option(command)
    return click.argument("target", required=False, shell_complete=complete_target)(command)


def python_option(command: F) -> F:
    """``--python PATH``: the vLLM of another Python environment."""
    return click.option(
        "--python",
        metavar="PATH",
        help="Mean the vLLM that this interpreter, or this virtual environment, would import: "
        "where overlay itself lives elsewhere (uv tool, pipx). Nothing of it is run.",
        shell_complete=lambda *given: [completion_item(given[2], type="file")],
    )(command)


def refuse_both(target: object, python: str | None) -> None:
    """Refuse a command that names its target twice.

    :raises click.UsageError: if both are given.
    """
    if python is not None and target:
        raise click.UsageError("--python names the target already: omit TARGET, or --python.")
