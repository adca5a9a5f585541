"""Runs the command line: every outcome becomes a report, and the report goes to its streams."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

import click

from overlay.cli import COMMANDS, View, cli

if TYPE_CHECKING:
    from overlay.report import Report

ERROR, INTERRUPTED = 2, 130


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; no exception and no traceback leaves here.

    An unexpected exception is a bug of the overlay: its traceback is shown, and the exit code is 2.
    """
    return copy_context().run(_run, arguments)  # what one command names is not the next one's


def _run(arguments: Sequence[str]) -> int:
    try:
        _open_streams()
        view = View()
        with warnings.catch_warnings():
            warnings.showwarning = partial(_note, view)
            answer = _answer(list(arguments), view)
        return answer if isinstance(answer, int) else _deliver(answer, view)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _note(view: View, message: Warning | str, *_: object) -> None:
    if not view.quiet:
        with suppress(OSError):  # nobody reads it
            sys.stderr.write(f"note: {message}\n")


def _answer(arguments: list[str], view: View) -> Report | str | int:
    try:
        answer: Report | str | int | None = cli.main(
            arguments, prog_name="overlay", standalone_mode=False, obj=view
        )
    except click.Abort:
        raise
    except SystemExit:  # click's, where the reader of its help went away early
        return 0
    except Exception as error:  # the last resort: reported in full, never swallowed
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        view.json = "--json" in _options(arguments)  # what comes before the error was read only
        return _stopped(arguments, error)
    if isinstance(answer, str) and view.json:
        from overlay.report import TextReport, codes

        name = _command(arguments)
        verdict = codes.Verdict(codes.Code.PRINTED, f"Printed by overlay {name}.")
        return TextReport(verdict, name, answer)
    return 0 if answer is None else answer


def _stopped(arguments: list[str], error: Exception) -> Report:
    """The report of a command that an exception ended."""
    from overlay.errors import OverlayError, UsageError, described
    from overlay.report import codes, failure
    from overlay.untrusted import printable

    command = _command(arguments)
    if isinstance(error, click.ClickException):
        return failure(command, _usage(error, command), codes.Code.USAGE)
    if isinstance(error, UsageError):
        return failure(command, str(error), codes.Code.USAGE)
    if isinstance(error, OverlayError):
        return failure(command, str(error), codes.Code.ENVIRONMENT)
    if isinstance(error, OSError):
        return failure(command, described(error), codes.Code.ENVIRONMENT)
    import traceback

    text = "".join(traceback.format_exception(error))
    sys.stderr.write(printable(text, lines=True))
    return failure(
        command,
        f"{type(error).__name__}: {error}\n"
        "this is a bug in vllm-overlay; please report it with the traceback on standard "
        "error, the command and the output of `overlay --version`",
        codes.Code.BUG,
    )


def _was_interrupted(error: BaseException) -> bool:
    """Whether an interruption caused it: until Python 3.11 a class body makes it a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None


def _options(arguments: list[str]) -> list[str]:
    """The words among which options can be."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _command(arguments: list[str]) -> str:
    """The command that was meant, as far as it can be told."""
    return next((word for word in _options(arguments) if word in COMMANDS), "overlay")


def _usage(error: click.ClickException, command: str) -> str:
    name = command if command == "overlay" else f"overlay {command}"
    if isinstance(error, click.NoSuchOption):  # click compares with the dashes: --yes with --pre
        from overlay.errors import close_names

        words = {each.lstrip("-"): each for each in error.possibilities or ()}
        close = close_names(error.option_name.lstrip("-"), [*words])
        error = click.NoSuchOption(error.option_name, possibilities=[words[each] for each in close])
    message = error.format_message().replace("\n\t", " ")  # click lists choices with tabs
    return f"{message}\n`{name} --help` shows what is possible, with examples"


def _deliver(answer: Report | str, view: View) -> int:
    """Write the report where it belongs.

    A reader that goes away early (``overlay list | head -1``) changes nothing about the answer,
    so the exit code stays what it was.  An answer that cannot be written is an error.
    """
    try:
        _write(answer, view)
    except BrokenPipeError:
        _silence()
    except OSError as error:
        targets = () if isinstance(answer, str) else answer.targets
        step = targets[0].command("status") if targets else "`overlay status`"
        with suppress(OSError):
            sys.stderr.write(
                f"error: the answer could not be written: {error.strerror}; the command "
                f"itself was carried out: {step} shows the result\n"
            )
        _silence()
        return ERROR
    return 0 if isinstance(answer, str) else answer.exit


def _silence() -> None:
    """Let the interpreter, which flushes the streams once more when it ends, write to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def _open_streams() -> None:
    """Put a stream in the place of each that this process was started without (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until we end
            setattr(sys, name, nowhere)


def _write(answer: Report | str, view: View) -> None:
    if isinstance(answer, str):
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
        return
    if view.json:
        from overlay.report.as_json import as_json

        sys.stdout.write(as_json(answer))
        sys.stdout.flush()
        return
    for stream in (sys.stdout, sys.stderr):
        # A path may hold bytes that the terminal's encoding has no character for.
        # What Python opens can be told so, though not every text stream can.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    body = answer.body
    if body is not None:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    from overlay.report.lines import STOPPED, paint

    stream = sys.stderr if body is not None or answer.exit == ERROR else sys.stdout
    lines = answer.lines(verbose=view.verbose)
    if view.quiet:
        lines = (*answer.error_lines(), *(() if answer.exit == ERROR else lines[-1:]))
    elif answer.verdict.endswith(STOPPED):
        lines = lines[:-2]  # without it, and the blank line before it
    paint(lines, stream, view.color)
