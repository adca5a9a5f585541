"""A file or scope that upstream moved: where its hunks go, and where they must not go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from overlay.authoring.composing import compose
from overlay.authoring.following import Moved, NewPlace, follow, follow_each
from overlay.authoring.locating import ReleaseTexts
from overlay.planning.scopes import Syntax
from overlay.results import Outcome
from tests.support.patches import MemoryTree

OLD, NEW = "vllm/models/deepseek.py", "vllm/models/deepseek/layers.py"
FAR = "vllm/launch/entry.py"

FUNCTION = b"""\


def serve(server, listen_address):
    server.prepare(listen_address)
    server.log("Starting on %s", listen_address)
    for route in server.routes:
        server.add(route)
    return server.run()
"""
OTHER = b"\n\ndef other(value):\n    first = value + 1\n    return first\n"
BASE = b"import os\nimport sys\n" + FUNCTION + OTHER
AFTER = BASE.replace(b"Starting on", b"Ours starts on")


class Listed(MemoryTree):
    """A tree that tells its files."""

    def paths(self) -> Sequence[str]:
        """All of them."""
        return tuple(self.files)


def place(
    release: Mapping[str, bytes],
    base: Mapping[str, bytes] | None = None,
    *,
    everywhere: bool = True,
    after: bytes = AFTER,
) -> NewPlace | None:
    """Where a change of ``OLD`` goes in a release with these files."""
    trees = {"0.28.0": Listed({OLD: BASE, **(base or {})}), "0.29.0": Listed(dict(release))}
    texts = ReleaseTexts(tuple(trees), trees.__getitem__)
    moved = Moved(OLD, "0.28.0", BASE, compose(BASE, after))
    return follow(moved, "0.29.0", texts, Syntax(), everywhere=everywhere)


def test_a_file_that_was_moved_is_followed_for_review() -> None:
    there = place({NEW: BASE + b"\n\nMORE = 1\n"})
    assert there is not None
    assert there.path == NEW
    assert [hunk.outcome for hunk in there.carried.hunks] == [Outcome.MOVED]
    assert there.carried.after == AFTER + b"\n\nMORE = 1\n"


def test_a_scope_that_was_moved_is_followed_to_a_file_of_another_name() -> None:
    release = {OLD: b"import os\n" + OTHER, FAR: b"import net\n" + FUNCTION}
    there = place(release)
    assert there is not None
    assert there.path == FAR
    assert there.carried.after == release[FAR].replace(b"Starting on", b"Ours starts on")
    # Every file is read for that: an import, which asks many releases, looks in likely ones only.
    assert place(release, everywhere=False) is None


def test_what_upstream_took_there_is_recognised() -> None:
    there = place({NEW: AFTER})
    assert there is not None
    assert there.carried.outcome is Outcome.UPSTREAM


@pytest.mark.parametrize(
    ("release", "base"),
    [
        # A file that the base has, too, is a sibling: the same words there are another change.
        ({NEW: BASE}, {NEW: BASE}),
        ({OLD: OTHER, FAR: b"import net\n" + FUNCTION}, {FAR: b"import net\n" + FUNCTION}),
        # Another function of that name, which shares too little.
        ({OLD: OTHER, FAR: b"def serve(a, b):\n    return a.run(b)\n"}, {}),
        ({NEW: b"def serve(a, b):\n    return a.run(b)\n"}, {}),
        # Two places: nobody can say which.
        ({OLD: OTHER, FAR: FUNCTION, "vllm/launch/second.py": FUNCTION}, {}),
        ({NEW: b"def broken(:\n"}, {}),
        ({}, {}),
    ],
)
def test_nothing_is_followed_where_the_place_is_not_certain(
    release: dict[str, bytes], base: dict[str, bytes]
) -> None:
    assert place(release, base) is None


def test_imports_alone_are_not_followed_to_another_file() -> None:
    """Lines at a module's level say too little about a file that still has its old name."""
    after = BASE.replace(b"import sys\n", b"import sys\nimport time\n")
    assert place({OLD: OTHER, FAR: BASE}, after=after) is None


def test_scopes_that_went_to_several_files_are_each_named() -> None:
    after = AFTER.replace(b"value + 1", b"value + 2")
    release = {OLD: b"import os\n", FAR: b"import net\n" + FUNCTION, NEW: b"import os\n" + OTHER}
    assert place(release, after=after) is None
    trees = {"0.28.0": Listed({OLD: BASE}), "0.29.0": Listed(release)}
    texts = ReleaseTexts(tuple(trees), trees.__getitem__)
    moved = Moved(OLD, "0.28.0", BASE, compose(BASE, after))
    both = follow_each(moved, "0.29.0", texts, Syntax(), everywhere=True)
    assert both == {"serve": FAR, "other": NEW}
    assert follow_each(moved, "0.29.0", texts, Syntax()) == {"other": NEW}
    alone = moved._replace(hunks=moved.hunks[:1])
    assert follow_each(alone, "0.29.0", texts, Syntax(), everywhere=True) == {}
