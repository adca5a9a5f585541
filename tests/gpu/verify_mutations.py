#!/usr/bin/env python3
"""Put bugs into the draft graphs and let ``overlay verify --tiny`` find them, on a GPU.

Runs where a patched vLLM can be imported (``PYTHONPATH``); the command is started as a user starts
it, the mutated modules are found before those on disk (``tests/draft_graphs/double_site``).

    verify_mutations.py --site /path/with/vllm --out result.json [--jobs 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from overlay.report.codes import Code
from tests.draft_graphs.double_environment import SITE, write_mutated
from tests.draft_graphs.mutation_table import MUTATIONS
from tests.draft_graphs.mutation_types import Mutation

#: Ten bugs that tokens or accepted drafts show, of the replay, of what passes hand on, of staging.
SAMPLE = (
    "nothing is replayed",
    "the later passes are not replayed",
    "one step too few is replayed",
    "the columns of the steps are not collected",
    "the first step does not get the first pass's token",
    "a step does not get the token of the one before",
    "a later pass does not get the hidden states of the one before",
    "the later passes do not get the hidden states of the first",
    "the next tokens stay what they were (first)",
    "the hidden states stay what they were (first)",
)


def verify(mutation: Mutation | None, site: Path, seconds: float) -> dict[str, Any]:
    """What the command says of a bug, or of the module as it is."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "PYTHONPATH": f"{SITE}:{os.environ['PYTHONPATH']}"}
        options = ["--mode", "loop"]
        if mutation is not None:
            mutated = write_mutated(site, mutation.changes, Path(folder, "mutated"))
            variables["TEST_MUTATED"] = str(mutated)
            options = ["--draft", mutation.engine, "--mode", mutation.mode]
        status, told = run_command(options, variables, seconds)
    name = "as it is" if mutation is None else mutation.name
    right = is_right(status, told, bug=mutation is not None)
    took = round(time.monotonic() - began, 1)
    return {"mutation": name, "right": right, "exit": status, "seconds": took, **told}


def run_command(
    options: list[str], variables: dict[str, str], seconds: float
) -> tuple[int | None, dict[str, Any]]:
    """The exit status of the command and its JSON; None and an error where it does not end."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "overlay", "verify", "--tiny", "--json", *options],
            cwd=ROOT,
            env=variables,
            text=True,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None, {"error": f"it did not end within {seconds:.0f} s"}
    told = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr[-2000:]}
    return ended.returncode, told


def is_right(status: int | None, told: dict[str, Any], *, bug: bool) -> bool:
    """Whether the command said what it must: an engine that failed has shown no bug."""
    wanted, code = (1, Code.DRAFTS_DIFFER) if bug else (0, Code.VERIFIED)
    return status == wanted and told.get("code") == code.value


def main() -> int:
    """Run the sample; 1 if a bug was not found, or the module as it is was not right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, required=True, help="folder with the patched vllm/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=5, help="commands at a time")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one command")
    args = parser.parse_args()
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    wanted = [None, *(by_name[name] for name in SAMPLE)]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda each: verify(each, args.site, args.timeout), wanted))
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for found in results:
        state = "right" if found["right"] else "WRONG"
        said = found.get("verdict") or found.get("error")
        print(state, found["mutation"], f"exit {found['exit']}", f"{found['seconds']} s", said)
    return int(not all(found["right"] for found in results))


if __name__ == "__main__":
    raise SystemExit(main())
