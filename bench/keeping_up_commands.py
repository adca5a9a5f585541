"""Time an import of 23 hunks, and ``log --matrix`` of 13 features over 19 releases; count edits.

``python bench/keeping_up_commands.py`` prints JSON.  Each command runs in a process of its own,
with the releases in the user's cache; the best of several runs counts, and the processor's time is
given beside the clock's, since other work on the machine only lengthens the clock's.  The edits are
those that a person has to make by hand between ``import`` and a ``check`` that is content.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pulls import PULLS, Pull, release_texts
from overlay.authoring.incoming import read_changes
from overlay.features.folder import load
from overlay.features.model import of_package
from overlay.features.sources import shipped_folder
from overlay.package import VLLM

#: How often each command is run.
RUNS = 3

_GPU = "vllm/v1/worker/gpu"

#: The import that is timed, as large as #48630: 9 files, 23 hunks, from 0.26.0 to 0.27.0.
LARGE = Pull(
    48630,
    "everything that changed in nine files of samplers and speculators",
    "0.26.0",
    "0.27.0",
    {
        f"{_GPU}/sample/logit_bias.py": "",
        f"{_GPU}/sample/prompt_logprob.py": "",
        f"{_GPU}/sample/sampler.py": "",
        f"{_GPU}/spec_decode/autoregressive/cudagraph_utils.py": "",
        f"{_GPU}/spec_decode/dspark/speculator.py": "",
        f"{_GPU}/spec_decode/eagle/eagle3_utils.py": "",
        f"{_GPU}/spec_decode/rejection_sampler.py": "",
        f"{_GPU}/spec_decode/rejection_sampler_utils.py": "",
        f"{_GPU}/spec_decode/speculator.py": "",
    },
    "",
)

#: Features in the matrix: those shipped, and a team's.
FEATURES = 13


class Timing(NamedTuple):
    """The best of several runs, in seconds.

    :ivar clock: by the clock; :ivar cpu: of the processor, child processes included.
    """

    clock: float
    cpu: float


def run(arguments: list[str]) -> str:
    """What a command line prints, without the features of other folders.

    :raises RuntimeError: if it ends with an error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "overlay", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OVERLAY_PATCHES": ""},
    )
    if done.returncode == 2:
        raise RuntimeError(done.stderr + done.stdout)
    return done.stdout


def timed(arguments: list[str]) -> Timing:
    """The best run of the command line.

    :raises RuntimeError: if a run ends with an error.
    """
    found = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        run(arguments)
        clock = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append(Timing(round(clock, 2), round(cpu, 2)))
    return min(found, key=lambda timing: timing.clock)


def edits_by_hand(pull: Pull, change: Path, patches: Path) -> dict[str, object]:
    """What is left to edit after the import of a pull request, on the release that it was made on.

    Nothing is edited here: each hunk that ``check`` then finds in another place than its own is an
    edit, and so is an import that wrote nothing.
    """
    words = ["--patches", str(patches), "--json"]
    imported = answer(["import", str(change), "--id", "carried", *words])
    edits = [f"import: {imported['verdict']}"] if imported["import"]["folder"] is None else []
    if not edits:
        (target,) = answer(["check", pull.older, "--feature", "carried", *words])["targets"]
        edits = [
            f"{file['path']} {hunk['scope']}: {hunk['state']}"
            for feature in target["features"]
            for file in feature["files"]
            for hunk in file["hunks"]
            if hunk["state"] != "pristine"
        ]
    (commit,) = read_changes(change.read_bytes(), change.name)
    hunks = sum(len(file.hunks) for file in commit.files)
    files = len(commit.files)
    return {"pull": pull.number, "files": files, "hunks": hunks, "edits": len(edits)}


def shipped() -> int:
    """How many features for vLLM are shipped."""
    return len(of_package(load([shipped_folder()]), VLLM))


def answer(arguments: list[str]) -> Any:
    """The JSON of a command line.

    :raises RuntimeError: if it ends with an error.
    """
    return json.loads(run(arguments))


def measure() -> dict[str, object]:
    """The timings with how large the work is, and the edits by hand."""
    texts = release_texts()
    with tempfile.TemporaryDirectory(prefix="overlay-keeping-up-") as place:
        folder = Path(place)
        change = folder / "large.diff"
        change.write_bytes(LARGE.diff(texts))
        (commit,) = read_changes(change.read_bytes(), "large")
        hunks = sum(len(file.hunks) for file in commit.files)
        update = ["import", str(change), "--id", "large", "--patches", str(folder / "large")]
        imported = timed([*update, "--update"])
        by_hand = []
        for number, pull in enumerate(PULLS):
            source = folder / f"{pull.number}.diff"
            source.write_bytes(pull.diff(texts))
            by_hand.append(edits_by_hand(pull, source, folder / f"ours-{pull.number}"))
            if number < FEATURES - shipped():
                words = ["import", str(source), "--id", f"pull-{pull.number}"]
                answer([*words, "--patches", str(folder / "team"), "--json"])
        matrix = timed(["log", "--matrix", "--patches", str(folder / "team")])
    return {
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "import": {"hunks": hunks, "files": len(commit.files), **imported._asdict()},
        "edits by hand": by_hand,
        "log --matrix": {
            "features": FEATURES,
            "releases": len(texts.names),
            **matrix._asdict(),
        },
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(json.dumps(measure(), indent=2))
