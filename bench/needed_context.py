#!/usr/bin/env python3
"""Ask upstream's own history whether hunks that keep only the context they need land rightly.

    python bench/needed_context.py --seed 5137 --out bench/results/needed-context-DATE.json

A change is one place of what happened to a file between two releases; all other places of it are
upstream's own drift.  So the release that took the change, without it, is a text on which the hunk
should land, and with it the text that has to come of it.  On all other releases
`git merge-file` is the judge where it is clean.  No rule of the overlay tells what is right.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.drawn_changes import draw as draw_whole
from bench.real_changes import MOST_LINES, RealChange, module_paths, releases, write_figures
from overlay._features.model import Hunk, Patch
from overlay.authoring.carry import carry
from overlay.authoring.composing import (
    Block,
    NotComposable,
    ScopedText,
    blocks_of,
    close_together,
    compose,
)
from overlay.authoring.context import needed
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.variants import base_has
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import Edit, TextError
from overlay.results import State

#: Steps from a release to the one that has the change.
GAPS = (1, 2, 4)

#: Places of a file's change; with more of them it was rewritten.
MOST_PLACES = 60


@dataclass(frozen=True)
class Split:
    """One place of a change, and the rest of it.

    :ivar before: the file in the older release; :ivar after: with that place changed.
    :ivar drifted: the newer release without it; :ivar newer_text: the newer release.
    """

    path: str
    older: str
    newer: str
    before: bytes
    after: bytes
    drifted: bytes
    newer_text: bytes


def draw(texts: ReleaseTexts, number: int, seed: int) -> Iterator[Split]:
    """Changes at random, as many of each step of releases as can be."""
    generator = random.Random(seed)
    paths = module_paths(texts)
    queues = []
    for gap in GAPS:
        for at, older in enumerate(texts.names[: -gap or None]):
            shared = sorted(set(paths[at]) & set(paths[at + gap]))
            generator.shuffle(shared)
            queues.append(_splits(texts, shared, older, texts.names[at + gap], generator))
    drawn = 0
    while queues:
        for queue in list(queues):
            split = next(queue, None)
            if split is None:
                queues.remove(queue)
            elif drawn < number:
                drawn += 1
                yield split
            else:
                return


def _splits(
    texts: ReleaseTexts, paths: Sequence[str], older: str, newer: str, generator: random.Random
) -> Iterator[Split]:
    for path in paths:
        before, now = texts.read(older, path), texts.read(newer, path)
        if before is None or now is None or before == now or before.count(b"\n") > MOST_LINES:
            continue
        try:
            old, new = ScopedText.read(before), ScopedText.read(now)
            every = list(blocks_of(old, new))
            if not 2 <= len(every) <= MOST_PLACES:
                continue
            groups = close_together(every, old, new)
            own = generator.choice(groups)
            if generator.random() < 0.5 or len(groups) == 1:
                own = [generator.choice(every)]
            rest = [block for block in every if block not in own]
            after, drifted = _with(old, new, own), _with(old, new, rest)
            ScopedText.read(after), ScopedText.read(drifted)
        except (TextError, UnparsableError):
            continue
        if rest and after != before:
            yield Split(path, older, newer, before, after, drifted, now)


def _with(old: ScopedText, new: ScopedText, some: Sequence[Block]) -> bytes:
    """The older text with some places of the newer one."""
    edits = [Edit(b.old.start, b.old.stop, new.lines[b.new.start : b.new.stop]) for b in some]
    return old.source.splice(edits, new.source.final_newline).to_bytes()


def merged_by_git(base: bytes, ours: bytes, theirs: bytes, folder: Path) -> bytes | None:
    """The result of ``git merge-file``; ``None`` where it conflicts."""
    names = [folder / name for name in ("ours", "base", "theirs")]
    for file, data in zip(names, (ours, base, theirs), strict=True):
        file.write_bytes(data)
    command = ["git", "merge-file", "-p", "--diff3", *map(str, names)]
    result = subprocess.run(command, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


class Judge:
    """Lands hunks on texts, and counts what came of it."""

    def __init__(self, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memo = Memo()
        self._texts, self._folder = Texts(self.memo), folder

    def land(self, split: Split, hunks: Sequence[Hunk], data: bytes) -> tuple[State, bytes | None]:
        """The state of hunks in a text, and what they make of it."""
        there = tuple(base_has(hunks, split.before))
        based = tuple(hunk._replace(base_has=there) for hunk in hunks)
        tried = attempt(Patch("change", split.path, {}, based), data, self._texts)
        return tried.result.state, tried.after

    def on_taker(self, split: Split, name: str, hunks: Sequence[Hunk]) -> None:
        """The release that took the change, without it and with it."""
        state, after = self.land(split, hunks, split.drifted)
        right = after == split.newer_text
        kind = state.value if after is None else "right" if right else "wrong"
        self.counts[f"taker without it, {name}: {kind}"] += 1
        state, _ = self.land(split, hunks, split.newer_text)
        self.counts[f"taker with it, {name}: {state.value}"] += 1
        if kind in ("wrong", "upstreamed"):
            self.wrong.append(f"{name}: {split.path} {split.older} to {split.newer}: {kind}")
        if state is State.PRISTINE:
            self.wrong.append(f"{name}: {split.path} {split.older} to {split.newer}: twice")

    def on_release(
        self, split: Split, usual: Sequence[Hunk], less: Sequence[Hunk], release: str, data: bytes
    ) -> None:
        """Another release: where hunks with less context land, is it the right place?"""
        _, wide = self.land(split, usual, data)
        _, narrow = self.land(split, less, data)
        self.counts["releases: pairs"] += 1
        self.counts["releases: usual lands"] += wide is not None
        self.counts["releases: needed lands"] += narrow is not None
        if wide is not None and narrow is None:
            self.counts["releases: only usual lands"] += 1
        if narrow is None:
            return
        if wide is not None:
            self.counts["releases: both, same bytes"] += wide == narrow
            if wide != narrow:
                self.wrong.append(f"{split.path} {split.older} on {release}: another place")
        merged = merged_by_git(split.before, split.after, data, self._folder)
        if merged is None:
            self.counts["releases: needed lands, git conflicts"] += 1
        elif merged == narrow:
            self.counts["releases: needed lands, as git merges"] += 1
        else:
            self.counts["releases: needed lands, not as git merges"] += 1
            self.wrong.append(f"{split.path} {split.older} on {release}: not as git merges")


def measure(texts: ReleaseTexts, splits: Iterator[Split], folder: Path) -> dict[str, Any]:
    """What became of changes, as counts and named exceptions."""
    judge = Judge(folder)
    names = list(texts.names)
    drawn = 0
    for split in splits:
        try:
            usual = compose(split.before, split.after)
        except NotComposable:
            judge.counts["not composable"] += 1
            continue
        drawn += 1
        files = {name: texts.read(name, split.path) for name in names}
        at = names.index(split.older)
        # What a hunk keeps is chosen with the releases up to its own; the newer ones judge.
        older = {name: files[name] for name in names[: at + 1]}
        less = needed(split.before, usual, older, judge.memo).hunks
        every = needed(split.before, usual, files, judge.memo).hunks
        for name, hunks in (("usual", usual), ("needed", less), ("of all", every)):
            judge.on_taker(split, name, hunks)
        for data in dict.fromkeys(files.values()):
            if data is not None and data not in (split.before, split.newer_text):
                release = next(name for name in names if files[name] == data)
                judge.on_release(split, usual, every, release, data)
    return {"changes": drawn, "counts": dict(sorted(judge.counts.items())), "wrong": judge.wrong}


def carried_back(texts: ReleaseTexts, sample: Sequence[RealChange], folder: Path) -> dict[str, Any]:
    """Whole changes of a file, carried to the release before the one that they were made on.

    "usual" is a change with the usual context, whose merge does not try less; "needed" one that an
    import wrote with all releases but that one at hand, and that ``port`` carries.
    """
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    memo, names = Memo(), list(texts.names)
    for change in sample:
        files = {name: texts.read(name, change.path) for name in names}
        target = files[names[names.index(change.older) - 1]] if change.older != names[0] else None
        if target is None:
            continue
        seen = {name: data for name, data in files.items() if data != target}
        less = needed(change.before, change.hunks, seen, memo).hunks
        merged = merged_by_git(change.before, change.after, target, folder)
        git = "clean" if merged is not None else "conflicts"
        where = "the same text" if target == change.before else "another text"
        counts[f"{where}: changes"] += 1
        counts[f"{where}: git {git}"] += 1
        for name, hunks, try_less in (("usual", change.hunks, False), ("needed", less, True)):
            carried = carry(change.before, hunks, target, memo, less=try_less)
            counts[f"{where}, {name}, git {git}: {carried.outcome.value}"] += 1
            counts.update(f"{where}, {name}, hunks: {each.outcome.value}" for each in carried.hunks)
            clean = carried.outcome.value in ("exact", "merged")
            if merged is not None and clean:
                counts[f"{where}, {name}: as git merges"] += carried.after == merged
                if carried.after != merged:
                    wrong.append(f"{name}: {change.path} of {change.newer}: not as git merges")
    return {"changes": len(sample), "counts": dict(sorted(counts.items())), "wrong": wrong}


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=5137)
    parser.add_argument("--changes", type=int, default=400)
    parser.add_argument("--whole", type=int, default=150, help="whole changes to carry back")
    parser.add_argument("--date", default="", help="the day of the measurement, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    texts = releases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        back = carried_back(texts, draw_whole(texts, options.whole, options.seed), folder)
        figures = measure(texts, draw(texts, options.changes, options.seed), folder)
    head = {"date": options.date, "seed": options.seed}
    write_figures({**head, "places": figures, "one release back": back}, options.out)


if __name__ == "__main__":
    main()
