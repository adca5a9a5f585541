"""Programs that propose how to resolve a conflict: git's merge tool, or a command of the user's.

A proposal is never trusted: it is taken over only if it has no markers and compiles, and it waits
for a person like any merge.  The program gets copies of the four texts in a folder of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path

from overlay.authoring.git import environment, run
from overlay.authoring.port_views import Conflict, marker_lines
from overlay.errors import UsageError
from overlay.planning.scopes import Syntax
from overlay.untrusted import kind, read_regular, sha256

#: Seconds that a command may take for one file.
SECONDS = 120.0

#: Seconds that a question to git may take.
GIT_SECONDS = 30.0

#: The largest text that is taken over, in bytes.
_LIMIT = 16 * 1024 * 1024


def propose(
    command: str, texts: Conflict, path: str, watched: Iterable[Path], seconds: float = SECONDS
) -> bytes:
    """What a command makes of a conflict.

    It is called with four files: the base, yours, the release's, and the one to write to, which
    holds the merge with markers.

    :param path: the file of the release, whose name the copies have.
    :param watched: folders that it must not change.
    """
    watched = tuple(watched)
    before = _state(watched)
    with tempfile.TemporaryDirectory(prefix="overlay-resolve-") as folder:
        names = zip(("base", "yours", "release", "result"), astuple(texts), strict=True)
        contents = {Path(folder, f"{part}-{Path(path).name}"): data for part, data in names}
        for file, data in contents.items():
            file.write_bytes(data)
        files = list(contents)
        inputs = _state([Path(folder)], without=files[3])
        _run([*_words(command), *map(str, files)], Path(folder), command, seconds)
        if _state(watched) != before:
            raise UsageError(
                f"{command}: it changed files of the session or of the patches, which it was not "
                "given: nothing of it is taken over; look at `git status` there, or restore them"
            )
        if _state([Path(folder)], without=files[3]) != inputs:
            raise UsageError(
                f"{command}: expected it to write {files[3].name} alone, found other changes; "
                "nothing of it is taken over"
            )
        result = read_regular(files[3], _LIMIT, follow=False)
    return checked(result, command, path)


def checked(data: bytes | None, command: str, path: str) -> bytes:
    """A proposal, if it could be one."""
    if data is None:
        raise UsageError(f"{command}: expected a result for {path}, found none")
    if lines := marker_lines(data):
        raise UsageError(
            f"{command}: its result for {path} still has the markers of a conflict, at line "
            f"{lines[0]}"
        )
    if (error := Syntax().module_error(data, path)) is not None:
        raise UsageError(f"{command}: its result for {path} is not Python: {error}")
    return data


def merge_tool(texts: Conflict, path: str) -> bytes:
    """What a person makes of a conflict in git's ``merge.tool``.

    The tool runs in a repository of its own, in which the file has the three texts as its stages.
    """
    git = shutil.which("git")
    if git is None:
        raise UsageError("--tool needs git, and there is none: edit the file, or use --resolver")
    with tempfile.TemporaryDirectory(prefix="overlay-merge-") as folder:
        _stage(git, Path(folder), texts, path)
        # Asked there: the checkout that this was called in may be a stranger's, and a tool a path.
        output = _git([git, "-C", folder, "config", "merge.tool"], may_fail=True)
        tool = output.decode("utf-8", "surrogateescape").strip()
        if not tool:
            raise UsageError(
                "--tool needs git's merge.tool, which is not set: `git config --global merge.tool "
                "vimdiff`, for example"
            )
        subprocess.run(
            [git, "-C", folder, "mergetool", "--no-prompt", f"--tool={tool}", "--", path],
            check=False,
            env=environment(),
        )
        data = read_regular(Path(folder) / path, _LIMIT, follow=False)
    return checked(data, f"merge.tool {tool}", path)


def _stage(git: str, folder: Path, texts: Conflict, path: str) -> None:
    calm = ["-c", "core.autocrlf=false", "-c", "core.hooksPath=/dev/null"]

    def call(*words: str, data: bytes = b"") -> str:
        return _git([git, "-C", str(folder), *calm, *words], data).decode().strip()

    call("init", "-q")
    blobs = [
        call("hash-object", "-w", "--stdin", data=data)
        for data in (texts.base, texts.yours, texts.release)
    ]
    stages = "".join(f"100644 {blob} {stage}\t{path}\n" for stage, blob in enumerate(blobs, 1))
    call("update-index", "--index-info", data=stages.encode())
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(texts.merged)


def _git(words: list[str], data: bytes = b"", *, may_fail: bool = False) -> bytes:
    try:
        ended = run(words, GIT_SECONDS, environment(), data=data)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--tool: git cannot be run: {error}") from error
    if ended.status and not may_fail:
        raise UsageError(f"--tool: `{' '.join(words[:3])}` failed: {' '.join(ended.errors[:1])}")
    return ended.output


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--resolver {command}: expected a command: {error}") from error
    if not words:
        raise UsageError("--resolver: expected a command, found nothing")
    if os.sep in words[0]:  # it runs in another folder than the one that it was named in
        words[0] = os.path.abspath(words[0])
    return words


def _run(words: list[str], folder: Path, command: str, seconds: float) -> None:
    try:
        ended = run(words, seconds, environment(), folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--resolver {command}: it cannot be run: {why}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"--resolver {command}: it took longer than {seconds:g} s and was ended"
        ) from error
    if ended.status:
        last = (ended.errors or ["it said nothing"])[-1]
        raise UsageError(
            f"--resolver {command}: expected exit status 0, found {ended.status}: {last}"
        )


def _state(folders: Iterable[Path], without: Path | None = None) -> Mapping[str, str]:
    """The sha256 of every file below folders; where a link leads is part of it."""
    return {
        str(path): _contents(path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path != without
    }


def _contents(path: Path) -> str:
    """What tells a file from what it was; of one that is large, or no file, without reading it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:  # since it was listed
        return "gone"
    if stat.S_ISLNK(status.st_mode):
        return f"link to {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return kind(status.st_mode)
    if status.st_size > _LIMIT:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    data = read_regular(path, _LIMIT, follow=False)
    return "gone" if data is None else sha256(data)
