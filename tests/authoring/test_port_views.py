"""The views of a conflict: a person sees the scope and what moved the hunk, and each line once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.authoring.carry import carry
from overlay.authoring.composing import compose
from overlay.authoring.port_views import conflict, marker_lines, merge_view, upstream_view
from overlay.authoring.porting import TopicPort
from overlay.authoring.writing import check_files, render_patch
from tests.support.port_world import HEADERS, PATH

BASE = b"""\
import os
import sys


def first(value):
    one = 1
    two = 2
    three = 3
    four = 4
    five = 5
    return value


LIMIT = 4


def second(
    value,
):
    return value
"""
MINE = BASE.replace(b"import sys\n", b"import sys\nimport time\n")


def port(release: bytes | None, after: bytes = MINE) -> tuple[TopicPort, Hunk]:
    """A topic made on ``BASE``, to be carried to another text."""
    (hunk,) = compose(BASE, after)
    files = {
        "feature.toml": b'id = "change"\ntitle = "t"\nwhy = "w"\nreleases = "0.20.0..0.20.0"\n',
        "10-a/0.20.0..0.20.0.patch": render_patch(HEADERS, PATH, (hunk,)).encode(),
    }
    variant = check_files("change", files).topics[0].variants[0]
    return TopicPort("10-a", variant, "0.20.0", (), origin=BASE, before=release), hunk


def test_of_a_module_only_what_may_have_moved_the_hunk_is_shown() -> None:
    release = BASE.replace(b"two = 2", b"two = 22").replace(b"import os\n", b"import io\n")
    topic, hunk = port(release.replace(b"LIMIT = 4", b"LIMIT = 5"))
    assert hunk.scope == MODULE_SCOPE
    shown = upstream_view(topic, hunk)
    assert [line for line in shown if line.startswith(("+", "-"))][:2] == [
        "-import os",
        "+import io",
    ]
    assert "-LIMIT = 4" in shown
    inside = upstream_view(port(BASE.replace(b"three = 3", b"three = 33"))[0], hunk)
    assert inside == ("(1 other change lies inside functions and classes)",)


def test_a_function_that_came_or_went_is_at_the_modules_level() -> None:
    topic, hunk = port(BASE.replace(b"LIMIT = 4\n", b"LIMIT = 4\n\n\ndef third():\n    return 3\n"))
    assert "+def third():" in upstream_view(topic, hunk)


def test_the_hunks_own_lines_are_shown_wherever_they_are() -> None:
    """A hunk of the module may reach into a function."""
    after = BASE.replace(b"    return value\n\n\nLIMIT = 4\n", b"    return 7\n\n\nLIMIT = 5\n")
    topic, hunk = port(
        BASE.replace(b"five = 5\n    return value", b"five = 5\n    return 9"), after
    )
    assert hunk.scope == MODULE_SCOPE
    assert "-    return value" in upstream_view(topic, hunk)


def test_of_a_function_all_of_it_is_compared() -> None:
    after = BASE.replace(b"    two = 2\n", b"    two = 20\n")
    topic, hunk = port(BASE.replace(b"five = 5", b"five = 55"), after)
    assert hunk.scope == "first"
    assert [line for line in upstream_view(topic, hunk) if line.startswith(("+", "-"))] == [
        "-    five = 5",
        "+    five = 55",
    ]


@pytest.mark.parametrize(
    ("release", "said"),
    [
        (None, "the release has no such file"),
        (BASE.replace(b"first", b"former"), "the release has no first"),
        (b"def (", "the release has no first"),
    ],
)
def test_what_is_not_there_is_said(release: bytes | None, said: str) -> None:
    topic, hunk = port(release, BASE.replace(b"    two = 2\n", b"    two = 20\n"))
    assert upstream_view(topic, hunk) == (said,)
    assert upstream_view(replace(topic, origin=None, before=BASE), hunk) == ()


def test_regions_that_meet_are_shown_as_one() -> None:
    conflict = "<<<<<<< yours\nmine\n||||||| base\nold\n=======\ntheirs\n>>>>>>> release\n"
    lines = [f"line {number}" for number in range(20)]
    near = "\n".join([*lines[:9], conflict + "between\n" + conflict + "\n".join(lines[9:])])
    shown = merge_view(near.encode())
    assert [line for line in shown if line.endswith(":")] == ["line 10:"]
    assert shown.count("between") == 1
    apart = conflict + "\n".join(lines) + "\n" + conflict
    assert [line for line in merge_view(apart.encode()) if line.endswith(":")] == [
        "line 1:",
        "line 28:",
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_form_feed_is_no_end_of_a_line(end: bytes) -> None:
    region = b"<<<<<<< yours", b"a", b"||||||| base", b"=======", b"b", b">>>>>>> release"
    text = end.join((b"x = '\x0c'", *region)) + end
    assert merge_view(text) == (
        f"line {marker_lines(text)[0]}:",
        "x = '\x0c'",
        *(line.decode() for line in region),
    )


def test_views_are_bounded_around_the_hunk() -> None:
    """However much upstream changed: what is nearest to the hunk is shown."""
    body = [f"    line{number} = {number}" for number in range(1000)]
    text = "\n".join(["def first(value):", *body, "    return value", ""]).encode()
    mine = text.replace(b"line500 = 500", b"line500 = 5")
    (hunk,) = compose(text, mine)
    upstream = text
    for number in range(0, 1000, 40):
        upstream = upstream.replace(b"line%d = %d\n" % (number, number), b"line%d = -1\n" % number)
    files = {
        "feature.toml": b'id = "change"\ntitle = "t"\nwhy = "w"\nreleases = "0.20.0..0.20.0"\n',
        "10-a/0.20.0..0.20.0.patch": render_patch(HEADERS, PATH, (hunk,)).encode(),
    }
    variant = check_files("change", files).topics[0].variants[0]
    topic = TopicPort("10-a", variant, "0.20.0", (), origin=text, before=upstream)
    view = upstream_view(topic, hunk)
    assert len(view) < 50
    assert "+    line480 = -1" in view
    assert "+    line0 = -1" not in view
    assert view[-1].endswith("other changes lie further away in first)")
    whole = text.replace(b" = ", b" =  ")
    assert len(upstream_view(replace(topic, before=whole), hunk)) < 50
    conflict = b"a = 1\n<<<<<<< yours\n" + b"b = 1\n" * 500 + b"=======\n>>>>>>> theirs\n"
    assert len(merge_view(conflict)) < 50


#: Two classes; upstream lets them change places and rewrites what ``b`` answers.
FIRST = b"class A:\n" + b"".join(
    b"    def a%d(self):\n        return %d\n" % (n, n) for n in range(9)
)
SECOND = b"class B:\n    def b(self):\n        one = 1\n        return one\n"


@pytest.mark.parametrize("moved", [False, True])
def test_the_markers_stand_in_the_scope_of_the_hunk(*, moved: bool) -> None:
    """Also where the classes of a file changed places: a merge of all of it tears one apart."""
    base, mine = SECOND + FIRST, SECOND.replace(b"one = 1", b"one = 2") + FIRST
    theirs = SECOND.replace(b"one = 1", b"one = 3")
    release = FIRST + theirs if moved else theirs + FIRST
    (hunk,) = compose(base, mine)
    topic = replace(port(release)[0], origin=base, hunks=carry(base, [hunk], release).hunks)
    texts = conflict(replace(topic, after=release), "0.21.0")
    assert texts is not None
    lines = texts.merged.decode().splitlines()
    opening, base_marker, middle, closing = marker_lines(texts.merged)
    assert lines[opening : base_marker - 1] == ["        one = 2"]
    assert lines[middle : closing - 1] == ["        one = 3"]
    kept = [line for at, line in enumerate(lines, 1) if not opening <= at <= closing]
    assert kept == [line for line in release.decode().splitlines() if line != "        one = 3"]


def test_what_has_no_scope_any_more_stands_alone_at_the_end() -> None:
    """A merge of the whole file would set all that moved away against nothing."""
    long = SECOND + b"".join(b"    def b%d(self):\n        return %d\n" % (n, n) for n in range(99))
    release = b"VALUE = 1\n"
    (hunk,) = compose(long, long.replace(b"one = 1", b"one = 2"))
    topic = replace(port(release)[0], origin=long, hunks=carry(long, [hunk], release).hunks)
    texts = conflict(replace(topic, after=release), "0.21.0")
    assert texts is not None
    assert texts.merged.startswith(release + b"<<<<<<< yours")
    assert b"one = 2" in texts.merged
    assert len(texts.merged.splitlines()) < 20
