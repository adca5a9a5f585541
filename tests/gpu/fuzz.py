#!/usr/bin/env python3
"""A stock vLLM beside one with the overlay's features, step by step, with loads drawn from seeds.

    fuzz.py --out result.json [--seconds 500] [--seed 1] [--only KEY=VALUE ...] [--variant NAME]
            [--without MEND ...] [--stock PATH --patched PATH | --python PYTHON]

With a GPU ``--stock`` and ``--patched`` are import paths (as of ``PYTHONPATH``): a pristine vLLM,
and one that ``overlay apply`` patched, or ``OVERLAY:SITE`` for one that is patched in memory.
Without them both are copies of the CPU engine that ``scripts/environment.py engine`` makes, or of
the environment of ``--python``, with the graph double.  Compared is what every step schedules,
allocates, drafts and accepts, and what each request is answered.  A difference ends it: it is
printed with the command that repeats it.

Exit 0: nothing differs, and every feature was at work.  1: else.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.engine_launch import EngineFailed
from tests.fuzz import pairs
from tests.fuzz.pairs import Place, Report, Side


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500, help="begin nothing after that")
    parser.add_argument("--seed", type=int, default=1, help="of the first pair; then one more each")
    parser.add_argument("--pairs", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--at-a-time", type=int, default=3, help="pairs that run together")
    parser.add_argument("--loads", type=int, default=2, help="of each engine")
    parser.add_argument("--only", nargs="*", default=(), metavar="KEY=VALUE", help="of the shape")
    parser.add_argument("--variant", nargs="*", default=(), choices=pairs.VARIANTS)
    parser.add_argument(
        "--without", nargs="*", default=(), choices=pairs.MENDS, help="mends that are off"
    )
    parser.add_argument("--stock", help="import path of a pristine vLLM")
    parser.add_argument("--patched", help="import path of a patched one")
    parser.add_argument("--python", type=Path, help="of an environment with vLLM for CPU")
    return parser.parse_args()


@contextlib.contextmanager
def place_of(arguments: argparse.Namespace, work: Path) -> Iterator[Place]:
    """Both sides; on CPU they are copies that are gone afterwards."""
    models = work / "models"
    if arguments.stock:
        python = Path(sys.executable)
        stock = Side(python, {"PYTHONPATH": absolute(arguments.stock), "OVERLAY": "off"})
        other = Side(python, {"PYTHONPATH": absolute(arguments.patched), "OVERLAY": "auto"})
        yield Place(stock, other, models, gpu=True, timeout=240)
        return
    from scripts import environment
    from tests.engine.engine_fixtures import overlay
    from tests.engine.private_copy import make_private_copy

    python = arguments.python or environment.engine_python()
    copies = [make_private_copy(python, work / name) for name in ("stock", "patched")]
    overlay("apply", copies[1].site)
    yield Place(Side(copies[0].python), Side(copies[1].python), models, timeout=1800)


def entry(text: str) -> tuple[str, Any]:
    """The name and value of ``KEY=VALUE``, where VALUE is JSON or a text without quotes."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def absolute(path: str) -> str:
    """An import path for a process that runs in another folder."""
    return os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))


def repeat(arguments: argparse.Namespace, pair: pairs.Pair, variant: str) -> str:
    """The command that repeats one pair."""
    words = ["python tests/gpu/fuzz.py --out again.json --pairs 1", f"--seed {pair.seed}"]
    words += [f"--loads {arguments.loads}", f"--variant '{variant}'"]
    for name in ("stock", "patched") if arguments.stock else ():
        words.append(f"--{name} {getattr(arguments, name)}")
    words += ["--without", *arguments.without] if arguments.without else []
    words += ["--only", *(f"'{each}'" for each in arguments.only)] if arguments.only else []
    return " ".join(words)


def written(arguments: argparse.Namespace, report: Report, began: float) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "script": "tests/gpu/fuzz.py",
        "command": sys.argv[1:],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "release": report.about.get("vllm"),
        "device": report.about.get("device"),
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began),
        **dict(report.figures),
        "differences": [
            {"seed": pair.seed, "variant": variant, **difference._asdict()}
            for pair, variant, difference in report.differences
        ],
        "both died": report.deaths,
        "idle": report.idle(),
        "work": {variant: dict(sorted(work.items())) for variant, work in report.work.items()},
    }


def run_until(arguments: argparse.Namespace, place: Place, report: Report, began: float) -> None:
    """Run pairs until the time is over or two engines differ; write the results of each round.

    :raises EngineFailed: if an engine ends without a result.
    """
    draw = functools.partial(
        pairs.draw_pair,
        given=dict(map(entry, arguments.only)),
        variants=arguments.variant,
        loads=arguments.loads,
        gpu=place.gpu,
    )
    seed, end = arguments.seed, arguments.seed + arguments.pairs
    while seed < end and not report.differences:
        if time.monotonic() - began > arguments.seconds:
            break
        seeds = range(seed, min(seed + arguments.at_a_time, end))
        print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
        pairs.run_pairs(place, map(draw, seeds), report)
        seed = seeds.stop
        text = json.dumps(written(arguments, report, began), indent=1, default=sorted)
        arguments.out.write_text(text + "\n", encoding="utf-8")
        print(f"so far: {dict(report.figures)}", flush=True)


def main() -> int:
    """Run, and reduce what differs."""
    arguments = parse()
    on = pairs.VARIANTS[pairs.MENDED]
    pairs.VARIANTS[pairs.MENDED] = tuple(each for each in on if each not in arguments.without)
    began = time.monotonic()
    report = Report()
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-") as folder,
        place_of(arguments, Path(folder)) as place,
    ):
        place.write_models()
        try:
            run_until(arguments, place, report, began)
        except EngineFailed as error:
            print(f"an engine of these seeds has failed: {error}", file=sys.stderr)
            return 1
        for pair, variant, difference in report.differences:
            print(f"seed {pair.seed}, {variant}: {difference}")
            print(f"repeat: {repeat(arguments, pair, variant)}", flush=True)
            without = pairs.reduce(place, pair, variant, difference.load)
            print(f"it differs also without the events {without} of load {difference.load}")
    for each in report.idle():
        print(f"not seen at work: {each}")
    return 1 if report.differences or report.idle() else 0


if __name__ == "__main__":
    raise SystemExit(main())
