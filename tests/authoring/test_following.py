"""A file or scope that upstream moved: where its hunks go, and where they must not go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from overlay.authoring.composing import compose
from overlay.authoring.following import Moved, NewPlace, follow, follow_each
from overlay.authoring.locating import ReleaseTexts
from overlay.errors import TargetError
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


def both(base: Mapping[str, bytes], release: Mapping[str, bytes]) -> ReleaseTexts:
    """The files of the base, and those of the release."""
    trees = {"0.28.0": Listed(base), "0.29.0": Listed(release)}
    return ReleaseTexts(tuple(trees), trees.__getitem__)


def place(
    release: Mapping[str, bytes],
    base: Mapping[str, bytes] | None = None,
    *,
    everywhere: bool = True,
    after: bytes = AFTER,
) -> NewPlace | None:
    """Where a change of ``OLD`` goes in a release with these files."""
    texts = both({OLD: BASE, **(base or {})}, release)
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
    assert place({OLD: OTHER, NEW: BASE}, after=after) is None
    assert place({OLD: OTHER, NEW: BASE + b"# <module>\n"}, after=after) is None


def test_scopes_that_went_to_several_files_are_each_named() -> None:
    after = AFTER.replace(b"value + 1", b"value + 2")
    release = {OLD: b"import os\n", FAR: b"import net\n" + FUNCTION, NEW: b"import os\n" + OTHER}
    assert place(release, after=after) is None
    texts = both({OLD: BASE}, release)
    moved = Moved(OLD, "0.28.0", BASE, compose(BASE, after))
    places = follow_each(moved, "0.29.0", texts, Syntax(), everywhere=True)
    assert places == {"serve": FAR, "other": NEW}
    assert follow_each(moved, "0.29.0", texts, Syntax()) == {"other": NEW}
    alone = moved._replace(hunks=moved.hunks[:1])
    assert follow_each(alone, "0.29.0", texts, Syntax(), everywhere=True) == {}
    assert follow(alone, "0.29.0", texts, Syntax()) is None  # FAR is too unlike to be the place


#: Two functions of five lines each, and an import that nobody else has.
SHORT = b"import net\n\n\ndef serve(a):\n    first(a)\n    second(a)\n    third(a)\n    return a\n"
CLASS = b"class Server:\n    def run(self):\n        self.first()\n        return self.state\n"
NESTED = b"class Outer:\n" + b"".join(b"    " + line for line in CLASS.splitlines(keepends=True))
NEAR, SECOND = "vllm/net/first.py", "vllm/net/second.py"


def short_place(
    release: Mapping[str, bytes], base: Mapping[str, bytes] | None = None, *, text: bytes = SHORT
) -> str | None:
    """The file to which a change of a call of ``first`` in a file of this text goes."""
    texts = both({OLD: text, **(base or {})}, release)
    moved = Moved(OLD, "0.28.0", text, compose(text, text.replace(b"first(", b"ours(")))
    there = follow(moved, "0.29.0", texts, Syntax(), everywhere=True)
    assert there is None or b"ours(" in (there.carried.after or b"")
    return None if there is None else there.path


def with_lines(number: int, text: bytes = SHORT, *, further: int = 0) -> bytes:
    """A text of which the last lines of code are others, and that has further ones."""
    lines = text.splitlines()
    for at in range(len(lines) - number, len(lines)):
        lines[at] = lines[at].replace(b"a", b"b")
    lines += [b"further = %d" % at for at in range(further)]
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize(
    ("release", "base", "expected"),
    [
        # The file is gone: a file with half of its lines took its place, however the scope changed.
        ({NEW: with_lines(2)}, {}, NEW),
        ({NEW: with_lines(2, further=4)}, {}, NEW),
        ({NEW: with_lines(2, further=5)}, {}, None),
        ({NEW: with_lines(1, further=99)}, {}, NEW),  # four fifths of the scope
        ({NEW: with_lines(2), NEAR: SHORT}, {}, NEAR),  # the likest one
        ({NEW: with_lines(2)}, {NEW: b"other = 1\n"}, None),
        # It is there without the scope: one that has four fifths of that is it.
        ({OLD: b"", FAR: with_lines(1)}, {}, FAR),
        ({OLD: b"", FAR: with_lines(2)}, {}, None),
        ({OLD: b"", NEAR: with_lines(1), SECOND: SHORT}, {}, SECOND),
        ({OLD: b"", NEAR: SHORT, SECOND: with_lines(1)}, {}, NEAR),
        ({OLD: b"", FAR: SHORT}, {FAR: b"other = 1\n"}, FAR),
        ({OLD: b"", FAR: SHORT}, {FAR: b"def serve(b):\n    return b\n"}, None),
        ({OLD: b"", FAR: SHORT}, {FAR: b"def broken(:\n"}, None),
        ({OLD: b"", FAR: SHORT}, {FAR: b"\xff\n"}, None),
        ({OLD: b"", FAR: SHORT + SHORT}, {}, None),  # twice: nobody can say which
        # What is like enough, and where the change conflicts, or cannot land once more.
        ({OLD: b"", FAR: SHORT.replace(b"first(", b"start(")}, {}, None),
        ({NEW: SHORT.replace(b"first(", b"start(")}, {}, None),
        # One that is not the place does not end the search.
        ({OLD: b"", NEAR: SHORT, SECOND: SHORT}, {NEAR: SHORT}, SECOND),
        ({OLD: b"", NEAR: with_lines(2), SECOND: SHORT}, {}, SECOND),
        # A file of another package, or none of Python.
        ({OLD: b"", "launch/entry.py": SHORT}, {}, None),
        ({OLD: b"", "vllm/launch/entry.txt": SHORT}, {}, None),
    ],
)
def test_a_place_is_told_by_how_much_it_shares(
    release: Mapping[str, bytes], base: Mapping[str, bytes], expected: str | None
) -> None:
    assert short_place(release, base) == expected


@pytest.mark.parametrize("text", [SHORT, SHORT.replace(b"def", b"async def"), CLASS, NESTED])
def test_whatever_defines_a_name_is_looked_at(text: bytes) -> None:
    assert short_place({OLD: b"", FAR: b"import os\n" + text}, text=text) == FAR


def test_a_scope_that_stands_twice_has_no_place() -> None:
    """Which of the two went there cannot be told, whichever has the change."""
    text = SHORT + SHORT.replace(b"first", b"start")
    assert short_place({OLD: b"", FAR: SHORT}, text=text) is None


def test_all_scopes_have_to_share_enough() -> None:
    second = SHORT.replace(b"serve", b"other").removeprefix(b"import net\n")
    text = SHORT + second
    assert short_place({OLD: b"", FAR: SHORT + with_lines(1, second)}, text=text) == FAR
    assert short_place({OLD: b"", FAR: SHORT + with_lines(2, second)}, text=text) is None
    assert short_place({OLD: b"", FAR: text}, {FAR: second}, text=text) is None


class Unreadable(Listed):
    """A tree of which one file cannot be read."""

    def read(self, path: str) -> bytes | None:
        if path == NEAR:
            raise TargetError("vllm/net/first.py cannot be read")
        return super().read(path)


def test_a_file_that_cannot_be_read_is_not_the_place() -> None:
    trees = {"0.28.0": Listed({OLD: BASE}), "0.29.0": Unreadable({NEAR: BASE, FAR: BASE, OLD: b""})}
    texts = ReleaseTexts(tuple(trees), trees.__getitem__)
    moved = Moved(OLD, "0.28.0", BASE, compose(BASE, AFTER))
    there = follow(moved, "0.29.0", texts, Syntax(), everywhere=True)
    assert there is not None
    assert there.path == FAR


def test_less_context_is_enough_there() -> None:
    """Upstream changed the line below the new one, which a merge calls a conflict."""
    after = SHORT.replace(b"    second(a)", b"    new(a)\n    second(a)")
    moved = Moved(OLD, "0.28.0", SHORT, compose(SHORT, after))
    there = SHORT.replace(b"second(a)", b"second(b)")
    texts = both({OLD: SHORT}, {OLD: b"", FAR: there})
    place = follow(moved, "0.29.0", texts, Syntax(), everywhere=True)
    assert place is not None
    assert place.carried.after == after.replace(b"second(a)", b"second(b)")


def test_a_file_without_a_line_of_code_is_like_no_other() -> None:
    moved = Moved(OLD, "0.28.0", b"\n\n", compose(b"\n\n", b"\nfirst = 1\n\n"))
    texts = both({OLD: b"\n\n"}, {NEW: b"\n\n"})
    assert follow(moved, "0.29.0", texts, Syntax(), everywhere=True) is None
