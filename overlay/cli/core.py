"""The core's commands: those that patch a vLLM or say how it is patched, or are of the overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from overlay.cli import cli, everywhere, unknown
from overlay.cli.options import (
    TARGET_HELP,
    WRITABLE_HELP,
    ask_for_json,
    asks,
    common_options,
    complete_features,
    complete_releases,
    complete_target,
    feature_option,
    folder_to_write,
    json_option,
    python_option,
    refuse_both,
    releases_option,
    require_option,
    target_argument,
    wants_json,
    without_option,
)
from overlay.commands import lazy as commands
from overlay.settings import in_home

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.report import Report


_ONLY = "Only this feature; repeatable (default: all of them)."


@cli.command(epilog=TARGET_HELP)
@click.argument("targets", metavar="[TARGET]...", nargs=-1, shell_complete=complete_target)
@releases_option("Also check these releases, fetched into your cache")
@click.option("--pre", is_flag=True, help="With `--releases new`: pre-releases as well.")
@click.option(
    "--since",
    metavar="REPORT.json",
    help="Say what changed since this report of `check --json`; end with 1 where something got "
    "worse.",
)
@click.option(
    "--output-format",
    "form",
    type=click.Choice(["text", "json", "github", "junit", "markdown"]),
    default="text",
    show_default=True,
    help="How to write it, or what changed (--since): github is annotations at the lines of "
    "your patches.",
)
@python_option
@feature_option(_ONLY)
@without_option
@asks
def check(
    request: Request, /, targets: tuple[str, ...], releases: str | None, **how: Any
) -> Report:
    """Say whether the patches match; write nothing.

    \b
    Example:
      overlay check                                # the installed vLLM
      overlay check 0.26.0 ./vllm-0.27.0.tar.gz    # a release and a file
      overlay check --python .venv/bin/python      # the vLLM of another environment
      overlay check --releases all                 # every release, as a table
      overlay check --releases new                 # what came out since this overlay
      overlay check vllm-ascend==0.23.0.post1      # a release of another package
      overlay check --releases all --output-format github    # in CI
      overlay check --releases all --since last-night.json --output-format markdown
    """
    refuse_both(targets, request.python)
    form = how["form"]
    if form == "json":
        ask_for_json()
    if wants_json():
        if form not in ("text", "json"):
            raise click.UsageError(f"--json and --output-format {form}: give one of them.")
        form = "text"
    report = commands.check(request, targets, releases, pre=how["pre"])
    if how["since"] is None and form == "text":
        return report
    earlier = None if how["since"] is None else in_home(how["since"])
    return commands.since(report, earlier, request.at_hand(), form)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@feature_option(
    "Only this feature, beside those that are applied; repeatable (default: all of them)."
)
@without_option
@require_option
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option(
    "--untested",
    is_flag=True,
    help="Also patch a release that is newer than those the patches were tested on.",
)
@asks
def apply(request: Request, dry_run: bool, untested: bool) -> Report:
    """Patch a vLLM: all of it or nothing.

    A feature that the release has already, or that is not made for it, is left out.

    \b
    Example:
      overlay apply                                # the installed vLLM
      overlay apply --require draft-graphs         # in an image build: fail unless it is in
      overlay apply --feature draft-graphs /opt/venv/lib/python3.12/site-packages
    """
    return commands.apply(request, dry_run=dry_run, untested=untested)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@feature_option(
    "Take off only this feature and leave the others; repeatable (default: all of them)."
)
@click.option(
    "--keep-as",
    metavar="ID",
    help="Make a feature of what was edited since, in the last folder of patches; take it out too.",
)
@asks
def revert(request: Request, keep_as: str | None) -> Report:
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
    if keep_as is None:
        return commands.revert(request)
    folder = in_home(folder_to_write(request.patches))
    return commands.revert(request, commands.Keep(keep_as, folder))


@cli.command(epilog=TARGET_HELP)
@target_argument
@require_option
@click.option("--live", is_flag=True, help="Say what the running processes of vLLM have loaded.")
@asks
def status(request: Request, live: bool) -> Report:
    """Say what is applied, whether it is intact, and what the next process will run.

    \b
    Example:
      overlay status
      overlay status --require draft-graphs        # in a probe: 0 only where it is applied
      overlay status --json | jq -r .verdict
      overlay status --live                        # what your running vLLM has loaded
      overlay status --live --require draft-graphs # in a probe: 0 only where a model uses it
    """
    if not live:
        return commands.status(request)
    if request.names_target:
        raise click.UsageError("--live speaks of running processes: omit TARGET.")
    return commands.live(request)


@cli.command(epilog=WRITABLE_HELP)
@target_argument
@asks
def adopt(request: Request) -> Report:
    """Take over patches that are in a vLLM without the overlay's ledger.

    For a vLLM that was patched with `overlay diff | git apply`, or whose folder .vllm-overlay was
    lost. No file of vLLM changes: only the ledger and the pristine copies are written, and only
    where the hashes in vLLM's own RECORD prove what each file was.

    \b
    Example:
      overlay adopt
      overlay adopt /opt/venv/lib/python3.12/site-packages
    """
    return commands.adopt(request)


@cli.command(epilog=TARGET_HELP)
@target_argument
@feature_option(_ONLY)
@without_option
@asks
def diff(request: Request) -> Report:
    """Print the change to a pristine vLLM as one unified diff.

    \b
    Example:
      overlay diff 0.26.0 > draft-graphs.diff
      overlay diff ./vllm-checkout | git -C ./vllm-checkout apply
    """
    return commands.diff(request)


@cli.command("list")
@click.option("--releases", is_flag=True, help="Also ask the package index for its releases.")
@click.option("--pre", is_flag=True, help="With --releases: pre-releases as well.")
@click.option(
    "--package",
    metavar="NAME",
    help="Only features of this package, such as vllm-ascend, and its releases (default: all).",
)
@asks
def list_(request: Request, releases: bool, pre: bool, package: str | None) -> Report:
    """Show the features, the releases they are made for, and what upstream did with them.

    \b
    Example:
      overlay list
      overlay list -v --patches ./our-patches
      overlay list --releases                      # which releases are newer than this overlay?
      overlay list --releases --package vllm-ascend
    """
    return commands.list_(request, releases=releases, pre=pre, package=package)


@cli.command()
@click.argument("feature", metavar="ID", shell_complete=complete_features)
@asks
def show(request: Request, feature: str) -> Report:
    """Show one feature: the fault that it mends, the releases, the evidence, the switch.

    \b
    Example:
      overlay show context-limit
      overlay show our-fix --patches ./our-patches
    """
    return commands.show(request, feature)


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
@json_option
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
@json_option
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
