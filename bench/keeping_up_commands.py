"""Time an import of 23 hunks, and ``log --matrix`` of 13 features over 19 releases.

``python bench/keeping_up_commands.py`` prints JSON.  Each command runs in a process of its own,
with the releases in the user's cache; the best of several runs counts, and the processor's time is
given beside the clock's, since other work on the machine only lengthens the clock's.
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
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pulls import PULLS, Pull, release_texts
from overlay.authoring.incoming import read_changes

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

#: Features of a team in the matrix, beside those shipped: 13 in all.
TEAM = 9


class Timing(NamedTuple):
    """The best of several runs, in seconds.

    :ivar clock: by the clock; :ivar cpu: of the processor, child processes included.
    """

    clock: float
    cpu: float


def timed(arguments: list[str]) -> Timing:
    """The best run of the command line.

    :raises RuntimeError: if a run ends with an error.
    """
    found = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "overlay", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OVERLAY_PATCHES": ""},
        )
        clock = time.perf_counter() - began
        if done.returncode == 2:
            raise RuntimeError(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append(Timing(round(clock, 2), round(cpu, 2)))
    return min(found, key=lambda timing: timing.clock)


def measure() -> dict[str, object]:
    """Both timings, with how large the work is."""
    texts = release_texts()
    with tempfile.TemporaryDirectory(prefix="overlay-keeping-up-") as place:
        folder = Path(place)
        change = folder / "large.diff"
        change.write_bytes(LARGE.diff(texts))
        (commit,) = read_changes(change.read_bytes(), "large")
        hunks = sum(len(file.hunks) for file in commit.files)
        update = ["import", str(change), "--id", "large", "--patches", str(folder / "large")]
        imported = timed([*update, "--update"])
        for pull in PULLS[:TEAM]:
            source = folder / f"{pull.number}.diff"
            source.write_bytes(pull.diff(texts))
            words = ["import", str(source), "--id", f"pull-{pull.number}"]
            timed([*words, "--patches", str(folder / "team"), "--update"])
        matrix = timed(["log", "--matrix", "--patches", str(folder / "team")])
    return {
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "import": {"hunks": hunks, "files": len(commit.files), **imported._asdict()},
        "log --matrix": {"features": 4 + TEAM, "releases": len(texts.names), **matrix._asdict()},
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(json.dumps(measure(), indent=2))
