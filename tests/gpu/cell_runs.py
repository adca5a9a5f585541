"""Cells that have an engine each, several at a time: the command line, the loop and the results."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Models = TypeVar("Models")


def parse(about: str, cells: Collection[str], *, limit: float) -> argparse.Namespace:
    """Read the arguments of a script that runs cells; see `parser`."""
    return parser(about, cells, limit=limit).parse_args()


def parser(about: str, cells: Collection[str], *, limit: float) -> argparse.ArgumentParser:
    """The arguments of a script that runs cells.

    :param about: what the script is for.
    :param limit: seconds for all cells together, unless ``--limit`` says otherwise.
    """
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only", default="", help=f"regular expression on {', '.join(cells)}")
    arguments.add_argument("--jobs", type=int, default=3, help="engines at a time")
    arguments.add_argument(
        "--limit", type=float, default=limit, help="seconds for all cells together"
    )
    arguments.add_argument("--double", action="store_true", help="on CPU, with the graph double")
    arguments.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    return arguments


def run(
    arguments: argparse.Namespace,
    cells: Collection[str],
    write_models: Callable[[Path], Models],
    launch: Callable[[str, Models, Path, argparse.Namespace], dict[str, Any]],
    shown: Callable[[dict[str, Any]], object],
) -> int:
    """Run the cells that are asked for, write the results, print one line each; 1 if any is wrong.

    :param write_models: makes the models in a folder; what it returns is for ``launch``.
    :param launch: runs a cell, given its name, the models, a folder for logs and the arguments.
    :param shown: what a cell's line shows beside its name.
    """
    arguments.deadline = time.monotonic() + arguments.limit
    logs = arguments.out.resolve().parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in cells if re.search(arguments.only, name)]
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="models-") as folder,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        models = write_models(Path(folder))
        work = [pool.submit(launch, name, models, logs, arguments) for name in chosen]
        for each in work:
            cell = each.result()
            results.append(cell)
            state = "ok" if cell["ok"] else f"WRONG {cell['why']}"
            print(cell["cell"], shown(cell), f"{cell['wall_s']} s", state, flush=True)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            document = {"date": date, "release": cell.get("vllm"), "cells": results}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    wrong = sum(not cell["ok"] for cell in results)
    print(f"{len(results) - wrong} of {len(results)} cells are right")
    return 1 if wrong or not results else 0
