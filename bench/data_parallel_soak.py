#!/usr/bin/env python3
"""Let two data-parallel ranks with experts in the draft come and go for some hundred steps.

    python bench/data_parallel_soak.py --out bench/results/data-parallel-soak-DATE.json

Eight runs on CPU of forty requests a rank, each with engines of its own; the requests are made by
``tests/draft_graphs/dp_runs.py``.  What both ranks say and accept is compared with the oracle, and
the graphs that they replay with each other's, step by step.  The file is written again after each
run; with ``--run`` some of the runs are made, and added to what the file holds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts import environment
from tests.draft_graphs.dp_client import RANKS, RanksFailed, make_dp_spec, run_ranks
from tests.draft_graphs.dp_rank import DpOutcome, DpRun
from tests.draft_graphs.dp_runs import K, soak_faults, soak_runs
from tests.draft_graphs.forked_modules import forked_modules
from tests.engine.engine_fixtures import overlay
from tests.engine.engine_launch import write_models
from tests.engine.private_copy import make_private_copy

#: Seconds for the engines' start and one run.
LIMIT = 3600


def figures(outcome: DpOutcome) -> dict[str, Any]:
    """What is kept of one rank's outcome."""
    kinds = Counter(re.sub(r"\d+(?=[,;])", "N", step) or "nothing" for step in outcome.trail)
    return {
        "tokens_ok": outcome.tokens_ok,
        "accepted": outcome.accepted,
        "oracle": outcome.expected,
        "engine_steps": len(outcome.trail),
        "steps_by_what_drafted": dict(kinds.most_common()),
        "doing": outcome.steps,
        "dummy_batches": outcome.dummy_batches,
        "dummy_replays": outcome.dummy_replays,
        "dummy_writes": outcome.dummy_writes,
        "agreements_of_the_drafter": outcome.agreements,
        "replays": outcome.replays,
    }


def make_run(python: Path, models: Path, run: DpRun) -> dict[str, Any]:
    """Make one run with engines of its own.

    :param python: the interpreter of an environment with a patched vLLM.
    """
    began = time.monotonic()
    spec = make_dp_spec(models, "eagle3hid", K)
    with forked_modules(python) as forks:
        (outcomes,) = run_ranks(forks, [(spec, [run])], seconds=LIMIT)
    made: dict[str, Any] = {"run": run.name, "seconds": round(time.monotonic() - began)}
    if isinstance(outcomes, RanksFailed):
        return {**made, "faults": [str(outcomes)]}
    ranks = [outcomes[rank][run.name] for rank in range(RANKS)]
    return {**made, "faults": soak_faults(ranks), "ranks": [figures(each) for each in ranks]}


def main() -> int:
    """Make the runs; 1 if anything is wrong with one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the results, as JSON")
    parser.add_argument("--run", action="append", help="the name of a run, such as 'soak 0, loop'")
    args = parser.parse_args()
    runs = [each for each in soak_runs() if not args.run or each.name in args.run]
    results: dict[str, Any] = {"runs": []}
    if args.out.is_file():
        results = json.loads(args.out.read_text(encoding="utf-8"))
    engine = environment.engine_python()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        write_models(engine, folder / "models", "tiny_moe")
        copy = make_private_copy(engine, folder / "environment")
        overlay("apply", copy.site)
        for run in runs:
            made = make_run(copy.python, folder / "models", run)
            print(made["run"], made["seconds"], "seconds", made["faults"] or "right", flush=True)
            others = [each for each in results["runs"] if each["run"] != run.name]
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            results = {"date": now, "vllm": engine_release(copy.site), "runs": [*others, made]}
            args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any(each["faults"] for each in results["runs"]) else 0


def engine_release(site: Path) -> str:
    """The release of the vLLM in a site-packages folder."""
    (metadata,) = site.glob("vllm*.dist-info")
    return metadata.name.removesuffix(".dist-info").rpartition("-")[2]


if __name__ == "__main__":
    sys.exit(main())
