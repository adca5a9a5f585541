"""Record what every command answers, so that a rebuilt overlay can be compared with an older one.

``python3 scripts/record_behaviour.py OUTPUT [--code FOLDER] [--releases RANGE]`` runs the overlay
of a checkout (default: this one) over small installations in each state that users meet and, with
``--releases``, over releases from the package index.  OUTPUT gets one JSON object: for each command
its exit status, what it wrote to both streams, and a hash of every file that it left behind.
``--compare OLD NEW`` prints what two recordings disagree on and ends with 1 where they do.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import fake_vllm
from tests.support.patches import hunk, patch_text, write_feature

PROPOSER = "vllm/v1/spec_decode/proposer.py"
LEDGER = ".vllm-overlay/ledger.json"
#: Commands that came with later versions, and write nothing.
READING = ("status --require demo", "apply --dry-run --require all --json")
#: Commands that write, in the order in which each state meets them.
WRITING = (
    "adopt",
    "apply --feature demo",
    "apply --feature demo",
    "revert --feature demo",
    "apply --feature demo",
    "revert",
    "revert --json",
)
COMMANDS = ("check", "status", "diff", "apply --dry-run", "list")


def patches(folder: Path) -> Path:
    """A folder with two features: one that patches and adds, one that every release has."""
    lines = [
        "     def propose(self, tokens):",
        "-        drafts = [self._first(tokens)]",
        "+        drafts = [self._first(tokens)]  # patched",
    ]
    patch = patch_text(PROPOSER, hunk(lines, "SpecDecodeBaseProposer.propose"))
    write_feature(
        folder,
        {
            "10-propose/0.20.0..0.33.0.patch": patch,
            "files/vllm/v1/spec_decode/demo.py": "VALUE = 1\n",
        },
    )
    return folder


def edit(site: Path, old: str, new: str) -> None:
    """Replace a text of the patched file."""
    file = site / PROPOSER
    file.write_text(file.read_text().replace(old, new))


#: Name of a state -> what brings a freshly patched installation into it.
STATES: dict[str, Callable[[Path], object]] = {
    "applied": Path.exists,
    "edited": lambda site: edit(site, "# patched", "# patched, edited"),
    "put back": lambda site: edit(site, "  # patched", ""),
    "file removed": lambda site: (site / PROPOSER).unlink(),
    "module removed": lambda site: (site / "vllm/v1/spec_decode/demo.py").unlink(),
    "ledger damaged": lambda site: (site / LEDGER).write_text("{"),
    "ledger removed": lambda site: (site / LEDGER).unlink(),
    "state folder removed": lambda site: shutil.rmtree(site / ".vllm-overlay"),
    "pristine copies removed": lambda site: shutil.rmtree(site / ".vllm-overlay/pristine"),
    "journal damaged": lambda site: (site / ".vllm-overlay/journal.json").write_text("{"),
    "another release": lambda site: (site / "vllm/_version.py").write_text(
        "__version__ = version = '0.27.0'\n"
    ),
}


class Recorder:
    """Runs commands of one checkout and keeps their answers."""

    def __init__(self, code: Path, python: str) -> None:
        self.code, self.python = code, python
        self.answers: dict[str, Any] = {}
        self.place = Path(tempfile.mkdtemp(prefix="overlay-recording-"))

    def run(self, name: str, command: str, *arguments: object, site: Path | None = None) -> None:
        """Run one command and keep its answer under ``name``."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OVERLAY")}
        environment["PYTHONPATH"] = str(self.code)
        if not any("releases" in str(one) for one in arguments):
            environment["OVERLAY_CACHE"] = str(self.place / "cache")
        done = subprocess.run(
            [self.python, "-m", "overlay", *command.split(), *map(str, arguments)],
            env=environment,
            cwd=self.place,
            capture_output=True,
            check=False,
            timeout=600,
        )
        self.answers[name] = {
            "exit": done.returncode,
            "out": self._plain(done.stdout),
            "err": self._plain(done.stderr),
            "files": None if site is None else hashes(site),
        }

    def _plain(self, data: bytes) -> str:
        text = data.decode("utf-8", "backslashreplace")
        return text.replace(str(self.place), "PLACE").replace(str(self.code), "CODE")

    def close(self) -> None:
        """Remove the installations."""
        shutil.rmtree(self.place, ignore_errors=True)


def hashes(site: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, but of those that hold a fingerprint of a place."""
    return {
        path.relative_to(site).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(site.rglob("*"))
        if path.is_file() and path.name != "ledger.json"
    }


def scenarios(recorder: Recorder) -> Iterator[str]:
    """Every command in every state; yields the name of each state that is done."""
    features = patches(recorder.place / "patches")
    prefix = f"--patches {features}"
    commands = (f"{one} --help" for one in "check apply revert status adopt".split())
    for command in ("--help", "--version", "help", *commands, "completion fish", "cache size"):
        recorder.run(f"help: {command}", command)
    recorder.run("no such command", "aply")
    pristine = fake_vllm.site_packages(recorder.place / "pristine")
    for state, bring_about in (("pristine", None), *STATES.items()):
        site = recorder.place / "states" / state.replace(" ", "-") / "site-packages"
        shutil.copytree(pristine, site)
        if bring_about is not None:
            recorder.run(f"{state}: set up", f"{prefix} apply --feature demo", site, site=site)
            bring_about(site)
        for command in COMMANDS:
            target = () if command == "list" else (site,)
            forms = ("",) if command in ("diff", "list") else ("", " -v", " --json")
            for form in forms:
                only = "" if command in ("status", "list") else " --feature demo"
                words = f"{prefix} {command}{form}{only}"
                recorder.run(f"{state}: {command}{form}", words, *target, site=site)
        for command in READING:
            recorder.run(f"{state}: {command}", f"{prefix} {command}", site, site=site)
        for command in WRITING:
            number = sum(name.startswith(f"{state}: then {command}") for name in recorder.answers)
            recorder.run(
                f"{state}: then {command} {number + 1}", f"{prefix} {command}", site, site=site
            )
        yield state


def compare(old: Path, new: Path) -> int:
    """Print what differs between two recordings; 1 where something does."""
    before, after = json.loads(old.read_text()), json.loads(new.read_text())
    differs = 0
    for name in [*before, *(name for name in after if name not in before)]:
        a = json.dumps(before.get(name), indent=1, sort_keys=True).replace("\\n", "\n").split("\n")
        b = json.dumps(after.get(name), indent=1, sort_keys=True).replace("\\n", "\n").split("\n")
        if a != b:
            differs += 1
            print(f"=== {name}")
            print("\n".join(difflib.unified_diff(a, b, "before", "after", lineterm="", n=1)))
    print(f"{differs} of {len(before)} answers differ")
    return 1 if differs else 0


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--code", type=Path, default=ROOT)
    parser.add_argument("--releases", default="")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    if asked.output is None:
        parser.error("name the file to write")
    recorder = Recorder(asked.code.resolve(), sys.executable)
    try:
        for state in scenarios(recorder):
            print(f"recorded: {state}", flush=True)
        if asked.releases:
            for form in ("", " --json"):
                recorder.run(f"releases{form}", f"check{form}", "--releases", asked.releases)
    finally:
        recorder.close()
    asked.output.write_text(json.dumps(recorder.answers, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
