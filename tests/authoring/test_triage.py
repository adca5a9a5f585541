"""What becomes of each file of a foreign change: edited, added, left out or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from overlay._features.binary_patch import BinaryHunk
from overlay.authoring.incoming import ChangeKind, Commit, IncomingFile
from overlay.authoring.triage import FileFate, added_content, added_problem, is_beside, sort_files
from overlay.errors import UsageError
from overlay.package import VLLM, Package, package_named
from overlay.planning.scopes import Syntax
from overlay.results import Fate
from tests.support.patches import hunk

EDIT, NEW = (hunk(["-a = 1", "+a = 2"]),), (hunk(["+a = 1", "+b = 2"]),)
KIND = ChangeKind
ASCEND = package_named("vllm_ascend")


def file(path: str, kind: ChangeKind = KIND.MODIFIED, line: int = 3, **more: Any) -> IncomingFile:
    """A file of a change, with an edit of a line or, where it is added, with two lines."""
    hunks = more.pop("hunks", NEW if kind is KIND.ADDED else EDIT)
    return IncomingFile(path, kind, hunks, line, source="x.diff", **more)


OWN = file("vllm/own.py")


def kept(
    *files: IncomingFile, partial: bool = False, package: Package = VLLM
) -> tuple[list[str], list[str], list[tuple[str, Fate]]]:
    """What is edited, added and left out of a change of one commit a file."""
    commits = [Commit((each,)) for each in files]
    edits, added, fates = sort_files(commits, partial, package)
    assert all(each.path == path for path, row in edits.items() for each in row)
    return list(edits), list(added), [(fate.path, fate.fate) for fate in fates]


def refusal(*files: IncomingFile, partial: bool = False, package: Package = VLLM) -> str:
    with pytest.raises(UsageError) as caught:
        kept(*files, partial=partial, package=package)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "fate"),
    [
        ("tests/test_a.py", Fate.TESTS),
        ("docs/a.png", Fate.DOCS),
        ("README.md", Fate.DOCS),
        ("setup.py", Fate.PACKAGING),
        ("requirements/cuda.txt", Fate.PACKAGING),
        (".gitignore", Fate.PACKAGING),
        ("vllm/_version.py", Fate.PACKAGING),
        ("vllm/README.md", None),
        ("vllm/tests/a.py", None),
        ("vllm/setup.py", None),
    ],
)
def test_what_lies_beside_a_package_is_left_out(path: str, fate: Fate | None) -> None:
    edits, added, fates = kept(OWN, file(path))
    assert (edits, added) == ([OWN.path, path] if fate is None else [OWN.path], [])
    assert fates == ([] if fate is None else [(path, fate)])
    assert not is_beside("vllm/own.py")
    assert is_beside(path) is (fate is not None and path not in ("README.md", "vllm/_version.py"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("CMakeLists.txt", "which is no module or data file of vllm/"),
        ("csrc/a.cu", "which is no module or data file of vllm/"),
        ("vllm/a.so", "which is no module or data file of vllm/"),
        ("csrc/a\a.cu", "which is no module or data file of vllm/"),
        ("vllm/a\a.py", "has a backslash or a control character in it"),
    ],
)
def test_what_no_feature_has_makes_half_a_change(path: str, why: str) -> None:
    said = refusal(OWN, file(path))
    assert said.startswith(f"x.diff:3: it edits {path}, ")
    assert said.endswith(f"{why} (the rest is half a change; --partial takes it)")
    assert kept(OWN, file(path), partial=True) == ([OWN.path], [], [(path, Fate.OUTSIDE)])
    # Where nothing else could be carried, there is no rest to offer.
    assert "--partial" not in refusal(file("tests/vllm/a.py"), file(path))


@pytest.mark.parametrize("path", ["/vllm/a.py", "../a.py", "vllm/../a.py", "a\\..\\b.py", "\\a.py"])
@pytest.mark.parametrize("partial", [False, True])
def test_no_path_leads_out_of_the_folder(path: str, partial: bool) -> None:
    said = refusal(OWN, file(path), partial=partial)
    assert said.endswith(f"found {path!r}, which leaves the folder of the change")


def test_two_packages_are_two_imports() -> None:
    said = refusal(OWN, file("vllm_ascend/a.py"))
    assert "`overlay import x.diff --id ID --partial`" in said
    assert "`overlay import x.diff --id OTHER --partial --releases vllm-ascend==all`" in said
    other = refusal(file("vllm_ascend/a.py"), OWN, package=ASCEND)
    assert "`overlay import x.diff --id ID --partial --releases vllm-ascend==all`" in other
    assert kept(OWN, file("vllm_ascend/a.py"), partial=True)[0] == [OWN.path]


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (("csrc/a.cu",), "csrc/a.cu"),
        (("csrc/a.cu", "src/python/sglang/a.py"), "src/python/sglang/a.py; where sglang is a "),
        (("csrc/a.py", "a.cu"), "csrc/a.py; where csrc is a package, name its releases: "),
        (("sglang/a.py",), "sglang/a.py; where sglang is a package, name its releases: "),
        (("./sglang/a.txt",), "./sglang/a.txt"),
        (("a.py",), "a.py"),
        (("a-b/a.py",), "a-b/a.py"),
        (("megatron/core/a.py",), "megatron/core/a.py; megatron-core installs megatron/ as a"),
        (("vllm_ascend/a.py",), "vllm_ascend/a.py; where vllm_ascend is a package, name its"),
    ],
)
def test_a_change_of_another_project_is_refused_whole(paths: Sequence[str], found: str) -> None:
    said = refusal(*map(file, paths), partial=True)
    assert f"expected a change of vLLM, whose Python lies in vllm/, found one of {found}" in said
    assert said.endswith((found, "==VERSION", "==all", "a package of its own"))


def test_the_releases_of_another_package_are_named() -> None:
    assert refusal(file("sglang/a.py")).endswith(" --releases sglang==VERSION")
    assert refusal(file("vllm_ascend/a.py")).endswith(" --releases vllm-ascend==all")
    assert refusal(OWN, package=ASCEND).endswith(f"found one of {OWN.path}")


def test_each_refusal_is_a_line() -> None:
    first, second = refusal(OWN, file("csrc/a.cu"), file("/a.py", line=9)).split("\n")
    assert (first[:9], second[:9]) == ("x.diff:3:", "x.diff:9:")


def test_the_json_of_a_file_has_what_a_script_may_need() -> None:
    fate = FileFate("vllm/a.py", Fate.EDITED, "0.20.0", True, 2, "a problem", True, "vLLM 0.20.0")
    fields = {"path": "vllm/a.py", "fate": "edited", "base": "0.20.0", "hunks": 2}
    assert fate.plain() == {**fields, "problem": "a problem"}


@pytest.mark.parametrize(
    ("kind", "fate", "why"),
    [
        (KIND.MODE, Fate.MODE, "a feature carries texts, no modes: `chmod` where it is installed"),
        (KIND.LINK, Fate.TEXTLESS, "edits files in place, adds new ones and removes them"),
        (KIND.SUBMODULE, Fate.TEXTLESS, "edits files in place, adds new ones and removes them"),
        (KIND.EMPTY, Fate.TEXTLESS, "edits files in place, adds new ones and removes them"),
    ],
)
def test_what_has_no_text_is_left_out_where_a_part_is_enough(
    kind: ChangeKind, fate: Fate, why: str
) -> None:
    said = refusal(OWN, file("vllm/a.py", kind))
    assert said.startswith(f"x.diff:3: it {kind.value} vllm/a.py; a feature ")
    assert said.endswith(f"{why} (--partial leaves that out)")
    assert kept(OWN, file("vllm/a.py", kind), partial=True)[2] == [("vllm/a.py", fate)]


def test_a_mode_beside_a_text_is_left_out_where_a_part_is_enough() -> None:
    script = file("vllm/a.py", KIND.ADDED, mode="100755")
    assert refusal(script).endswith("carries texts, no modes (--partial leaves the mode out)")
    assert kept(script, partial=True) == ([], ["vllm/a.py"], [("vllm/a.py", Fate.MODE)])


BYTES = BinaryHunk(b"\0", False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (file("vllm/a.py", KIND.COPIED, old_path="vllm/b.py"), "git diff --no-renames"),
        (file("vllm/a.co", KIND.BINARY), "make the diff with git diff --binary"),
        (file("vllm/a.co", KIND.BINARY, binary=BinaryHunk(b"", True)), "a delta of other bytes"),
        (file("vllm/a.py", KIND.RENAMED, old_path="csrc/a.py"), "(it was csrc/a.py): "),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_what_cannot_be_said_is_refused_always(
    change: IncomingFile, why: str, partial: bool
) -> None:
    said = refusal(OWN, change, partial=partial)
    assert said.startswith(f"x.diff:3: it {change.kind.value if 'delta' not in why else 'adds'} ")
    assert why in said
    assert "--partial" not in said


def test_bytes_are_edited_and_added_as_the_diff_has_them() -> None:
    delta = BinaryHunk(b"", True)
    old = file("vllm/a.co", KIND.BINARY, binary=delta, names=("a/vllm/a.co", "b/vllm/a.co"))
    new = file("vllm/b.co", KIND.BINARY, binary=BYTES)
    assert kept(old, new) == (["vllm/a.co"], ["vllm/b.co"], [])
    assert added_content(new) == b"\0"


def test_commits_are_laid_on_those_before_them() -> None:
    new = file("vllm/a.py", KIND.ADDED)
    _, added, _ = sort_files([Commit((new,)), Commit((file("vllm/a.py"),))], False)
    assert added_content(added["vllm/a.py"]) == b"a = 2\nb = 2\n"
    unfinished = (hunk(["-b = 2", "+b = 3"], post_unfinished=True),)
    later = file("vllm/a.py", line=9, hunks=unfinished)
    _, added, _ = sort_files([Commit((new, later))], False)
    assert added_content(added["vllm/a.py"]) == b"a = 1\nb = 3"
    assert kept(new, file("vllm/a.py", KIND.REMOVED)) == ([], [], [])
    twice = sort_files([Commit((OWN, OWN))], False)[0]
    assert twice == {OWN.path: [OWN, OWN]}
    wrong = file("vllm/a.py", line=9, hunks=(hunk(["-c = 1", "+c = 2"]),))
    assert refusal(new, wrong).startswith("x.diff:9: its hunks do not fit vllm/a.py")


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (KIND.ADDED, KIND.ADDED, "it adds vllm/a.py, which x.diff:3 adds too"),
        (KIND.MODIFIED, KIND.ADDED, "it adds vllm/a.py, which x.diff:3 edits too"),
        (KIND.ADDED, KIND.RENAMED, "it renames vllm/a.py, which the change itself adds"),
    ],
)
def test_a_file_comes_from_one_place(first: ChangeKind, then: ChangeKind, why: str) -> None:
    old_path = "vllm/a.py" if then is KIND.RENAMED else None
    path = "vllm/b.py" if old_path else "vllm/a.py"
    said = refusal(file("vllm/a.py", first), file(path, then, 9, old_path=old_path))
    assert said.startswith(f"x.diff:9: {why}")


def test_a_renamed_file_is_an_edit_of_what_it_was() -> None:
    renamed = file("vllm/b.py", KIND.RENAMED, old_path="vllm/a.py")
    ((moved,),) = sort_files([Commit((renamed,))], False)[0].values()
    assert (moved.path, moved.new_path) == ("vllm/a.py", "vllm/b.py")
    # Into a test it is gone; from what no feature edits into a test it is a test.
    for old, edits in (("vllm/a.py", ["vllm/a.py"]), ("docs/a.py", [])):
        gone = file("tests/a.py", KIND.RENAMED, old_path=old)
        assert kept(OWN, gone)[0] == [OWN.path, *edits]
        assert all(
            each.new_path is None
            for each in sort_files([Commit((OWN, gone))], False)[0].get(old, [])
        )
        assert kept(OWN, gone)[2] == ([] if edits else [("tests/a.py", Fate.TESTS)])


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("vllm/a.py", "vllm/A.py", "it adds vllm/A.py beside vllm/a.py: "),
        ("vllm/\u00e9.py", "vllm/e\u0301.py", "one form of each letter"),
        ("vllm/a.py/b.py", "vllm/a.py", "it adds vllm/a.py/b.py, and vllm/a.py is a module"),
        ("vllm/own.py/b.py", "vllm/b.py", "it adds vllm/own.py/b.py, and vllm/own.py is a module"),
        ("vllm/a.py/b/c.py", "vllm/a.py", "it adds vllm/a.py/b/c.py, and vllm/a.py is a module"),
        ("vllm/a.py", "vllm/b/a.py", None),
    ],
)
def test_added_files_can_lie_beside_each_other(first: str, second: str, why: str | None) -> None:
    files = [OWN, *(file(path, KIND.ADDED) for path in (first, second))]
    if why is None:
        assert kept(*files) == ([OWN.path], [first, second], [])
    else:
        assert why in refusal(*files)


@pytest.mark.parametrize(
    ("lines", "more", "content"),
    [
        (["+a", "+b"], {}, b"a\nb\n"),
        (["+a", "+b"], {"crlf": True}, b"a\r\nb\r\n"),
        ([" a", "-b", "+c"], {}, b"c\n"),
        (["+\udcff"], {}, b"\xff\n"),
        ([], {}, b""),
    ],
)
def test_the_bytes_of_an_added_file(lines: list[str], more: dict[str, Any], content: bytes) -> None:
    assert added_content(file("vllm/a.py", hunks=(hunk(lines),), **more)) == content
    unfinished = file("vllm/a.py", hunks=(hunk(lines, post_unfinished=True),), **more)
    assert added_content(unfinished) == content.rstrip()
    assert added_content(file("vllm/a.py", hunks=(), **more)) == b""


def test_an_added_module_has_to_compile() -> None:
    assert "vllm/a.py does not compile: " in str(added_problem("vllm/a.py", b"a =\n", Syntax()))
    for path, data in (("vllm/a.py", b"a = 1\n"), ("vllm/a.json", b"a =\n")):
        assert added_problem(path, data, Syntax()) is None


def test_a_file_of_which_a_diff_says_only_where_it_is_makes_half_a_change() -> None:
    alone = [file(f"vllm/{name}", KIND.ALONE, hunks=()) for name in ("new.py", "folder")]
    assert refusal(OWN, *alone).splitlines() == [
        f"x.diff:3: it says only that one of two folders has {each.path}; a feature needs its "
        "lines: make the diff with -N (diff -urN) (--partial leaves that out)"
        for each in alone
    ]
    left_out = [(each.path, Fate.TEXTLESS) for each in alone]
    assert kept(OWN, *alone, partial=True) == ([OWN.path], [], left_out)


@pytest.mark.parametrize("path", ["vllm/_C.abi3.so", "vllm.egg-info", "build", "../a", "/a.py"])
def test_what_was_built_or_lies_elsewhere_is_no_part_of_a_change(path: str) -> None:
    assert kept(OWN, file(path, KIND.ALONE, hunks=())) == ([OWN.path], [], [(path, Fate.OUTSIDE)])
