#!/usr/bin/env python3
"""Run the commands of README and of the tutorial, and write what they print into the pages.

render_samples.py            rewrite the output in place
render_samples.py --check    print how pages and output differ; exit with 1 if they do

A block marked ``console`` is a session: each line behind ``$`` is run by bash, and the lines
below it are its output.  A comment ``<!-- file: PATH -->`` above a block says that the block
is that file, which is written before the next command.  The commands work on the real sources of a
vLLM release, fetched into the user's cache; lines of ``NOT_RUN`` are only shown.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from overlay._features.folder import load
from overlay._features.model import paths_of
from overlay._features.sources import shipped_folder
from overlay.targets.resolution import resolve
from tests.support import fake_vllm

RELEASE = "0.26.0"
#: Commands that need a network, a GPU or a running server.
NOT_RUN = re.compile(r"pip install|vllm serve|overlay status --live")
SECONDS = 300
#: Lines of progress, which come only where something takes more than a second.
_PROGRESS = re.compile(r"\w+ \d+ of \d+ \w+|.* \d+\.\d( of \d+\.\d)? MB|.*, \d+ s")
_FILE = re.compile(r"<!-- file: (\S+) -->")


@dataclass(frozen=True)
class Scene:
    """Where the commands of a page are run.

    :ivar site: the folder, below the place of work, that gets the sources of the release.
    :ivar importable: whether the installed vLLM is that one, so that TARGET may be omitted.
    :ivar shown: what the pages show in the place of the temporary folder.
    """

    page: Path
    site: str
    importable: bool
    shown: str


SCENES = (
    Scene(ROOT / "README.md", "venv/lib/python3.12/site-packages", True, ""),
    Scene(ROOT / "docs/your-first-patch.md", "scratch", False, "/home/you"),
)


def install(folder: Path) -> None:
    """Write the files of the release that the shipped features are about, as pip would."""
    target = resolve(RELEASE)
    features = [
        feature for feature in load([shipped_folder()]) if feature.package == target.package
    ]
    paths = {"vllm/__init__.py", "vllm/_version.py", *paths_of(features)}
    contents = {path: content for path in sorted(paths) if (content := target.read(path))}
    info = f"vllm-{RELEASE}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: vllm\nVersion: {RELEASE}\n\n"
    contents[f"{info}/METADATA"] = metadata.encode()
    contents[f"{info}/RECORD"] = fake_vllm.record(contents, f"{info}/RECORD")
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


class Session:
    """A shell whose commands see the checkout's ``overlay`` and the scene's files."""

    def __init__(self, scene: Scene, place: Path) -> None:
        self.scene, self.place = scene, place
        (place / "bin").mkdir()
        command = place / "bin/overlay"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m overlay "$@"\n')
        command.chmod(0o755)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name != "OVERLAY" and not name.startswith(("OVERLAY_", "GIT_"))
        }
        path = [str(ROOT), *([str(place / scene.site)] if scene.importable else [])]
        self.environment |= {
            "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
        }

    def write(self, path: str, lines: list[str]) -> None:
        """Write a file that a page shows.

        :raises ValueError: if its path leaves the place of work.
        """
        file = (self.place / path).resolve()
        if not file.is_relative_to(self.place.resolve()):
            raise ValueError(f"{self.scene.page}: {path} leaves the place of work")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def run(self, command: str) -> list[str]:
        """What a command prints on both streams, as the page shows it."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        text = done.stdout.replace(str(self.place.resolve()), self.scene.shown)
        lines = [line.rstrip() for line in text.splitlines()]
        return [line for line in lines if not _PROGRESS.fullmatch(line)]


def render(text: str, session: Session) -> str:
    """A page with the output that its commands have now."""
    out: list[str] = []
    lines = iter(text.split("\n"))
    file: str | None = None
    for line in lines:
        out.append(line)
        if match := _FILE.fullmatch(line.strip()):
            file = match[1]
        elif line.startswith("```"):
            body = list(_until_fence(lines))
            if line == "```console":
                out += _console(body, session)
            else:
                out += body
                if file is not None:
                    session.write(file, body)
                file = None
            out.append("```")
    return "\n".join(out)


def _until_fence(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == "```":
            return
        yield line


def _console(body: list[str], session: Session) -> Iterator[str]:
    """The commands of a session, each with its output; output of what is not run is kept."""
    kept = False
    for line in body:
        if not line.startswith("$ "):
            if kept:
                yield line
            continue
        yield line
        kept = NOT_RUN.search(line) is not None
        if not kept:
            yield from session.run(line.removeprefix("$ "))


def rendered(scene: Scene) -> str:
    """The page of a scene with the output that its commands have now."""
    place = Path(tempfile.mkdtemp(prefix="samples-"))
    try:
        install(place / scene.site)
        return render(scene.page.read_text(encoding="utf-8"), Session(scene, place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def difference(scene: Scene) -> str:
    """How the page differs from what its commands print now; nothing where they agree."""
    now = rendered(scene)
    there = scene.page.read_text(encoding="utf-8")
    lines: Callable[[str], list[str]] = str.splitlines
    name = scene.page.relative_to(ROOT).as_posix()
    return "\n".join(difflib.unified_diff(lines(there), lines(now), name, "printed now", "", "", 1))


def main() -> int:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    arguments = parser.parse_args()
    differs = False
    for scene in SCENES:
        if not arguments.check:
            scene.page.write_text(rendered(scene), encoding="utf-8")
        elif text := difference(scene):
            differs = True
            print(text)
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(main())
