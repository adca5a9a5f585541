"""Changes made elsewhere: what git writes is read, whatever else is refused with a line."""

from __future__ import annotations

import base64
import contextlib
import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.authoring import incoming
from overlay.authoring.incoming import MAX_BYTES, ChangeKind, read_changes
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
KINDS = [
    (RENAME, ChangeKind.RENAMED, "y"),
    (MODE, ChangeKind.MODE, "x"),
    (ADD, ChangeKind.ADDED, "x"),
    (REMOVE, ChangeKind.REMOVED, "x"),
    (BINARY, ChangeKind.BINARY, "x.png"),
]


@pytest.mark.parametrize(("diff", "kind", "path"), KINDS)
def test_what_is_done_to_a_file_is_told_apart(diff: bytes, kind: ChangeKind, path: str) -> None:
    (commit,) = read_changes(diff, "x")
    assert [(file.kind, file.path) for file in commit.files] == [(kind, path)]


OPENINGS = st.sampled_from(["--- ", "+++ ", "", " ", "-", "+", "* "])
PROSE = st.lists(st.builds(str.__add__, OPENINGS, st.sampled_from(["faster", "a/x", "of b"])))


@given(PROSE, PROSE, PROSE)
@example([], ["+++ faster"], [])
@example(["+++ faster"], ["--- of b"], ["+++ a/x", "+++ a/x", "--- a/x"])
def test_half_a_header_is_prose(above: list[str], between: list[str], below: list[str]) -> None:
    """As ``patch`` and ``git apply`` take it; a line of a hunk that looks like one stays."""
    first = b"".join(DIFF.splitlines(keepends=True)[2:]).replace(b"-b = 2", b"--- b", 1)
    second = first.replace(b"vllm/a.py", b"vllm/b.py")
    # Both lines of a header are one, wherever they stand.
    words = ["".join(f"{line}\n*\n" for line in each).encode() for each in (above, between, below)]
    (commit,) = read_changes(words[0] + first + words[1] + second + words[2], "x.diff")
    assert [file.path for file in commit.files] == ["vllm/a.py", "vllm/b.py"]
    assert all(file.hunks[0].pre == ("a = 1", "-- b", "c = 4") for file in commit.files)


def test_a_missing_final_newline_is_kept() -> None:
    end = b"\\ No newline at end of file\n"
    diff = DIFF.replace(b" c = 4\n", b"-c = 4\n" + end + b"+c = 5\n").replace(b",3 @@", b",3 @@")
    (hunk,) = read_changes(diff, "x")[0].files[0].hunks
    assert (hunk.pre_unfinished, hunk.post_unfinished) == (True, False)


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
    for words in (commit.subject, commit.message, commit.author):
        words.encode()
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


@pytest.mark.parametrize("kind", [PATCH, TEXT, "text/x-patch"])
@pytest.mark.parametrize(
    "mailbox", ["", "From - Tue Nov 03 10:00:00 2026\n", "From a 10:00:00 2026\n"]
)
def test_a_mail_of_a_client_is_read_with_its_attachment(kind: str, mailbox: str) -> None:
    data = mailbox.encode() + eml(("text/plain", b"See it.\n"), (kind, DIFF))
    (commit,) = read_changes(data, "x.eml")
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
    commits = read_changes(data, "x.eml")
    assert [commit.subject[:17] for commit in commits] == ["[Core] Count what", "[Core] Weigh what"]
    assert {commit.author for commit in commits} == {"Jörg <joerg@example.com>"}


def test_who_wrote_a_change_that_was_sent_on_is_in_the_mail() -> None:
    data = MAIL.replace(b"\nWhy it", b"\nFrom: Ada <ada@example.org>\nSubject: Own\n\nWhy it")
    (commit,) = read_changes(data, "x.mbox")
    assert (commit.subject, commit.author) == ("Own", "Ada <ada@example.org>")
    assert commit.message.startswith("Why it is right.")


@pytest.mark.parametrize("content", [b"a = 1\r\nb = 2\r\n", b"\xef\xbb\xbfa = 1\n"])
def test_a_new_file_keeps_its_line_ends_and_its_mark(content: bytes) -> None:
    """As `git apply` and `patch` make it."""
    lines = content.splitlines(keepends=True)
    head = b"--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1,%d @@\n" % len(lines)
    (file,) = read_changes(head + b"".join(b"+" + line for line in lines), "x")[0].files
    assert added_content(file) == content


def test_a_path_of_windows_is_read() -> None:
    (file,) = read_changes(DIFF.replace(b"/", b"\\"), "x")[0].files
    assert file.path == "vllm/a.py"
