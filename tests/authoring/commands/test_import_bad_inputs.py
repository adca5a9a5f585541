"""Changes that no import can carry: a sentence each with file and line, exit 2, nothing written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from overlay.authoring.baseless import why
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from tests.authoring.commands.test_import import releases
from tests.authoring.test_importing import BASE, CHANGE, MODE, PATH, RENAME, diff
from tests.support.cli import Cli, digest
from tests.support.patches import MemoryTree

__all__ = ["releases"]  # the fixture

LINES = CHANGE.count(b"\n")
BEHIND = LINES + 1
BINARY = b"diff --git a/vllm/a.bin b/vllm/a.bin\nindex 1234567..89abcde 100644\n"
BINARY += b"Binary files a/vllm/a.bin and b/vllm/a.bin differ\n"
BINARY_PATCH = b"diff --git a/vllm/a.py b/vllm/a.py\nindex 1234567..89abcde 100644\n"
BINARY_PATCH += b"GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\nliteral 0\nHcmV?d00001\n\n"
REMOVED = b"diff --git a/vllm/a.py b/vllm/a.py\ndeleted file mode 100644\nindex 1234567..0000000\n"
REMOVED += b"--- a/vllm/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"
BOM = b"\xef\xbb\xbf"
NEW = diff("vllm/v1/notes.py", None, b"a = 1\n")
#: Two hunks that speak of the same line.
TWICE = CHANGE + CHANGE[CHANGE.index(b"@@") :]
#: As ``diff -U0`` writes it: only a number says where the line goes.
BARE = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1,0 +2 @@\n+import sys\n".encode()
WINDOWS = BASE.replace(b"\n", b"\r\n")


def with_mode(data: bytes, mode: bytes) -> bytes:
    """A diff of an added file, with another mode."""
    return data.replace(b"new file mode 100644", b"new file mode " + mode)


def entry(path: str, *lines: str) -> bytes:
    """An entry of a git diff that has no hunks."""
    return "".join(f"{line}\n" for line in (f"diff --git a/{path} b/{path}", *lines)).encode()


def added(path: str) -> bytes:
    """The diff that adds a module."""
    return diff(path, None, b"a = 1\n")


LINK = with_mode(NEW, b"120000").replace(b"+a = 1\n", b"+runner.py\n\\ No newline at end of file\n")
#: A link that is pointed elsewhere: git says so in the index line alone.
LINK_MOVED = diff("vllm/v1/notes.py", b"a.py\n", b"b.py\n").replace(b" 100644", b" 120000")
#: A module that becomes a link: git writes it as a removal and an addition.
LINK_FOR_FILE = REMOVED.replace(b"vllm/a.py", b"vllm/v1/notes.py") + LINK
SUBMODULE = with_mode(added("vllm/v1/third.py"), b"160000")
EDIT_AND_MODE = CHANGE.replace(b"index ", b"old mode 100644\nnew mode 100755\nindex ", 1).replace(
    b" 100644\n---", b"\n---"
)
#: What a merge shows of a file: no hunk of it is one of a unified diff.
COMBINED = entry("vllm/a.py").replace(b"--git a/vllm/a.py b/", b"--cc ")
COMBINED += b"index 1,2..3\n--- a/vllm/a.py\n+++ b/vllm/a.py\n"
UNREAD = "would not be read: in a folder of patches"

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
        diff(PATH, BASE.replace(b"[1, 2, 4]", b"[8]"), BASE.replace(b"[1, 2, 4]", b"[9]")),
        1,
        r"line 7 is .*\[1, 2, 4\].* and not .*\[8\].*--base, a checkout",
    ),
    "of a file that no release has": (
        diff("vllm/v1/other.py", b"a = 1\n", b"a = 2\n"),
        1,
        "vllm/v1/other.py is not in 0.20.0..0.24.0: if the change adds it",
    ),
    "copy": (CHANGE + RENAME, BEHIND, r"copies vllm/b\.py \(from vllm/a\.py\).*--no-renames"),
    "a link": (
        CHANGE + added("vllm/a.py").replace(b"100644", b"120000"),
        BEHIND,
        r"makes a symbolic link of vllm/a\.py.*--partial leaves that out",
    ),
    "a name that turns the writing round": (
        CHANGE + added("vllm/a\u202eb.py"),
        BEHIND,
        "control character.*--partial",
    ),
    "one name in two forms of a letter": (
        NEW + added("vllm/v1/\u00e9.py") + added("vllm/v1/e\u0301.py"),
        NEW.count(b"\n") + added("vllm/v1/\u00e9.py").count(b"\n") + 1,
        "both are one file; give one of them another name",
    ),
    "mode": (CHANGE + MODE, BEHIND, "changes the mode of"),
    "binary": (CHANGE + BINARY, BEHIND, r"vllm/a\.bin"),
    "binary patch": (
        CHANGE + BINARY_PATCH,
        BEHIND,
        "its old bytes, git's id 1234567, are in no release",
    ),
    "deletion": (CHANGE + REMOVED, BEHIND, r"vllm/a\.py is not in 0\.20\.0"),
    "CRLF in one line": (
        CHANGE.replace(b"+        self.note_run(size)\n", b"+        self.note_run(size)\r\n"),
        r"\d+",
        "expected lines that end with LF",
    ),
    "CRLF in a line of an added module": (
        CHANGE + added("vllm/v1/notes.py").replace(b"+1 @@", b"+1,2 @@") + b"+b = 2\r\n",
        r"\d+",
        r"vllm/v1/notes\.py, found one that ends with CRLF",
    ),
    "CRLF for a whole file": (diff(PATH, BASE, WINDOWS), r"\d+", "found one that ends with CRLF"),
    "cut off": (CHANGE[:-3], LINES, "no(ne| newline).*get it again|found none"),
    "cut off in a hunk": (CHANGE[: CHANGE.rindex(b"\n", 0, -1) + 1], r"\d+", "shorter"),
    "byte-order mark": (BOM + CHANGE, 1, "byte-order mark"),
    "byte-order mark in a file": (diff(PATH, BASE, BOM + BASE), 7, "byte-order mark"),
    "two changes of one line": (TWICE, 1, "is of lines that the hunk at line"),
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
    "path with a backslash": (
        CHANGE + diff("vllm\\a.py", None, b"a\n"),
        BEHIND,
        "no module or data file",
    ),
    "no context and no ids": (BARE, 2, "no lines around its change.*with context, or with the ids"),
    "NUL": (CHANGE + b"\0\n", BEHIND, "NUL"),
    "a symbolic link": (CHANGE + LINK, BEHIND, r"makes a symbolic link of vllm/v1/notes\.py"),
    "a link that moves": (CHANGE + LINK_MOVED, BEHIND, "makes a symbolic link of"),
    "a submodule": (CHANGE + SUBMODULE, BEHIND, r"makes a submodule of vllm/v1/third\.py"),
    "a module that becomes a program": (EDIT_AND_MODE, 1, "the mode 100755, and a feature carries"),
    "a program that becomes a module": (
        EDIT_AND_MODE.replace(b"100755", b"1006444")
        .replace(b"old mode 100644", b"old mode 100755")
        .replace(b"1006444", b"100644"),
        1,
        "the mode 100644",
    ),
    "an added program": (CHANGE + with_mode(NEW, b"100755"), BEHIND, "the mode 100755"),
    "an added binary": (
        CHANGE
        + entry(
            "vllm/b.py", "new file mode 100644", "Binary files /dev/null and b/vllm/b.py differ"
        ),
        BEHIND,
        r"replaces the bytes of vllm/b\.py",
    ),
    "a combined diff": (CHANGE + COMBINED, r"\d+", r"shows no change of vllm/a\.py"),
    "a module added twice": (NEW + NEW, NEW.count(b"\n") + 1, "which .*:1 adds too"),
    "a module that is edited, then added": (CHANGE + added(PATH), BEHIND, "which .*:1 edits too"),
    "modules that differ in case": (
        added("vllm/v1/notes.py") + added("vllm/v1/Notes.py"),
        NEW.count(b"\n") + 1,
        "both are one file",
    ),
    "a module below a module": (
        CHANGE + added(f"{PATH}/a.py"),
        BEHIND,
        r"vllm/v1/runner\.py is a module",
    ),
    "in a folder of bytecode": (
        CHANGE + added("vllm/__pycache__/a.py"),
        BEHIND,
        "no module or data file",
    ),
    "a hidden module": (CHANGE + added("vllm/.a.py"), BEHIND, UNREAD),
    "in a hidden folder": (CHANGE + added("vllm/.git/a.py"), BEHIND, UNREAD),
    "in the overlay's own folder": (CHANGE + added("vllm/.vllm-overlay/a.py"), BEHIND, UNREAD),
    "in the folder of a switch": (CHANGE + added("vllm/.overlay-switch/a.py"), BEHIND, UNREAD),
    "in a tool's cache": (CHANGE + added("vllm/v1/.ruff_cache/a.py"), BEHIND, UNREAD),
    "in a backup's folder": (CHANGE + added("vllm/v1.bak/a.py"), BEHIND, UNREAD),
    "an added module that is not Python": (
        CHANGE + diff("vllm/v1/notes.py", None, b"((((\n"),
        BEHIND,
        r"vllm/v1/notes\.py does not compile: .*line 1",
    ),
    "an added module that no compiler takes": (
        CHANGE + diff("vllm/v1/notes.py", None, b"return 1\n"),
        BEHIND,
        "does not compile: .*outside function",
    ),
    "a result that no compiler takes": (
        diff(PATH, BASE, BASE.replace(b"import os\n", b"import os\nreturn os\n")),
        1,
        "does not compile: .*outside function",
    ),
    "of a package that the overlay does not know": (
        diff("vllm_omni/patch.py", b"a = 1\n", b"a = 2\n"),
        1,
        "of vLLM.*name its releases: --releases vllm-omni==VERSION",
    ),
    "of a package that the overlay does not know, with its tests": (
        diff("test/srt/test_ours.py", None, b"a = 1\n")
        + diff("python/sglang/csrc/ours.cuh", None, b"// a\n")
        + diff("python/sglang/srt/ours.py", None, b"a = 1\n"),
        15,
        "of vLLM.*found one of python/sglang/srt/ours.py.*--releases sglang==VERSION",
    ),
    "many files of another kind": (
        CHANGE + b"".join(diff(f"csrc/{name}.cu", b"a\n", b"b\n") for name in "abcdefgh"),
        BEHIND,
        r"csrc/a\.cu.*half a change.*7 further files: csrc/b\.cu, .* and 4 more",
    ),
    "not Python": (diff(PATH, BASE, BASE.replace(b"import os", b"import (")), 1, "not Python"),
}


def beside_the_cache(folder: Path) -> dict[str, str]:
    """What lies in a folder, but for what is remembered of texts that were read."""
    return {path: value for path, value in digest(folder).items() if not path.startswith("cache/")}


@pytest.mark.parametrize("name", CASES)
def test_it_is_said_in_one_sentence_with_file_and_line(cli: Cli, tmp_path: Path, name: str) -> None:
    data, line, words = CASES[name]
    change = tmp_path / "fix.diff"
    change.write_bytes(data)
    place = tmp_path / "ours"
    before = beside_the_cache(tmp_path)
    result = cli("import", change, "--id", "count-runs", "--patches", place)
    assert result.exit == 2, result.out + result.err
    errors = [text for text in result.err.splitlines() if text.startswith(("error: ", "       "))]
    pattern = rf"(error: |       ).*fix\.diff:{line}: .*({words})"
    assert any(re.match(pattern, text) for text in errors), result.err
    assert len(errors) == 1, errors
    assert beside_the_cache(tmp_path) == before
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


def test_a_module_that_becomes_a_link_is_refused(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(LINK_FOR_FILE)
    result = cli("import", change, "--id", "a", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert "makes a symbolic link of vllm/v1/notes.py" in result.err


@pytest.mark.parametrize("data", [EDIT_AND_MODE, CHANGE + with_mode(NEW, b"100755"), CHANGE + MODE])
def test_partial_leaves_modes_out_and_says_so(cli: Cli, tmp_path: Path, data: bytes) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(data)
    result = cli("import", change, "--id", "a", "--patches", tmp_path / "ours", "--partial")
    assert result.exit == 0, result.err
    assert "left out  1 modes of files" in result.out
    assert PATH in result.out


def test_a_program_that_stays_one_is_edited(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE.replace(b" 100644\n", b" 100755\n"))
    assert cli("import", change, "--id", "a", "--patches", tmp_path / "ours").exit == 0


def test_an_empty_module_is_added(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE + entry("vllm/v1/a/__init__.py", "new file mode 100644"))
    assert cli("import", change, "--id", "a", "--patches", tmp_path / "ours").exit == 0
    assert (tmp_path / "ours/a/files/vllm/v1/a/__init__.py").read_bytes() == b""


#: What a diff was made on, a text that no release has, and where the nearest differs.
MISFITS = {
    "one line of context": (
        BASE.replace(b"        return size\n", b"        return size  # in all\n"),
        r"line 13 is '        return size' and not '        return size  # in all'",
    ),
    "its indentation": (
        BASE.replace(b"        return size\n", b"       return size\n"),
        "only by its white space: it has '        return size' where the diff has '       return",
    ),
    "an older release": (
        b"class Other:\n    def other(self):\n        self.last_size = size\n",
        r"are not in 0\.20\.0\.\.0\.24\.0: if it was made on a release before 0\.20\.0",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_base_is_advised_only_where_a_checkout_may_help(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    before, words = MISFITS[name]
    after = before.replace(b"self.last_size = size", b"self.last_size = -size")
    change = tmp_path / "fix.diff"
    # As a hand or a tool other than git writes it: without the ids of blobs.
    change.write_bytes(diff(PATH, before, after, ids=False))
    result = cli("import", change, "--id", "a", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert re.search(words, result.err), result.err
    # Where no text is near, it may be that of upstream's main.
    assert ("--base" in result.err) is (name == "an older release")
    assert ("--release" in result.err) is (name != "its indentation")


def test_tabs_for_blanks_are_told(cli: Cli, tmp_path: Path) -> None:
    before = BASE.replace(b"    ", b"\t")
    change = tmp_path / "fix.diff"
    change.write_bytes(diff(PATH, before, before.replace(b"= size", b"= -size"), ids=False))
    result = cli("import", change, "--id", "a", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert "differs from the diff only by its white space" in result.err


def test_long_lines_are_told_apart() -> None:
    """Two that begin alike are shown from where they differ, not by their equal beginnings."""
    text = f"NAME = '{'long ' * 30}1'\nsize = 1\nrest = 2\n"
    other = text.replace("1'", "2'")
    data = diff("vllm/a.py", other.encode(), other.replace("size = 1", "size = 2").encode())
    ((file,),) = (each.files for each in read_changes(data.replace(b"index", b"x"), "x.diff"))
    texts = ReleaseTexts(("0.20.0",), lambda _: MemoryTree({"vllm/a.py": text.encode()}))
    told = why(file, texts, checkout=False, by_hand=str)
    assert re.search(r"line 1 is .\.\.\.[long ]+1'. and not .\.\.\.[long ]+2'.", told), told


def test_letters_of_another_encoding_are_told(tmp_path: Path) -> None:
    text = "NAME = 'Größe'\nsize = 1\n"
    data = diff("vllm/a.py", text.encode(), text.replace("1", "2").encode(), ids=False)
    ((file,),) = (each.files for each in read_changes(data.decode().encode("latin-1"), "x.diff"))
    texts = ReleaseTexts(("0.20.0",), lambda _: MemoryTree({"vllm/a.py": text.encode()}))
    assert "by its letters outside of ASCII" in why(file, texts, checkout=False, by_hand=str)


def test_a_release_of_the_cache_that_takes_it_is_named() -> None:
    trees = {"0.19.1": BASE, "0.20.0": b"a = 1\n"}
    ((file,),) = (each.files for each in read_changes(CHANGE, "x.diff"))
    texts = ReleaseTexts(
        ("0.20.0",), lambda name: MemoryTree({PATH: trees[name]}), lambda: ("0.19.1",)
    )
    assert "--releases 0.19.1" in why(file, texts, checkout=False, by_hand=str)


def test_a_change_that_each_release_has_is_called_that(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(diff(PATH, BASE.replace(b"[1, 2, 4]", b"[8]"), BASE, ids=False))
    result = cli("import", change, "--id", "a", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert "reads as this change leaves it: the release has the change" in result.err
    assert "--base" not in result.err


def test_all_that_could_not_be_placed_is_counted(cli: Cli, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.diff" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(diff(f"vllm/v1/no{number}.py", b"a = 1\n", b"a = 2\n"))
    words = ("--each", "--id", "a", "--patches", tmp_path / "ours")
    result = cli("import", *files, *words)
    assert result.exit == 2
    assert result.last == "Nothing was written: 3 files could not be placed."


def typed(cli: Cli, told: str) -> int:
    """The exit code of the command that an answer names for a person."""
    (words,) = re.findall(r"`overlay (import [^`]*)`", told)
    return int(cli(*shlex.split(words)).exit)


#: A change that no text is near to.
NOWHERE = diff(PATH, b"one = 1\ntwo = 2\n", b"one = 1\ntwo = 3\n", ids=False)


@pytest.mark.parametrize("more", [(), ("--strip", "1"), ("--partial", "--releases", "0.20.0")])
def test_the_command_that_places_it_by_hand_works_as_it_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    second = tmp_path / "second.diff"
    second.write_bytes(NEW)
    outside = diff("csrc/a.cu", b"a\n", b"b\n") if "--partial" in more else b""
    (tmp_path / "fix.diff").write_bytes(NOWHERE + outside)
    words = ("import", tmp_path / "fix.diff", second, "--id", "a", "--patches", tmp_path / "ours")
    told = cli(*words, *more)
    assert told.exit == 2
    assert typed(cli, told.err) == 1
    assert list(Path().glob("port-*/.import/a/files/vllm/v1/notes.py"))


def test_one_of_many_mails_is_placed_by_hand_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mails = [
        b"From %040d Mon Sep 17 00:00:00 2001\nSubject: %s\n\n---\n%s\n" % (0, name, data)
        for name, data in ((b"One", CHANGE), (b"Two", NOWHERE))
    ]
    (tmp_path / "x.mbox").write_bytes(b"".join(mails))
    words = ("import", tmp_path / "x.mbox", "--id", "a", "--patches", tmp_path / "ours", "--each")
    told = cli(*words)
    assert told.exit == 2
    assert "save it as a-02-two.patch, then" in told.err
    Path("a-02-two.patch").write_bytes(mails[1])
    assert typed(cli, told.err) == 1
    ours = ("--patches", tmp_path / "ours")
    (session,) = Path().glob("port-*")
    folder = next((session / "a-02-two").glob("*/vllm/v1")) / Path(PATH).name
    text = folder.read_bytes().partition(b"<<<<<<<")[0] + b"two = 3\n"
    folder.write_bytes(text)
    assert cli("port", "--continue", *ours).exit == 0
    assert "then this command takes the others" in told.err
    again = cli(*words)
    assert again.exit == 0, again.out + again.err
    assert "a-02-two, placed by hand before" in again.out
    assert again.last == "Wrote 1 feature: a-01-one."
    told = cli(*words)
    assert (told.exit, "found one" in told.err) == (2, True)


def test_a_change_on_top_of_a_feature_with_a_later_id_is_told_to_come_behind(
    cli: Cli, tmp_path: Path
) -> None:
    patched = BASE.replace(b"[1, 2, 4]", b"[1, 2, 4, 8]")
    further = patched.replace(b"[1, 2, 4, 8]", b"[1, 2, 4, 8, 16]")
    for name, change in {"one": (BASE, patched), "two": (patched, further)}.items():
        (tmp_path / f"{name}.diff").write_bytes(diff(PATH, *change, ids=False))
    ours = ("--patches", tmp_path / "ours")
    assert cli("import", tmp_path / "one.diff", "--id", "m", *ours).exit == 0
    told = cli("import", tmp_path / "two.diff", "--id", "b", *ours)
    assert told.exit == 2
    assert "b comes before m in the order of ids" in told.err
    (id_,) = re.findall(r"such as --id (\S+)", told.err)
    placed = cli("import", tmp_path / "two.diff", "--id", id_, *ours)
    assert placed.exit == 0, placed.err
    assert "on top of m" in placed.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strip", "3"), "by --strip 3, found runner.py: leave the option out"),
        (("--directory", "/etc"), "by --directory /etc, found etc/vllm/v1/runner.py"),
    ],
)
def test_options_that_lead_out_of_the_package_are_named(
    cli: Cli, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    (tmp_path / "fix.diff").write_bytes(CHANGE)
    told = cli(
        "import", tmp_path / "fix.diff", "--id", "a", "--patches", tmp_path / "ours", *options
    )
    assert told.exit == 2
    assert words in told.err


@pytest.mark.parametrize("data", [LINK, SUBMODULE])
def test_partial_is_not_advised_where_nothing_else_is_there(
    cli: Cli, tmp_path: Path, data: bytes
) -> None:
    for change, advised in ((data, False), (data + CHANGE, True)):
        (tmp_path / "fix.diff").write_bytes(change)
        told = cli("import", tmp_path / "fix.diff", "--id", "a", "--patches", tmp_path / "ours")
        assert told.exit == 2
        assert ("--partial" in told.err) is advised


def test_new_lines_of_another_encoding_are_told(cli: Cli, tmp_path: Path) -> None:
    text = BASE.replace(b"[1, 2, 4]", "[1, 2]  # Größe".encode())
    data = diff(PATH, BASE, text, ids=False).decode().encode("latin-1")
    (tmp_path / "fix.diff").write_bytes(data)
    told = cli("import", tmp_path / "fix.diff", "--id", "a", "--patches", tmp_path / "ours")
    assert told.exit == 2
    assert "is not UTF-8: it was saved in another encoding" in told.err
