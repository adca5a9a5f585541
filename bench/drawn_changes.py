#!/usr/bin/env python3
"""Draw changes of upstream at random, and ask every release about them: what is claimed, is it so?

    python bench/drawn_changes.py --seed 35 --out bench/results/drawn-changes-DATE.json

A change is what happened to one file between two neighbouring releases; with `--checkout DIR` it
is what one commit did to a file, as a mail.  It is imported over all releases without the ids of
blobs, with them, and with one line of code of one's own among upstream's; then each release is
asked.  What is true is taken from the texts of the releases alone, by whole files and whole lines,
never from the rule that is measured.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.commits import draw_commits
from bench.real_changes import (
    RealChange,
    Tree,
    change_of,
    changes,
    module_paths,
    plain_diff,
    releases,
    write_figures,
)
from overlay._features.model import Feature
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.writing import check_files
from overlay.commands.parallel import in_processes, no_step
from overlay.errors import OverlayError, UsageError
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.results import State

#: The changes that are drawn: at most so many hunks, and so many new lines.
HUNKS, NEW_LINES = 4, 60

#: The kinds of own lines: one that nothing else has, a short one, and one that the file has.
OWN = ("new", "short", "repeated")


@dataclass(frozen=True)
class Own:
    """A change with one line of one's own among upstream's."""

    change: RealChange
    kind: str
    line: str
    after: bytes


def draw(
    texts: ReleaseTexts, number: int, seed: int, known: Sequence[RealChange] = ()
) -> list[RealChange]:
    """Changes at random, as many of each step of releases as can be.

    :param known: changes that must not be among them.
    """
    generator = random.Random(seed)
    paths = module_paths(texts)
    left_out = {(change.path, change.newer) for change in known}
    steps: list[list[tuple[str, str, str]]] = []
    for at, (older, newer) in enumerate(zip(texts.names, texts.names[1:], strict=False)):
        shared = sorted(set(paths[at]) & set(paths[at + 1]))
        generator.shuffle(shared)
        steps.append([(path, older, newer) for path in shared if (path, newer) not in left_out])
    drawn: list[RealChange] = []
    queues = [_drawn(texts, step) for step in steps]
    while queues and len(drawn) < number:
        for queue in list(queues):
            change = next(queue, None)
            if change is None:
                queues.remove(queue)
            elif len(drawn) < number:
                drawn.append(change)
    return drawn


def _drawn(texts: ReleaseTexts, step: Sequence[tuple[str, str, str]]) -> Iterator[RealChange]:
    for path, older, newer in step:
        change = change_of(texts, path, older, newer)
        if change is not None and len(change.hunks) <= HUNKS:
            added = sum(op == "+" for hunk in change.hunks for op, _ in hunk.lines)
            if 0 < added <= NEW_LINES:
                yield change


def with_own_line(change: RealChange, kind: str, generator: random.Random) -> Own | None:
    """The change with a line of one's own behind one of its new lines, if that compiles."""
    before, after = (text.decode().splitlines() for text in (change.before, change.after))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    added = [
        at
        for tag, _, _, start, stop in matcher.get_opcodes()
        if tag in ("insert", "replace")
        for at in range(start, stop)
        if after[at].strip()
    ]
    generator.shuffle(added)
    for at in added:
        indent = after[at][: len(after[at]) - len(after[at].lstrip())]
        line = {"new": "overlay_own = overlay_measured(7)", "short": "q = 1"}.get(kind)
        if line is None:
            same = [text.strip() for text in before if _simple(text, indent)]
            if not same:
                continue
            line = generator.choice(same)
        text = "\n".join([*after[: at + 1], indent + line, *after[at + 1 :]]) + "\n"
        # Where upstream removes the line, a change that keeps it adds nothing to upstream's.
        adds = (
            _added(change.before, text.encode())[line] > _added(change.before, change.after)[line]
        )
        if adds and _differ(text, change.after.decode()):
            return Own(change, kind, line, text.encode())
    return None


def _added(before: bytes, after: bytes) -> Counter[str]:
    """The lines that a diff adds, indentation aside."""
    diff = plain_diff("a", before, after).decode().splitlines()[2:]
    return Counter(line[1:].strip() for line in diff if line.startswith("+"))


def _simple(text: str, indent: str) -> bool:
    """Whether a line is a statement by itself at an indentation."""
    if not text.startswith(indent) or text[len(indent) : len(indent) + 1] in ("", " ", "#", ")"):
        return False
    body = text.strip()
    try:
        made = ast.parse(f"def f():\n for _ in ():\n  {body}\n")
    except SyntaxError:
        return False
    loop = made.body[0].body[0]  # type: ignore[attr-defined]
    return len(loop.body) == 1 and not isinstance(
        getattr(loop.body[0], "value", None), ast.Constant
    )


def _differ(text: str, after: str) -> bool:
    """Whether a text is Python, and another program than the one after the change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<own>", "exec", dont_inherit=True)
            return _program(text) != _program(after)
        except (SyntaxError, ValueError):
            return False


def _program(text: str) -> str:
    """A module without its docstrings and other texts that stand alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                each
                for each in body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.dump(tree)


class Truth:
    """What the texts of the releases say about a change, by whole lines and whole files."""

    def __init__(self, change: RealChange, texts: ReleaseTexts) -> None:
        self.change, self._texts = change, texts
        before = set(_code(change.before))
        self._new = {line for line in _code(change.after) if line not in before}

    def has(self, release: str) -> bool | None:
        """Whether a release has the change; ``None`` where its text alone does not tell.

        The release that the change came with has it, and so has each whose file is the same.
        A file that lacks a new line of code lacks the change, before that release; behind it,
        upstream may have edited the line, unless the file is as it was before or has none of them.
        """
        text = self._texts.read(release, self.change.path)
        if text == self.change.after:
            return True
        if text is None or text == self.change.before:
            return False
        there = self._new & set(_code(text))
        later = Version(release) > Version(self.change.newer)
        if self._new and not there:
            return False if not later else None
        if there == self._new:
            return True if later and self._new else None
        return None if later else False

    def has_some(self, release: str) -> bool:
        """Whether a release has a new line of code of the change."""
        text = self._texts.read(release, self.change.path)
        return text is not None and bool(self._new & set(_code(text)))


def _code(data: bytes) -> list[str]:
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    return [line for line in lines if line and line[0] != "#"]


def imported(
    path: str, diff: bytes, texts: ReleaseTexts, syntax: Memo
) -> tuple[Feature | None, str]:
    """The feature that an import over all releases makes, or why it makes none."""
    try:
        prepared = prepare(
            read_changes(diff, "change.diff"),
            "change",
            texts,
            source="change.diff",
            verbatim=diff,
            today="2026-11-25",
            syntax=syntax,
        )
        if prepared.folder is not None:
            return check_files("change", prepared.folder.all_files()), ""
    except (UsageError, OverlayError) as error:
        return None, str(error)
    problems = [fate.problem for fate in prepared.summary.files if fate.problem]
    outcomes = Counter(each.value for each in prepared.summary.outcomes.values())
    return None, problems[0] or path if problems else f"lands on none: {dict(outcomes)}"


def judge(sample: Sequence[RealChange], texts: ReleaseTexts, *, ids: bool) -> dict[str, Any]:
    """What every release says about changes, as counts and named exceptions."""
    counts: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    syntax = Memo()
    for change in sample:
        diff = change.diff if ids else change.plain
        feature, why = imported(change.path, diff, texts, syntax)
        label = f"{change.path} of {change.newer}"
        if feature is None:
            kind = "upstream has it" if "has its new lines already" in why else "not imported"
            counts[kind] += 1
            named.setdefault(kind, []).append(f"{label}: {why[:200]}")
            continue
        counts["imported"] += 1
        truth = Truth(change, texts)
        for release in texts.names:
            state = _state(feature, texts, release, syntax)
            alone = _state(replace(feature, merged=None), texts, release, syntax)
            for key in _answers(truth, release, state, alone):
                counts[key] += 1
                if key.startswith("wrong"):
                    named.setdefault(key, []).append(f"{label} on {release}: {state.value}")
    return {"changes": len(sample), "counts": dict(sorted(counts.items())), "named": named}


def _state(feature: Feature, texts: ReleaseTexts, release: str, syntax: Memo) -> State:
    tree = Tree(texts, release)
    return plan([feature], tree, Version(release), syntax=syntax).features[0].state


def _answers(truth: Truth, release: str, state: State, alone: State) -> Iterator[str]:
    """The counts that one answer adds to; those that begin with "wrong" must not be."""
    newer = truth.change.newer
    has = truth.has(release)
    later = Version(release) > Version(newer)
    if has is False:
        yield "pairs that lack it"
        if later:
            yield f"taken back: {state.value}"
        elif state is State.UPSTREAMED:
            yield "wrong: upstreamed where it is not"
        else:
            yield f"before: {state.value}"
    if release == newer or later:
        where = "first" if release == newer else "later"
        yield f"{where}: asked of"
        right = state is State.UPSTREAMED or state.needs_attention
        if right:
            yield f"{where}: recognised or asked about"
        elif has or truth.has_some(release):
            yield f"wrong: {where}, {state.value}"
        else:
            yield "taken back, or edited: " + state.value
        yield f"{where}: {state.value}"
        yield f"{where}, without memory: {alone.value}"
        if state is State.PRISTINE and has:
            yield "wrong: applied twice"


def judge_own(sample: Sequence[Own], texts: ReleaseTexts) -> dict[str, Any]:
    """What the releases say about changes with a line of one's own."""
    counts: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    syntax = Memo()
    for own in sample:
        change = own.change
        feature, why = imported(
            change.path, plain_diff(change.path, change.before, own.after), texts, syntax
        )
        label = f"{change.path} of {change.newer}, {own.kind}: {own.line!r}"
        if feature is None:
            counts["not imported"] += 1
            named.setdefault("not imported", []).append(f"{label}: {why[:200]}")
            continue
        counts["imported"] += 1
        counts[f"imported, {own.kind}"] += 1
        truth = Truth(change, texts)
        for release in texts.names:
            state = _state(feature, texts, release, syntax)
            first = release == change.newer
            if first:
                counts[f"first: {state.value}"] += 1
            wrong = state is State.UPSTREAMED or (
                state is State.PRISTINE and (first or truth.has(release) is True)
            )
            if wrong:
                counts[f"wrong: {state.value}"] += 1
                named.setdefault(f"wrong: {state.value}", []).append(f"{label} on {release}")
    return {"changes": len(sample), "counts": dict(sorted(counts.items())), "named": named}


def owns(sample: Sequence[RealChange], kind: str, number: int, seed: int) -> list[Own]:
    """So many changes with an own line of one kind."""
    generator = random.Random(f"{seed} {kind}")
    made = (with_own_line(change, kind, generator) for change in sample)
    return list(islice((own for own in made if own is not None), number))


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--changes", type=int, default=150)
    parser.add_argument("--own", type=int, default=80, help="changes with an own line of each kind")
    parser.add_argument("--checkout", type=Path, help="draw commits of this git checkout instead")
    parser.add_argument("--date", default="", help="the day of the measurement, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    texts = releases()
    if options.checkout is not None:
        sample: Sequence[RealChange] = draw_commits(
            texts, options.checkout, options.changes, options.seed
        )
    else:
        known = list(changes(texts, module_paths(texts), 12))
        sample = draw(texts, options.changes, options.seed, known)

    def measured(part: str) -> dict[str, Any]:
        if part in OWN:
            return judge_own(owns(sample, part, options.own, options.seed), texts)
        return judge(sample, texts, ids=part == "with ids")

    parts = ("without ids", "with ids", *OWN)
    found = in_processes(measured, parts, len(parts), no_step)
    figures = {
        "date": options.date,
        "seed": options.seed,
        "drawn from": "releases" if options.checkout is None else "commits of a checkout",
        "releases": list(texts.names),
        "upstream": dict(zip(parts[:2], found[:2], strict=True)),
        "own_line": dict(zip(OWN, found[2:], strict=True)),
    }
    write_figures(figures, options.out)


if __name__ == "__main__":
    main()
