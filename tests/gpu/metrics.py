#!/usr/bin/env python3
"""Metrics of a real server on a GPU: what Prometheus reads is what the engine replayed.

Starts a server with the tiny target and its EAGLE3 draft, with one API server and with two, and the
first one again. Behind requests that are asked one at a time,

- each scrape says the same, whichever API server answers it;
- the replays in `/metrics` are those that `overlay status --live` reads from this server's
  processes;
- there are as many replays of each graph as drafts that vLLM itself counts, give or take the drafts
  of a request's last steps, which nobody verifies;
- a server that was started again counts from the beginning.

Other engines of the same user may run beside it, on the same GPU, too: their replays are in neither
figure.  Of `graph_memory_bytes` nothing is expected: what a neighbour takes or frees during the
capture is in it.

    metrics.py --site SITE --overlay FOLDER --out result.json [--requests 40]

``SITE`` holds a vLLM, ``FOLDER`` what `overlay_site.py` made; what is not patched on disk is
patched in memory. ``--double`` rehearses on a CPU with the graphs' double, which wants it on disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.draft_graphs.double_environment import ARGUMENTS, double_environment
from tests.engine.engine_launch import write_models
from tests.gpu import installation
from tests.support.served_metrics import (
    arguments,
    complete,
    counted_inside,
    running,
    scraped,
    total,
    total_of,
)

#: Steps behind a request's last draft that was verified: with asynchronous scheduling one more is
#: under way when the request ends.
UNVERIFIED = 2
#: How many API servers the servers have, one after the other.
SERVERS = (1, 2, 1)


def serve(
    args: argparse.Namespace, models: Path, work: Path, variables: Mapping[str, str], servers: int
) -> dict[str, Any]:
    """Ask one server, and compare what it says; the figures, and under `wrong` what is."""
    # The cache's size is given, so that engines beside this one may take and free memory.
    own = ["--dtype", "bfloat16", *("--gpu-memory-utilization", "0.05")]
    own += ["--kv-cache-memory-bytes", str(1 << 30)]
    if args.double:
        own = ["--dtype", "float32", *("--block-size", "32"), *ARGUMENTS]
    if servers > 1:
        own += ["--api-server-count", str(servers)]
    with running(Path(sys.executable), arguments(models, *own), variables, work) as (address, pid):
        before = scraped(address)
        for number in range(args.requests):
            complete(address, [1 + number % 40, 2, 3, 4])
        answers = [scraped(address) for _ in range(4 * servers)]
        inside = counted_inside(Path(variables["XDG_RUNTIME_DIR"]), pid)
    last = answers[-1]
    drafts = total_of(last, "vllm:spec_decode_num_drafts_total")
    graphs = {
        graph: total(last, "replays_total", graph=graph)
        for graph in ("first", "mixed", "step", "loop", "whole")
    }
    told = {
        "api_servers": servers,
        "requests": args.requests,
        "replays": {graph: number for graph, number in graphs.items() if number},
        "replays_before": total(before, "replays_total"),
        "inside": inside,
        "drafts_verified": drafts,
        "captured": total(last, "graphs"),
        "graph_memory_bytes": total(last, "graph_memory_bytes"),
    }
    most = drafts + UNVERIFIED * args.requests
    wrong = {
        "the scrapes differ": any(answer != last for answer in answers),
        "not what the processes counted": total(last, "replays_total") != inside,
        "counted from an earlier server on": told["replays_before"] > UNVERIFIED,
        "not as many loops as drafts": not drafts <= graphs["loop"] <= most,
        "the drafts are not from graphs": total(last, "withdrawn") > 0 or not drafts,
    }
    return {**told, "wrong": [text for text, is_so in wrong.items() if is_so]}


def main() -> int:
    """Run the servers and write what they said; 1 where something is wrong."""
    parser = installation.parser(__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--double", action="store_true", help="rehearse on CPU")
    args = parser.parse_args()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        models = work / "models"
        write_models(sys.executable, models)
        for number, servers in enumerate(SERVERS):
            place = work / f"server-{number}"
            place.mkdir()
            variables: dict[str, str] = dict(os.environ)
            if args.double:
                variables |= double_environment(place) | {"TEST_DOUBLE": "server"}
                variables["PYTHONPATH"] += f"{os.pathsep}{args.overlay.resolve()}"
                variables["XDG_RUNTIME_DIR"] = str(place)
            else:
                variables |= installation.environment(args.site, args.overlay, place)
            cells.append(serve(args, models, place, variables, servers))
            print(json.dumps(cells[-1]), flush=True)
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "requests": "one at a time",
        "cells": cells,
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(cell["wrong"] for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main())
