#!/usr/bin/env python3
"""Bugs put into the draft graphs on one GPU, and whether the acceptance cells notice them.

Runs where a patched vLLM can be imported (``PYTHONPATH``).  Each engine of ``mutation_engines``
runs as it is, which must be right, and once for each bug of ``mutation_plan`` that it should
notice; the bug is put in while vLLM imports the package, and nothing on disk changes.  Writes one
JSON file.  A bug that is not caught is told and fails the script only if it ``must`` be caught; so
does a control that is wrong, and a mutated module that was not executed.

    gpu_mutations.py --out result.json [--only REGEX] [--jobs 8] [--timeout 240]

``--double`` rehearses on CPU, with the graph double of ``tests/draft_graphs``, what it can hold.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.engine_launch import write_models
from tests.gpu.acceptance import run_cells
from tests.gpu.mutation_engines import Planned, planned
from tests.gpu.mutation_judging import judge_mutations
from tests.gpu.placing import Slots


def chosen(everything: list[Planned], only: str) -> list[Planned]:
    """The mutated cells whose titles are asked for, and the controls of these."""
    mutated = [each for each in everything if each[1] and re.search(only, each[0].title)]
    wanted = {(cell.name.partition("~")[0], cell.mode) for cell, _ in mutated}
    controls = [
        each for each in everything if each[1] is None and (each[0].name, each[0].mode) in wanted
    ]
    return [*controls, *mutated]


def summary(results: list[dict[str, Any]]) -> list[str]:
    """One line for each mutated cell, and one for all."""
    mutated = [one for one in results if "mutation" in one]
    lines = [f"{one['shown']}: {one['mutation']} [{one['cell']}]" for one in mutated]
    caught = sum(one["caught"] for one in mutated)
    musts = [one for one in mutated if one["must"]]
    controls = [one for one in results if "mutation" not in one]
    lines = [line for line in sorted(lines) if not line.startswith("caught")]
    right = sum(one["ok"] for one in controls)
    return [
        *lines,
        (
            f"{caught} of {len(mutated)} mutated cells were caught, "
            f"{sum(one['caught'] for one in musts)} of the {len(musts)} that must be; "
            f"{right} of {len(controls)} controls are right"
        ),
    ]


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="regular expression on a mutated cell's title")
    parser.add_argument("--jobs", type=int, default=8, help="engines at a time")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one engine")
    parser.add_argument("--double", action="store_true", help="on CPU, with the graph double")
    parser.add_argument("--list", action="store_true", help="only print the cells")
    args = parser.parse_args()
    models = Path(tempfile.mkdtemp()) / "models"
    plan = chosen(list(planned(str(models), double=args.double)), args.only)
    if args.list:
        for cell, mutation in plan:
            must = "must be caught" if mutation and mutation.must else ""
            print(cell.title, " or ".join(mutation.signs) if mutation else "control", must)
        return 0
    write_models(sys.executable, models)
    mutations = {cell.name: mutation for cell, mutation in plan if mutation is not None}
    results = run_cells(
        [cell for cell, _ in plan],
        Slots((), args.jobs),
        args.out,
        args.out.parent / f"{args.out.stem}-logs",
        args.timeout,
        lambda found: judge_mutations(found, mutations),
    )
    print(*summary(results), sep="\n")
    return 1 if not results or any(not one["ok"] for one in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
