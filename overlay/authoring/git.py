"""Ask the user's git about a checkout, so that nothing which the checkout names is run.

git is optional: only sources of the form ``CHECKOUT@A..B``, a base in a checkout's history and the
history of a patches folder need it.  A checkout is a stranger's data, its configuration included:
hooks, external diffs, textconv filters, signature checks, file-system monitors, submodules and
fetches of missing objects are switched off, and no revision can be taken for an option.

``environment`` and ``run`` are for every program that this room starts.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from overlay.errors import UsageError

#: Seconds that one question may take.
SECONDS = 60

#: The longest answer that is read, in bytes.
LIMIT = 64 * 1024 * 1024

_SETTINGS = (
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.pager=cat"),
    *("-c", "core.quotePath=true"),
    *("-c", "core.bigFileThreshold=512m"),
    *("-c", "diff.orderFile=/dev/null"),
    *("-c", "i18n.logOutputEncoding=UTF-8"),
    *("-c", "format.from=false"),
    *("-c", "log.showSignature=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "format.useAutoBase=false"),
    *("-c", "format.notes=false"),
)

#: How a diff is written, whatever the checkout is configured to do.
_DIFF = (
    *("--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--find-renames"),
    *("--unified=3", "--src-prefix=a/", "--dst-prefix=b/", "--submodule=short"),
)

#: Variables of git that say where the user's own configuration is.  All others may lead it to
#: another repository, as a hook or `git rebase --exec` sets them, or change what it does.
_KEPT = frozenset(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"))

_HASH = re.compile(r"^[0-9a-f]{40,64}$")


@dataclass(frozen=True)
class LogEntry:
    """One commit of a history.

    :ivar commit: its full id; :ivar date: the author's, ``YYYY-MM-DD``; :ivar author: the name.
    """

    commit: str
    date: str
    author: str
    subject: str


class Checkout:
    """A git repository on disk, which is only read.

    :raises UsageError: if git is not installed, or ``folder`` is not in a repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        git = shutil.which("git")
        if git is None:
            raise UsageError(f"{folder}: expected git to read its history, found none on PATH")
        self._git = git
        if not folder.is_dir():
            raise UsageError(f"{folder}: expected a checkout of git, found no such folder")
        self.ask("rev-parse", "--git-dir")

    def ask(self, *arguments: str) -> bytes:
        """What git answers on standard output.

        :raises UsageError: with git's own words, if it fails, takes longer than ``SECONDS``, or
            answers more than ``LIMIT`` bytes.
        """
        command = [self._git, "--no-pager", *_SETTINGS, "-C", str(self.folder), *arguments]
        variables = {**environment(), **_QUESTION}
        try:
            ended = run(command, SECONDS, variables)
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"{self.folder}: expected `git {arguments[0]}` to end within {SECONDS} seconds"
            ) from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.folder}: git cannot be run there: {error}") from error
        if ended.status != 0:
            why = ended.errors[0] if ended.errors else f"it ended with {ended.status}"
            raise UsageError(f"{self.folder}: `git {arguments[0]}` failed: {why}")
        if ended.size > LIMIT:
            raise UsageError(
                f"{self.folder}: expected at most {LIMIT} bytes from `git {arguments[0]}`, "
                f"found {ended.size}"
            )
        return ended.output

    def commit(self, revision: str) -> str:
        """The id of the commit that a revision names.

        :raises UsageError: if it names none.
        """
        wrong = f"{self.folder}: expected a commit, found none that is called {revision!r}"
        if not revision or revision.startswith("-") or "\0" in revision:
            raise UsageError(wrong)
        try:
            words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
            name = self.ask(*words, f"{revision}^{{commit}}").decode().strip()
        except UsageError as error:
            raise UsageError(wrong) from error
        if not _HASH.match(name):
            raise UsageError(wrong)
        return name

    def mails(self, *commits: str) -> bytes:
        """Commits as mails; merges have none.

        :param commits: ``A..B``, those behind one up to another, by their ids.
        """
        options = (
            *("--stdout", "--no-signature", "--no-cover-letter", "--no-thread", "--no-attach"),
            "--subject-prefix=PATCH",
        )
        return self.ask("format-patch", *_DIFF, *options, *commits, "--")

    def mail(self, commit: str) -> bytes:
        """One commit as a mail."""
        return self.mails("-1", commit)

    def merges(self, first: str, last: str) -> int:
        """How many merges lie behind ``first`` up to ``last``."""
        return int(self.ask("rev-list", "--count", "--min-parents=2", f"{first}..{last}", "--"))

    def diff(self, first: str, last: str) -> bytes:
        """What changes from the last common ancestor of ``first`` and ``last`` to ``last``."""
        return self.ask("diff", *_DIFF, f"{first}...{last}", "--")

    def blob(self, name: str) -> bytes | None:
        """A file of the history by its blob id, abbreviated or not; ``None`` if it lacks it."""
        if not re.match(r"^[0-9a-f]{4,64}$", name):
            return None
        try:
            return self.ask("cat-file", "blob", name)
        except UsageError:
            return None  # the repository lacks it, and the file is looked for in other places

    def history(self, path: str = ".") -> tuple[LogEntry, ...]:
        """The commits that changed what lies below ``path``, the newest first."""
        return self._log("--", path)

    def naming(self, text: str) -> tuple[LogEntry, ...]:
        """The commits of any branch or tag whose message holds ``text``, the oldest first."""
        return self._log("--all", "--reverse", "--fixed-strings", f"--grep={text}", "--")

    def _log(self, *arguments: str) -> tuple[LogEntry, ...]:
        form = "--format=%H%x00%as%x00%an%x00%s"
        lines = self.ask("log", "--no-show-signature", form, *arguments)
        rows = (line.split("\0") for line in lines.decode("utf-8", "replace").splitlines())
        return tuple(LogEntry(*row) for row in rows if len(row) == 4)

    def tags_with(self, commit: str) -> tuple[str, ...]:
        """The tags whose history holds a commit."""
        tags = self.ask("tag", "--contains", commit, "--list", "v*")
        return tuple(tags.decode("utf-8", "replace").split())


#: What keeps a question from another repository, a prompt and a fetch; its answer is in English.
_QUESTION = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def environment() -> dict[str, str]:
    """The environment of a program that is git, or may start it: it leads to no repository."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("GIT_") or name in _KEPT
    }


class GitResult(NamedTuple):
    """How a program ended.

    :ivar status: negative for a signal; :ivar size: how many bytes it printed.
    :ivar output: at most ``LIMIT`` of them, from the first.
    :ivar errors: the lines of its standard error, the last ``MAX_ERRORS`` bytes of it.
    """

    status: int
    output: bytes
    size: int
    errors: list[str]


#: The most bytes of standard error that are looked at.
MAX_ERRORS = 64 * 1024


def run(
    words: Sequence[str],
    seconds: float,
    variables: Mapping[str, str],
    folder: Path | None = None,
    data: bytes = b"",
) -> GitResult:
    """Run a program in a process group of its own, which ends with it.

    It reads and writes files: a child that it detaches can hold a pipe open for ever.  It is ended
    where it prints without end, too.

    :param data: its standard input.
    :raises subprocess.TimeoutExpired: if it takes longer than ``seconds``; it is ended.
    :raises OSError, ValueError: if it cannot be started.
    """
    with (
        tempfile.TemporaryFile() as input_file,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        input_file.write(data)
        input_file.seek(0)
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=input_file,
            stdout=output,
            stderr=errors,
            env=dict(variables),
            start_new_session=True,
        )
        if not _in_time(process, seconds, (output, errors)):
            raise subprocess.TimeoutExpired(words, seconds)
        size, length = _size(output), _size(errors)
        output.seek(0)
        errors.seek(max(0, length - MAX_ERRORS))
        lines = errors.read(MAX_ERRORS).decode("utf-8", "replace").strip().splitlines()
        return GitResult(
            process.returncode, output.read(LIMIT), size, [line[:500] for line in lines]
        )


def _in_time(
    process: subprocess.Popen[bytes], seconds: float, printed: Sequence[IO[bytes]]
) -> bool:
    """Wait for a program and end its group; whether it ended before the time was over.

    :param printed: the files that it prints to, whose size is bounded.
    """
    over, late = threading.Event(), threading.Event()

    def watch() -> None:
        ends = time.monotonic() + seconds
        while not over.wait(min(0.2, max(0.0, ends - time.monotonic()))):
            if time.monotonic() >= ends:
                late.set()
            if late.is_set() or max(map(_size, printed)) > 2 * LIMIT:
                _end_group(process)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        process.wait()
    finally:
        over.set()
        _end_group(process)
        process.wait()
        watcher.join()
    return not late.is_set()


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
