#!/usr/bin/env python3
"""Measure ports on the merges of people who carry changes to vLLM: forks that follow upstream.

    python bench/merges.py FORK... --out bench/results/merges-DATE.json

Each FORK is a git repository of a fork, with its history.  A merge of upstream into it is a port
that somebody did: what the fork changed in a file since the merge base (its own change) has to land
on upstream's text of that moment.  Of each file that both sides changed, the fork's change becomes
a feature made on the merge base, and the overlay ports it onto upstream's text.  What the rule
refuses that only compares images (the whole text before or after the change, exactly once in its
scope) is counted by what the port makes of it: placed for review, shown as upstream's, a conflict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.real_changes import RealChange, imported, refused_by_images, shares
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.planning.attempt import Texts
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import TextError
from overlay.results import Outcome

#: What the merge base and upstream's side are called: any two releases, one after the other.
_BASE, _UPSTREAM = "0.20.0", "0.21.0"
#: Larger changes are whole rewrites, and take long.
_MOST_HUNKS = 40


class FileMerge(NamedTuple):
    """One file that both sides of a merge changed.

    :ivar base: its text at the merge base; :ivar fork: on the fork; :ivar upstream: upstream's.
    """

    merge: str
    path: str
    base: bytes
    fork: bytes
    upstream: bytes


class _Tree(NamedTuple):
    """The texts of one side."""

    path: str
    text: bytes

    def read(self, path: str) -> bytes | None:
        return self.text if path == self.path else None


def git(repository: Path, *words: str) -> bytes:
    """What git answers.

    :raises subprocess.CalledProcessError: if it fails.
    """
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def file_merges(repository: Path, since: str) -> Iterator[FileMerge]:
    """The files that both sides of the merges of a repository changed, the newest merge first.

    :param since: a date; older merges are left out.
    """
    told = git(repository, "log", "--all", "--merges", f"--since={since}", "--format=%H %P")
    for line in told.decode().splitlines():
        merge, fork, *others = line.split()
        if len(others) != 1:
            continue
        bases = git(repository, "merge-base", "--all", fork, others[0]).decode().split()
        if len(bases) != 1:
            continue
        sides = [changed(repository, bases[0], side) for side in (fork, others[0])]
        for path in sorted(sides[0] & sides[1]):
            texts = (git(repository, "show", f"{c}:{path}") for c in (bases[0], fork, others[0]))
            entry = FileMerge(merge, path, *texts)
            if entry.fork != entry.upstream:
                yield entry


def changed(repository: Path, base: str, side: str) -> set[str]:
    """The modules of vLLM that a side edited since the base."""
    words = ("diff", "--name-only", "--no-renames", "--diff-filter=M", base, side, "--", "vllm")
    return {path for path in git(repository, *words).decode().splitlines() if path.endswith(".py")}


def outcomes(merge: FileMerge, number: int) -> tuple[list[Outcome], list[Outcome]] | None:
    """What becomes of the fork's hunks: of all, and of those that images alone refuse.

    ``None`` where the change cannot be imported.
    """
    sides = {_BASE: merge.base, _UPSTREAM: merge.upstream}
    texts = ReleaseTexts(tuple(sides), lambda name: _Tree(merge.path, sides[name]))
    try:
        hunks = compose(merge.base, merge.fork)
    except (NotComposable, TextError, UnparsableError):
        return None
    if len(hunks) > _MOST_HUNKS:
        return None
    change = RealChange(merge.path, _BASE, _UPSTREAM, merge.base, merge.fork, hunks)
    feature = imported(change, texts, f"change-{number}")
    if feature is None:
        return None
    porter = Porter(texts, Memo())
    port = porter.port(feature, _UPSTREAM)
    refused = refused_by_images(feature, port, merge.upstream, Texts(porter.syntax))
    every = [hunk.outcome for topic in port.topics for hunk in topic.hunks]
    if port.shown:  # the release has all of it: no topic is carried
        every = [Outcome.UPSTREAM] * len(hunks)
    return every, list(refused)


def measure(repository: Path, since: str, most: int) -> dict[str, Any]:
    """The figures of one fork.

    :param most: the number of file merges that are looked at; a change that was merged again and
        again without an edit is counted once for each text of upstream's.
    """
    counts: Counter[str] = Counter()
    every, refused = Counter[str](), Counter[str]()
    seen = set[tuple[str, bytes, bytes]]()
    for merge in file_merges(repository, since):
        key = (merge.path, merge.fork, merge.upstream)
        if key in seen:
            continue
        seen.add(key)
        found = outcomes(merge, len(seen))
        counts["file merges" if found is not None else "not importable"] += 1
        if found is not None:
            every.update(outcome.value for outcome in found[0])
            refused.update(outcome.value for outcome in found[1])
        if counts["file merges"] == most:
            break
    head = git(repository, "log", "-1", "--all", "--date-order", "--format=%H %cs").decode().split()
    return {
        "newest": {"commit": head[0], "date": head[1]},
        **{name.replace(" ", "_"): number for name, number in sorted(counts.items())},
        "hunks": shares(every),
        "hunks_refused_by_images": shares(refused),
    }


def together(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all forks as one sample."""
    made = {}
    for key in ("hunks", "hunks_refused_by_images"):
        total: Counter[str] = Counter()
        for entry in figures:
            total.update(entry[key]["outcomes"])
        made[key] = shares(total)
    return made


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("forks", nargs="+", type=Path, metavar="FORK")
    parser.add_argument("--since", default="2025-01-01", help="leave older merges out")
    parser.add_argument("--most", type=int, default=400, help="file merges of each fork")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    forks = {place.name: measure(place, options.since, options.most) for place in options.forks}
    figures = {"since": options.since, "forks": forks, "together": together([*forks.values()])}
    text = json.dumps(figures, indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
