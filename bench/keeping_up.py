#!/usr/bin/env python3
"""Measure how patches keep up with vLLM, over the sources of its releases.

    python bench/keeping_up.py --out bench/results/keeping-up-DATE.json

Real changes of upstream become features (``bench/real_changes.py``) and are asked about on every
release; the shipped features are replayed from each release to the next; and the commands are
timed.  The releases come from the package index, or from the user's cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.real_changes import Answer, RealChange, answers, changes, imported, shares, write_figures
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.writing import write_folder
from overlay.features.folder import load
from overlay.features.model import Feature, Variant, of_package
from overlay.features.sources import shipped_folder
from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange
from overlay.planning.scope_cache import Memo
from overlay.results import Outcome, State
from overlay.targets.releases import CachedRelease
from overlay.targets.resolution import resolve

#: How many releases after the first one that has a change it is asked again.
LATER = (0, 1, 2, 3, 5, 7, 9)

#: A port over at most so many releases is a near one.
NEAR = 3

#: The hunks that neither image tells anything of: on every release, on those that have the change,
#: and on those before.
_REFUSED = ("anywhere", "where upstream has it", "before the merge")

#: How many features the timed port carries.
FEATURES = 13


def releases() -> ReleaseTexts:
    """The texts of every known release."""
    return ReleaseTexts(KNOWN_RELEASES, resolve)


def module_paths(texts: ReleaseTexts) -> list[list[str]]:
    """For each release the paths of its modules."""
    modules = []
    for name in texts.names:
        resolve(name)  # fetches it where it is not in the cache
        paths = CachedRelease.open(name).paths()
        modules.append(
            [path for path in paths if path.startswith("vllm/") and path.endswith(".py")]
        )
    return modules


def judge(sample: Sequence[RealChange], texts: ReleaseTexts) -> dict[str, Any]:
    """What every release says about a sample of changes, as counts and named exceptions."""
    porter = Porter(texts, Memo())
    names = texts.names
    counts: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {
        "before": Counter(),
        **{kind: Counter() for kind in (*_REFUSED, *(f"{kind}, near" for kind in _REFUSED))},
    }
    named: dict[str, list[str]] = {"missed": [], "too early": [], "twice": [], "silent": []}
    for number, change in enumerate(sample):
        feature = imported(change, texts, f"change-{number}")
        if feature is None:
            counts["not importable"] += 1
            continue
        counts["imported"] += 1
        for answer in answers(change, feature, porter):
            distance = names.index(answer.release) - names.index(change.newer)
            _count(change, answer, distance, counts, outcomes, named)
    return {
        "changes": counts["imported"],
        "not_importable": counts["not importable"],
        "recognised": {str(later): _rates(counts, later) for later in LATER},
        "before": {
            "pairs": counts["before"],
            "called_upstreamed": counts["early"],
            "outcomes": dict(outcomes["before"]),
        },
        "applied_twice": len(named["twice"]),
        "hunks_refused_by_images": {
            kind: {
                "all": shares(outcomes[kind]),
                f"up_to_{NEAR}_releases": shares(outcomes[f"{kind}, near"]),
            }
            for kind in _REFUSED
        },
        "named": named,
    }


def _count(
    change: RealChange,
    answer: Answer,
    distance: int,
    counts: Counter[str],
    outcomes: dict[str, Counter[str]],
    named: dict[str, list[str]],
) -> None:
    """Add one release's answer to the counts."""
    label = f"{change.path} of {change.newer} on {answer.release}"
    if distance >= 0:
        counts[f"asked {distance}"] += 1
        counts[f"known {distance}"] += answer.state is State.UPSTREAMED
        counts[f"by text {distance}"] += answer.unremembered is State.UPSTREAMED
        if answer.state is not State.UPSTREAMED:
            named["missed"].append(label)
    elif not answer.has_it:
        counts["before"] += 1
        outcomes["before"][answer.outcome.value] += 1
        if State.UPSTREAMED is answer.state or answer.outcome is Outcome.UPSTREAM:
            counts["early"] += 1
            named["too early"].append(label)
    kinds = ["anywhere"]
    if distance >= 0:
        kinds.append("where upstream has it")
    elif not answer.has_it:
        kinds.append("before the merge")
    for kind in kinds:
        outcomes[kind].update(outcome.value for outcome in answer.refused)
        if abs(distance) <= NEAR:
            outcomes[f"{kind}, near"].update(outcome.value for outcome in answer.refused)
    if answer.twice:
        named["twice"].append(label)


def _rates(counts: Counter[str], later: int) -> dict[str, float | int]:
    asked = counts[f"asked {later}"]
    return {
        "asked": asked,
        "known": round(counts[f"known {later}"] / asked, 4) if asked else 0.0,
        "without_memory": round(counts[f"by text {later}"] / asked, 4) if asked else 0.0,
    }


def replay(texts: ReleaseTexts, only: Sequence[str] = ()) -> dict[str, Any]:
    """Carry the shipped hunks from each release to the next; what does not land is named.

    :param only: the newer releases of the steps to take; default: all.
    """
    porter = Porter(texts, Memo())
    outcomes: Counter[str] = Counter()
    stuck: list[str] = []
    warned: list[str] = []
    steps = [
        step
        for step in zip(texts.names, texts.names[1:], strict=False)
        if not only or step[1] in only
    ]
    for older, newer in steps:
        for feature in of_package(load([shipped_folder()]), VLLM):
            port = porter.port(only_at(feature, older), newer)
            for topic in port.topics:
                label = f"{older} to {newer}: {feature.id}/{topic.topic}"
                for hunk in topic.hunks:
                    outcomes[hunk.outcome.value] += 1
                    if hunk.outcome is not Outcome.EXACT:
                        stuck.append(f"{label} {hunk.scope}: {hunk.outcome.value}")
                warned += [f"{label}: {warning}" for warning in topic.warnings]
    total = sum(outcomes.values())
    return {
        "steps": len(steps),
        "hunks": total,
        "landed": round(outcomes[Outcome.EXACT.value] / total, 4),
        "outcomes": dict(outcomes),
        "named": stuck,
        "warnings": warned,
    }


def only_at(feature: Feature, release: str) -> Feature:
    """A feature as it would be if it had been made on one release and never ported."""
    span = ReleaseRange(Version(release), Version(release))
    topics = [
        topic._replace(
            variants=tuple(
                Variant(span, variant.patch)
                for variant in topic.variants
                if Version(release) in variant.releases
            ),
        )
        for topic in feature.topics
    ]
    return replace(feature, releases=span, topics=tuple(t for t in topics if t.variants))


def timed(sample: Sequence[RealChange], texts: ReleaseTexts) -> dict[str, float]:
    """Seconds that the commands take, each in a process of its own, the second time."""
    with tempfile.TemporaryDirectory(prefix="overlay-keeping-up-") as folder:
        patches = Path(folder, "patches")
        target = texts.names[-1]
        made = 0
        for change in sample:
            if made == FEATURES:
                break
            made += _import_into(change, texts, f"change-{made}", patches)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = ["port", "--all", target, "--patches", str(patches), "--json"]

        def run() -> tuple[float, float]:
            begun, used = time.perf_counter(), _children()
            subprocess.run(
                [sys.executable, "-m", "overlay", *words],
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                check=False,
            )
            for session in Path(folder).glob("port-*"):
                shutil.rmtree(session)
            return time.perf_counter() - begun, _children() - used

        run()  # fills the caches
        elapsed, used = min(run() for _ in range(3))
        label = f"port --all of {made} features to {target}"
        return {label: round(elapsed, 2), f"{label}, of CPU": round(used, 2)}


def _children() -> float:
    """Seconds of CPU that ended child processes took."""
    times = os.times()
    return times.children_user + times.children_system


def _import_into(change: RealChange, texts: ReleaseTexts, id_: str, patches: Path) -> bool:
    """Import a change as of its older release; whether it made a feature."""
    known = [name for name in texts.names if Version(name) <= Version(change.older)]
    prepared = prepare(
        read_changes(change.diff, "change.diff"),
        id_,
        ReleaseTexts(known, resolve),
        source="change.diff",
        verbatim=change.diff,
        today="2026-11-22",
    )
    if prepared.folder is None:
        return False
    write_folder(prepared.folder, patches)
    return True


def spread(found: Iterator[RealChange]) -> list[RealChange]:
    """A sample in an order in which every beginning of it has changes of many releases."""
    by_step: dict[str, list[RealChange]] = {}
    for change in found:
        by_step.setdefault(change.newer, []).append(change)
    rows = max(map(len, by_step.values()), default=0)
    return [step[row] for row in range(rows) for step in by_step.values() if row < len(step)]


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=12, help="changes for each step of releases")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    texts = releases()
    sample = spread(changes(texts, module_paths(texts), options.each))
    figures = {
        "releases": [texts.names[0], texts.names[-1]],
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "real_changes": judge(sample, texts),
        "replay": replay(texts),
        "seconds": timed(sample, texts),
    }
    write_figures(figures, options.out)


if __name__ == "__main__":
    main()
