"""Changes as a unified diff; ``git apply`` says whether it is one (see also test_peers)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay._features.patch_file import parse_patch
from overlay.planning.diff import render
from overlay.results import Change
from tests.support.patches import HEADERS

BEFORE = (
    b"import os\n\n\nclass A:\n    def f(self):\n        x = 1\n        y = 2\n        return x\n"
)
AFTER = BEFORE.replace(b"y = 2", b"y = 3")

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge here")


def test_a_hunk_s_heading_is_its_scope() -> None:
    assert render([Change("vllm/a.py", BEFORE, AFTER)]) == (
        b"diff --git a/vllm/a.py b/vllm/a.py\n"
        b"--- a/vllm/a.py\n"
        b"+++ b/vllm/a.py\n"
        b"@@ -4,5 +4,5 @@ A\n"
        b" class A:\n     def f(self):\n         x = 1\n-        y = 2\n+        y = 3\n"
        b"         return x\n"
    )


def test_changes_that_share_context_share_a_hunk() -> None:
    lines = [b"v%d = %d\n" % (n, n) for n in range(30)]
    for gap, headers in (
        (6, [b"@@ -3,14 +3,14 @@ <module>"]),
        (7, [b"@@ -3,7 +3,7 @@ <module>", b"@@ -11,7 +11,7 @@ <module>"]),
    ):
        after = list(lines)
        after[5], after[5 + gap + 1] = b"x = 1\n", b"y = 1\n"
        diff = render([Change("vllm/a.py", b"".join(lines), b"".join(after))])
        assert [line for line in diff.split(b"\n") if line.startswith(b"@@")] == headers


def test_a_hunk_ends_with_its_context_however_few_lines_follow() -> None:
    lines = [b"v%d = %d\n" % (n, n) for n in range(10)]
    after = [*lines[:4], b"x = 1\n", *lines[5:]]
    diff = render([Change("vllm/a.py", b"".join(lines), b"".join(after))])
    assert b"@@ -2,7 +2,7 @@" in diff


def test_a_line_that_is_everywhere_matches_all_the_same() -> None:
    same = b"x\n" * 250
    diff = render([Change("vllm/a.py", b"a\n" + same + b"b\n", b"c\n" + same + b"d\n")])
    assert (b"\n-x\n" in diff, diff.count(b"@@ -")) == (False, 2)


def test_a_missing_final_newline_is_marked_as_git_marks_it() -> None:
    diff = render([Change("vllm/a.py", b"x", b"x\n")])
    assert diff.endswith(b"-x\n\\ No newline at end of file\n+x\n")


def test_a_file_that_comes_or_goes_has_an_empty_span() -> None:
    assert b"--- /dev/null\n+++ b/vllm/a.py\n@@ -0,0 +1,1 @@\n+x\n" in render(
        [Change("vllm/a.py", None, b"x\n")]
    )
    assert b"--- a/vllm/a.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n" in render(
        [Change("vllm/a.py", b"x\n", None)]
    )


def test_what_is_rendered_can_stand_in_a_patch() -> None:
    diff = render([Change("vllm/a.py", BEFORE, AFTER)]).decode()
    patch = parse_patch(HEADERS + diff, "x.patch")
    assert [hunk.scope for hunk in patch.hunks] == ["A"]


def test_a_hunk_that_outgrows_its_scope_names_one_that_holds_it_afterwards() -> None:
    before = BEFORE + b"\n\nclass B:\n    x = 1\n    y = 2\n    z = 3\n"
    inside = render([Change("vllm/a.py", before, before.replace(b"z = 3", b"z = 4"))])
    assert b"@@ -11,4 +11,4 @@ B\n" in inside
    beyond = render([Change("vllm/a.py", before, before + b"\n\nclass C:\n    pass\n")])
    assert b"@@ -12,3 +12,7 @@ <module>\n" in beyond


def test_code_that_is_not_python_gets_no_heading() -> None:
    assert b"@@ -1,1 +1,1 @@\n" in render([Change("vllm/a.py", b"def (\n", b"def ((\n")])
    assert b"@@ -1,1 +1,1 @@\n" in render([Change("vllm/a.py", b"\xff\n", b"\xfe\n")])


def test_nothing_changed_is_nothing_rendered() -> None:
    assert render([]) == b""
    assert render([Change("vllm/a.py", BEFORE, BEFORE)]) == b""


def applied(folder: Path, change: Change, *options: str) -> bytes | None:
    """What git makes of the file before the change."""
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / change.path
    path.parent.mkdir(parents=True)
    if change.before is not None:
        path.write_bytes(change.before)
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", *options, "-"],
        cwd=folder,
        input=render([change]),
        capture_output=True,
        env={"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return path.read_bytes() if path.exists() else None


@needs_git
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, AFTER),
        (None, b"x = 1\n"),
        (None, b"x = 1"),
        (None, b""),
        (b"", None),
        (b"x\n", None),
        (b"x", b"x\n"),
        (b"x\n", b"x"),
        (b"x", b"y"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\r\nb\nc", b"a\nb\r\nd"),
        (b"a\x0cb\rc\n", b"a\x0cb\rd\n"),
        (b"# coding: latin-1\n\xe9\n", b"# coding: latin-1\n\xe8\n"),
        (b"\xef\xbb\xbfx\n", b"\xef\xbb\xbfy\n"),
        (b"--- a/x\n+++ b/x\n", b"--- a/y\n+++ b/x\n@@ -1 +1 @@\n"),
        (b"".join(b"%d\n" % i for i in range(40)), b"".join(b"%d\n" % i for i in range(2, 39))),
    ],
)
def test_git_makes_the_same_of_it(
    tmp_path: Path, before: bytes | None, after: bytes | None
) -> None:
    assert applied(tmp_path / "t", Change("vllm/a.py", before, after)) == after


LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"def f():\n", b"\xe9\n", b"\x0c\n"]),
    max_size=30,
)


@needs_git
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(LINES, LINES, LINES, LINES, st.booleans(), st.booleans())
def test_git_makes_the_same_of_any_change(
    tmp_path: Path,
    head: list[bytes],
    old: list[bytes],
    new: list[bytes],
    tail: list[bytes],
    unfinished: bool,
    unfinished_after: bool,
) -> None:
    before, after = b"".join(head + old + tail), b"".join(head + new + head[:3] + tail)
    before += b"z" if unfinished else b""
    after += b"z" if unfinished_after else b""
    if before != after:
        change = Change("vllm/a.py", before, after)
        assert applied(tmp_path / "t", change) == after
