"""Patch files: what is read, and where each malformed one is wrong."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from overlay._features.patch_file import parse_patch
from overlay.errors import PatchFormatErrors
from overlay.package import VLLM, path_problem
from tests.support.patches import GOOD_PATCH, hunk, patch_text


def errors(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(PatchFormatErrors) as caught:
        parse_patch(text, "x.patch")
    assert all(str(error).startswith("x.patch") for error in caught.value.errors)
    return [(error.line, error.problem) for error in caught.value.errors]


def test_a_good_patch_is_read_whole() -> None:
    patch = parse_patch(GOOD_PATCH, "demo/01-a/0.20.0..0.21.0.patch")
    assert patch.name == "demo/01-a/0.20.0..0.21.0.patch"
    assert patch.path == "vllm/a.py"
    assert patch.headers == {
        "Description": "Call the graphs\nbefore the first pass",
        "Origin": "vllm-overlay",
        "Bug": "https://example.invalid/1",
        "Bug-Team": "https://example.invalid/2",
        "Forwarded": "not-needed",
        "Last-Update": "2026-11-20",
    }
    first, second = patch.hunks
    assert (first.scope, first.source_line, first.patch_line) == ("A.f", 10, 13)
    assert first.lines[1:3] == ((" ", ""), ("-", "two"))
    assert first.pre == ("one", "", "two", "four")
    assert first.post == ("one", "", "2", "3", "four")
    assert not first.pre_unfinished
    assert not first.post_unfinished
    assert (second.scope, second.patch_line) == ("<module>", 20)
    assert (second.pre, second.post) == (("last",), ("last",))
    assert (second.pre_unfinished, second.post_unfinished) == (True, False)


def test_a_patch_checked_out_with_crlf_says_the_same() -> None:
    checked_out = GOOD_PATCH.replace("\n\n", "\n \n").replace("\n", "\r\n")
    assert parse_patch(checked_out, "x") == parse_patch(GOOD_PATCH, "x")
    assert parse_patch(checked_out.replace("---\r\n", "\r\n", 1) + "\r\n", "x").hunks


def test_other_breaks_than_line_feeds_are_content() -> None:
    patch = parse_patch(GOOD_PATCH.replace("+3", "+\x0c3\u2028\x1c"), "x")
    assert "\x0c3\u2028\x1c" in patch.hunks[0].post


def test_lines_that_look_like_headers_inside_a_hunk_are_content() -> None:
    text = GOOD_PATCH[: GOOD_PATCH.index("@@ -10")] + (
        "@@ -1,3 +1,3 @@ <module>\n--- a/vllm/b.py\n+++ b/vllm/b.py\n x\n-@@ -1 +1 @@\n+y\n"
    )
    (hunk,) = parse_patch(text, "x").hunks
    assert hunk.pre == ("-- a/vllm/b.py", "x", "@@ -1 +1 @@")
    assert hunk.post == ("++ b/vllm/b.py", "x", "y")


def test_a_mark_on_a_context_line_stands_for_both_sides() -> None:
    text = (
        GOOD_PATCH[: GOOD_PATCH.index("@@ -40")]
        + "@@ -40,2 +40,2 @@ A\n-a\n+b\n c\n\\ No newline\n"
    )
    hunk = parse_patch(text, "x").hunks[1]
    assert (hunk.pre_unfinished, hunk.post_unfinished) == (True, True)


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        # headers
        ("Origin: vllm-overlay\n", "", 1, "header Origin is missing"),
        ("Origin: vllm-overlay\n", "Origin:\n", 1, "header Origin is missing or empty"),
        ("Forwarded:", "Forwarded-To:", 6, "unknown header Forwarded-To"),
        ("Forwarded:", "forwarded:", 6, "write Forwarded:"),
        ("Forwarded: not-needed", "Origin: x", 6, "is there twice"),
        ("2026-11-20\n---", "20 November\n---", 7, "not a date"),
        ("2026-11-20\n---", "2026-13-01\n---", 7, "not a date"),
        ("2026-11-20\n---", "20261120\n---", 7, "not a date"),
        ("Forwarded: not-needed", "what is this", 6, "neither a header"),
        # paths
        ("vllm/a.py", "vllm/../a.py", 12, "'..'"),
        ("vllm/a.py", "/etc/a.py", 12, "not relative"),
        ("vllm/a.py", "vllm//a.py", 12, "empty part"),
        ("vllm/a.py", "tests/a.py", 12, "outside vllm/"),
        ("vllm/a.py", "vllm.py", 12, "outside vllm/"),
        ("vllm/a.py", "vllm/a.cu", 13, "a data file, which has no scopes: expected <file>"),
        ("vllm/a.py", "vllm/a.so", 12, "neither a module nor a data file"),
        ("vllm/a.py", "vllm/__pycache__/a.json", 12, "neither a module nor a data file"),
        ("vllm/a.py", "vllm/a\\b.py", 12, "backslash"),
        ("+++ b/vllm/a.py", "+++ b/vllm/c.py", 12, "renames vllm/a.py to vllm/c.py"),
        ("--- a/vllm/a.py", "--- vllm/a.py", 11, "the prefix a/ is missing"),
        ("+++ b/vllm/a.py", "+++ vllm/a.py", 12, "the prefix b/ is missing"),
        ("+++ b/vllm/a.py\n", "", 12, "expected '+++ b/vllm/...'"),
        ("--- a/vllm/a.py\t2026-11-20 10:00:00\n", "", 11, "expected '--- a/vllm/...'"),
        ("--- a/vllm/a.py", "--- /dev/null", 11, "creates a file"),
        ("+++ b/vllm/a.py", "+++ /dev/null", 12, "deletes one"),
        ("a/vllm/a.py b/vllm/a.py", "a/vllm/a.py b/vllm/d.py", 9, "does not name"),
        # what a patch may not do
        ("index 1234567..89abcde 100644", "old mode 100644", 10, "mode"),
        ("index 1234567..89abcde 100644", "new file mode 100644", 10, "creates a file"),
        ("index 1234567..89abcde 100644", "deleted file mode 100644", 12, "deletes"),
        ("index 1234567..89abcde 100644", "rename from vllm/b.py", 10, "renames"),
        ("index 1234567..89abcde 100644", "copy from vllm/b.py", 10, "copies"),
        ("index 1234567..89abcde 100644", "GIT binary patch", 11, "expected 'literal SIZE'"),
        ("index 1234567..89abcde 100644", "nonsense", 10, "expected '--- a/vllm/...'"),
        ("@@ -40 ", "--- a/vllm/b.py\n+++ b/vllm/b.py\n@@ -40 ", 20, "second file"),
        ("@@ -40 ", "diff --git a/vllm/b.py b/vllm/b.py\n@@ -40 ", 20, "second file"),
        # hunks
        ("-10,4", "-10,5", 13, "promises 5 lines before and 5 after, the hunk has 4 and 5"),
        ("-10,4", "-10,3", 13, "promises 3 lines before"),
        ("+10,5", "+10,4", 13, "4 after, the hunk has 4 and 5"),
        ("@@ -40 +41 @@", "@@ -40 @@", 20, "expected '@@ -line,count"),
        ("@@ A.f", "@@", 13, "found nothing"),
        ("@@ A.f", "@@ def f(self):", 13, "found 'def f(self):'"),
        ("@@ A.f", "@@ A.", 13, "found 'A.'"),
        ("@@ A.f", "@@ A.f.<locals>.g", 13, "qualified name"),
        ("-two\n+2\n+3\n", " two\n+2\n-2\n", 13, "promises"),
        ("-two\n+2\n+3\n", "*two\n", 13, "the hunk has 2 and 2"),
        ("+last\n", "+last\n\\ No newline at end of file\n", 20, "changes nothing"),
        ("-last\n\\ No newline at end of file\n", "", 20, "pre-image is empty"),
        ("\\ No newline at end of file\n+last\n", "", 20, "post-image is empty"),
        ("-last\n\\ No", "\\ No", 21, "follows no line"),
        (" four\n", "\\ No newline\n four\n", 19, "not the last of its side"),
    ],
)
def test_each_malformed_place_is_named(old: str, new: str, line: int, problem: str) -> None:
    assert old in GOOD_PATCH
    found = errors(GOOD_PATCH.replace(old, new))
    assert any(at == line and problem in text for at, text in found), found


def test_a_hunk_that_changes_nothing_is_refused() -> None:
    text = GOOD_PATCH[: GOOD_PATCH.index("@@ -10")]
    assert "changes nothing" in errors(text + "@@ -1,2 +1,2 @@ A\n x\n-a\n+a\n")[0][1]
    assert "changes nothing" in errors(text + "@@ -1,2 +1,2 @@ A\n x\n-a\n+a\r\n")[0][1]
    assert "changes nothing" in errors(text + "@@ -1 +1 @@ A\n x\n")[0][1]


@pytest.mark.parametrize(
    "body",
    ["-1,2 +1 @@ A\n x\n-a\n", "-1,2 +1 @@ A\n-x\n a\n", "-1,3 +1,2 @@ A\n x\n-x\n a\n"],
)
def test_a_removal_at_the_edge_of_a_hunk_is_refused(body: str) -> None:
    (error,) = errors(GOOD_PATCH[: GOOD_PATCH.index("@@ -10")] + "@@ " + body)
    assert "context on both sides" in error[1]


def test_a_removal_between_context_is_not() -> None:
    text = GOOD_PATCH[: GOOD_PATCH.index("@@ -10")]
    assert parse_patch(text + "@@ -1,3 +1,2 @@ A\n x\n-y\n z\n", "x").hunks
    at_end = "@@ -1,2 +1 @@ A\n-x\n-y\n\\ No newline\n+x\n\\ No newline\n"
    assert parse_patch(text + at_end, "x").hunks


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Description is missing"),
        (GOOD_PATCH[: GOOD_PATCH.index("diff --git")], "holds no diff"),
        (GOOD_PATCH[: GOOD_PATCH.index("@@ -10")], "holds no hunk"),
        (GOOD_PATCH[GOOD_PATCH.index("diff --git") :], "Origin is missing"),
        (GOOD_PATCH + "trailing\n", "found 'trailing'"),
        (GOOD_PATCH[:-1], "last line has no newline"),
        (GOOD_PATCH.replace("index 1234567..89abcde 100644\n", "\n"), "found ''"),
    ],
)
def test_what_is_no_whole_patch_is_refused(text: str, problem: str) -> None:
    assert any(problem in found for _, found in errors(text))


def test_trailing_blank_lines_are_forgiven() -> None:
    assert parse_patch(GOOD_PATCH + "\n \n", "x") == parse_patch(GOOD_PATCH, "x")
    assert parse_patch(GOOD_PATCH + " \n\n", "x") == parse_patch(GOOD_PATCH, "x")


def test_every_error_is_reported_in_the_order_of_the_lines() -> None:
    text = (
        GOOD_PATCH.replace("Origin: vllm-overlay\n", "")
        .replace("A.f", "def f():")
        .replace("+41", "")
    )
    found = errors(text)
    assert [line for line, _ in found] == [1, 12, 19]


@pytest.mark.parametrize("path", ["vllm/a.py", "vllm/v1/spec_decode/__init__.py"])
def test_paths_inside_vllm_are_allowed(path: str) -> None:
    assert path_problem(path, VLLM) is None


@pytest.mark.parametrize(
    "path",
    [
        *("", "vllm", "vllm/", "C:/vllm/a.py", "./vllm/a.py", "vllm/./a.py", "vllm/a\x00.py"),
        *("VLLM/a.py", "vllm/a\n.py", "vllm2/a.py", "../vllm/a.py", "vllm/a.pyc", "vllm/a.PY"),
    ],
)
def test_other_paths_are_not(path: str) -> None:
    assert path_problem(path, VLLM)


PIECES = [
    "@@ -1 +1 @@ A",
    "--- a/vllm/a.py",
    "+++ b/vllm/a.py",
    "\\ No newline",
    " x",
    "-y",
    "+z",
    "",
]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["delete", "repeat", "insert", "swap"]),
        st.integers(0, 30),
        st.sampled_from(
            [*PIECES, "Bug: x", "@@", "diff --git a/vllm/a.py b/vllm/a.py", "\r", "---"]
        ),
    ),
    min_size=1,
    max_size=4,
)


def changed(changes: list[tuple[str, int, str]]) -> str:
    """The good patch with some of its lines gone, doubled, swapped or new."""
    lines = GOOD_PATCH.split("\n")
    for kind, place, piece in changes:
        at = place % len(lines)
        if kind == "delete" and len(lines) > 1:
            del lines[at]
        elif kind == "repeat":
            lines.insert(at, lines[at])
        elif kind == "insert":
            lines.insert(at, piece)
        else:
            lines[at], lines[at - 1] = lines[at - 1], lines[at]
    return "\n".join(lines)


@settings(max_examples=500)
@given(CHANGES)
def test_any_text_is_a_patch_or_gets_placed_errors(changes: list[tuple[str, int, str]]) -> None:
    text = changed(changes)
    try:
        patch = parse_patch(text, "x.patch")
    except PatchFormatErrors as malformed:
        places = [error.line for error in malformed.errors]
        assert places
        assert all(line is None or 1 <= line <= len(text.split("\n")) for line in places)
        return
    assert patch.path == "vllm/a.py"
    assert patch.hunks
    for each in patch.hunks:
        assert each.pre
        assert each.post
        assert text.split("\n")[each.patch_line - 1].startswith("@@ -")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge here")
@settings(max_examples=1000, deadline=None)
@given(CHANGES)
@example([("insert", 19, "\\ No newline"), ("repeat", 19, "")])
def test_git_reads_every_patch_that_we_read(changes: list[tuple[str, int, str]]) -> None:
    text = changed(changes)
    try:
        patch = parse_patch(text, "x.patch")
    except PatchFormatErrors:
        event("malformed")
        return
    event("read by both")
    command = ["git", "apply", "--numstat", "-"]
    # Outside any repository: inside one, git leaves out what is not below the working folder.
    done = subprocess.run(
        command, input=text.encode(), capture_output=True, cwd=Path(Path.cwd().anchor), check=False
    )
    assert done.returncode == 0, done.stderr
    ops = [op for hunk in patch.hunks for op, _ in hunk.lines]
    expected = f"{ops.count('+')}\t{ops.count('-')}\tvllm/a.py\n"
    assert done.stdout.decode() == expected


@pytest.mark.parametrize("tail", ["-- \n2.39.2\n\n", "--\n2.39.2 (Apple Git-143)\n", "-- \n2.39\n"])
def test_the_signature_of_git_format_patch_is_no_line_of_the_hunk(tail: str) -> None:
    assert parse_patch(GOOD_PATCH + tail, "p") == parse_patch(GOOD_PATCH, "p")


def test_a_removed_line_that_looks_like_a_signature_is_one() -> None:
    patch = parse_patch(patch_text("vllm/a.py", hunk([" a", "-- ", "-2.39.2", " b"], "f")), "p")
    assert patch.hunks[0].pre == ("a", "- ", "2.39.2", "b")
    with pytest.raises(PatchFormatErrors, match="the header promises"):
        parse_patch(GOOD_PATCH + "-- \nnot a version\n", "p")


def test_a_tab_in_the_place_of_a_blank_is_told() -> None:
    text = patch_text("vllm/a.py", hunk([" a", " \tb", "+c"], "f")).replace(" \tb", "\tb")
    with pytest.raises(PatchFormatErrors) as caught:
        parse_patch(text, "p")
    assert caught.value.errors[0].line == text.split("\n").index("\tb") + 1
    assert "begins with a tab" in str(caught.value)


def test_a_byte_order_mark_is_told() -> None:
    with pytest.raises(PatchFormatErrors, match=r"p:1: it begins with a byte-order mark"):
        parse_patch("\N{BYTE ORDER MARK}" + GOOD_PATCH, "p")


@pytest.mark.parametrize("line", ["-", " ", "+"])
def test_a_huge_patch_takes_no_longer_than_its_size(line: str) -> None:
    size = 300_000
    lines = [" a", *[line] * size, " b", "+c"]
    begun = time.monotonic()
    for text in (
        patch_text("vllm/a.py", hunk(lines, "f")),
        patch_text("vllm/a.py", hunk([" a", "+b"], "f")) + f"{line}\n" * size + " x\n",
    ):
        with contextlib.suppress(PatchFormatErrors):
            parse_patch(text, "p")
    assert time.monotonic() - begun < 20


def test_a_header_that_stands_there_often_is_told_once() -> None:
    text = GOOD_PATCH.replace("Description: ", "Description: a\nDescription: b\nDescription: ", 1)
    assert [problem for _, problem in errors(text)] == ["the header Description is there twice"]
