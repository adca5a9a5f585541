"""Changes made elsewhere: what git writes is read, whatever else is refused with a line."""

from __future__ import annotations

import base64
import contextlib
import gzip
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay._features.binary_patch import BinaryHunk
from overlay.authoring import incoming
from overlay.authoring.incoming import MAX_BYTES, ChangeKind, IncomingFile, read_changes
from overlay.authoring.triage import added_content
from overlay.errors import UsageError

DIFF = b"""\
diff --git a/vllm/a.py b/vllm/a.py
index 1234567..89abcde 100644
--- a/vllm/a.py
+++ b/vllm/a.py
@@ -1,3 +1,3 @@ def f():
 a = 1
-b = 2
+b = 3
 c = 4
"""
MAIL = (
    b"""\
From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?J=C3=B6rg?= <joerg@example.com>
Date: Tue, 3 Nov 2026 10:00:00 +0100
Subject: [PATCH 1/2] [Core] Count what is
 right (#12345)

Why it is right.

Signed-off-by: J <j@example.com>
---
 vllm/a.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

"""
    + DIFF
    + b"-- \n2.39.5\n\n"
)


def test_a_plain_diff() -> None:
    (commit,) = read_changes(DIFF, "x.diff")
    (file,) = commit.files
    assert (file.path, file.kind, file.old_blob, file.line) == (
        *("vllm/a.py", ChangeKind.MODIFIED, "1234567"),
        1,
    )
    (hunk,) = file.hunks
    assert hunk.pre == ("a = 1", "b = 2", "c = 4")
    assert hunk.post == ("a = 1", "b = 3", "c = 4")
    assert (hunk.source_line, hunk.patch_line) == (1, 5)


@pytest.mark.parametrize("heading", ["RCP_LN2 = 1.4426950216293335", "MASK = 18446744073709551615"])
def test_the_heading_of_a_hunk_may_hold_any_number(heading: str) -> None:
    (commit,) = read_changes(DIFF.replace(b"def f():", heading.encode()), "x.diff")
    (hunk,) = commit.files[0].hunks
    assert (hunk.source_line, hunk.post) == (1, ("a = 1", "b = 3", "c = 4"))


def test_mails_become_commits() -> None:
    first, second = read_changes(MAIL + MAIL.replace(b"1/2", b"2/2"), "x.mbox")
    assert first.subject == "[Core] Count what is right (#12345)"
    assert first.author == "Jörg <joerg@example.com>"
    assert first.message == "Why it is right.\n\nSigned-off-by: J <j@example.com>"
    assert [hunk.post for hunk in first.files[0].hunks] == [("a = 1", "b = 3", "c = 4")]
    assert first.files[0].hunks[0].patch_line == MAIL[: MAIL.index(b"@@")].count(b"\n") + 1
    assert second.files[0].hunks[0].lines == first.files[0].hunks[0].lines


def test_a_mailbox_in_crlf_is_the_same_mailbox() -> None:
    """Whatever its words begin with: a line that opens a mail has headers behind it."""
    words = b"why.\nFrom 1234567 on it was wrong.\n\nFrom 1234567 10:00:00 2026 on\nFrom x\n\n"
    box = MAIL.replace(b"why", b"why", 1).replace(b"it is right.\n", words, 1) + MAIL
    commits = read_changes(box, "x")
    assert [len(commit.files) for commit in commits] == [1, 1]
    assert "From 1234567 on it was wrong.\n\nFrom 1234567 10" in commits[0].message
    assert read_changes(box.replace(b"\n", b"\r\n"), "x") == commits
    # Of mails that nothing parts, what git writes first tells them apart.
    assert len(read_changes(MAIL[:-1] + MAIL, "x")) == 2
    (one,) = read_changes(MAIL[:-1] + MAIL.replace(b"From: ", b"X-From: ", 1), "x")
    assert len(one.files) == 2
    prose = b"From 1234567 to 89abcde\n"
    assert read_changes(prose + DIFF, "x")[0].files[0].path == "vllm/a.py"


def test_the_words_of_a_mail_hold_no_signature_and_its_change_none_of_them() -> None:
    signed = MAIL.replace(b"\nSigned-off-by", b"\n-- \nJ\n\nSigned-off-by").split(b"-- \n2")[0]
    assert len(read_changes(signed, "x")[0].files) == 1
    assert "-- \nJ" in read_changes(signed, "x")[0].message
    with pytest.raises(UsageError, match="shorter"):  # and takes no line of it for its own
        read_changes(MAIL.replace(b"-b = 2\n", b""), "x")
    cover = re.sub(rb"(?s)diff --git.*", b"-- \n2.39.5\n\n", MAIL.replace(b"1/2", b"0/2"))
    commits = read_changes(cover + MAIL, "x")
    assert [len(commit.files) for commit in commits] == [0, 1]


def test_a_mail_that_python_cannot_read_is_told_with_its_place() -> None:
    deep = b"From 2222222 Mon\nFrom: a\n" + b"Content-Type: message/rfc822\n\n" * 5_000
    line = MAIL.count(b"\n") + 1
    with pytest.raises(UsageError, match=rf"x:{line}: .*\(RecursionError\)"):
        read_changes(MAIL + deep, "x")


@pytest.mark.parametrize("field", ["Subject", "SUBJECT", "From", "Content-Type"])
def test_a_header_has_a_bound(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setattr(incoming, "_MAX_HEADER", 100)
    name = f"{field}: " if field.startswith("C") else ""
    text = "text/plain; x=" if field.startswith("C") else ""
    fits = text + "x" * (100 - len(name + text))
    mail = f"X-Other: {'x' * 200}\n" + "{}: {}\nSubject: y\n\nwhy\n---\n{}"
    (commit,) = read_changes(mail.format(field, fits, DIFF.decode()).encode(), "m")
    assert text or fits in (commit.subject, commit.author)
    with pytest.raises(UsageError, match=r"m: expected a .* of at most 100 characters, found 101"):
        read_changes(mail.format(field, fits + "x", DIFF.decode()).encode(), "m")


def test_a_mail_may_lack_what_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    (commit,) = read_changes(b"Subject: \n\n" + DIFF, "x")
    assert (commit.subject, commit.author, commit.message) == ("", "", "")
    monkeypatch.setattr(incoming, "_MAX_HEADER", 100)
    for size, subject in ((100, "x" * 90), (101, "Of the mail")):
        own = b"Subject: " + b"x" * (size - 10) + b"\n"
        (commit,) = read_changes(b"Subject: Of the mail\n\n" + own + DIFF, "x")
        assert commit.subject == subject


RENAME = b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
MODE = b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
ADD = b"""\
diff --git a/x b/x
new file mode 100644
index 0000000..1234567
--- /dev/null
+++ b/x
@@ -0,0 +1 @@
+a
"""
REMOVE = b"""\
diff --git a/x b/x
deleted file mode 100644
index 1234567..0000000
--- a/x
+++ /dev/null
@@ -1 +0,0 @@
-a
"""
BINARY = b"""\
diff --git a/x.png b/x.png
index 1234567..89abcde 100644
Binary files a/x.png and b/x.png differ
"""
#: The bytes that it says.
ONE_BYTE = BinaryHunk(b"\0", False)
LITERAL = b"GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n"
NAMES = b"--- a/x\n+++ b/x\n"
EDIT = b"@@ -1 +1 @@\n-a\n+b\n"
EPOCH = b"\t1970-01-01 05:30:00.000000000 +0530"
HEAD = b"diff --git a/x b/x\n"
#: What comes before a diff: nothing, prose, and other mails with the mail that has it.
ONE_MAIL = b"From: a\nSubject: x\n\nwhy\n---\n"
BEFORE = [b"", b"words\n\n", ONE_MAIL, MAIL + b"From 2222222 Mon\n" + ONE_MAIL]
#: A diff -> what is said of its file, beside what is said of an ordinary edit of x.
SHAPES: list[tuple[bytes, dict[str, Any]]] = [
    (HEAD + NAMES + EDIT, {}),
    (NAMES + EDIT, {"line": 2}),
    (HEAD + b"index 0012300..1234567 100755\n" + NAMES + EDIT, {"old_blob": "0012300"}),
    (MODE, {"kind": ChangeKind.MODE, "mode": "100755"}),
    (
        MODE.replace(b"755", b"644").replace(b"644", b"755", 1),
        {"kind": ChangeKind.MODE, "mode": "100644"},
    ),
    (MODE + NAMES + EDIT, {"mode": "100755"}),
    (ADD, {"kind": ChangeKind.ADDED, "names": (None, "b/x"), "creates": True}),
    (
        ADD.replace(b"644", b"755"),
        {"kind": ChangeKind.ADDED, "names": (None, "b/x"), "creates": True, "mode": "100755"},
    ),
    (
        ADD.replace(b"100644", b"120000"),
        {"kind": ChangeKind.LINK, "names": (None, "b/x"), "creates": True, "mode": "120000"},
    ),
    (
        HEAD + b"index 1234567..89abcde 160000\n" + NAMES + EDIT,
        {"kind": ChangeKind.SUBMODULE, "mode": "160000", "old_blob": "1234567"},
    ),
    (
        REMOVE.replace(b"644", b"755"),
        {"kind": ChangeKind.REMOVED, "names": ("a/x", None), "old_blob": "1234567"},
    ),
    (RENAME, {"kind": ChangeKind.RENAMED, "path": "y", "names": ("a/x", "b/y")}),
    (
        RENAME.replace(b"rename", b"copy"),
        {"kind": ChangeKind.COPIED, "path": "y", "names": ("a/x", "b/y")},
    ),
    (
        RENAME + b"Binary files a/x and b/y differ\n",
        {"kind": ChangeKind.BINARY, "path": "y", "names": ("a/x", "b/y")},
    ),
    (
        RENAME + LITERAL,
        {"kind": ChangeKind.RENAMED, "path": "y", "names": ("a/x", "b/y"), "binary": ONE_BYTE},
    ),
    (HEAD + LITERAL, {"kind": ChangeKind.BINARY, "binary": ONE_BYTE}),
    (
        HEAD + b"index 1234567..89abcde\n" + LITERAL,
        {"kind": ChangeKind.BINARY, "binary": ONE_BYTE, "old_blob": "1234567"},
    ),
    (HEAD + b"Binary files a/x and b/x differ\n", {"kind": ChangeKind.BINARY}),
    (
        RENAME.replace(b"rename", b"copy") + b"Binary files a/x and b/y differ\n",
        {"kind": ChangeKind.COPIED, "path": "y", "names": ("a/x", "b/y")},
    ),
    (
        b"Binary files x and y differ\n",
        {"kind": ChangeKind.BINARY, "path": "y", "names": ("x", "y")},
    ),
    (b"--- o/x\n+++ n/x\n" + EDIT, {"line": 2, "path": "n/x", "names": ("o/x", "n/x")}),
    (NAMES + b"@@ -0,0 +1 @@\n+a\n", {"line": 2, "creates": True}),
    (NAMES + b"@@ -1,0 +2 @@\n+a\n", {"line": 2}),
    (
        NAMES.replace(b"a/x", b"a/x" + EPOCH) + b"@@ -0,0 +1 @@\n+a\n",
        {"line": 2, "creates": True, "dated": True},
    ),
    (
        NAMES.replace(b"b/x", b"b/x" + EPOCH) + b"@@ -1 +0,0 @@\n-a\n",
        {"line": 2, "kind": ChangeKind.REMOVED},
    ),
    (NAMES.replace(b"b/x", b"b/x" + EPOCH) + EDIT, {"line": 2}),
    (NAMES + b"@@ -1 +0,0 @@\n-a\n", {"line": 2}),
    (HEAD + NAMES.replace(b"b/x", b"b/x" + EPOCH), {"kind": ChangeKind.EMPTY}),
    (NAMES + EDIT.replace(b"\n", b"\r\n").replace(b"@\r", b"@"), {"line": 2, "crlf": True}),
]


@pytest.mark.parametrize("before", BEFORE, ids=["alone", "prose", "mail", "mails"])
@pytest.mark.parametrize(("diff", "says"), SHAPES)
def test_all_that_a_diff_says_of_a_file_is_read(
    diff: bytes, says: dict[str, Any], before: bytes
) -> None:
    file = read_changes(before + diff + b"\n", "x.diff")[-1].files[-1]
    moved, lines = before.count(b"\n"), (before + diff).split(b"\n")
    fields: dict[str, Any] = {"path": "x", "kind": ChangeKind.MODIFIED, "line": 1}
    fields |= {"names": ("a/x", "b/x"), "source": "x.diff", **says}
    source = re.sub("^[ao]/", "", fields["names"][0] or "") or None
    fields["old_path"] = source if source != fields["path"] else None
    if fields["kind"] is ChangeKind.REMOVED:
        fields["old_path"] = "x"
    assert replace(file, hunks=()) == IncomingFile(
        **{**fields, "line": fields["line"] + moved, "hunks": ()}
    )
    assert all(hunk.source_line == (2 if b"-1,0" in diff else 1) for hunk in file.hunks)
    starts = [number for number, line in enumerate(lines, 1) if line.startswith(b"@@")]
    assert [hunk.patch_line for hunk in file.hunks] == [n for n in starts if n > file.line]


OPENINGS = st.sampled_from(["--- ", "+++ ", "", " ", "-", "+", "* "])
PROSE = st.lists(st.builds(str.__add__, OPENINGS, st.sampled_from(["faster", "a/x", "of b"])))


END = b"\\ No newline at end of file\n"
#: Lines of a hunk that look like those of a header.
LIKE_HEADERS = [b"--- b\n", b"+++ c\n"]
BODIES = st.one_of(
    st.permutations(LIKE_HEADERS).map(lambda body: (b"@@ -1 +1 @@\n", body)),
    st.permutations([*LIKE_HEADERS, b" a\n"]).map(lambda body: (b"@@ -1,2 +1,2 @@\n", body)),
)


@given(PROSE, PROSE, PROSE, BODIES, st.booleans())
@example([], ["+++ faster"], [], (b"@@ -1 +1 @@\n", LIKE_HEADERS), True)
@example(
    ["x", "+++ faster", "--- faster"],
    ["--- of b"],
    ["+++ a/x", "+++ a/x", "--- a/x"],
    (b"@@ -1,2 +1,2 @@\n", [*LIKE_HEADERS, b" a\n"]),
    True,
)
def test_half_a_header_is_prose(
    above: list[str],
    between: list[str],
    below: list[str],
    hunk: tuple[bytes, list[bytes]],
    unfinished: bool,
) -> None:
    """As ``patch`` and ``git apply`` take it; a line of a hunk that looks like one stays."""
    counts, body = hunk
    marked = body[0] + END * unfinished + b"".join(body[1:])
    first = b"--- a/vllm/a.py\n+++ b/vllm/a.py\n" + counts + marked
    second = first.replace(b"vllm/a.py", b"vllm/b.py")
    # Both lines of a header are one, wherever they stand.
    words = ["".join(f"{line}\n*\n" for line in each).encode() for each in (above, between, below)]
    data = words[0] + first + words[1] + second + words[2]
    for prose in (b"", b"*\n"):
        (commit,) = read_changes(prose + data, "x.diff")
        assert [file.path for file in commit.files] == ["vllm/a.py", "vllm/b.py"]
        for file in commit.files:
            lines = [f"{op}{text}\n".encode() for op, text in file.hunks[0].lines]
            assert lines == list(body)


@pytest.mark.parametrize("before", BEFORE, ids=["alone", "prose", "mail", "mails"])
@pytest.mark.parametrize(
    ("diff", "line", "words"),
    [
        (HEAD + NAMES + EDIT.replace(b"a\n", b"\0\n").replace(b"b", b"\0"), 5, "found a NUL byte"),
        (NAMES + b"@@ -1,2 +1,2 @@\n x\n-a\n" + END + b"+b\r\n", 7, "with LF in x, found one"),
        (
            HEAD + NAMES + b"@@ -1 +1 @@\n\\ No newline\n-a\n+b\n",
            1,
            "begin with a line of the file",
        ),
        (NAMES + b"@@ -0,0 +0,0 @@\n", 2, "begin with a line of the file"),
        (NAMES + EDIT.replace(b"-a", b"-a\r"), 5, "with CRLF in x, found one that ends with LF"),
        (NAMES + EDIT.replace(b"+b", b"+b\r"), 5, "with LF in x, found one that ends with CRLF"),
        (NAMES + EDIT.replace(b"+b", b"+\xef\xbb\xbfb"), 5, "found a byte-order mark"),
        (b"--- a/" + b"x" * 5000 + b"\n+++ /dev/null\n" + EDIT, 2, "longer than any path"),
        (b'--- /dev/null\n+++ ""\n' + EDIT, 2, "found none before and after"),
        (NAMES + EDIT.replace(b"+1", b"+1234567890"), 3, "ten digits or more"),
        (NAMES + EDIT.replace(b"+b", b"?\xff"), 5, "expected a unified diff: Hunk diff line"),
        (NAMES + EDIT.replace(b"+b", b"[-b c-] x[-1]"), 5, "leave out --word-diff"),
        (NAMES + EDIT.replace(b"+b", b"{+b+} {+"), 5, "leave out --word-diff"),
        (
            NAMES + EDIT.replace(b"-a", b"-a[-1]").replace(b"+b", b"b-] {+"),
            5,
            "Hunk diff line expected",
        ),
        (HEAD + LITERAL.replace(b"l 1", b"l x"), 3, "expected 'literal SIZE'"),
        (HEAD + b"index 1..2\n" + LITERAL.replace(b"Icm", b"Ic"), 5, "a line of base 85"),
        (HEAD + NAMES + b"@@@ -1 -1 +1 @@@\n" + HEAD + NAMES + EDIT, 1, "of x, found a combined"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    diff: bytes, line: int, words: str, before: bytes
) -> None:
    with pytest.raises(UsageError) as caught:
        read_changes(before + diff, "x.diff")
    line += before.count(b"\n")
    assert f"x.diff:{line}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("hunk", "unfinished"),
    [
        (b" a\n-b\n" + END + b"+c\n", (True, False)),
        (b" a\n-b\n+c\n" + END, (False, True)),
        (b"-b\n+c\n a\n" + END, (True, True)),
        (b" a\n-b\n" + END + b"+c\n" + END, (True, True)),
        (b" a\n-b\n+c\n", (False, False)),
        (b" a\r\n-b\n" + END + b"+c\n" + END, (True, True)),
    ],
)
def test_a_missing_final_newline_is_kept(hunk: bytes, unfinished: tuple[bool, bool]) -> None:
    (made,) = read_changes(NAMES + b"@@ -1,2 +1,2 @@\n" + hunk, "x")[0].files[0].hunks
    assert (made.pre_unfinished, made.post_unfinished) == unfinished
    assert sorted(made.lines) == [(" ", "a"), ("+", "c"), ("-", "b")]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (b"a/vllm/x.py", "vllm/x.py"),
        *((b"%c/vllm/x.py" % side, "vllm/x.py") for side in b"biwco"),
        (b"d/vllm/x.py", "d/vllm/x.py"),
        (b'"b/\xff\\377.py"', "\udcff\udcff.py"),
        (b"vllm/x.py\r", "vllm/x.py"),
        (rb'"b/\303\266\t\a\\\".py"', 'ö\t\a\\".py'),
        (b'"', '"'),
        (b"vllm/x.py  2026-01-02 03:04:05.678 +0100", "vllm/x.py"),
        (b"vllm/x.py Tue Nov  3 10:00:00 2026", "vllm/x.py"),
        (b"vllm/x y.py", "vllm/x y.py"),
        (rb"b\vllm\x.py", "vllm/x.py"),
        (rb"b/vllm\x.py", "vllm\\x.py"),
    ],
)
def test_a_name_is_read_as_git_and_patch_read_it(name: bytes, path: str) -> None:
    (file,) = read_changes(b"--- " + name + b"\n+++ " + name + b"\n" + EDIT, "x")[0].files
    assert (file.path, file.old_path) == (path, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found no file"),
        (b"hello\n", "found no file"),
        (b"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n", r"x:4: .*shorter"),
        (DIFF.replace(b" c = 4\n", b"?\n"), r"x:9: .*expected"),
        (b"+++ a\n\n" * 9 + DIFF.replace(b" c = 4\n", b"?\n") + b"\n" * 9, r"x:27: .*expected"),
        (b"a\n\0\n", "x:2: .*NUL"),
        (b"x" * (MAX_BYTES + 1), "at most"),
        (DIFF.decode().encode("utf-16"), "UTF-16"),
        (gzip.compress(DIFF), "gzip"),
        (re.sub(rb"(?m)^(?=.)", b"\x1b[1m", DIFF), "--no-color"),
        (DIFF.replace(b"\n+b", b"\n\x1b[32m+b"), "--no-color"),
        (re.sub(rb"@@ .* @@", b"@@", DIFF), "x:1: .*without the numbers"),
        (re.sub(rb"@@ (.*) @@", rb"@@@ \1 \1 @@@", DIFF), "a combined diff"),
        (b" a | 1 +\n" + DIFF.replace(b",3 @@", b",9 @@"), "correct the counts in its header"),
        (re.sub(rb"(?m)^(?=.)", b"> ", DIFF), "quoted"),
        (b"2c2\n< b = 2\n---\n> b = 3\n", "make it with diff -u"),
        (b"*** a/x\n--- b/x\n***************\n*** 1,2 ****\n! a\n", "a context diff"),
        (b" vllm/a.py | 2 +-\n 1 file changed\n", "leave out --stat"),
        (b":100644 100644 1234567 89abcde M\tvllm/a.py\n", "leave out --raw"),
        (DIFF.replace(b"-b = 2\n+b = 3", b"b = [-2-]{+3+}"), "leave out --word-diff"),
        (b"+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "x:1: .*Target without source"),
        (b"--- a/x\n@@ -1 +1 @@\n-a\n+b\n", "x:2: .*Unexpected hunk"),
    ],
)
def test_what_is_no_diff_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_changes(data, "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DIFF.replace(b" c = 4", b"[-" * 2_000_000), "expected a unified diff"),
        (b"From x " + b"11:11:11" * 2_000_000 + b"\n", "found no file"),
    ],
    ids=["words", "mail"],
)
def test_a_long_line_is_looked_through_once(data: bytes, message: str) -> None:
    """Looked through again from each of its places, it would take days."""
    with pytest.raises(UsageError, match=message):
        read_changes(data, "x")


@given(st.binary(max_size=200), st.integers(0, len(MAIL)), st.integers(0, 40))
@example(b"", 0, 40)
def test_no_bytes_end_in_another_error(inserted: bytes, at: int, cut: int) -> None:
    data = MAIL[:at] + inserted + MAIL[at + cut :]
    with contextlib.suppress(UsageError):
        assert any(commit.files for commit in read_changes(data, "x"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what writes such mails")
def test_a_series_of_git_is_read(tmp_path: Path) -> None:
    def git(*arguments: str) -> bytes:
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    file = tmp_path / "a.py"
    texts = ["a = 1\n" * 9, "a = 1\n" * 4 + "b = 'ü'\n" + "a = 1\n" * 5, "c = 2\n"]
    for number, text in enumerate(texts):
        file.write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", f"Change {number}\n\nFrom here on\nFrom: nobody")
    commits = read_changes(git("format-patch", "--stdout", "--root"), "series")
    assert [commit.subject for commit in commits] == ["Change 0", "Change 1", "Change 2"]
    assert [file.kind for commit in commits for file in commit.files] == [
        *(ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.MODIFIED),
    ]
    assert any("b = 'ü'" in hunk.post for hunk in commits[1].files[0].hunks)


def test_a_diff_is_bounded_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_BYTES", len(DIFF))
    assert read_changes(DIFF, "x")
    for data, words in (
        (DIFF + b"\n", f"x: expected a diff of at most {len(DIFF)} bytes, found {len(DIFF) + 1}"),
        (DIFF[:-1], "x:9: expected a newline at the end of the last line"),
        (b"\xef\xbb\xbf" + DIFF[:-5], "x:1: expected a diff, found a byte-order mark"),
    ):
        with pytest.raises(UsageError, match=words):
            read_changes(data, "x")


def test_a_change_of_more_files_than_any_release_has_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = b"".join(
        b"--- a/vllm/m%d.py\n+++ b/vllm/m%d.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n" % (n, n)
        for n in range(4)
    )
    monkeypatch.setattr(incoming, "MAX_FILES", 4)
    assert len(read_changes(change, "x")[0].files) == 4
    monkeypatch.setattr(incoming, "MAX_FILES", 3)
    with pytest.raises(UsageError, match="at most 3 files, found 4"):
        read_changes(change, "x")


def test_the_lines_of_a_mailbox_are_counted_through_all_its_mails() -> None:
    begins = b"diff --git a/vllm/a.py b/vllm/a.py"
    diff = begins + b"\n--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    mail = b"From 0123456 Mon Sep 17 00:00:00 2001\nFrom: a\nSubject: x\n\nwhy\n---\n" + diff
    box = (mail + b"\n") * 3
    places = [commit.files[0].line for commit in read_changes(box, "x")]
    lines = box.split(b"\n")
    assert places == [number for number, line in enumerate(lines, 1) if line == begins]


@pytest.mark.parametrize("place", [b"A <", b"] x", b"why", b"Signed"])
def test_the_words_of_a_mail_are_unicode_whatever_its_bytes(place: bytes) -> None:
    """Latin-1 without a declaration, as old tools write it; only the diff keeps every byte."""
    mail = (
        b"From: A <a@b>\nSubject: [PATCH] x\n\nwhy\n\nSigned-off-by: b\n---\n"
        b"--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = '\xff'\n+a = 2\n"
    )
    assert place in mail
    wrong = b"Signed-off-by: \xff\nSigned" if place == b"Signed" else place + b" \xff\xfe "
    (commit,) = read_changes(mail.replace(place, wrong, 1), "x")
    words = "\n".join([commit.author, commit.subject, commit.message])
    assert words.encode()
    assert re.findall(r"[^ -~\n]+", words) in (["\ufffd"], ["\ufffd\ufffd"])
    assert not re.search("X", words)
    assert commit.files[0].hunks[0].pre == ("a = '\udcff'",)


def eml(*parts: tuple[str, bytes], form: str = "mixed") -> bytes:
    """A mail as a client saves it: its servers' headers first, and its attachments encoded."""
    lines = [
        "Return-Path: <ada@example.org>",
        "Received: from a by b;\n  Tue, 3 Nov 2026 10:00:00 +0100",
        "From: Ada <ada@example.org>",
        "Subject: [PATCH] Two of them",
        f'Content-Type: multipart/{form}; boundary="=="',
        "",
    ]
    for kind, data in parts:
        encoded = base64.encodebytes(data).decode()
        lines += ["--==", f"Content-Type: {kind}", "Content-Transfer-Encoding: base64", "", encoded]
    return "\n".join([*lines, "--==--", ""]).encode()


PATCH = 'application/octet-stream; name="1.patch"'
#: One that is saved as a text is so by its name alone.
TEXT = 'application/octet-stream; name="1.txt"'


DIFFS = 'application/octet-stream; name="1.diff"'


@pytest.mark.parametrize("kind", [PATCH, DIFFS, TEXT, "text/x-patch"])
@pytest.mark.parametrize(
    "mailbox", ["", "From - Tue Nov 03 10:00:00 2026\n", "From a 10:00:00 2026\n"]
)
def test_a_mail_of_a_client_is_read_with_its_attachment(kind: str, mailbox: str) -> None:
    other = ("application/pdf", DIFF.replace(b"a.py", b"c.py"))
    empty = ("text/plain", b"")
    data = mailbox.encode() + eml(("text/plain", b"See it."), (kind, DIFF), empty, other)
    (commit,) = read_changes(data, "x.eml")
    assert (commit.message, commit.files[0].old_blob) == ("See it.", "1234567")
    assert (commit.subject, commit.author) == ("Two of them", "Ada <ada@example.org>")
    assert commit.files[0].hunks[0].post == ("a = 1", "b = 3", "c = 4")


def test_what_a_mail_shows_in_html_as_well_is_read_once() -> None:
    html = b"<pre>" + DIFF + b"</pre>\n"
    (commit,) = read_changes(
        eml(("text/plain", DIFF), ("text/html", html), form="alternative"), "x.eml"
    )
    assert len(commit.files) == 1


def test_mails_that_are_attached_are_commits_of_their_own() -> None:
    second = MAIL.replace(b"1/2", b"2/2").replace(b"Count what", b"Weigh what")
    data = eml(("text/plain", b"Please apply.\n"), (PATCH, MAIL), (PATCH, second))
    own = read_changes(eml(("text/plain", DIFF), (PATCH, second)), "x.eml")
    assert [commit.subject[:17] for commit in own] == ["Two of them", "[Core] Weigh what"]
    commits = read_changes(data, "x.eml")
    assert [commit.subject[:17] for commit in commits] == ["[Core] Count what", "[Core] Weigh what"]
    assert {commit.author for commit in commits} == {"Jörg <joerg@example.com>"}


def test_who_wrote_a_change_that_was_sent_on_is_in_the_mail() -> None:
    own = b"\nFrom: Ada <ada@example.org>\n"
    data = MAIL.replace(b"\nWhy it", own + b"Subject: Own: it: is\n\nWhy it")
    (commit,) = read_changes(data, "x.mbox")
    assert (commit.subject, commit.author) == ("Own: it: is", "Ada <ada@example.org>")
    assert commit.message.startswith("Why it is right.")
    (commit,) = read_changes(MAIL.replace(b"\nWhy it", own + b"\nWhy it"), "x.mbox")
    assert commit.subject == "[Core] Count what is right (#12345)"
    assert commit.message.startswith("Why it is right.")


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"\x0c", b"\xef\xbb\xbf"]), min_size=1)
)
@example([b"a", b"\r\n", b"a"])
@example([b"a", b"\r\n", b"a", b"\r"])
def test_a_new_file_keeps_its_line_ends_and_its_mark(pieces: list[bytes]) -> None:
    """As `git apply` and `patch` make it, whatever line of a mail comes behind it."""
    content = b"".join(pieces)
    *lines, rest = content.split(b"\n")
    text = b"".join(b"+" + line + b"\n" for line in lines) + (b"+" + rest + b"\n" + END) * bool(
        rest
    )
    head = b"--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1,%d @@\n" % (len(lines) + bool(rest))
    if len({line.endswith(b"\r") for line in lines}) > 1:
        with pytest.raises(UsageError, match="line ends"):
            read_changes(head + text, "x")
        return
    for behind in (b"", b"\n", b"\n\n" + DIFF):
        file = read_changes(head + text + behind, "x")[0].files[0]
        assert added_content(file) == content
    sent = (head + text).replace(b"\n", b"\r\n")
    if b"\r" not in content:
        assert added_content(read_changes(sent, "x")[0].files[0]) == content


def test_a_path_of_windows_is_read() -> None:
    (file,) = read_changes(DIFF.replace(b"/", b"\\"), "x")[0].files
    assert file.path == "vllm/a.py"


@pytest.mark.parametrize(
    ("charset", "pre"),
    [("latin-1", "ü"), ("utf-8", "\udcfc"), ("us-ascii", "\udcfc"), ("none-such", "\udcfc")],
)
def test_the_encoding_that_a_mail_says_is_undone(charset: str, pre: str) -> None:
    """As git does it: the files of the package are in UTF-8."""
    head = f"From: a\nContent-Type: text/plain; charset={charset}\n\n".encode()
    (commit,) = read_changes(head + NAMES + EDIT.replace(b"-a", b"-\xfc"), "x")
    assert commit.files[0].hunks[0].pre == (pre,)


def test_what_one_of_two_folders_has_alone_is_a_file_of_the_change() -> None:
    """But for what tools leave there; a line of a hunk never says it."""
    lines = [
        *("Only in old/vllm: __pycache__", "Only in new/vllm: a.py.orig"),
        *("Only in new/vllm: first.py", "diff -ru old/vllm/a.py new/vllm/a.py"),
        *("--- old/vllm/a.py", "+++ new/vllm/a.py", "@@ -1,1 +1,2 @@", " x"),
        *("+Only in new/vllm: line.py", "Only in b/vllm/v1: two: of.py"),
    ]
    for end in ("\n", "\r\n"):
        (commit,) = read_changes((end.join(lines) + end).encode(), "x.diff")
        first, *alone = commit.files
        assert (first.path, len(first.hunks)) == ("new/vllm/a.py", 1)
        assert [(file.path, file.kind, file.line) for file in alone] == [
            ("new/vllm/first.py", ChangeKind.ALONE, 3),
            ("vllm/v1: two/of.py", ChangeKind.ALONE, 10),
        ]


def test_a_mode_that_is_named_twice_stays() -> None:
    """As this project's own mails name it of a file that they remove."""
    text = (
        "diff --git a/vllm/c.txt b/vllm/c.txt\ndeleted file mode 100644\n"
        "index 1111111..0000000 100644\n--- a/vllm/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-c\n"
    )
    (commit,) = read_changes(text.encode(), "x.diff")
    assert [(file.kind, file.mode) for file in commit.files] == [(ChangeKind.REMOVED, None)]


def test_many_files_of_one_folder_alone_are_counted_line_by_line() -> None:
    with pytest.raises(UsageError, match=r"at most 10000 files, found 100000$"):
        read_changes(b"Only in a: b\n" * 100_000, "x.diff")
