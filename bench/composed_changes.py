#!/usr/bin/env python3
"""Lay neighbouring changes of upstream on each other, and compare with what `git am -3` makes.

    python bench/composed_changes.py --seed 37 --out bench/results/composed-changes-DATE.json

What happened to a file between two neighbouring releases is split into its separate blocks; two or
three that lie near each other are drawn by the seed, and each is a change of its own on the older
release.  git makes a branch of each and lays the mails on each other; the overlay makes a feature
of each and plans them together, in every order.  Git alone says what is right.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.real_changes import Tree, change_of, module_paths, releases, write_figures
from overlay._features.model import Feature, Patch, Topic, Variant
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.variants import base_has
from overlay.package import VLLM, ReleaseRange
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import TextError
from overlay.results import Clash, Plan, State

#: Blocks are neighbours up to so many unchanged lines between them.
NEAR = 6

#: What git needs to make commits that are the same everywhere.
_GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


@dataclass(frozen=True)
class Neighbours:
    """Changes of one file that lie near each other, each made on the release alone.

    :ivar gaps: the unchanged lines between one block and the next.
    """

    path: str
    release: str
    before: bytes
    afters: tuple[bytes, ...]
    gaps: tuple[int, ...]
    features: tuple[Feature, ...]


def draw(
    texts: ReleaseTexts, paths: Sequence[Sequence[str]], number: int, seed: int
) -> list[Neighbours]:
    """So many pairs and triples at random, in turn, of steps between releases at random."""
    generator = random.Random(seed)
    steps = list(enumerate(zip(texts.names, texts.names[1:], strict=False)))
    drawn: list[Neighbours] = []
    seen: set[tuple[str, str]] = set()
    syntax = Memo()
    while len(drawn) < number:
        at, (older, newer) = generator.choice(steps)
        path = generator.choice(sorted(set(paths[at]) & set(paths[at + 1])))
        if (path, older) in seen:
            continue
        seen.add((path, older))
        change = change_of(texts, path, older, newer)
        if change is None:
            continue
        size = 2 + len(drawn) % 2
        sets = list(_near(change.before, change.after, size, path, older, syntax))
        if sets:
            drawn.append(generator.choice(sets))
    return drawn


def _near(
    before: bytes, after: bytes, size: int, path: str, release: str, syntax: Syntax
) -> Iterator[Neighbours]:
    """The sets of neighbouring blocks of a file's change that are changes of their own."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [code[1:] for code in matcher.get_opcodes() if code[0] != "equal"]
    for at in range(len(blocks) - size + 1):
        chosen = blocks[at : at + size]
        gaps = tuple(b[0] - a[1] for a, b in pairwise(chosen))
        if max(gaps) > NEAR:
            continue
        afters = tuple("".join([*old[:a], *new[c:d], *old[b:]]).encode() for a, b, c, d in chosen)
        features = [_feature(n, path, before, text, syntax) for n, text in enumerate(afters)]
        if all(each is not None for each in features):
            whole = tuple(each for each in features if each is not None)
            yield Neighbours(path, release, before, afters, gaps, whole)


def _feature(number: int, path: str, before: bytes, after: bytes, syntax: Syntax) -> Feature | None:
    """The feature that makes a change of one file; ``None`` where none can."""
    if syntax.compile_error(after, path) is not None:
        return None
    try:
        hunks = compose(before, after)
    except (NotComposable, TextError, UnparsableError):
        return None
    there = tuple(base_has(hunks, before))
    hunks = tuple(hunk._replace(base_has=there) for hunk in hunks)
    span = ReleaseRange.parse(f"{VLLM.releases[0]}..{VLLM.releases[-1]}", VLLM)
    id_ = f"change-{number}"
    patch = Patch(f"{id_}/10-change/{span}.patch", path, {}, hunks)
    topic = Topic("10-change", (Variant(span, patch),))
    return Feature(id_, "a change", "drawn", "", span, (), (topic,), (), "bench", id_)


class Repository:
    """A repository of git with one file, for `git am -3`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._git("init", "-q", "-b", "main")

    def _git(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", "-C", str(self.folder), *words],
            env={**os.environ, **_GIT},
            capture_output=True,
            check=check,
        )

    def laid(self, drawn: Neighbours, order: Sequence[int]) -> bytes | None:
        """The file with the mails of the changes laid on each other; ``None`` at a conflict."""
        file = self.folder / "file.py"
        mails = self.folder.parent / "mails"
        self._git("checkout", "-q", "--orphan", "base")
        file.write_bytes(drawn.before)
        self._git("add", "file.py")
        self._git("commit", "-q", "-m", "base")
        for number, after in enumerate(drawn.afters):
            self._git("checkout", "-q", "-b", f"change-{number}", "base")
            file.write_bytes(after)
            self._git("commit", "-q", "-a", "-m", f"change {number}")
            self._git("format-patch", "-q", "-1", "-o", str(mails / str(number)))
        self._git("checkout", "-q", "base")
        texts: bytes | None = drawn.before
        for number in order:
            (mail,) = (mails / str(number)).glob("*.patch")
            if self._git("am", "-3", "-q", str(mail), check=False).returncode:
                self._git("am", "--abort")
                texts = None
                break
            texts = file.read_bytes()
        self._git("checkout", "-q", "--detach")
        for number in range(len(drawn.afters)):
            self._git("branch", "-q", "-D", f"change-{number}")
            for mail in (mails / str(number)).glob("*.patch"):
                mail.unlink()
        self._git("branch", "-q", "-D", "base")
        return texts

    def merged(self, drawn: Neighbours, order: Sequence[int]) -> bytes | None:
        """The same by `git merge-file` alone, which looks for no place; ``None`` at a conflict."""
        names = [self.folder.parent / name for name in ("ours", "base", "theirs")]
        text = drawn.before
        for number in order:
            for name, data in zip(names, (text, drawn.before, drawn.afters[number]), strict=True):
                name.write_bytes(data)
            answer = self._git("merge-file", "-p", *map(str, names), check=False)
            if answer.returncode:
                return None
            text = answer.stdout
        return text


def planned(drawn: Neighbours, order: Sequence[int], texts: ReleaseTexts, syntax: Syntax) -> Plan:
    """The plan of the features in an order, on the release that the changes were made on."""
    features = [drawn.features[number] for number in order]
    release = Version(drawn.release)
    return plan(features, Tree(texts, drawn.release), release, syntax=syntax)


def made(whole: Plan, before: bytes) -> bytes | None:
    """What a plan makes of the file; ``None`` where it asks somebody."""
    if whole.state is not State.PRISTINE:
        return None
    return next((change.after for change in whole.changes), before)


def is_clash(whole: Plan) -> bool:
    """Whether what a plan asks about is a clash."""
    reasons = [hunk.reason for f in whole.features for file in f.files for hunk in file.hunks]
    return any(isinstance(reason, Clash) for reason in reasons)


def judge(sample: Sequence[Neighbours], texts: ReleaseTexts) -> dict[str, Any]:
    """What came of a sample, in every order, beside git in the same order."""
    counts: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    syntax = Memo()
    for drawn in sample:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "repository").mkdir()
            repository = Repository(Path(folder) / "repository")
            orders = list(permutations(range(len(drawn.afters))))
            for order in orders:
                expected = repository.laid(drawn, order)
                whole = planned(drawn, order, texts, syntax)
                result = made(whole, drawn.before)
                what = f"git {'conflicts' if expected is None else 'clean'}, "
                if result is None:
                    what += "a clash" if is_clash(whole) else "refused otherwise"
                elif expected is None:
                    what += "applied together"
                elif result == expected:
                    what += "the same bytes"
                elif result == repository.merged(drawn, order):
                    what += "the bytes of git merge-file: git am found another place for a hunk"
                else:
                    what += "other bytes"
                counts[what] += 1
                if what not in ("git clean, the same bytes", "git conflicts, a clash"):
                    label = f"{drawn.path} of {drawn.release}, gaps {drawn.gaps}, order {order}"
                    named.setdefault(what, []).append(label)
    return {
        "sets": len(sample),
        "pairs": sum(len(drawn.afters) == 2 for drawn in sample),
        "triples": sum(len(drawn.afters) == 3 for drawn in sample),
        "gaps": dict(sorted(Counter(gap for drawn in sample for gap in drawn.gaps).items())),
        "orders": dict(sorted(counts.items())),
        "named": named,
    }


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--sets", type=int, default=50)
    parser.add_argument("--date", default="", help="the day of the measurement, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    texts = releases()
    sample = draw(texts, module_paths(texts), options.sets, options.seed)
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True)
    figures = {
        "date": options.date,
        "seed": options.seed,
        "git": git.stdout.split()[-1],
        "releases": list(texts.names),
        **judge(sample, texts),
    }
    write_figures(figures, options.out)


if __name__ == "__main__":
    main()
