"""The measurement over the merges of forks: what is a port there, and what becomes of its hunks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import merges
from tests.support import port_world as world
from tests.support.git_repository import Repository, needs_git

pytestmark = needs_git

#: What upstream made of the base -> what becomes of the fork's hunk, and whether images refuse it.
CASES = {
    "another function": (world.OTHER_FUNCTION, "exact", False),
    "a line near the change": (world.NEAR, "merged", True),
    "the same line": (world.IN_THE_WAY, "conflict", True),
    "the change itself": (world.PATCHED.replace(b"value + 1", b"value + 10"), "upstream", False),
    "the change and more": (world.MERGED, "upstream", True),
}


def fork(folder: Path, upstream: bytes) -> Repository:
    """A fork that carries a change, and has merged upstream."""
    repository = Repository.create(folder)
    repository.commit("base", {world.PATH: world.BASE, "vllm/same.py": b"a = 1\n"})
    repository("checkout", "-q", "-b", "upstream")
    repository.commit("upstream", {world.PATH: upstream, "vllm/same.py": b"a = 2\n"})
    repository("checkout", "-q", "main")
    repository.commit("ours", {world.PATH: world.PATCHED, "vllm/ours.py": b"b = 1\n"})
    repository("merge", "-q", "-s", "ours", "-m", "merge", "upstream")
    return repository


@pytest.mark.parametrize("name", CASES)
def test_a_forks_change_is_ported_onto_upstreams_text(tmp_path: Path, name: str) -> None:
    upstream, outcome, refused = CASES[name]
    repository = fork(tmp_path / "fork", upstream)
    (merge,) = merges.file_merges(repository.folder, "2000-01-01")
    assert (merge.path, merge.fork, merge.upstream) == (world.PATH, world.PATCHED, upstream)
    figures = merges.measure(repository.folder, "2000-01-01", 10)
    assert figures["file_merges"] == 1
    assert figures["hunks"]["outcomes"] == {outcome: 1}
    assert figures["hunks_refused_by_images"]["outcomes"] == ({outcome: 1} if refused else {})
    assert figures["placed"]["by_lines"]["hunks"] == (outcome == "merged")
    assert figures["placed"]["by_statements"]["hunks"] == 0
    # Where upstream has the change, the merge finds nothing left to do, too.
    assert figures["the_same_by_merge_alone"] == figures["hunks_refused_by_images"]


def test_merges_that_are_no_ports_and_old_ones_are_left_out(tmp_path: Path) -> None:
    repository = fork(tmp_path / "fork", world.NEAR)
    assert list(merges.file_merges(repository.folder, "2026-12-01")) == []
    # A side that only takes what the other has carries nothing.
    same = fork(tmp_path / "same", world.PATCHED)
    assert list(merges.file_merges(same.folder, "2000-01-01")) == []
    figures = merges.measure(repository.folder, "2000-01-01", 10)
    both = merges.together([figures, figures])
    assert both["hunks_refused_by_images"]["hunks"] == 2
    assert both["hunks_refused_by_images"]["placed_for_review"] == 1.0
    assert both["placed"]["by_lines"] == {"hunks": 2, "as_committed": 2}
    with pytest.raises(subprocess.CalledProcessError):
        merges.git(tmp_path, "log")


RUN = b"def run(a, b):\n    launch(a, b, block=1, warps=2)\n    return a\n"


@pytest.mark.parametrize(
    ("upstream", "committed", "right"),
    [
        (b"launch(\n        a[0],\n        b,\n        block=1,\n        warps=2)", None, True),
        (b"launch(a, b[0], block=1, warps=2)", b"launch(a, b[0], block=1, warps=8)", False),
        (b"launch(a, b[0], block=1, warps=2)", b"", False),
    ],
)
def test_a_placing_is_held_against_what_the_person_committed(
    upstream: bytes, committed: bytes | None, right: bool
) -> None:
    old, new = b"launch(a, b, block=1, warps=2)", b"launch(a, b, block=1, warps=4)"
    theirs = RUN.replace(old, upstream)
    # Where nothing else is said, the person has both changes, however they broke the lines.
    told = RUN.replace(old, upstream.replace(b"warps=2", b"warps=4").replace(b"\n       ", b""))
    made = told if committed is None else RUN.replace(old, committed)
    fork = RUN.replace(old, new)
    found = merges.outcomes(merges.FileMerge("m", world.PATH, RUN, fork, theirs, made), 1)
    assert found is not None
    assert found.placed == [merges.Placed(by_statement=True, as_committed=right)]
