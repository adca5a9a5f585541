"""A foreign change becomes a feature: bases, ranges, what is left out, what is refused."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import blob_id
from overlay.authoring.importing import Prepared, prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.writing import write_folder
from overlay.errors import UsageError
from overlay.planning.planner import plan
from overlay.results import Outcome, State

PATH = "vllm/v1/runner.py"
BASE = b"""\
import os


class Runner:
    def capture(self):
        sizes = [1, 2, 4]
        for size in sizes:
            self.run_graph(size)
        return sizes

    def run_graph(self, size):
        self.last_size = size
        return size
"""
PATCHED = BASE.replace(
    b"        self.last_size = size\n",
    b"        self.last_size = size\n"
    b"        self.count_of_runs += 1\n        self.note_run(size)\n",
)
OLDER = BASE.replace(b"        self.last_size = size\n", b"        self.size_of_last = size\n")
LATER = PATCHED.replace(b"import os\n", b"import os\nimport sys\n")
REWORKED = b"class Runner:\n    pass\n"
#: Release -> the file's text there: older, the base, with the change, and reworked since.
RELEASES = {"0.20.0": OLDER, "0.21.0": BASE, "0.22.0": BASE, "0.23.0": LATER, "0.24.0": REWORKED}
NAMES = tuple(RELEASES)


class Tree:
    """One release."""

    def __init__(self, release: str) -> None:
        self.release = release

    def read(self, path: str) -> bytes | None:
        return RELEASES[self.release] if path == PATH else None


def diff(path: str, before: bytes | None, after: bytes, *, ids: bool = True) -> bytes:
    """The diff that git would write."""
    old = (before or b"").decode().splitlines(keepends=True)
    new = after.decode().splitlines(keepends=True)
    sides = ("/dev/null" if before is None else f"a/{path}", f"b/{path}")
    head = [f"diff --git a/{path} b/{path}\n"]
    if before is None:
        head += ["new file mode 100644\n", f"index 0000000..{blob_id(after)[:9]}\n"]
    elif ids:
        head.append(f"index {blob_id(before)[:9]}..{blob_id(after)[:9]} 100644\n")
    return "".join([*head, *difflib.unified_diff(old, new, *sides)]).encode()


def imported(data: bytes, names: tuple[str, ...] = NAMES, *, partial: bool = False) -> Prepared:
    return prepare(
        read_changes(data, "x.diff"),
        "count-runs",
        ReleaseTexts(names, Tree),
        source="x.diff",
        verbatim=data,
        today="2026-11-22",
        partial=partial,
    )


CHANGE = diff(PATH, BASE, PATCHED)
RENAME = b"diff --git a/vllm/a.py b/vllm/b.py\ncopy from vllm/a.py\ncopy to vllm/b.py\n"
MODE = b"diff --git a/vllm/a.py b/vllm/a.py\nold mode 100644\nnew mode 100755\n"


def test_the_change_serves_the_releases_on_which_it_lands() -> None:
    summary = imported(CHANGE).summary
    assert str(summary.releases) == "0.21.0..0.22.0"
    assert summary.merged == "0.23.0"
    assert summary.outcomes == {
        "0.20.0": Outcome.CONFLICT,
        "0.21.0": Outcome.EXACT,
        "0.22.0": Outcome.EXACT,
        "0.23.0": Outcome.UPSTREAM,
        "0.24.0": Outcome.UPSTREAM,
    }


@pytest.mark.parametrize("ids", [True, False])
def test_what_is_written_makes_the_change_byte_for_byte(tmp_path: Path, ids: bool) -> None:
    prepared = imported(diff(PATH, BASE, PATCHED, ids=ids))
    assert prepared.folder is not None
    write_folder(prepared.folder, tmp_path)
    (feature,) = load([tmp_path])
    for release, text in RELEASES.items():
        if release == "0.20.0":
            continue
        result = plan([feature], Tree(release), Version(release))
        if text == BASE:
            assert result.features[0].state is State.PRISTINE
            assert [change.after for change in result.changes] == [PATCHED]
        else:
            assert result.features[0].state is State.UPSTREAMED
    assert (tmp_path / "count-runs/origin/01.patch").read_bytes().startswith(b"diff --git")


def test_the_lines_tell_upstream_without_memory() -> None:
    prepared = imported(CHANGE)
    assert prepared.folder is not None
    (test,) = prepared.folder.text.tests
    assert (test.path, test.scope) == (PATH, "Runner.run_graph")
    assert test.lines == ("self.count_of_runs += 1", "self.note_run(size)")


def test_tests_and_documents_are_left_out_and_counted() -> None:
    data = CHANGE + diff("tests/test_a.py", None, b"a = 1\n") + diff("docs/a.md", b"a\n", b"b\n")
    prepared = imported(data)
    fates = [file.fate.name for file in prepared.summary.files]
    assert (fates.count("TESTS"), fates.count("DOCS")) == (1, 1)
    assert prepared.folder is not None
    assert [name for name in prepared.folder.files if name.endswith("/0.21.0..0.22.0.patch")]


def test_an_added_module_goes_to_files() -> None:
    prepared = imported(CHANGE + diff("vllm/v1/notes.py", None, b"def note():\n    return 1\n"))
    assert prepared.folder is not None
    assert prepared.folder.files["files/vllm/v1/notes.py"] == b"def note():\n    return 1\n"


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (diff("csrc/a.cu", b"a\n", b"b\n"), "half a change"),
        (
            b"diff --git a/vllm/a.py b/vllm/b.py\ncopy from vllm/a.py\ncopy to vllm/b.py\n",
            "from",
        ),
        (b"diff --git a/vllm/a.py b/vllm/a.py\nold mode 100644\nnew mode 100755\n", "mode"),
    ],
)
def test_what_no_feature_can_carry_is_refused_by_line(extra: bytes, word: str) -> None:
    line = CHANGE.count(b"\n") + 1
    with pytest.raises(UsageError, match=rf"x\.diff:{line}: .*{word}"):
        imported(CHANGE + extra)


def test_half_a_change_is_taken_where_it_is_asked_for() -> None:
    assert imported(CHANGE + diff("csrc/a.cu", b"a\n", b"b\n"), partial=True).folder is not None


def test_the_text_of_a_change_between_releases_is_that_of_the_first_with_it_before_it() -> None:
    prepared = imported(diff(PATH, BASE.replace(b"[1, 2, 4]", b"[8]"), PATCHED))
    (file,) = prepared.summary.files
    assert file.made_on == "0.23.0 without it"
    assert prepared.summary.review == ("0.22.0",)
    assert prepared.folder is not None
    patch = prepared.folder.files["10-runner/0.22.0..0.22.0.patch"]
    assert b"Ported-From: 0.23.0 without it merged\n" in patch
    assert b"[1, 2, 4]" not in patch, "the release has that part"


@pytest.mark.parametrize("path", ["megatron/core/utils.py", "cutlass/base_dsl/dsl.py"])
def test_a_change_of_a_namespace_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(UsageError, match="as a namespace, and a feature patches a package of its"):
        imported(diff(path, b"a = 1\n", b"a = 2\n"))


def test_packaging_is_left_out_and_named() -> None:
    extra = diff("requirements/cuda.txt", b"a\n", b"b\n") + diff("setup.py", b"a\n", b"b\n")
    prepared = imported(CHANGE + extra)
    assert prepared.folder is not None
    (warning,) = prepared.summary.warnings
    assert warning.startswith("requirements/cuda.txt and setup.py left out: ")
    with pytest.raises(UsageError, match=r"CMakeLists\.txt.*half a change"):
        imported(CHANGE + diff("CMakeLists.txt", b"a\n", b"b\n"))


def test_a_base_that_no_release_has_is_named() -> None:
    after = PATCHED.replace(b"[1, 2, 4]", b"[9]")
    prepared = imported(diff(PATH, BASE.replace(b"[1, 2, 4]", b"[8]"), after))
    assert prepared.folder is None
    (problem,) = prepared.summary.problems
    assert "x.diff:1: " in (problem.problem or "")
    assert "--base" in (problem.problem or "")


def test_mails_and_their_sum_make_the_same_feature() -> None:
    between = BASE.replace(b"[1, 2, 4]", b"[1, 2, 4, 8]")
    after = PATCHED.replace(b"[1, 2, 4]", b"[1, 2, 4, 8]")
    mail = b"From %s Mon Sep 17 00:00:00 2001\nSubject: [PATCH] A change\n\n---\n\n"
    mails = mail % (b"1" * 40) + diff(PATH, BASE, between) + b"-- \n2.39\n\n"
    mails += mail % (b"2" * 40) + diff(PATH, between, after) + b"-- \n2.39\n\n"
    series, whole = imported(mails).folder, imported(diff(PATH, BASE, after)).folder
    assert series is not None
    assert whole is not None

    def hunks(files: dict[str, bytes]) -> dict[str, bytes]:
        patches = {name: data for name, data in files.items() if "origin" not in name}
        return {name: data[data.find(b"--- a/") :] for name, data in patches.items()}

    assert hunks(dict(series.files)) == hunks(dict(whole.files))


def test_an_id_that_exists_is_refused_unless_it_is_replaced(tmp_path: Path) -> None:
    folder = imported(CHANGE).folder
    assert folder is not None
    write_folder(folder, tmp_path)
    with pytest.raises(UsageError, match="--update"):
        write_folder(folder, tmp_path)
    write_folder(folder, tmp_path, update=True)
    assert [path.name for path in tmp_path.iterdir()] == ["count-runs"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts down at each rename; the one that reaches zero fails."""
    left = [-1]
    real = os.replace

    def replace(source: object, destination: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        real(source, destination)  # type: ignore[arg-type]  # whatever is passed

    monkeypatch.setattr(os, "replace", replace)
    return left


@pytest.mark.parametrize("failing", [1, 2])
def test_a_write_that_fails_leaves_the_folder_as_it_was(
    tmp_path: Path, calls: list[int], failing: int
) -> None:
    folder = imported(CHANGE).folder
    assert folder is not None
    write_folder(folder, tmp_path)
    (tmp_path / "count-runs/README.md").write_text("old\n")
    before = snapshot(tmp_path)
    calls[0] = failing
    with pytest.raises(OSError, match="No space"):
        write_folder(folder, tmp_path, update=True)
    assert snapshot(tmp_path) == before
