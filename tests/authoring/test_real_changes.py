"""Real changes of upstream, and the shipped features, on all releases: never twice, never lost."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.real_changes import RealChange, changes, module_paths, releases
from overlay._features.model import Hunk
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.merge import merge
from overlay.authoring.port_views import with_hunks
from overlay.authoring.porting import Porter
from overlay.planning.scope_cache import Memo
from overlay.planning.text import SourceText
from overlay.results import State
from tests.support.real_changes import answers, imported, replay, spread

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: How many changes are tried: enough for each step of releases here, and those of the issue.
FEW, MANY = 18, 110


@pytest.fixture(scope="module")
def texts() -> ReleaseTexts:
    return releases()


@pytest.fixture(scope="module")
def sample(texts: ReleaseTexts) -> list[RealChange]:
    """Changes between neighbouring releases, those of many releases first."""
    return spread(changes(texts, module_paths(texts), 8))


def hold(sample: list[RealChange], texts: ReleaseTexts) -> None:
    """The release's text is the truth: what has the change is upstreamed, nothing is made twice."""
    porter = Porter(texts, Memo())
    features = [imported(change, texts, f"change-{at}") for at, change in enumerate(sample)]
    given = [
        (f"{change.path} of {change.newer} on {answer.release}", answer)
        for change, feature in zip(sample, features, strict=True)
        if feature is not None
        for answer in answers(change, feature, porter)
    ]
    assert sum(feature is not None for feature in features) >= len(sample) * 0.9
    assert [label for label, answer in given if answer.twice] == []
    assert [label for label, answer in given if answer.is_early] == []
    missed = [
        label
        for label, answer in given
        if answer.distance >= 0 and answer.state is not State.UPSTREAMED
    ]
    for later, share in ((0, 0.97), (3, 0.95), (9, 0.95)):
        states = [answer.state for _, answer in given if answer.distance == later]
        assert states.count(State.UPSTREAMED) >= share * len(states) > 0, missed


def test_real_changes_are_upstreamed_where_they_are_and_nowhere_made_twice(
    sample: list[RealChange], texts: ReleaseTexts
) -> None:
    hold(sample[:FEW], texts)


@pytest.mark.thorough
def test_a_hundred_real_changes(sample: list[RealChange], texts: ReleaseTexts) -> None:
    assert len(sample) >= MANY
    hold(sample[:MANY], texts)


def test_the_shipped_features_on_the_steps_that_were_not_easy(texts: ReleaseTexts) -> None:
    """A caller that wants one value more, a function that was rewritten, and one that went."""
    landing = replay(texts, ["0.23.0", "0.28.0"])
    rewritten, gone = sorted(landing.stuck)
    assert "50-runner-profile" in rewritten
    assert rewritten.endswith(" conflict")
    assert gone.endswith("eager-draft/10-mode EagleSpeculator.init_cudagraph_manager: missing")
    assert any("it returned 2 values in the base, and now 3" in text for text in landing.warnings)


@pytest.mark.thorough
def test_the_shipped_features_replayed_from_release_to_release(texts: ReleaseTexts) -> None:
    landing = replay(texts)
    assert landing.hunks >= 300
    assert len(landing.stuck) <= 0.01 * landing.hunks
    # The one step at which every hunk lands and one would be wrong is named by a warning.
    named = [text for text in landing.warnings if text.startswith("0.27.1 to 0.28.0")]
    assert any("returned 2 values" in text for text in named)


@pytest.mark.skipif(shutil.which("git") is None, reason="the peer is git's own merge")
def test_the_merge_of_real_texts_agrees_with_git(
    sample: list[RealChange], texts: ReleaseTexts, tmp_path: Path
) -> None:
    """Ours: a part of upstream's next change; theirs: the release after that."""
    generator = random.Random(11)
    agreed = tried = 0
    for change in sample[:60]:
        later = texts.names.index(change.newer) + 1
        if later == len(texts.names) or len(change.hunks) < 2:
            continue
        theirs = texts.read(texts.names[later], change.path)
        if theirs is None:
            continue
        kept = generator.sample(change.hunks, len(change.hunks) // 2)
        ours = _with(change.before, kept)
        tried += 1
        agreed += _agrees(change.before, ours, theirs, tmp_path)
    assert tried >= 10
    # Where lines repeat, several alignments are as good; git may choose another one.
    assert agreed >= 0.95 * tried


def _with(before: bytes, hunks: Sequence[Hunk]) -> bytes:
    """A text with some of its hunks."""
    made = with_hunks(before, hunks)
    assert made is not None
    return made


def _agrees(base: bytes, ours: bytes, theirs: bytes, folder: Path) -> bool:
    """Whether both find a conflict, or both give the same text."""
    for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
        (folder / name).write_bytes(data)
    done = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    merged = merge(*(SourceText.from_bytes(data).lines for data in (base, ours, theirs)))
    if done.returncode:
        return bool(merged.conflicts)
    return not merged.conflicts and SourceText.from_bytes(done.stdout).lines == merged.lines
