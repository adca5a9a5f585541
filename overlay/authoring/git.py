"""Ask the user's git about a checkout, so that nothing which the checkout names is run.

git is optional: only sources of the form ``CHECKOUT@A..B``, a base in a checkout's history and the
history of a patches folder need it.  A checkout is a stranger's data, its configuration included:
hooks, external diffs, textconv filters, signature checks, file-system monitors, submodules and
fetches of missing objects are switched off, and no revision can be taken for an option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

#: Variables of git that say where its configuration is, and nothing else about the repository.
_KEPT = re.compile(r"^GIT_CONFIG(_|$)")

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
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    env=_environment(os.environ),
                    timeout=SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise UsageError(
                    f"{self.folder}: expected `git {arguments[0]}` to end within {SECONDS} seconds"
                ) from error
            except (OSError, ValueError) as error:
                raise UsageError(f"{self.folder}: git cannot be run there: {error}") from error
            if done.returncode != 0:
                said = done.stderr.decode("utf-8", "replace").strip().splitlines()
                why = said[0] if said else f"it ended with {done.returncode}"
                raise UsageError(f"{self.folder}: `git {arguments[0]}` failed: {why}")
            if output.tell() > LIMIT:
                raise UsageError(
                    f"{self.folder}: expected at most {LIMIT} bytes from `git {arguments[0]}`, "
                    f"found {output.tell()}"
                )
            output.seek(0)
            return output.read()

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

    def mails(self, first: str, last: str) -> bytes:
        """The commits behind ``first`` up to ``last`` as mails; merges have none.

        :param first: a commit's id; :param last: another's.
        """
        options = (
            *("--stdout", "--no-signature", "--no-cover-letter", "--no-thread", "--no-attach"),
            "--subject-prefix=PATCH",
        )
        return self.ask("format-patch", *_DIFF, *options, f"{first}..{last}", "--")

    def mail(self, commit: str) -> bytes:
        """One commit as a mail.

        :param commit: its id.
        """
        options = ("--stdout", "--no-signature", "--no-attach", "--subject-prefix=PATCH", "-1")
        return self.ask("format-patch", *_DIFF, *options, commit, "--")

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


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of git: no other repository, no prompt, no fetch, messages in English."""
    kept = {
        name: value
        for name, value in variables.items()
        if not name.startswith("GIT_") or _KEPT.match(name)
    }
    return {
        **kept,
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
