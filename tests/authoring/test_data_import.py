"""The import of data files, binary files, removals and renames: git makes the diffs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.authoring.importing import Prepared, prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.writing import check_folder
from overlay.errors import UsageError
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from tests.support.patches import MemoryTree

pytestmark = pytest.mark.slow  # git makes the diffs

RELEASE = "0.26.0"
INIT = "vllm/__init__.py"
MODULE = b"".join(b"A%d = %d\n" % (number, number) for number in range(9))
JSON = b'{\n  "block": 16,\n  "stages": 2\n}\n'
BEFORE = {
    INIT: b"",
    "vllm/old.py": MODULE,
    "vllm/h100.json": JSON,
    "vllm/a.co": bytes(range(256)) * 4,
    "vllm/crlf.json": b"{\r\n}\r\n",
}


def git_diff(
    place: Path, before: Mapping[str, bytes], after: Mapping[str, bytes], *more: str
) -> bytes:
    """What git says of a change of files."""
    for name, files in (("a", before), ("b", after)):
        for path, data in files.items():
            file = place / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    command = ["git", "diff", "--no-index", "--binary", "--no-prefix", *more, "a", "b"]
    return subprocess.run(command, cwd=place, check=False, stdout=subprocess.PIPE).stdout


def imported(data: bytes, *releases: Mapping[str, bytes]) -> Prepared:
    """The feature of a change; the first release is the one that it was made on."""
    names = [f"0.{26 + number}.0" for number in range(len(releases))]
    trees = {name: MemoryTree(dict(files)) for name, files in zip(names, releases, strict=True)}
    return prepare(
        read_changes(data, "x.diff"),
        "change",
        ReleaseTexts(names, trees.__getitem__),
        source="x.diff",
        verbatim=data,
        today="2026-11-26",
    )


def applied(made: Prepared, before: Mapping[str, bytes]) -> dict[str, bytes]:
    """What applying makes of the files."""
    assert made.folder is not None, made.summary
    answer = plan([check_folder(made.folder)], MemoryTree(before), Version(RELEASE))
    assert answer.state is State.PRISTINE, answer
    after = {**before, **{change.path: change.after for change in answer.changes}}
    return {path: data for path, data in after.items() if data is not None}


CHANGES: dict[str, dict[str, bytes | None]] = {
    "a JSON file": {"vllm/h100.json": JSON.replace(b"16", b"32")},
    "a template": {"vllm/new/chat.jinja": b"{{ x }}\n"},
    "an added binary": {"vllm/new/b.co": b"\0\1\2"},
    "a small change of a binary, said as a delta": {"vllm/a.co": BEFORE["vllm/a.co"] + b"\0"},
    "another binary": {"vllm/a.co": b"\0" * 50},
    "a removed module": {"vllm/old.py": None},
    "a removed binary": {"vllm/a.co": None},
    "a removed empty file": {INIT: None},
    "a renamed module": {"vllm/old.py": None, "vllm/new.py": MODULE},
    "a renamed and edited one": {
        "vllm/old.py": None,
        "vllm/new.py": MODULE.replace(b"A3 = 3", b"A3 = 4"),
    },
    "a renamed binary": {"vllm/a.co": None, "vllm/b.co": BEFORE["vllm/a.co"]},
    "a renamed and edited binary": {
        "vllm/a.co": None,
        "vllm/b.co": BEFORE["vllm/a.co"] + b"\0",
    },
    "an added empty file": {"vllm/py.typed": b"", "vllm/new/__init__.py": b""},
    "an added file of CRLF without an end": {"vllm/new.py": b"A = 1\r\nB = 2"},
    "an added file that ends with half of one": {"vllm/new.json": b"{\r\n}\r"},
    "an edited file of CRLF that loses its end": {"vllm/crlf.json": b"{\r\n}"},
    "all of it": {"vllm/old.py": None, "vllm/h100.json": b"{}\n", "vllm/a.co": b"\0"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_import_of_a_change_makes_it(name: str, tmp_path: Path) -> None:
    after = {path: data for path, data in {**BEFORE, **CHANGES[name]}.items() if data is not None}
    diff = git_diff(tmp_path, BEFORE, after, "-M")
    assert applied(imported(diff, BEFORE), BEFORE) == after


def test_a_module_that_leaves_the_package_is_removed(tmp_path: Path) -> None:
    gone = {path: data for path, data in BEFORE.items() if path != "vllm/old.py"}
    diff = git_diff(tmp_path, BEFORE, {**gone, "tests/old.py": MODULE}, "-M")
    assert b"rename to" in diff
    assert applied(imported(diff, BEFORE), BEFORE) == gone


texts = st.lists(st.sampled_from(["a", "b", "  c", "", "é"]), max_size=5).map("\n".join)
datas = st.one_of(texts.map(str.encode), texts.map(lambda text: f"{text}\n".encode()), st.binary())
trees = st.dictionaries(
    st.sampled_from([f"vllm/{n}" for n in ("a.json", "b.co", "c/d.txt")]), datas
)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=20)
@given(before=trees, after=trees)
def test_what_git_says_of_data_files_is_imported_or_refused(
    before: dict[str, bytes], after: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if before == after:
        return
    before, after = {INIT: b"", **before}, {INIT: b"", **after}
    diff = git_diff(tmp_path_factory.mktemp("git"), before, after)
    try:
        made = imported(diff, before)
    except UsageError as error:
        # Line ends and modes are refused with the reason, as those of modules are.
        refusal = str(error)
        assert "line ends" in refusal or "byte-order mark" in refusal or "NUL" in refusal, refusal
        return
    if made.folder is not None:
        assert applied(made, before) == after


def test_a_removal_and_a_binary_land_on_the_same_text_or_conflict(tmp_path: Path) -> None:
    later = {**BEFORE, "vllm/old.py": MODULE + b"B = 1\n"}
    gone = {path: data for path, data in BEFORE.items() if path != "vllm/old.py"}
    diff = git_diff(tmp_path, BEFORE, gone)
    made = imported(diff, BEFORE, later, gone)
    assert list(made.summary.outcomes.values()) == [
        Outcome.EXACT,
        Outcome.CONFLICT,
        Outcome.UPSTREAM,
    ]
    assert str(made.summary.releases) == "0.26.0..0.26.0"
    assert made.folder is not None
    feature = check_folder(made.folder)
    files = {"0.26.0": BEFORE, "0.25.0": BEFORE, "0.27.0": later, "0.28.0": gone}
    porter = Porter(ReleaseTexts(sorted(files), lambda name: MemoryTree(files[name])))
    ports = {name: porter.port(feature, name) for name in sorted(files)}
    assert ports["0.25.0"].topics[0].new_hunks == feature.topics[0].variants[0].patch.hunks
    assert [hunk.outcome for hunk in ports["0.27.0"].topics[0].hunks] == [Outcome.CONFLICT]
    assert ports["0.28.0"].evidence  # the release has no such file


def test_a_data_hunk_merges_like_text(tmp_path: Path) -> None:
    lines = [f'  "k{number}": {number},' for number in range(9)]
    before = {**BEFORE, "vllm/h100.json": "\n".join(["{", *lines, "}", ""]).encode()}
    after = {**before, "vllm/h100.json": before["vllm/h100.json"].replace(b'"k4": 4', b'"k4": 44')}
    later = {**before, "vllm/h100.json": before["vllm/h100.json"].replace(b'"k3": 3', b'"k3": 33')}
    made = imported(git_diff(tmp_path, before, after), before)
    assert made.folder is not None
    feature = check_folder(made.folder)
    files = {"0.26.0": before, "0.27.0": later}
    porter = Porter(ReleaseTexts(sorted(files), lambda name: MemoryTree(files[name])))
    port = porter.port(feature, "0.27.0").topics[0]
    assert port.after is not None
    assert b'"k3": 33' in port.after or port.conflicts


@pytest.mark.parametrize(
    ("diff", "problem"),
    [
        (
            (
                "diff --git a/vllm/a.co b/vllm/a.co\nindex 1111111..2222222 100644\n"
                "Binary files a/vllm/a.co and b/vllm/a.co differ\n"
            ),
            "does not hold them: make the diff with git diff --binary",
        ),
        (
            (
                "diff --git a/vllm/a.co b/vllm/a.co\nindex 1111111..2222222 100644\n"
                "GIT binary patch\nliteral 99999999\nHcmV?d00001\n\n"
            ),
            "x.diff:4: expected a file of at most",
        ),
        (
            (
                "--- /dev/null\n+++ b/vllm/a.so\n@@ -0,0 +1 @@\n+x\n--- a/vllm/old.py\n"
                "+++ b/vllm/old.py\n@@ -1 +1 @@\n-A0 = 0\n+A0 = 1\n"
            ),
            "vllm/a.so, which is no module or data file",
        ),
        (
            (
                "diff --git a/vllm/l.json b/vllm/l.json\nnew file mode 120000\n--- /dev/null\n"
                "+++ b/vllm/l.json\n@@ -0,0 +1 @@\n+old.py\n\\ No newline at end of file\n"
            ),
            "makes a symbolic link of vllm/l.json",
        ),
        (
            (
                "--- /dev/null\n+++ b/vllm/x.json\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n"
                "+++ b/vllm/X.json\n@@ -0,0 +1 @@\n+x\n"
            ),
            "where file names have no case",
        ),
        (
            "--- a/vllm/old.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-A0 = 0\n-A1 = 1\n",
            "shows a part of its lines only",
        ),
        (
            "diff --git a/vllm/a.co b/vllm/a.co\nold mode 100644\nnew mode 100755\n",
            "carries texts, no modes: `chmod`",
        ),
        (
            (
                "diff --git a/vllm/a.co b/vllm/b.co\nsimilarity index 90%\n"
                "rename from vllm/a.co\nrename to vllm/b.co\nindex 1111111..2222222 100644\n"
                "Binary files a/vllm/a.co and b/vllm/b.co differ\n"
            ),
            "does not hold them: make the diff with git diff --binary",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_with_the_reason(diff: str, problem: str) -> None:
    try:
        refusal = str(imported(diff.encode(), BEFORE).summary.problems)
    except UsageError as error:
        refusal = str(error)
    assert problem in refusal
