#!/usr/bin/env python3
"""Time stock V1, patched V1 and V2 beside each other in one sitting on one GPU host.

Takes two folders of the same vLLM release, one pristine and one that ``overlay apply`` patched,
and starts ``bench.profiling.step_time`` once for each engine and cell.  On one GPU they run one
after the other.  On several (``--gpus``) the engines of a cell run side by side, each on GPUs and
CPU cores of its own, and measure at the same time, so that all of them meet the same noise.  With
``--in-turn N`` as many engines start together on the same GPUs and measure one after the other,
each while the others are stopped.  Every result goes into one JSON file with the release, the GPU,
the modes and the date; nothing is compared across sittings.

    compare.py --stock /site --patched /patched --out result.json --cells 1b:3:FULL_AND_PIECEWISE
    compare.py ... --gpus 0,1,2,3 --rotate --cells 1b:3:FULL_AND_PIECEWISE 8b:3:FULL_AND_PIECEWISE:2
    compare.py ... --cells 1b+draft-model:3:FULL_AND_PIECEWISE 1b+lora:3:FULL_AND_PIECEWISE
    compare.py ... --in-turn 4 --more '--engine {"kv_cache_memory_bytes":4000000000}' --cells ...
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import meeting
from bench.plan import ENGINES, Cell, has_plugin, in_turn, side_by_side
from bench.sitting import Sitting


def beside(text: str) -> meeting.Meeting:
    """Read from the command line where several calls of this script meet.

    :raises argparse.ArgumentTypeError: if it is not ``FOLDER:NUMBER:COUNT``, or was used before.
    """
    folder, *numbers = text.rsplit(":", 2)
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not FOLDER:NUMBER:COUNT")
    where, number = Path(folder), int(numbers[0])
    where.mkdir(parents=True, exist_ok=True)
    if list(where.glob(f"*.{number}")):
        raise argparse.ArgumentTypeError(f"{folder} is of an earlier sitting; name a new folder")
    return meeting.Meeting(where, number, int(numbers[1]))


def arguments() -> argparse.Namespace:
    """The command line."""
    # Over fifty lines: a table of options and what may not go together.
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="folder with vLLM's dependencies, if apart")
    parser.add_argument("--overlay-site", type=Path, help="folder with the plugin")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--cells", nargs="+", required=True, metavar="SHAPE[+DRAFTER]:K:MODE[:TP]", type=Cell.parse
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, help="default: all there are")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1, help="go through the cells that often")
    parser.add_argument("--gpus", help="indices, separated by commas: engines run side by side")
    parser.add_argument("--rotate", action="store_true", help="engines move on, cell by cell")
    parser.add_argument(
        "--in-turn",
        type=int,
        metavar="N",
        help="so many engines start together on the same GPUs and measure one after the other",
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of each, with --in-turn")
    parser.add_argument(
        "--beside",
        type=beside,
        default=meeting.Meeting(None, 0, 1),
        metavar="FOLDER:NUMBER:COUNT",
        help="calls with --in-turn on other GPUs of this host: none measures before all started",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=400,
        help="seconds for one engine; with --in-turn also for the turns of the others",
    )
    parser.add_argument("--cache-root", type=Path, help="default: a folder among temporary files")
    parser.add_argument(
        "--shared-cache", action="store_true", help="one cache for engines side by side"
    )
    parser.add_argument("--sample-dir", type=Path, help="sample stacks into this folder")
    parser.add_argument("--trace-dir", type=Path, help="keep traces of the GPU in this folder")
    parser.add_argument("--more", default="", help="further arguments of step_time.py")
    args = parser.parse_args()
    if args.engines is None:
        args.engines = [name for name in ENGINES if args.overlay_site or not has_plugin(name)]
    if args.cache_root is None:
        args.cache_root = Path(tempfile.gettempdir(), "overlay-bench-cache")
    plugged = [name for name in args.engines if has_plugin(name)]
    if plugged and not args.overlay_site:
        parser.error(f"{' and '.join(plugged)}: expected --overlay-site, found none")
    if args.in_turn is not None and (args.in_turn < 1 or args.turns < 1):
        parser.error("--in-turn and --turns want one at least")
    if not args.beside.alone and args.in_turn is None:
        parser.error("--beside goes with --in-turn")
    gpus = args.gpus.split(",") if args.gpus else []
    for cell in args.cells:
        if gpus and cell.tensor_parallel > len(gpus):
            parser.error(f"{cell.name} wants {cell.tensor_parallel} GPUs, --gpus has {len(gpus)}")
    return args


def main() -> int:
    """Run every engine in every cell and write the results after each; 1 if any failed."""
    args = arguments()
    sitting = Sitting(args)
    try:
        for round_ in range(args.rounds):
            turn = round_ * len(args.cells) * args.rotate
            groups = in_turn(args, turn) if args.in_turn else side_by_side(args, turn)
            for parties in groups:
                sitting.run(parties, round_)
    finally:
        sitting.close()
    return int(any("failed" in result for result in sitting.results))


if __name__ == "__main__":
    raise SystemExit(main())
