"""Run commands of a copy of the overlay in forks of this process, and keep what they answer.

A command gets an environment, a home, a cache and a terminal of its own, and no network, so that
what it answers depends on nothing but the copy and the files that a scenario has laid out.  What is
left of the machine in an answer (places, the Python, process ids, times), and the overlay's
version, is replaced by words.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import io
import json
import os
import pkgutil
import platform
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from tests.support.forks import run_and_exit

#: The columns of every command's terminal.
COLUMNS = 100

#: Exit status, standard output and standard error.
Ended: TypeAlias = tuple[int, str, str]

NONE: Mapping[str, str] = MappingProxyType({})

#: Seconds after which a command has hung.
DEADLINE = 300

#: The name of a pristine copy, and as much of it as says which one.
_HASH = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")

#: The day of this recording, which is written into patches.
_TODAY = time.strftime("%Y-%m-%d", time.gmtime())

#: What the machine decides: pattern -> word.
_WORDS = (
    (re.compile(r"\b\d+(\.\d+)? (seconds|ms|s)\b"), "N s"),
    (re.compile(r"\b(TODAY|\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d\+00:00"), "TIME"),
    (re.compile(r"\bprocess \d+\b"), "process PID"),
    # Progress is told as often as time has passed.
    (re.compile(r"(?m)^[a-z]+ \d+ of \d+ [a-z]+\n"), ""),
    (re.compile(r'"(pid|engine)": \d+'), r'"\1": 0'),
    (re.compile(r'"title": ".*tests\.recording[^"]*"'), '"title": "..."'),
    (re.compile(r'"(started|since|host|kernel|time)": "[^"]*"'), r'"\1": "..."'),
)


class Recorder:
    """Runs the commands of one part in a folder of its own.

    :param place: the folder of the part; ``home``, ``cache``, ``tmp`` and ``work`` lie in it.
    :param words: further places, with the words that stand for them.
    :param releases: a folder of releases that every command finds in its cache.
    :ivar answers: name of an answer -> its lines.
    :ivar words: what stands for a place, in commands and in what they answer.
    """

    def __init__(self, place: Path, words: Mapping[Path, str], releases: Path) -> None:
        self.place, self.releases = place, releases
        self.work, self.cache = place / "work", place / "cache"
        for folder in (self.work, self.cache, *(place / name for name in ("home", "tmp", "run"))):
            folder.mkdir(parents=True, mode=0o700)
        self.answers: dict[str, list[str]] = {}
        self.words = {**words, self.work: "WORK", place: "PART"}
        self.forget()

    def command(
        self,
        line: str,
        *,
        name: str | None = None,
        path: Iterable[Path] = (),
        variables: Mapping[str, str] = NONE,
        files: bool = True,
    ) -> None:
        """Run ``overlay LINE`` and keep its answer.

        :param line: its words, split at blanks; a place is called by its word, as in ``PART/a``.
        :param name: of the answer, where it is not the line (and the folders of ``path``).
        :param path: folders in which Python looks for modules before it looks elsewhere.
        :param variables: of its environment, beside those that every command has.
        :param files: whether to keep what became of the files of the part.
        """
        before = self.files() if files else {}
        status, out, err = self.run(line, path, variables)
        lines = marked("| ", self.plain(compact(out))) + marked("! ", self.plain(err))
        lines += _changes(before, self.files()) if files else []
        self.keep(name or (f"{line} (imported)" if path else line), [f"exit {status}", *lines])

    def keep(self, name: str, lines: list[str]) -> None:
        """Keep an answer; a number follows the name where it is not the first one of that name."""
        number = 1 + sum(known.partition(" #")[0] == name for known in self.answers)
        self.answers[name if number == 1 else f"{name} #{number}"] = lines

    def run(
        self, line: str, path: Iterable[Path] = (), variables: Mapping[str, str] = NONE
    ) -> Ended:
        """Run ``overlay LINE``, and keep nothing."""
        return self.fork(lambda: self.main(line), path, variables)

    def main(self, line: str) -> None:
        """Be ``overlay LINE``; for a fork."""
        sys.argv = ["overlay", *(self.path(word) for word in line.split())]
        importlib.import_module("overlay.__main__").main()

    def fork(
        self,
        work: Callable[[], None],
        path: Iterable[Path] = (),
        variables: Mapping[str, str] = NONE,
    ) -> Ended:
        """Run a function in a fork that is what a command starts in."""
        texts = [self.place / "tmp" / name for name in ("out", "err")]
        child = os.fork()
        if not child:
            self._be_alone(path, variables)
            run_and_exit(work, *texts)
        _, status = os.waitpid(child, 0)
        out, err = (text.read_bytes().decode("utf-8", "backslashreplace") for text in texts)
        for text in texts:
            text.unlink()
        return os.waitstatus_to_exitcode(status), out, err

    @contextlib.contextmanager
    def beside(
        self, work: Callable[[], None], path: Iterable[Path], variables: Mapping[str, str]
    ) -> Iterator[None]:
        """Keep a fork that has done its work alive while the block runs."""
        (ready, told), (rest, end) = os.pipe(), os.pipe()

        def stay() -> None:
            os.close(end)
            work()
            os.close(told)
            os.read(rest, 1)

        child = os.fork()
        if not child:
            self._be_alone(path, variables)
            run_and_exit(stay, self.place / "tmp/beside")
        os.close(told)
        try:
            os.read(ready, 1)  # until it is closed
            yield
        finally:
            for descriptor in (ready, rest, end):
                os.close(descriptor)
            os.waitpid(child, 0)

    def forget(self) -> None:
        """Empty the cache of what processes patched, and lay the releases out again.

        What was learnt of texts stays, since it is the same whoever learnt it.
        """
        for name in ("modules", "releases"):
            shutil.rmtree(self.cache / name, ignore_errors=True)
        (self.cache / "releases").mkdir(mode=0o755)
        for release in self.releases.iterdir():
            os.link(release, self.cache / "releases" / release.name)

    @contextlib.contextmanager
    def caching(self) -> Iterator[None]:
        """Let this process use the part's cache."""
        before = os.environ.get("OVERLAY_CACHE")
        os.environ["OVERLAY_CACHE"] = str(self.cache)
        try:
            yield
        finally:
            del os.environ["OVERLAY_CACHE"]
            if before is not None:
                os.environ["OVERLAY_CACHE"] = before

    def environment(self) -> dict[str, str]:
        """The variables of every command."""
        folders = {"HOME": "home", "TMPDIR": "tmp", "XDG_RUNTIME_DIR": "run"}
        return {
            **{name: str(self.place / folder) for name, folder in folders.items()},
            "OVERLAY_CACHE": str(self.cache),
            "PATH": os.defpath,
            "COLUMNS": str(COLUMNS),
            "LINES": "40",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def path(self, word: str) -> str:
        """A word of a command or the value of a variable, with the places that it names."""
        for folder, name in self.words.items():
            word = re.sub(rf"(?<![\w-]){name}(?=[/:]|$)", str(folder), word)
        return word

    def plain(self, text: str) -> str:
        """A text without what the machine decides."""
        text = self._located(text)
        for value, word in _machine():
            text = text.replace(value, word)
        for pattern, word in _WORDS:
            text = pattern.sub(word, text)
        return text

    def _located(self, text: str) -> str:
        """A text in which words stand for places, the day of writing and the overlay's version."""
        for folder, word in sorted(self.words.items(), key=lambda pair: -len(str(pair[0]))):
            text = text.replace(str(folder), word)
        version = importlib.import_module("overlay").__version__
        text = re.sub(rf"(?<![\w.]){re.escape(version)}(?!\.?\d)", "VERSION", text)
        return text.replace(_TODAY, "TODAY")

    def files(self) -> dict[str, str]:
        """What lies in the part's folder: path -> kind, mode and digest."""
        left_out = {"home", "cache", "tmp", "run"}
        found: dict[str, str] = {}
        for folder, folders, names in os.walk(self.place):
            here = Path(folder)
            if here == self.place:
                folders[:] = [name for name in folders if name not in left_out]
            for name in [*names, *(name for name in folders if not os.listdir(here / name))]:
                file = here / name
                found[file.relative_to(self.place).as_posix()] = self.digest(file)
        return found

    def digest(self, file: Path) -> str:
        """The kind, the digest and the mode of a file."""
        if file.is_symlink():
            return f"-> {self.plain(os.readlink(file))}"
        if file.is_dir():
            return "empty folder"
        data = file.read_bytes()
        with contextlib.suppress(UnicodeDecodeError):
            # A page says when it was made; sources may have what looks like a time.
            plain = self.plain if file.suffix == ".html" else self._located
            data = plain(data.decode()).encode()
        mode = file.stat().st_mode & 0o777
        return hashlib.sha256(data).hexdigest()[:16] + ("" if mode == 0o644 else f" {mode:o}")

    def _be_alone(self, path: Iterable[Path], variables: Mapping[str, str]) -> None:
        """Let this fork be what a command starts in."""
        signal.alarm(DEADLINE)
        os.environ.clear()
        os.environ.update(self.environment())
        os.environ.update({name: self.path(value) for name, value in variables.items()})
        os.chdir(self.work)
        os.umask(0o022)
        tempfile.tempdir = None
        sys.path[:] = [str(folder) for folder in path] + [p for p in sys.path if p != ROOT]
        sys.path_importer_cache.clear()
        _see_only(self.place / "run")
        socket.socket.connect = _refused  # type: ignore[method-assign,assignment]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, stream in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
            file = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
            buffer = io.BufferedReader(file) if number == 0 else io.BufferedWriter(file)
            setattr(sys, stream, io.TextIOWrapper(buffer, "utf-8"))


#: The checkout whose scenarios these are.
ROOT = str(Path(__file__).resolve().parents[2])


def warm() -> None:
    """Import every module of the overlay, so that the forks need not."""
    import overlay

    for module in pkgutil.walk_packages(overlay.__path__, "overlay."):
        with contextlib.suppress(ImportError):  # it needs vLLM or PyTorch
            importlib.import_module(module.name)
    for name in ("html", "multiprocessing.pool", "concurrent.futures.process", "unittest.mock"):
        importlib.import_module(name)
    gc.freeze()  # else a fork would copy what its collector visits


def _see_only(folder: Path) -> None:
    """Let this fork see no processes but those whose records lie in a folder."""
    from overlay import _processes
    from overlay._processes import live

    own = live._own
    _processes.folders = lambda: (folder,)
    live._own = lambda proc: [seen for seen in own(proc) if f"-{seen.pid}.json" in _ends(folder)]


def _ends(folder: Path) -> str:
    return " ".join(file.name for file in folder.iterdir())


def _refused(self: socket.socket, address: object) -> NoReturn:
    raise ConnectionRefusedError(111, "Connection refused")


def _machine() -> list[tuple[str, str]]:
    """What this machine is called: text -> word, the longer ones first."""
    version = platform.python_version()
    words = {
        sys.executable: "PYTHON",
        os.path.realpath(sys.executable): "PYTHON",
        sys.prefix: "PREFIX",
        sys.base_prefix: "BASE",
        version: "PYTHON-VERSION",
        socket.gethostname(): "HOST",
        platform.platform(): "PLATFORM",
    }
    return sorted(words.items(), key=lambda pair: -len(pair[0]))


def marked(mark: str, text: str) -> list[str]:
    """The lines of a text with a mark before each."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += "\\"  # no end of line
    return [f"{mark}{line}".rstrip(" ") for line in lines]


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            sign = "+" if path not in before else "~" if path in after else "-"
            short = _HASH.sub(r"\1", path)
            lines.append(f"{sign} {short} {after.get(path, '')}".rstrip())
    return lines


def compact(text: str) -> str:
    """A text; of JSON as the commands print it a form in which what is short stands on a line."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    as_printed = json.dumps(document, indent=2) + "\n"
    return as_json(document) + "\n" if text == as_printed else text


def as_json(value: Any, indent: str = "") -> str:
    """JSON with every value that is short on a line of its own."""
    short = json.dumps(value)
    if len(indent + short) <= COLUMNS or not value or not isinstance(value, dict | list):
        return short
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {as_json(each, inner)}" for key, each in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + "}"
    return f"[\n{inner}" + f",\n{inner}".join(as_json(each, inner) for each in value) + "]"
