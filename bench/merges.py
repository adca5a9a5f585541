#!/usr/bin/env python3
"""Measure ports on the merges of people who carry changes to vLLM: forks that follow upstream.

    python bench/merges.py FORK... --out bench/results/merges-DATE.json

Each FORK is a git repository of a fork, with its history.  A merge of upstream into it is a port
that somebody did: what the fork changed in a file since the merge base (its own change) has to land
on upstream's text of that moment.  Of each file that both sides changed, the fork's change becomes
a feature made on the merge base, and the overlay ports it onto upstream's text.  What the rule
refuses that only compares images (the whole text before or after the change, exactly once in its
scope) is counted by what the port makes of it: placed for review, shown as upstream's, a conflict.
Beside it is what the three-way merge of its scope alone makes of it: a port asks first whether the
lines are there, and then merges nothing.

What the person committed is the truth: each hunk that is placed for review is counted as theirs
where the merge has what was placed, with three tokens before it and after it, however it is broken
into lines.  Where somebody dropped a change, or did it in another way, it is counted as otherwise.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.real_changes import RealChange, imported, refused_by_images, shares, write_figures
from overlay.authoring.carry import carry
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.git import environment
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.merge import matches
from overlay.authoring.merge import merge as three_way
from overlay.authoring.porting import Porter
from overlay.authoring.scoped import ScopedText
from overlay.features.model import Hunk
from overlay.planning.attempt import Texts
from overlay.planning.matching import edits, final_newline_after
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import TextError
from overlay.results import Outcome, State

#: What the merge base and upstream's side are called: any two releases, one after the other.
_BASE, _UPSTREAM = "0.20.0", "0.21.0"
#: Larger changes are whole rewrites, and take long.
_MOST_HUNKS = 40
#: Tokens around a placing that have to be there as well.
_AROUND = 3
_TOKEN, _COMMA = re.compile(r"\w+|[^\w\s]"), re.compile(r",(?=\s*[)\]}])")


class FileMerge(NamedTuple):
    """One file that both sides of a merge changed.

    :ivar base: its text at the merge base; :ivar fork: on the fork; :ivar upstream: upstream's.
    :ivar committed: what the person made of both; empty where they removed the file.
    """

    merge: str
    path: str
    base: bytes
    fork: bytes
    upstream: bytes
    committed: bytes


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
    done = subprocess.run(command, check=True, capture_output=True, env=environment())
    return done.stdout


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
            base, ours, theirs = (
                git(repository, "show", f"{c}:{path}") for c in (bases[0], fork, others[0])
            )
            made = committed(repository, merge, path)
            entry = FileMerge(merge, path, base, ours, theirs, made)
            if entry.fork != entry.upstream:
                yield entry


def committed(repository: Path, merge: str, path: str) -> bytes:
    """A file as a merge has it; empty where it has none."""
    there = git(repository, "ls-tree", "--name-only", merge, "--", path)
    return git(repository, "show", f"{merge}:{path}") if there else b""


def changed(repository: Path, base: str, side: str) -> set[str]:
    """The modules of vLLM that a side edited since the base."""
    words = ("diff", "--name-only", "--no-renames", "--diff-filter=M", base, side, "--", "vllm")
    return {path for path in git(repository, *words).decode().splitlines() if path.endswith(".py")}


class Found(NamedTuple):
    """What becomes of the fork's hunks in one file.

    :ivar every: of all of them; :ivar refused: of those that images alone refuse.
    :ivar merged: of the same by the merge of the scope alone.
    :ivar placed: of those placed for review, by lines or by statements, as in the person's merge.
    """

    every: list[Outcome]
    refused: list[Outcome]
    merged: list[Outcome]
    placed: list[Placed]


class Placed(NamedTuple):
    """A hunk that was placed for review.

    :ivar by_statement: whether a merge by lines refuses it; :ivar as_committed: whether it is as
        in the person's merge.
    """

    by_statement: bool
    as_committed: bool


def outcomes(merge: FileMerge, number: int) -> Found | None:
    """What becomes of the fork's hunks; ``None`` where the change cannot be imported."""
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
    images = Texts(porter.syntax)
    refused = list(refused_by_images(feature, port, merge.upstream, images))
    every = [hunk.outcome for topic in port.topics for hunk in topic.hunks]
    if port.shown:  # the release has all of it: no topic is carried
        every = [Outcome.UPSTREAM] * len(hunks)
    fine = (State.PRISTINE, State.UPSTREAMED)
    own = feature.topics[0].variants[0].patch.hunks
    left = [hunk for hunk in own if images.match(hunk, merge.upstream).state not in fine]
    try:
        origin, target = ScopedText.read(merge.base), ScopedText.read(merge.upstream)
    except (TextError, UnparsableError):  # somebody committed a file that is not Python
        return Found(every, refused, [Outcome.CONFLICT for _ in left], [])
    placed = [
        Placed(hunk.by_statement, as_committed(hunk.hunk, merge))
        for topic in port.topics
        for hunk in topic.hunks
        if hunk.outcome in (Outcome.MERGED, Outcome.MOVED)
    ]
    return Found(every, refused, [by_merge(hunk, origin, target) for hunk in left], placed)


def as_committed(hunk: Hunk, merge: FileMerge) -> bool:
    """Whether what one hunk does to upstream's text is in the person's merge."""
    after = carry(merge.base, [hunk], merge.upstream).after or b""
    before, made, there = map(tokens, (merge.upstream, after, merge.committed))
    whole = _row(there)
    return after != merge.upstream and all(
        _row(made[max(0, start - _AROUND) : stop + _AROUND]) in whole
        for start, stop in _placings(before, made)
    )


def _placings(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The ranges of a text that differ from the one before; an empty one where lines are gone."""
    at = place = 0
    for old, new in [*sorted(matches(before, after).items()), (len(before), len(after))]:
        if (old, new) != (at, place):
            yield place, new
        at, place = old + 1, new + 1


def tokens(text: bytes) -> list[str]:
    """The words and signs of a text, without the commas that formatters add."""
    return _TOKEN.findall(_COMMA.sub("", text.decode("utf-8", "replace")))


def _row(words: Sequence[str]) -> str:
    return "\0" + "\0".join(words) + "\0"


def by_merge(hunk: Hunk, origin: ScopedText, target: ScopedText) -> Outcome:
    """What the three-way merge of a hunk's scope makes of it, and nothing else."""
    home, at = origin.home(hunk), origin.match(hunk).line
    places = list(target.scopes.get(hunk.scope, ()))
    if home is None or at is None or len(places) != 1:
        return Outcome.CONFLICT if places else Outcome.MISSING
    ours = origin.source.splice(edits(hunk, at - 1), final_newline_after(hunk)).lines
    stop = home.stop + len(hunk.post) - len(hunk.pre)
    base, theirs = (
        text.source.lines[place.start : place.stop]
        for text, place in ((origin, home), (target, places[0]))
    )
    merged = three_way(base, ours[home.start : stop], theirs)
    if merged.conflicts:
        return Outcome.CONFLICT
    return Outcome.UPSTREAM if merged.lines == theirs else Outcome.MERGED


def measure(repository: Path, since: str, most: int) -> dict[str, Any]:
    """The figures of one fork.

    :param most: the number of file merges that are looked at; a change that was merged again and
        again without an edit is counted once for each text of upstream's.
    """
    counts: Counter[str] = Counter()
    every, refused, merged = Counter[str](), Counter[str](), Counter[str]()
    placed = Counter[Placed]()
    seen = set[tuple[str, bytes, bytes]]()
    for merge in file_merges(repository, since):
        key = (merge.path, merge.fork, merge.upstream)
        if key in seen:
            continue
        seen.add(key)
        found = outcomes(merge, len(seen))
        counts["file merges" if found is not None else "not importable"] += 1
        if found is not None:
            every.update(outcome.value for outcome in found.every)
            refused.update(outcome.value for outcome in found.refused)
            merged.update(outcome.value for outcome in found.merged)
            placed.update(found.placed)
        if counts["file merges"] == most:
            break
    head = git(repository, "log", "-1", "--all", "--date-order", "--format=%H %cs").decode().split()
    return {
        "newest": {"commit": head[0], "date": head[1]},
        **{name.replace(" ", "_"): number for name, number in sorted(counts.items())},
        "hunks": shares(every),
        "hunks_refused_by_images": shares(refused),
        "the_same_by_merge_alone": shares(merged),
        "placed": {
            name: {"hunks": sum(there), "as_committed": there[0]}
            for name, by_statement in (("by_lines", False), ("by_statements", True))
            for there in [[placed[Placed(by_statement, each)] for each in (True, False)]]
        },
    }


def together(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all forks as one sample."""
    made = {}
    for key in ("hunks", "hunks_refused_by_images", "the_same_by_merge_alone"):
        total: Counter[str] = Counter()
        for entry in figures:
            total.update(entry[key]["outcomes"])
        made[key] = shares(total)
    made["placed"] = {
        way: {
            key: sum(entry["placed"][way][key] for entry in figures)
            for key in ("hunks", "as_committed")
        }
        for way in ("by_lines", "by_statements")
    }
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
    write_figures(figures, options.out)


if __name__ == "__main__":
    main()
