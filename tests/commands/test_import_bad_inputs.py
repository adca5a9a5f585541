"""Changes that no import can carry: a sentence each with file and line, exit 2, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.authoring.test_importing import BASE, CHANGE, MODE, PATCHED, PATH, RENAME, diff
from tests.commands.test_import import releases
from tests.support.cli import Cli, digest

__all__ = ["releases"]  # the fixture

LINES = CHANGE.count(b"\n")
BEHIND = LINES + 1
BINARY = b"diff --git a/vllm/a.bin b/vllm/a.bin\nindex 1234567..89abcde 100644\n"
BINARY += b"Binary files a/vllm/a.bin and b/vllm/a.bin differ\n"
BINARY_PATCH = b"diff --git a/vllm/a.py b/vllm/a.py\nindex 1234567..89abcde 100644\n"
BINARY_PATCH += b"GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\nliteral 0\nHcmV?d00001\n\n"
REMOVED = b"diff --git a/vllm/a.py b/vllm/a.py\ndeleted file mode 100644\nindex 1234567..0000000\n"
REMOVED += b"--- a/vllm/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"
COPY = RENAME.replace(b"rename", b"copy")
BOM = b"\xef\xbb\xbf"
NEW = diff("vllm/v1/notes.py", None, b"a = 1\n")
#: Two hunks that speak of the same line.
TWICE = CHANGE + CHANGE[CHANGE.index(b"@@") :]
#: As ``diff -U0`` writes it: only a number says where the line goes.
BARE = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1,0 +2 @@\n+import sys\n".encode()
WINDOWS = BASE.replace(b"\n", b"\r\n")

CASES = {
    "empty": (b"", 1, "found no file"),
    "prose": (b"hello\nworld\n", 1, "found no file"),
    "of another project": (diff("transformers/a.py", b"a = 1\n", b"a = 2\n"), 1, "of vLLM"),
    "of vLLM's C++ alone": (diff("csrc/a.cu", b"a\n", b"b\n"), 1, "of vLLM"),
    "of tests and documentation alone": (
        diff("tests/a.py", None, b"a = 1\n") + diff("docs/a.md", b"a\n", b"b\n"),
        1,
        r"1 of tests, examples and CI and 1 of documentation\): there is nothing to import",
    ),
    "of C++ as well": (CHANGE + diff("csrc/a.cu", b"a\n", b"b\n"), BEHIND, "half a change"),
    "of a release that nobody has": (
        diff(PATH, BASE.replace(b"[1, 2, 4]", b"[8]"), PATCHED),
        1,
        "are in no release: give upstream's text with --base",
    ),
    "of a file that no release has": (
        diff("vllm/v1/other.py", b"a = 1\n", b"a = 2\n"),
        1,
        "are in no release",
    ),
    "rename": (CHANGE + RENAME, BEHIND, r"renames vllm/b\.py \(it was vllm/a\.py\)"),
    "copy": (CHANGE + COPY, BEHIND, r"renames vllm/b\.py"),
    "mode": (CHANGE + MODE, BEHIND, "changes the mode of"),
    "binary": (CHANGE + BINARY, BEHIND, r"vllm/a\.bin"),
    "binary patch": (CHANGE + BINARY_PATCH, BEHIND, r"replaces the bytes of vllm/a\.py"),
    "deletion": (CHANGE + REMOVED, BEHIND, r"removes vllm/a\.py; a feature edits"),
    "CRLF in one line": (
        CHANGE.replace(b"+        self.note_run(size)\n", b"+        self.note_run(size)\r\n"),
        r"\d+",
        "expected lines that end with LF",
    ),
    "CRLF in an added module": (
        CHANGE + NEW.replace(b"+a = 1\n", b"+a = 1\r\n"),
        r"\d+",
        r"vllm/v1/notes\.py, found one that ends with CRLF",
    ),
    "CRLF for a whole file": (diff(PATH, BASE, WINDOWS), r"\d+", "found one that ends with CRLF"),
    "cut off": (CHANGE[:-3], LINES, "no(ne| newline).*get it again|found none"),
    "cut off in a hunk": (CHANGE[: CHANGE.rindex(b"\n", 0, -1) + 1], r"\d+", "shorter"),
    "byte-order mark": (BOM + CHANGE, 1, "byte-order mark"),
    "byte-order mark in a file": (diff(PATH, BASE, BOM + BASE), 7, "byte-order mark"),
    "two changes of one line": (TWICE, BEHIND, "the same lines"),
    "two changes of one line, in two parts": (
        CHANGE + diff(PATH, BASE, BASE.replace(b"last_size = size", b"last = size")),
        BEHIND,
        "two changes of the same lines",
    ),
    "absolute path": (diff("/etc/passwd", b"a\n", b"b\n"), 1, "leaves|of vLLM"),
    "path that leaves": (
        CHANGE + diff("vllm/../../a.py", None, b"a = 1\n"),
        BEHIND,
        "leaves the folder of the change",
    ),
    "path that leaves, among tests": (
        CHANGE + diff("tests/../../a.py", None, b"a = 1\n"),
        BEHIND,
        "leaves the folder of the change",
    ),
    "path with a backslash": (CHANGE + diff("vllm\\a.py", None, b"a\n"), BEHIND, "not a Python"),
    "no context and no ids": (BARE, 2, "no lines around its change.*with context, or with the ids"),
    "NUL": (CHANGE + b"\0\n", BEHIND, "NUL"),
    "not Python": (diff(PATH, BASE, BASE.replace(b"import os", b"import (")), 1, "not Python"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_said_in_one_sentence_with_file_and_line(cli: Cli, tmp_path: Path, name: str) -> None:
    data, line, words = CASES[name]
    change = tmp_path / "fix.diff"
    change.write_bytes(data)
    place = tmp_path / "ours"
    before = digest(tmp_path)
    result = cli("import", change, "--id", "count-runs", "--patches", place)
    assert result.exit == 2, result.out + result.err
    errors = [text for text in result.err.splitlines() if text.startswith(("error: ", "       "))]
    pattern = rf"(error: |       ).*fix\.diff:{line}: .*({words})"
    assert any(re.match(pattern, text) for text in errors), result.err
    assert len(errors) == 1, errors
    assert digest(tmp_path) == before
    assert not place.exists()
    answer = cli("import", change, "--id", "count-runs", "--patches", place, "--json")
    assert answer.json["exit"] == 2
    assert "fix.diff:" in answer.json["error"]


def test_partial_takes_what_lies_beside_but_nothing_that_leaves(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE + diff("csrc/a.cu", b"a\n", b"b\n"))
    words = ("import", change, "--id", "count-runs", "--patches", tmp_path / "ours", "--partial")
    assert cli(*words).exit == 0
    change.write_bytes(CHANGE + diff("../a.py", None, b"a = 1\n"))
    assert cli(*words, "--update").exit == 2


def test_a_diff_that_was_sent_with_crlf_is_the_same_diff(cli: Cli, tmp_path: Path) -> None:
    for name, data in (("lf", CHANGE), ("crlf", CHANGE.replace(b"\n", b"\r\n"))):
        (tmp_path / f"{name}.diff").write_bytes(data)
        words = ("--id", "count-runs", "--patches", tmp_path / name)
        assert cli("import", tmp_path / f"{name}.diff", *words).exit == 0
    made = [
        {
            place.name: place.read_bytes().split(b"\n---\n")[-1]
            for place in folder.rglob("0.*.patch")
        }
        for folder in (tmp_path / "lf", tmp_path / "crlf")
    ]
    assert made[0] == made[1]
    assert made[0]


def test_without_context_the_ids_tell_the_place(cli: Cli, tmp_path: Path) -> None:
    """The line that a diff names before an insertion stays before it."""
    change = tmp_path / "fix.diff"
    head = CHANGE[: CHANGE.index(b"--- a/")]
    change.write_bytes(head + BARE)
    words = ("import", change, "--id", "count-runs", "--patches", tmp_path / "ours")
    assert cli(*words).exit == 0
    (patch, *_) = (tmp_path / "ours").rglob("0.*.patch")
    assert " import os\n+import sys\n" in patch.read_text()


def test_files_without_a_final_newline_are_carried(cli: Cli, tmp_path: Path) -> None:
    """Such a file is fine; only the diff itself must be whole."""
    change = tmp_path / "fix.diff"
    unfinished = NEW.replace(b"+a = 1\n", b"+a = 1\n\\ No newline at end of file\n")
    change.write_bytes(CHANGE + unfinished)
    words = ("import", change, "--id", "count-runs", "--patches", tmp_path / "ours")
    assert cli(*words).exit == 0
    assert (tmp_path / "ours/count-runs/files/vllm/v1/notes.py").read_bytes() == b"a = 1"


def test_a_folder_is_told_how_to_name_its_commits(cli: Cli, tmp_path: Path) -> None:
    checkout = tmp_path / "src"
    checkout.mkdir()
    result = cli("import", checkout, "--id", "count-runs", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert f"found a folder; name the commits of a checkout as {checkout}@A..B" in result.err


def test_an_id_that_exists_is_refused_before_anything_is_read(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE)
    place = tmp_path / "ours"
    assert cli("import", change, "--id", "count-runs", "--patches", place).exit == 0
    before = digest(place)
    again = cli("import", "http://127.0.0.1:9/pull/1", "--id", "count-runs", "--patches", place)
    assert again.exit == 2
    assert "--update" in again.err
    assert digest(place) == before


@pytest.mark.parametrize("id_", ["Stop", "a b", "../x", "-x", "", "a--b", "ü"])
def test_an_id_that_cannot_be_one_is_refused(cli: Cli, tmp_path: Path, id_: str) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE)
    before = digest(tmp_path)
    result = cli("import", change, f"--id={id_}", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert "lower-case-with-hyphens" in result.err
    assert digest(tmp_path) == before
    assert not (tmp_path / "ours").exists()
