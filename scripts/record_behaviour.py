"""Record what every command answers, and compare: the law of a step that must change no answer.

``python3 scripts/record_behaviour.py --check`` records and prints what is not as
``tests/recording/answers`` has it; it ends with 1 where something is not.  ``--write`` takes what
is recorded for the answers.  ``--only REGEX`` picks parts: ``help``, ``catalogue``, ``port``,
``states/applied``, ``processes/applied``, ``releases/0.33.0`` and so on (``--list``).  ``--code``
names another checkout whose overlay is recorded.  Parts named ``releases/`` read the sources of
vLLM from the user's cache, into which they are fetched where they are missing; nothing else uses
the network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.recording import lives, states, stored, worker

#: Where parts lie: the length of a path shows in what commands print, so it is always the same.
PLACES = "/tmp"


def record(names: Sequence[str], code: Path = ROOT) -> dict[str, dict[str, list[str]]]:
    """What the commands of some parts answer: part -> name -> lines.

    :param code: the checkout whose overlay answers.
    :raises RuntimeError: if a part cannot be recorded.
    """
    with _place() as place:
        small, released = place / "small", place / "released"
        by_world: dict[Path, list[str]] = {small: [], released: []}
        for name in names:
            by_world[released if worker.is_released(name) else small].append(name)
        _copy_code(code, small)
        _copy_code(code, released)
        shutil.rmtree(small / "patches")
        states.write_shipped(small / "patches")
        kept = {small: place / "small-cache/releases", released: place / "cache/releases"}
        for folder in kept.values():
            folder.mkdir(parents=True)
        _python(small, "from tests.recording import lives; lives.main()", str(kept[small]))
        if by_world[released]:
            _keep_releases(kept[released])
        lanes = _lanes(by_world, len(os.sched_getaffinity(0)))
        running = [
            _start(world, place / "parts", kept[world], lane) for world, lane in lanes if lane
        ]
        try:
            failed = [process.wait() for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if any(failed):
            raise RuntimeError("a part could not be recorded: its traceback is above")
        files = {name: place / "parts" / f"{name.replace('/', '-')}.json" for name in names}
        return {name: json.loads(file.read_text()) for name, file in files.items()}


def _lanes(by_world: Mapping[Path, list[str]], cores: int) -> Iterator[tuple[Path, list[str]]]:
    """Divide the parts of each world among half of the cores."""
    each = max(1, cores // sum(1 for names in by_world.values() if names))
    for world, names in by_world.items():
        for number in range(each):
            yield world, names[number::each]


def _copy_code(code: Path, folder: Path) -> None:
    """Copy an overlay with its bytecode, so that where a checkout lies does not matter."""
    for name in ("overlay", "patches"):
        shutil.copytree(code / name, folder / name)
    shutil.copy2(code / "pyproject.toml", folder / "pyproject.toml")


def _environment() -> dict[str, str]:
    """The environment of a worker, in which a test's or a user's variables decide nothing."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}


def _python(folder: Path, code: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=_environment(), check=True
    )


def _start(world: Path, parts: Path, kept: Path, names: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.recording.worker", str(parts), str(kept), *names]
    return subprocess.Popen(command, cwd=world, env=_environment(), start_new_session=True)


def _keep_releases(folder: Path) -> None:
    """Lay out the releases of the user's cache; those that it lacks are fetched into it."""
    from overlay.package import VLLM
    from overlay.targets.releases import archive_name, releases_folder
    from overlay.targets.resolution import resolve

    for release in lives.RELEASES:
        resolve(release)
        file = releases_folder().path / archive_name(release, VLLM)
        try:
            os.link(file, folder / file.name)
        except OSError:  # another file system
            shutil.copy2(file, folder / file.name)


@contextmanager
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="overlay-recording-", dir=PLACES)).resolve()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check(recorded: Mapping[str, dict[str, list[str]]], folder: Path = stored.FOLDER) -> int:
    """Print what is not as it is stored; the number of answers."""
    old = stored.load(folder)
    lines = [
        line
        for part, answers in recorded.items()
        for line in stored.differences(old.get(part, {}), answers, part)
    ]
    print("\n".join(lines))
    return sum(line.startswith("=== ") for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record and compare, or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="print what differs")
    action.add_argument("--write", action="store_true", help="store what is recorded")
    action.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--only", default="", metavar="REGEX", help="parts whose name it matches")
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout that is recorded")
    parser.add_argument("--answers", type=Path, default=stored.FOLDER, help="where they are stored")
    asked = parser.parse_args(arguments)
    names = [name for name in worker.parts() if re.search(asked.only, name)]
    if not names:
        parser.error(f"--only {asked.only}: no part of that name; --list prints them")
    if asked.list:
        print("\n".join(names))
        return 0
    began = time.monotonic()
    recorded = record(names, asked.code.resolve())
    count = sum(len(answers) for answers in recorded.values())
    if asked.write:
        stored.save(recorded, asked.answers)
    differs = 0 if asked.write else check(recorded, asked.answers)
    seconds = time.monotonic() - began
    print(f"{differs} of {count} answers of {len(names)} parts differ, {seconds:.0f} s")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
