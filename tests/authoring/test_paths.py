"""Whatever precedes the package in the paths of a diff is found, and the same feature is made."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.authoring.incoming import ChangeKind, Commit, IncomingFile, read_changes
from overlay.authoring.locating import ReleaseTexts, replay
from overlay.authoring.paths import BY_RELEASES, PathRule, packages_in, path_of, place
from overlay.authoring.triage import added_content
from overlay.errors import UsageError
from overlay.package import VLLM, Package, package_named

BEFORE = b"".join(b"line_%d = %d\n" % (n, n) for n in range(40))
AFTER = BEFORE.replace(b"line_7 = 7\n", b"line_7 = 8\n").replace(b"line_30 = 30\n", b"more = 1\n")
NEW = b"ours = 1\n"
SGLANG = package_named("sglang")
ASCEND = package_named("vllm_ascend")


@dataclass(frozen=True)
class Files:
    """A release of a few files, which can tell them."""

    files: dict[str, bytes]

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def paths(self) -> tuple[str, ...]:
        return tuple(self.files)


def texts(package: Package = VLLM, more: dict[str, bytes] | None = None) -> ReleaseTexts:
    name = package.name
    files = {
        f"{name}/__init__.py": b"",
        f"{name}/utils/__init__.py": b"a = 1\n",
        f"{name}/utils/maths.py": BEFORE,
        f"{name}/{name}/deep.py": b"",
        f"{name}/benchmarks/run.py": b"started = True\n",
        **(more or {}),
    }
    return ReleaseTexts(("0.20.0",), lambda _: Files(files))


def part(old: str, new: str, before: bytes | None, after: bytes, dates: tuple[str, str]) -> str:
    """A file of a diff, as `diff -u` and git write it."""
    lines = [(text or b"").decode().splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(*lines, old, new, *dates))


def change(
    old: str, new: str, *, added: bool = True, dates: tuple[str, str] = ("", "")
) -> list[Commit]:
    """An edit of utils/maths.py and a new utils/ours.py, below two prefixes."""
    data = part(f"{old}utils/maths.py", f"{new}utils/maths.py", BEFORE, AFTER, dates)
    if added:
        data += part("/dev/null", f"{new}utils/ours.py", None, NEW, dates)
    return list(read_changes(data.encode(), "c.diff"))


def placed(
    commits: list[Commit], package: Package = VLLM, rule: PathRule = BY_RELEASES
) -> list[str]:
    result = place(commits, package, texts(package), rule)
    return [file.path for commit in result.commits for file in commit.files]


HERE = ["vllm/utils/maths.py", "vllm/utils/ours.py"]
NAMES = st.text("abcxyz0189._-", min_size=1, max_size=9).filter(
    lambda name: name.strip(".") and name not in ("vllm", "utils", "vllm_ascend")
)
FOLDERS = st.lists(NAMES, max_size=6).map(lambda names: "".join(f"{name}/" for name in names))
COPIES = (
    "vllm.orig",
    "vllm-0.27.1",
    "vllm~",
    "vllm_old",
    "vllm.2026-01-01",
    "vllm-orig",
    "vllm_bak",
)


@given(FOLDERS, FOLDERS, st.sampled_from(["", "a/", "1/", "./", "/"]))
def test_whatever_precedes_the_package_is_cut_off(old: str, new: str, first: str) -> None:
    assert placed(change(f"{first}{old}vllm/", f"{first}{new}vllm/")) == HERE


@given(FOLDERS, st.sampled_from(COPIES), st.booleans())
def test_a_copy_of_the_package_is_the_package(folders: str, copy: str, new: bool) -> None:
    sides = [f"{folders}{copy}/", f"{folders}vllm/"]
    assert placed(change(*(reversed(sides) if new else sides))) == HERE
    assert placed(change(f"{folders}{copy}/", f"{folders}{copy}.b/")) == HERE


@given(st.sampled_from(["", "a/", "old/", "1/", "x/y/"]), st.sampled_from(["", "b/", "new/", "2/"]))
def test_paths_inside_the_package_are_put_below_it(old: str, new: str) -> None:
    assert placed(change(old, new)) == HERE


@pytest.mark.parametrize("package", [SGLANG, package_named("transformers"), ASCEND])
@pytest.mark.parametrize("root", ["python", "src", "usr/lib/python3.12/site-packages", "."])
def test_other_packages_lie_in_folders_of_their_own(package: Package, root: str) -> None:
    name = package.name
    found = placed(change(f"a/{root}/{name}/", f"b/{root}/{name}/"), package)
    assert found == [f"{name}/utils/maths.py", f"{name}/utils/ours.py"]


def test_a_checkout_in_a_folder_of_the_packages_name() -> None:
    assert placed(change("vllm/vllm/", "vllm/vllm/")) == HERE
    assert placed(change("opt/vllm/lib/site-packages/vllm/", "vllm/")) == HERE


@pytest.mark.parametrize("ending", [".orig", "~", ".mine", ".rej.bak"])
def test_the_copy_of_a_file_is_the_file(ending: str) -> None:
    for folder in ("", "vllm/utils/", "/tmp/x/"):
        for sides in ((ending, ""), ("", ending)):
            old, new = (f"{folder}maths.py{end}" for end in sides)
            data = part(old, new, BEFORE, AFTER, ("", ""))
            assert placed(list(read_changes(data.encode(), "c.diff"))) == HERE[:1]


def test_files_beside_the_package_stay_beside_it() -> None:
    commits = change("src/python/vllm/", "src/python/vllm/")
    more = part("a/src/tests/run.py", "b/src/tests/run.py", b"a = 1\n", b"a = 2\n", ("", ""))
    more += part("a/benchmarks/run.py", "b/benchmarks/run.py", b"b = 1\n", b"b = 2\n", ("", ""))
    found = placed([*commits, *read_changes(more.encode(), "m.diff")])
    assert found[2:] == ["src/tests/run.py", "benchmarks/run.py"]


def test_a_tool_beside_the_package_is_not_a_module_of_that_name() -> None:
    data = part("a/benchmarks/run.py", "b/benchmarks/run.py", b"b = 1\n", b"b = 2\n", ("", ""))
    assert placed(list(read_changes(data.encode(), "c.diff"))) == ["benchmarks/run.py"]


def test_a_name_that_is_several_files_is_asked_about() -> None:
    more = {"vllm/v1/maths.py": BEFORE}
    commits = read_changes(part("maths.py", "maths.py", BEFORE, AFTER, ("", "")).encode(), "c.diff")
    with pytest.raises(UsageError, match=r"c\.diff:2: .*vllm/utils/maths\.py or .*--directory"):
        place(commits, VLLM, texts(more=more))
    result = place(commits, VLLM, texts(more=more), PathRule(None, "vllm/v1"))
    assert result.commits[0].files[0].path == "vllm/v1/maths.py"


@given(st.lists(NAMES, min_size=1, max_size=4), st.integers(0, 5))
def test_strip_cuts_as_patch_does(folders: list[str], number: int) -> None:
    name = "/".join([*folders, "maths.py"])
    commits = read_changes(part(name, name, BEFORE, AFTER, ("", "")).encode(), "c.diff")
    rule = PathRule(number, "vllm/utils/")
    if number > len(folders):
        with pytest.raises(UsageError, match=f"more than {number} folders"):
            place(commits, VLLM, texts(), rule)
        return
    path = place(commits, VLLM, texts(), rule).commits[0].files[0].path
    assert path == "/".join(["vllm/utils", *folders[number:], "maths.py"])


def test_what_is_inside_another_package_is_not_of_it() -> None:
    assert path_of("a/vllm/plugins/vllm_ascend/x.py", ASCEND) is None
    assert path_of("a/vllm/plugins/vllm_ascend/x.py", VLLM) == "vllm/plugins/vllm_ascend/x.py"
    assert packages_in(["vllm_ascend/a.py", "b/vllm/x.py"]) == (VLLM, ASCEND)
    assert packages_in(["README.md"]) == ()


# New files, names and numbers, as git apply and patch know them

EPOCHS = [
    "1970-01-01 00:00:00.000000000 +0000",
    "1970-01-01 02:00:00.000000000 +0200",
    "1969-12-31 16:00:00.000000000 -0800",
]


def only(data: str) -> IncomingFile:
    ((file,),) = (
        commit.files
        for commit in place(read_changes(data.encode(), "c.diff"), VLLM, texts()).commits
    )
    return file


@pytest.mark.parametrize("date", EPOCHS)
def test_a_file_of_the_epoch_is_not_there(date: str) -> None:
    dates = (date, "2026-08-18 17:39:50.533320659 +0200")
    new = only(part("vllm.orig/utils/ours.py", "vllm/utils/ours.py", None, NEW, dates))
    assert (new.kind, new.path, new.old_path) == (ChangeKind.ADDED, "vllm/utils/ours.py", None)
    assert added_content(new) == NEW
    lines = part("vllm.orig/utils/maths.py", "vllm/utils/maths.py", BEFORE, b"", dates[::-1])
    assert only(lines).kind is ChangeKind.REMOVED


@pytest.mark.parametrize(
    "date", ["1970-01-01 05:00:00.000000000 +0200", "2026-01-01 00:00:00 +0000"]
)
def test_another_date_says_nothing(date: str) -> None:
    there = part("a/vllm/utils/maths.py", "b/vllm/utils/maths.py", None, NEW, (date, ""))
    assert only(there).kind is ChangeKind.MODIFIED


def test_a_hunk_of_no_lines_adds_a_file_that_no_release_has() -> None:
    assert (
        only(part("a/vllm/ours.py", "b/vllm/ours.py", None, NEW, ("", ""))).kind is ChangeKind.ADDED
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", ["git", "patch"])
@pytest.mark.parametrize("shape", ["created", "epoch", "quoted", "swapped", "number", "dirs"])
def test_git_and_patch_make_the_same_bytes(tmp_path: Path, program: str, shape: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    strip, data, path = _shape(shape)
    for folder in ("vllm", "vllm.orig"):
        (tmp_path / folder / "utils").mkdir(parents=True)
        (tmp_path / folder / "utils" / "maths.py").write_bytes(BEFORE)
    (tmp_path / "c.diff").write_text(data)
    words = {
        "git": ["git", "apply", f"-p{strip}", "c.diff"],
        "patch": ["patch", f"-p{strip}", "--no-backup-if-mismatch", "-i", "c.diff"],
    }
    if (program, shape) in {("patch", "swapped")}:
        return  # patch takes hunks in the order of the file only
    subprocess.run(words[program], cwd=tmp_path, check=True, capture_output=True)
    file = only(data)
    assert file.path == path
    content = added_content(file) if file.kind is ChangeKind.ADDED else replay(BEFORE, file.hunks)
    assert content == (tmp_path / path).read_bytes()


def _shape(shape: str) -> tuple[int, str, str]:
    """Folders to strip, a diff, and the path of its file."""
    maths = "vllm/utils/maths.py"
    edit = part(f"a/{maths}", f"b/{maths}", BEFORE, AFTER, ("", ""))
    head, first, second = edit.split("@@ -")[0], *("@@ -" + h for h in edit.split("@@ -")[1:])
    if shape == "swapped":
        return 1, head + second + first, maths
    if shape == "number":
        return 1, head + first.replace("@@ -5,", "@@ -25,").replace("+5,", "+25,") + second, maths
    if shape == "dirs":
        return 0, part("vllm.orig/utils/maths.py", maths, BEFORE, AFTER, ("", "")), maths
    if shape == "quoted":
        quoted = part("/dev/null", r'"b/vllm/utils/m\303\266d\".py"', None, NEW, ("", ""))
        return 1, quoted, 'vllm/utils/möd".py'
    ours = "vllm/utils/ours.py"
    if shape == "epoch":
        dates = (EPOCHS[1], "2026-08-18 17:39:50.533320659 +0200")
        return 0, part("vllm.orig/utils/ours.py", ours, None, NEW, dates), ours
    return 1, part(f"a/{ours}", f"b/{ours}", None, NEW, ("", "")), ours


def test_hunks_out_of_order_lie_where_their_lines_stand_once() -> None:
    twice = BEFORE + BEFORE
    _, data, _ = _shape("swapped")
    hunks = only(data).hunks
    assert replay(BEFORE, hunks) == AFTER
    assert replay(twice, hunks) is None
