"""The arguments and options that commands share, collected into one ``Request``.

What a shell completes them to is here, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from overlay.cli import (
    View,
    completion_item,
    everywhere,
    patches_option,
    view_option,
    warn_of_writing,
)
from overlay.commands.request import Request, find_project
from overlay.errors import Invocation, OverlayError, absolute, invoked, remember
from overlay.package import KNOWN_RELEASES
from overlay.report.progress import Meter
from overlay.untrusted import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from overlay.report import Report

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


def asks(command: Callable[..., Report]) -> Callable[..., Report]:
    """Give a command ``--patches``, ``--json`` and ``-v``, and its shared options as a ``Request``.

    :param command: takes the request, and its own options by name.
    """
    return common_options(with_request(command))


def with_request(command: Callable[..., Report]) -> Callable[..., Report]:
    """Collect the options that are called as the fields of a ``Request``.

    Every command that a message names repeats what the user named of them.
    """

    @wraps(command)
    def run_with_request(**options: Any) -> Report:
        context = click.get_current_context()
        shared = {name: options.pop(name) for name in Request._fields if name in options}
        refuse_both(shared.get("target"), shared.get("python"))
        takes_patches = any(each.name == "patches" for each in context.command.params)
        folders = patches_of(context) if takes_patches else ()
        view = context.ensure_object(View)
        with Meter(color=view.color) as meter:
            progress = None if view.quiet else meter
            request = Request(tuple(map(str, folders)), progress=progress, **shared)
            with invoked(request.invocation(str(context.info_name), named_patches(context))):
                return command(request.with_current_ids(), **options)

    return run_with_request


def wants_json() -> bool:
    """Whether the command that runs is to answer in JSON."""
    return click.get_current_context().ensure_object(View).json


def ask_for_json() -> None:
    """Let the command that runs answer in JSON."""
    click.get_current_context().ensure_object(View).json = True


def complete_features(
    context: click.Context,
    parameter: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """The ids of the features at hand, with their titles."""
    try:
        folders = patches_of(context, quiet=True)
        features = Request(tuple(map(str, folders))).load()
    except (OverlayError, OSError):
        return []  # a shell has no place for the error; the command itself tells it
    return [
        completion_item(feature.id, help=feature.title)
        for feature in features
        if feature.id.startswith(incomplete)
    ]


def complete_releases(
    context: click.Context,  # noqa: ARG001 - click's signature
    parameter: click.Parameter,  # noqa: ARG001 - click calls it with it
    incomplete: str,
) -> list[CompletionItem]:
    """The releases that the shipped features are made for, and ``all``."""
    words = ("all", "new", *KNOWN_RELEASES)
    return [completion_item(word) for word in words if word.startswith(incomplete)]


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
        "features",
        metavar="ID",
        multiple=True,
        help=text,
        shell_complete=complete_features,
    )


def releases_option(text: str) -> Callable[[F], F]:
    """``--releases RANGE``.

    :param text: what is done with them.
    """
    return click.option(
        "--releases",
        metavar="RANGE",
        help=f"{text}: 0.20.0..0.33.0, one release, all, or new (those on the package index that "
        "are not known here); of another package with its name in front: vllm-ascend==all.",
        shell_complete=complete_releases,
    )


def looks_or_writes(write_text: str, look_text: str) -> Callable[[F], F]:
    """``--write`` and ``--dry-run`` of a command that as yet proposes where neither is given."""

    def give(command: F) -> F:
        looks = click.option("--dry-run", is_flag=True, help=look_text)
        return click.option("--write", is_flag=True, help=write_text)(looks(command))

    return give


def refuse_to_look_and_write(name: str, *, write: bool, dry_run: bool) -> None:
    """Refuse both of ``--write`` and ``--dry-run``, and warn where neither is given.

    :param name: the command.
    :raises click.UsageError: if both are given.
    """
    if write and dry_run:
        raise click.UsageError("--write and --dry-run: give one of them.")
    if not write and not dry_run:
        warn_of_writing(name)


#: ``--without ID``, repeatable.
without_option = click.option(
    "--without",
    metavar="ID",
    multiple=True,
    help="Leave this feature out; repeatable (default: none). What is applied stays applied.",
    shell_complete=complete_features,
)

#: ``--require ID``, repeatable.
require_option = click.option(
    "--require",
    metavar="ID",
    multiple=True,
    help="End with 1 unless this feature is applied, or the release has it itself; repeatable; "
    "`all` requires each feature that is made for the release (default: none).",
    shell_complete=complete_features,
)


#: ``--json``.
json_option = view_option("--json", is_flag=True, text="Answer in JSON on standard output.")


def verbose_option(text: str) -> Callable[[F], F]:
    """``-v``."""
    return view_option("-v", "--verbose", is_flag=True, text=text)


#: ``--python PATH``: the vLLM of another Python environment.
python_option = click.option(
    "--python",
    metavar="PATH",
    help="Mean the vLLM that this interpreter, or this virtual environment, would import: "
    "where the command itself lives elsewhere (uv tool, pipx). Nothing of it is run (default: the "
    "Python that runs overlay).",
    shell_complete=lambda *args: [completion_item(args[2], type="file")],
)


def common_options(command: F) -> F:
    """``--patches``, ``--json``, ``-v`` and what else every command has."""
    verbose = verbose_option("Also show every file and hunk, and where it lands.")
    return patches_option(json_option(verbose(everywhere(command))))


def target_argument(command: F) -> F:
    """TARGET, and ``--python`` for another environment's vLLM."""
    command = python_option(command)
    return click.argument("target", required=False, shell_complete=complete_target)(command)


def refuse_both(target: object, python: str | None) -> None:
    """Refuse a command that names its target twice.

    :raises click.UsageError: if both are given.
    """
    if python is not None and target:
        raise click.UsageError("--python names the target already: omit TARGET, or --python.")


def named_patches(context: click.Context) -> tuple[str, ...]:
    """The folders that ``--patches`` names, before the command and behind it."""
    return tuple(absolute(folder) for folder in context.find_root().meta.get("patches", ()))


def patches_of(context: click.Context, *, quiet: bool = False) -> tuple[str | Path, ...]:
    """The patches folders of a command: the environment's, the project's, those of the options.

    Every command that a message names repeats the last from here on.

    :param quiet: whether to say nothing of a stranger's file that is passed over.
    :raises OverlayError: if the project's file is malformed.
    """
    remember(Invocation(patches=named_patches(context)))
    inherited = os.environ.get("OVERLAY_PATCHES", "").split(os.pathsep)
    project = find_project()
    for file in () if quiet else project.ignored:
        text = f"warning: {file} is not your own and was passed over: it names no patches of yours"
        click.echo(printable(text), err=True)
    folders = context.find_root().meta.get("patches", ())
    return (*(folder for folder in inherited if folder), *project.patches, *folders)


def folder_to_write(folders: Sequence[str]) -> str:
    """The folder of patches that a command writes to: the last one that was named.

    :raises click.UsageError: if none was.
    """
    if not folders:
        raise click.UsageError(
            "expected a folder of patches to write to, found none: name one with --patches DIR, or "
            "in overlay.toml."
        )
    return folders[-1]
