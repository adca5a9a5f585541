#!/usr/bin/env python3
"""Draw whole commits of upstream at random, and import each by one command: how many come in?

    python bench/front_door.py --checkout DIR --seed 3707 --out bench/results/front-door-DATE.json

A drawn commit changes a Python module of the package and lies between two neighbouring releases,
which their texts tell: one lacks its new lines and the next has them.  It comes as the mail that
git writes and is imported as a user would, with no more than its id.  What is not imported is
taken without what lies outside the package, where the answer names `--partial`, and is else opened
as a session on the last release without it (`--onto`), where the command has that.  Beside it
stands whether git, which has the text that the commit was made on, merges it into that release, and
what becomes of it there when the import has that text, too (`--base DIR`): carried or not, and if
so, with git's bytes.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.commits import _between, _path, _split
from bench.real_changes import Tree, releases, write_figures
from overlay._features.folder import load
from overlay.authoring.commands.import_ import import_change
from overlay.authoring.git import Checkout
from overlay.authoring.locating import ReleaseTexts
from overlay.commands.parallel import in_processes, no_step
from overlay.commands.request import Request
from overlay.errors import OverlayError
from overlay.planning.planner import plan
from overlay.results import State

#: Whether this checkout can open a session for what conflicts.
SESSIONS = "onto" in inspect.signature(import_change).parameters


class Drawn(NamedTuple):
    """A commit.

    :ivar release: the last release that lacks it; :ivar mail: as `git format-patch` writes it.
    :ivar checkout: where it is from.
    :ivar git: what git makes of its files of the package on that release; ``None``: it conflicts.
    """

    commit: str
    release: str
    mail: bytes
    checkout: Path
    git: dict[str, bytes | None] | None


def draw(texts: ReleaseTexts, checkout: Path, seed: int) -> Iterator[Drawn]:
    """Commits at random that lie between two of the releases."""
    repository = Checkout(checkout)
    commits = [entry.commit for entry in repository.history("vllm")]
    random.Random(seed).shuffle(commits)
    for commit in commits:
        mail = repository.mail(commit)
        if (release := _before(repository, mail, texts)) is not None:
            git = merged(repository, mail, release, texts)
            yield Drawn(commit, release, mail, checkout, git)


def merged(
    repository: Checkout, mail: bytes, release: str, texts: ReleaseTexts
) -> dict[str, bytes | None] | None:
    """What git makes of a release by a commit: each file of it that the package has.

    :returns: path -> its text, ``None`` for one that is removed; no mapping where git conflicts.
    """
    files: dict[str, bytes | None] = {}
    for part in _split(mail)[1:]:
        names = re.search(rb"^diff --git a/(.+) b/(.+)$", part, re.MULTILINE)
        ids = re.search(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)", part, re.MULTILINE)
        if names is None or ids is None or not names[2].startswith(b"vllm/"):
            continue
        there = texts.read(release, names[1].decode())
        if not ids[1].strip(b"0") or not ids[2].strip(b"0"):
            if (there is None) != (not ids[1].strip(b"0")):
                return None  # added where it is, or removed where it is not
            files[names[2].decode()] = repository.blob(ids[2].decode())
            continue
        before, after = (repository.blob(each.decode()) for each in ids.groups())
        text = None if there is None else _merge_file(there, before or b"", after or b"")
        if text is None:
            return None
        files[names[2].decode()] = text
    return files


def _merge_file(*texts: bytes) -> bytes | None:
    """What `git merge-file` makes of the own text, the base and the other one, if it is clean."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(number)) for number in range(len(texts))]
        for place, text in zip(places, texts, strict=True):
            place.write_bytes(text)
        command = ["git", "merge-file", "-q", "-p", *map(str, places)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        return None if answer.returncode else answer.stdout


def _before(repository: Checkout, mail: bytes, texts: ReleaseTexts) -> str | None:
    """The last release that lacks a commit; ``None`` where no module of it tells that."""
    for part in _split(mail)[1:]:
        path = _path(part)
        ids = re.search(rb"^index ([0-9a-f]+)\.\.[0-9a-f]+", part, re.MULTILINE)
        if not (path.startswith("vllm/") and path.endswith(".py") and ids):
            continue
        before = repository.blob(ids[1].decode()) or b""
        added = {
            line[1:].strip()
            for line in part.decode("utf-8", "replace").splitlines()
            if line.startswith("+") and not line.startswith("+++")
        }
        if (pair := _between(path, before, added, texts)) is not None:
            return pair[0]
    return None


def judge(drawn: Drawn) -> dict[str, Any]:
    """What becomes of a commit, and why it is refused where it is."""
    answer: dict[str, Any] = {"commit": drawn.commit[:10], "release": drawn.release}
    answer["git"] = drawn.git is not None
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        Path("change.mbox").write_bytes(drawn.mail)
        answer |= _imported(Path(place), {})
        if not answer["imported"] and "--partial" in answer["why"]:
            partial = _imported(Path(place), {"partial": True})
            answer |= {"partial": partial["imported"], "then": partial["why"]}
        if not answer["imported"] and not answer.get("partial") and SESSIONS:
            more = {"onto": drawn.release, "partial": "partial" in answer}
            opened = _imported(Path(place), more)
            answer |= {"session": opened["imported"] or opened["session"], "then": opened["why"]}
        answer["back"] = back(drawn, Path(place))
        os.chdir(ROOT)
    return answer


def back(drawn: Drawn, place: Path) -> str:
    """What becomes of a commit on the last release without it, with the text it was made on."""
    answer = _imported(place, {"checkout": drawn.checkout, "partial": True}, "back")
    outcome: str = answer["releases"].get(drawn.release, "conflict")
    if outcome != "exact" or drawn.git is None:
        return f"{outcome}, git {'conflicts' if drawn.git is None else 'merges it'}"
    features = load([place / "ours"])
    own = [feature for feature in features if feature.id == "back"]
    change_plan = plan(own, Tree(releases(), drawn.release), Version(drawn.release))
    if change_plan.state is not State.PRISTINE:
        return f"wrong: {change_plan.state.value}"
    same = all(drawn.git.get(each.path, each.after) == each.after for each in change_plan.changes)
    return "exact, " + ("git's bytes" if same else "other bytes than git's")


def _imported(place: Path, more: dict[str, Any], id_: str = "change") -> dict[str, Any]:
    """The answer of one import."""
    nothing = {"imported": False, "session": False, "releases": {}}
    try:
        report: Any = import_change(Request(), ["change.mbox"], id_, place / "ours", **more)
    except OverlayError as error:
        return nothing | {"why": str(error).splitlines()[0][:300]}
    except Exception as error:  # noqa: BLE001 - a traceback is a finding, and counted as one
        return nothing | {"why": f"TRACEBACK {error!r}"[:300]}
    folder = getattr(report, "folder", None)
    text = " ".join(report.conclusion.text.split())
    why = "" if folder else " ".join((report.error or text).split())[:300]
    outcomes = getattr(report, "outcomes", {})
    return {
        "imported": folder is not None,
        "session": getattr(report, "session", None) is not None,
        "why": why.replace(str(place), ""),
        "releases": {release: each.value for release, each in outcomes.items()},
    }


def counted(answers: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The answers as counts."""
    counts: Counter[str] = Counter()
    for each in answers:
        kinds = ("imported", "partial", "session")
        kind = next((kind for kind in kinds if each.get(kind)), "neither")
        counts[kind] += 1
        counts["git merges it"] += each["git"]
        counts["imported, and git merges it"] += each["git"] and kind == "imported"
        counts[f"one release back: {each['back']}"] += 1
        if not each["imported"]:
            counts[f"{kind}: {_cause(each['why'])}"] += 1
    return dict(sorted(counts.items()))


def _cause(why: str) -> str:
    """The kind of a refusal."""
    for text, kind in (
        ("TRACEBACK", "a traceback"),
        ("lands on none", "lands on none of the releases"),
        ("half a change", "not Python"),
        ("edits modules in place", "removes or renames"),
        ("cannot be said in hunks", "cannot be said in hunks"),
        ("has its new lines already", "upstream has it"),
        ("does not fit", "does not fit"),
        ("is not in", "a file is missing"),
        ("are not in", "its lines are missing"),
    ):
        if text in why:
            return kind
    return "other"


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of upstream")
    parser.add_argument("--seed", type=int, default=3707)
    parser.add_argument("--commits", type=int, default=150)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--date", default="", help="the day of the measurement, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    generator = draw(releases(), options.checkout, options.seed)
    sample = [next(generator) for _ in range(options.commits)]
    answers = in_processes(judge, sample, options.processes, no_step)
    figures = {
        "date": options.date,
        "seed": options.seed,
        "commits": len(sample),
        "counts": counted(answers),
        "answers": answers,
    }
    write_figures(figures, options.out)


if __name__ == "__main__":
    main()
