#!/usr/bin/env python3
"""Profile stock V1, patched V1 and V2 under a steady load of requests, on one GPU in one lease.

Takes two folders of the same vLLM release, one pristine and one that ``overlay apply`` patched,
and starts ``load_engine.py`` for each engine, one after the other, the order turned each round.
Says where a step's time goes: by class of step, by function of the host, by kernel of the GPU.

    load_profile.py --stock /site --patched /patched --out load.json
    load_profile.py ... --engines patched-loop v2 -- --spread 0.5 --own-process --profile 2

What stands behind ``--`` goes to ``load_engine.py``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.children import run_child
from bench.plan import ENGINES, has_plugin
from overlay.proof.engine_pool import Watchdog, append_path, link_packages


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stock", type=Path, required=True, help="folder with the pristine vLLM")
    parser.add_argument("--patched", type=Path, required=True, help="folder with the patched vLLM")
    parser.add_argument("--site", type=Path, help="folder with what vLLM needs, if elsewhere")
    parser.add_argument("--out", type=Path, required=True)
    known = [name for name in ENGINES if not has_plugin(name)]
    parser.add_argument(
        "--engines", nargs="+", choices=known, default=["stock-v1", "patched-loop", "v2"]
    )
    parser.add_argument("--rounds", type=int, default=1, help="starts of each engine")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for an engine")
    parser.add_argument("more", nargs="*", help="options of load_engine.py, behind --")
    return parser.parse_args()


def environment(args: argparse.Namespace, engine: str, code: Path, cache: Path) -> dict[str, str]:
    """Environment variables of an engine."""
    folder, own = ENGINES[engine]
    first = args.patched if folder == "patched" else args.stock
    path = os.pathsep.join(str(part) for part in (first, args.site) if part)
    variables = append_path(os.environ | own | {"PYTHONPATH": path}, code)
    return variables | {"VLLM_CACHE_ROOT": str(cache), "OVERLAY_CACHE": str(cache / "overlay")}


def main() -> int:
    """Run the engines and write what each found; 1 where one failed."""
    args = arguments()
    logs: Path = args.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    watchdog = Watchdog()
    with tempfile.TemporaryDirectory(prefix="load-") as made:
        code = link_packages(Path(made, "code"), [ROOT / "bench"])
        for round_ in range(args.rounds):
            turn = round_ % len(args.engines)
            for engine in args.engines[turn:] + args.engines[:turn]:
                log = logs / f"load-{engine}-{round_}.log"
                variables = environment(args, engine, code, Path(made, "cache"))
                command = [sys.executable, "-m", "bench.load_engine", *args.more]
                found = run_child(command, variables, log, args.timeout, watchdog)
                results.append({"engine": engine, "round": round_, **found})
                date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                document = {"date": date, "more": args.more, "results": results}
                args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
                rates = [row["tokens_per_s"] for row in found.get("rounds", ())]
                print(f"{engine} {round_}: {rates or found}", flush=True)
    watchdog.close()
    return int(any("rounds" not in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
