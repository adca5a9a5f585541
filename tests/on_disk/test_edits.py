"""What counts as edited in a target, and where the release's own text comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from overlay.errors import LedgerError, PackageIndexError, TargetError
from overlay.on_disk.edits import FileEdit, PristineFiles, find
from overlay.on_disk.ledger import Entry, Ledger
from overlay.package import VLLM, Package, Tree, package_named
from overlay.targets.installations import Record
from overlay.untrusted import sha256
from tests.support import fake_vllm
from tests.support.patches import MemoryTree

ASCEND = package_named("vllm_ascend")
both = pytest.mark.parametrize("package", [VLLM, ASCEND], ids=lambda package: package.name)
OWN, PATCHED, EDITED, ADDED = b"own = 1\n", b"patched = 1\n", b"edited = 1\n", b"added = 1\n"


@dataclass
class Target:
    """A package on disk, and what the release and the overlay have to say of it.

    :ivar files: its present files; :ivar release: those of the release as it was published.
    """

    root: Path
    files: dict[str, bytes]
    release: dict[str, bytes]
    record: Mapping[str, str] | None = None
    entries: tuple[Entry, ...] | None = None
    copies: tuple[bytes, ...] = ()
    package: Package = VLLM
    opened: list[str] = field(default_factory=list)

    def pristine(self) -> PristineFiles:
        for path, data in self.files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)
        folder = self.root / self.package.pristine_folder
        for data in self.copies:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / sha256(data)).write_bytes(data)
        ledger = None
        if self.entries is not None:
            ledger = Ledger("0.1.0", "0.26.0", (), self.entries, (), None)
        tree = MemoryTree(self.files)
        return PristineFiles(tree, self.root, ledger, self.record, self._open, self.package)

    def _open(self) -> Tree:
        self.opened.append("once")
        return MemoryTree(self.release)

    def edits(self) -> tuple[FileEdit, ...]:
        return find(self.pristine())


def entry(path: str, before: bytes | None = OWN, after: bytes = PATCHED) -> Entry:
    return Entry(path, None if before is None else sha256(before), sha256(after), 0o644, 1)


def listed(*paths: str) -> dict[str, str]:
    return dict.fromkeys(paths, sha256(OWN))


@both
def test_each_module_that_nobody_else_accounts_for_is_an_edit(
    tmp_path: Path, package: Package
) -> None:
    name = package.name
    own, changed, new, gone = (f"{name}/{stem}.py" for stem in ("a", "b", "v1/c", "d"))
    target = Target(
        tmp_path,
        {own: OWN, changed: EDITED, new: ADDED, "other/x.py": ADDED},
        dict.fromkeys((own, changed, gone), OWN),
        listed(own, changed, gone, "other/z.py", f"{name}/data.json"),
        package=package,
    )
    assert target.edits() == (
        FileEdit(changed, EDITED, OWN),
        FileEdit(gone, None, OWN),
        FileEdit(new, ADDED, None),
    )
    assert target.opened == ["once"]


@pytest.mark.parametrize("row", ["", "vllm/a.py,,\n", "vllm/a.py,md5=AAAA,8\n"])
@pytest.mark.parametrize("now", [OWN, EDITED])
def test_a_module_of_the_release_is_not_added_whatever_record_lacks(
    tmp_path: Path, row: str, now: bytes
) -> None:
    release = {"vllm/__init__.py": OWN, "vllm/a.py": OWN}
    target = Target(tmp_path, {**release, "vllm/a.py": now, "vllm/b.py": ADDED}, release)
    target.record = Record(
        fake_vllm.record({"vllm/__init__.py": OWN}, "x/RECORD") + row.encode(), VLLM
    )
    edited = () if now == OWN else (FileEdit("vllm/a.py", EDITED, OWN),)
    assert target.edits() == (*edited, FileEdit("vllm/b.py", ADDED, None))
    pristine = target.pristine()
    assert not pristine.edited_before(entry("vllm/a.py"))


def test_where_no_index_has_the_build_record_alone_tells(tmp_path: Path) -> None:
    def nowhere() -> Tree:
        asked.append(1)
        raise PackageIndexError("offline")

    asked: list[int] = []
    files = {"vllm/a.py": ADDED, "vllm/b.py": ADDED}
    target = Target(tmp_path, files, {}, {})
    target.pristine()
    found = find(PristineFiles(MemoryTree(files), tmp_path, None, {}, nowhere))
    assert found == tuple(FileEdit(path, ADDED, None) for path in files)
    assert asked == [1]


def test_only_python_modules_are_looked_at(tmp_path: Path) -> None:
    names = ("a.txt", "__pycache__/a.py", "v1/__pycache__/b.py", "a b\n.py", "py", "v1/c.pyc")
    target = Target(tmp_path, {f"vllm/{name}": ADDED for name in names}, {}, {})
    assert target.edits() == ()
    assert target.opened == []


def test_the_module_that_a_build_writes_counts_where_record_lists_it(tmp_path: Path) -> None:
    target = Target(tmp_path, {"vllm/_version.py": ADDED, "vllm/v1/_version.py": ADDED}, {})
    assert target.edits() == (FileEdit("vllm/v1/_version.py", ADDED, None),)
    target.record, target.release = listed("vllm/_version.py"), {"vllm/_version.py": OWN}
    edits = target.edits()
    assert [edit.path for edit in edits] == ["vllm/_version.py", "vllm/v1/_version.py"]


def test_the_build_of_another_package_has_its_own_module(tmp_path: Path) -> None:
    path = "vllm_ascend/_version.py"
    assert Target(tmp_path, {path: ADDED}, {}, package=ASCEND).edits() == ()


def test_without_record_the_release_tells(tmp_path: Path) -> None:
    target = Target(tmp_path, {"vllm/a.py": OWN, "vllm/b.py": EDITED}, {"vllm/a.py": OWN})
    assert target.edits() == (FileEdit("vllm/b.py", EDITED, None),)
    assert target.opened == ["once"]


@both
@pytest.mark.parametrize("recorded", [True, False])
def test_what_the_overlay_wrote_is_no_edit(
    tmp_path: Path, package: Package, recorded: bool
) -> None:
    patched, restored, added, removed = (f"{package.name}/{stem}.py" for stem in "abcd")
    target = Target(
        tmp_path,
        {patched: PATCHED, restored: OWN, added: ADDED},
        {patched: OWN, restored: OWN},
        listed(patched, restored) if recorded else None,
        (entry(patched), entry(restored), entry(added, None, ADDED), entry(removed, None)),
        (OWN,),
        package,
    )
    assert target.edits() == ()
    assert target.opened == ([] if recorded else ["once"])


@both
def test_an_edit_of_what_the_overlay_wrote_says_what_that_was(
    tmp_path: Path, package: Package
) -> None:
    patched, added, removed, new = (f"{package.name}/{stem}.py" for stem in "abcd")
    target = Target(
        tmp_path,
        {patched: EDITED, added: EDITED, new: ADDED},
        {},
        listed(patched, removed),
        (entry(patched), entry(added, None, ADDED), entry(removed)),
        (OWN,),
        package,
    )
    assert target.edits() == (
        FileEdit(patched, EDITED, OWN, sha256(PATCHED)),
        FileEdit(added, EDITED, None, sha256(ADDED)),
        FileEdit(removed, None, OWN, sha256(PATCHED)),
        FileEdit(new, ADDED, None),
    )
    assert target.opened == ["once"]  # for the new one alone; copies have the others' text


@pytest.mark.parametrize("recorded", [True, False])
def test_an_edit_from_before_the_overlay_is_found_beneath_it(
    tmp_path: Path, recorded: bool
) -> None:
    """The overlay patched a file that was edited: its copy is not the release's own text."""
    ours, back = "vllm/a.py", "vllm/b.py"
    target = Target(
        tmp_path,
        {ours: PATCHED, back: EDITED},
        {ours: OWN, back: OWN},
        listed(ours, back) if recorded else None,
        (entry(ours, EDITED), entry(back, EDITED)),
        (EDITED,),
    )
    assert target.edits() == (
        FileEdit(ours, PATCHED, OWN, sha256(PATCHED), before=True),
        FileEdit(back, EDITED, OWN, None, before=True),
    )


def test_a_module_of_somebody_that_the_overlay_patched_was_edited_before(tmp_path: Path) -> None:
    """The release has no such file at all."""
    records: tuple[dict[str, str] | None, ...] = ({}, None)
    for record in records:
        target = Target(tmp_path, {"vllm/a.py": PATCHED}, {}, record, (entry("vllm/a.py", EDITED),))
        assert target.edits() == (
            FileEdit("vllm/a.py", PATCHED, None, sha256(PATCHED), before=True),
        )


@both
def test_the_own_text_comes_from_the_nearest_that_has_it(tmp_path: Path, package: Package) -> None:
    patched, present, published, new = (f"{package.name}/{stem}.py" for stem in "abcd")
    target = Target(
        tmp_path,
        {patched: PATCHED, present: OWN, published: EDITED, new: ADDED},
        {published: OWN},
        listed(patched, present, published),
        (entry(patched),),
        (OWN,),
        package,
    )
    files = target.pristine()
    assert (files.read(patched), files.read(present), files.read(new)) == (OWN, OWN, None)
    assert target.opened == ["once"]  # for the new one, of which RECORD may lack the row
    assert (files.read(published), files.read(published)) == (OWN, OWN)
    assert target.opened == ["once"]


def test_a_copy_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    target = Target(
        tmp_path, {"vllm/a.py": PATCHED}, {}, listed("vllm/a.py"), (entry("vllm/a.py"),)
    )
    with pytest.raises(LedgerError, match="expected the pristine copy"):
        target.pristine().read("vllm/a.py")


@both
@pytest.mark.parametrize(
    ("published", "found"),
    [(None, "no such file"), (PATCHED, f"one with {sha256(PATCHED)[:12]}...")],
)
def test_another_build_than_the_published_one_is_refused(
    tmp_path: Path, package: Package, published: bytes | None, found: str
) -> None:
    path = f"{package.name}/a.py"
    release = {} if published is None else {path: published}
    target = Target(tmp_path, {path: EDITED}, release, listed(path), package=package)
    with pytest.raises(TargetError) as caught:
        target.edits()
    assert str(caught.value) == (
        f"{path}: it was edited, and its own text is needed: expected a file with the sha256 "
        f"{sha256(OWN)[:12]}... of RECORD in the release, found {found}. This is another build of "
        f"{package.title} than the package index has; make the diff against its source, and use "
        "`overlay import`"
    )
