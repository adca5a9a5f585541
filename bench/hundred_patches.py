#!/usr/bin/env python3
"""Measure what a hundred patches cost: make features of the releases' own changes, and ask of them.

    python bench/hundred_patches.py --seed 37 --out bench/results/hundred-patches-DATE.json

A feature is what happened to one to three files between two neighbouring releases, drawn by a
recorded seed and imported over all releases.  Each command then runs in a process of its own, over
folders of several sizes, with an empty cache of scopes and with the one that it left.  What is
measured is seconds of processor time with all its processes, since the machine is shared.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.drawn_changes import draw
from bench.real_changes import RealChange, releases, write_figures
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.cache import cache_folder
from overlay.errors import OverlayError, UsageError
from overlay.planning.scope_cache import Memo

#: The files of a feature; four in ten change more than one.
FILES = (1, 1, 1, 2, 3)

#: A command with an empty cache of scopes, and with the one that it left.
TURNS = ("first", "again")

#: The files of the large change that is imported, as many as the largest of upstream's had.
LARGE = 44


def features(sample: Sequence[RealChange], seed: int) -> Iterator[tuple[str, bytes]]:
    """Changes put together to features: the id and the diff of each."""
    generator = random.Random(seed)
    steps: dict[str, list[RealChange]] = {}
    for change in sample:
        steps.setdefault(change.newer, []).append(change)
    number = 0
    while any(steps.values()):
        for queue in steps.values():
            size = generator.choice(FILES)
            taken, queue[:] = queue[:size], queue[size:]
            if taken:
                number += 1
                yield f"drawn-{number:03d}", b"".join(change.diff for change in taken)


def make_folder(
    folder: Path, sample: Sequence[RealChange], texts: ReleaseTexts, number: int, seed: int
) -> dict[str, int]:
    """Import drawn changes until a folder holds so many features.

    :returns: how many were imported, and how many could not be.
    """
    counts = {"imported": 0, "not imported": 0}
    syntax = Memo()
    for id_, diff in features(sample, seed):
        if counts["imported"] == number:
            break
        with suppress(UsageError, OverlayError):
            prepared = prepare(
                read_changes(diff, f"{id_}.diff"),
                id_,
                texts,
                source=f"{id_}.diff",
                verbatim=diff,
                today="2026-11-26",
                syntax=syntax,
            )
            if prepared.folder is not None:
                for path, data in prepared.folder.all_files().items():
                    place = folder / id_ / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
                counts["imported"] += 1
                continue
        counts["not imported"] += 1
    return counts


def large_change(texts: ReleaseTexts, seed: int) -> bytes:
    """What happened to many files from one release to the next, as one diff."""
    sample = draw(texts, LARGE * len(texts.names), seed)
    steps: dict[str, list[RealChange]] = {}
    for change in sample:
        steps.setdefault(change.newer, []).append(change)
    fullest = max(steps.values(), key=len)[:LARGE]
    return b"".join(change.diff for change in sorted(fullest, key=lambda each: each.path))


def part_of(folder: Path, number: int, place: Path) -> Path:
    """A folder with the first features of another."""
    place.mkdir()
    for entry in sorted(folder.iterdir())[:number]:
        shutil.copytree(entry, place / entry.name)
    return place


def measure(words: Sequence[str], cache: Path, code: Path) -> dict[str, Any]:
    """Run one command: its processor time with all its processes, and how it ended.

    :param code: the checkout whose overlay is measured.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "OVERLAY_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed overlay has its bytecode
    answer = subprocess.run(
        [sys.executable, "-m", "overlay", *words],
        env=environment,
        cwd=code,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    said = (answer.stdout + answer.stderr).decode("utf-8", "replace").strip().splitlines()
    return {
        "cpu_seconds": round(spent, 2),
        "wall_seconds": round(time.monotonic() - began, 2),
        "exit": answer.returncode,
        "verdict": said[-1][:200] if said else "",
    }


def fresh_cache(place: Path) -> Path:
    """A cache with the fetched releases, and nothing else."""
    shutil.copytree(cache_folder() / "releases", place / "releases", copy_function=_link)
    for folder in (place, place / "releases"):
        folder.chmod(0o700)
    return place


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured of a folder of patches."""
    patches = ["--patches", str(folder)]
    return {
        "check --releases all": [*patches, "check", "--releases", "all", "--json"],
        "log --matrix": [*patches, "log", "--matrix", "--json"],
        "prune": [*patches, "prune", "--json"],
        "check 0.26.0": [*patches, "check", "0.26.0", "--json"],
    }


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--folder", type=Path, help="keep the features there, or use those")
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout that is measured")
    parser.add_argument("--turns", type=int, choices=(1, 2), default=2, help="1: not again")
    parser.add_argument("--only", help="only the commands whose name has this")
    parser.add_argument("--date", default="", help="the day of the measurement, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    texts = releases()
    figures: dict[str, Any] = {"date": options.date, "seed": options.seed}
    with tempfile.TemporaryDirectory() as scratch:
        temporary = Path(scratch)
        folder = options.folder or temporary / "patches"
        if not folder.exists():
            sample = draw(texts, 3 * options.features, options.seed)
            began = time.process_time()
            figures["features"] = make_folder(
                folder, sample, texts, options.features, options.seed
            ) | {"cpu_seconds": round(time.process_time() - began, 1)}
        change = folder.parent / f"{folder.name}-large.diff"
        if not change.exists():
            change.write_bytes(large_change(texts, options.seed))
        figures["commands"] = _measured(options, folder, change, temporary)
    write_figures(figures, options.out)


def _measured(
    options: argparse.Namespace, folder: Path, change: Path, temporary: Path
) -> dict[str, Any]:
    """Each command over folders of each size, with an empty cache and again."""
    results: dict[str, Any] = {}
    code = options.code
    for size in options.sizes:
        part = part_of(folder, size, temporary / f"patches-{size}")
        for name, words in commands(part).items():
            if options.only is None or options.only in name:
                cache = fresh_cache(temporary / f"cache-{size}-{len(results)}")
                label = f"{name}, {size} features and those shipped"
                turns = TURNS[: options.turns]
                results[label] = {turn: measure(words, cache, code) for turn in turns}
    name = f"import of {change.read_bytes().count(b'diff --git ')} files"
    if options.only is None or options.only in name:
        cache = fresh_cache(temporary / "cache-import")
        words = ["--patches", str(temporary / "new"), "import", str(change), "--id", "large"]
        results[name] = {"first": measure([*words, "--json"], cache, code)}
    return results


if __name__ == "__main__":
    main()
