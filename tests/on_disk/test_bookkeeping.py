"""The files that record an apply: the ledger, pristine copies and the rows in RECORD."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import overlay
from overlay.on_disk import changes, ledger
from overlay.on_disk.changes import assemble
from overlay.on_disk.files import Site
from overlay.on_disk.ledger import Entry, Ledger, RecordEntry
from overlay.package import VLLM, Package, package_named
from overlay.results import Change, FeatureResult, FileResult, HunkResult, Plan, Reason, State
from overlay.targets.installations import Row, our_rows
from overlay.untrusted import sha256
from tests.support.patches import feature

ASCEND = package_named("vllm_ascend")
both = pytest.mark.parametrize("package", [VLLM, ASCEND], ids=lambda package: package.name)
BEFORE, AFTER, NEW = b"before\n", b"after\n", b"new module\n"
RECORD = "a-1.dist-info/RECORD"


def target(folder: Path, package: Package) -> Site:
    """A package of two modules beside a distribution's RECORD."""
    (folder / package.name).mkdir(parents=True)
    for name in ("a", "z"):
        (folder / package.name / f"{name}.py").write_bytes(BEFORE)
    (folder / "a-1.dist-info").mkdir()
    (folder / RECORD).write_bytes(own_rows(package))
    return Site(folder, package)


def own_rows(package: Package) -> bytes:
    return f"{package.name}/a.py,,\na-1.dist-info/RECORD,,\n".encode()


def two_changes(package: Package) -> tuple[Change, ...]:
    """Of a plan: one module is patched, one is added in a folder that is not there."""
    name = package.name
    return (
        Change(f"{name}/new/deep/b.py", None, NEW),
        Change(f"{name}/a.py", BEFORE, AFTER),
    )


RESULTS = (
    FeatureResult(
        "first",
        State.PRISTINE,
        (
            FileResult(
                "x.py",
                State.PRISTINE,
                "a.patch",
                (HunkResult("A", State.PRISTINE, 3), HunkResult("B", State.UPSTREAMED)),
                Reason("why"),
            ),
            FileResult("y.py", State.UPSTREAMED),
        ),
        Reason("because"),
        True,
    ),
    FeatureResult("second", State.UPSTREAMED),
)
FEATURES = (
    replace(feature(id="second"), digest="2", origin="elsewhere", source="s" * 64),
    replace(feature(id="first"), digest="1"),
)


def made(site: Site, record: str | None = RECORD, old: Ledger | None = None) -> Ledger:
    """The ledger of a target in which those changes are made."""
    plan = Plan(RESULTS, two_changes(site.package))
    file = None if record is None else site.root / record
    return changes.new_ledger(site, plan, FEATURES, "0.26.0", file, old)


def carry_out(site: Site, old: Ledger | None, new: Ledger | None) -> list[str]:
    """Make the writes that record ``new``, and return their paths."""
    writes = changes.state_files(site, old, new, two_changes(site.package))
    for write in writes:
        place = site.root / write.path
        assert write.before == (place.read_bytes() if place.exists() else None)
        if write.after is None:
            place.unlink()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(write.after)
    return [write.path for write in writes]


@both
def test_the_ledger_of_a_plan_says_what_was_and_what_comes(
    tmp_path: Path, package: Package
) -> None:
    site = target(tmp_path, package)
    (site.root / package.name / "a.py").chmod(0o640)
    name = package.name
    found = made(site, None)
    assert found._replace(features=()) == Ledger(
        overlay=overlay.__version__,
        release="0.26.0",
        features=(),
        entries=(
            Entry(f"{name}/a.py", sha256(BEFORE), sha256(AFTER), 0o640, len(AFTER)),
            Entry(f"{name}/new/deep/b.py", None, sha256(NEW), 0o644, len(NEW)),
        ),
        folders=(f"{name}/new", f"{name}/new/deep"),
        record=None,
    )


def test_what_was_pristine_is_applied_and_the_rest_stays_as_it_was(tmp_path: Path) -> None:
    first, second = made(target(tmp_path, VLLM)).features
    assert (first.digest, first.origin, first.source) == ("1", FEATURES[1].origin, None)
    assert (second.digest, second.origin, second.source) == ("2", "elsewhere", "s" * 64)
    (given, _) = RESULTS
    patched, other = given.files
    hunks = (HunkResult("A", State.APPLIED, 3), HunkResult("B", State.UPSTREAMED))
    files = (patched._replace(state=State.APPLIED, hunks=hunks), other)
    assert first.result == given._replace(state=State.APPLIED, files=files)
    assert second.result == RESULTS[1]


def test_a_mode_and_a_folder_that_the_ledger_knows_are_kept(tmp_path: Path) -> None:
    """The files are as the overlay left them: a folder it made is there, a mode may be changed."""
    site = target(tmp_path, VLLM)
    old = made(site)
    modes = (0o600, 0o755)
    entries = (e._replace(mode=mode) for e, mode in zip(old.entries, modes, strict=True))
    old = old._replace(entries=tuple(entries), folders=(*old.folders, "vllm/ne", "vllm/other"))
    (site.root / "vllm/new/deep").mkdir(parents=True)
    new = made(site, old=old)
    assert tuple(entry.mode for entry in new.entries) == modes
    assert new.folders == ("vllm/new", "vllm/new/deep")
    assert made(site).folders == ()


def test_an_added_module_may_be_empty(tmp_path: Path) -> None:
    plan = Plan(RESULTS, (Change("vllm/b.py", None, b""),))
    found = changes.new_ledger(target(tmp_path, VLLM), plan, FEATURES, "0.26.0", None, None)
    assert found.entries == (Entry("vllm/b.py", None, sha256(b""), 0o644, 0),)


def test_a_module_behind_a_link_has_the_mode_of_the_module(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    (site.root / "vllm/a.py").unlink()
    (site.root / "vllm/a.py").symlink_to("z.py")
    (site.root / "vllm/z.py").chmod(0o600)
    assert made(site).entries[0].mode == 0o600


@both
def test_rows_are_put_into_record_and_taken_out(tmp_path: Path, package: Package) -> None:
    site, name = target(tmp_path, package), package.name
    new = made(site)
    written = carry_out(site, None, new)
    copy = f"{package.pristine_folder}/{sha256(BEFORE)}"
    assert written == [package.ledger_path, copy, RECORD]
    assert (site.root / package.ledger_path).read_bytes() == ledger.encode(new)
    assert (site.root / copy).read_bytes() == BEFORE
    record = (site.root / RECORD).read_bytes()
    assert new.record == RecordEntry(RECORD, sha256(own_rows(package)), sha256(record))
    assert our_rows(record, package) == (
        Row(package.ledger_path),
        Row(copy, sha256(BEFORE)),
        Row(f"{name}/new/deep/b.py", sha256(NEW), len(NEW)),
    )
    assert carry_out(site, new, new) == []
    assert carry_out(site, new, None) == [package.ledger_path, copy, RECORD]
    assert (site.root / RECORD).read_bytes() == own_rows(package)
    assert carry_out(site, None, None) == []


@both
def test_without_record_git_is_told_to_ignore_the_folder(tmp_path: Path, package: Package) -> None:
    site = target(tmp_path, package)
    new = made(site, None)
    written = carry_out(site, None, new)
    copy = f"{package.pristine_folder}/{sha256(BEFORE)}"
    assert written == sorted([package.ignore_path, package.ledger_path, copy])
    assert (site.root / package.ignore_path).read_bytes() == b"*\n"
    assert (site.root / RECORD).read_bytes() == own_rows(package)
    assert carry_out(site, new, made(site)) == [package.ignore_path, package.ledger_path, RECORD]


def test_what_is_no_longer_wanted_goes_and_a_strangers_file_stays(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    other = f"{VLLM.pristine_folder}/{'0' * 64}"
    for path in (other, f"{VLLM.pristine_folder}/mine"):
        (site.root / path).parent.mkdir(parents=True, exist_ok=True)
        (site.root / path).write_bytes(b"x")
    writes = {
        write.path: write
        for write in changes.state_files(site, None, made(site), two_changes(VLLM))
    }
    assert f"{VLLM.pristine_folder}/mine" not in writes
    assert (writes[other].before, writes[other].after) == (b"x", None)


def test_the_form_of_record_is_kept(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    (site.root / RECORD).chmod(0o600)
    new = made(site)
    writes = changes.state_files(site, None, new, two_changes(VLLM))
    assert writes[-1][:2] == (RECORD, own_rows(VLLM))
    forms = assemble("apply", site, writes, None, new, [], []).forms
    assert (forms[RECORD].mode, forms[VLLM.ledger_path].mode) == (0o600, 0o644)


@both
def test_rows_that_somebody_wrote_since_are_kept(tmp_path: Path, package: Package) -> None:
    site = target(tmp_path, package)
    old = made(site)
    carry_out(site, None, old)
    with (site.root / RECORD).open("ab") as file:
        file.write(b"bin/tool,,\n")
    again = made(site, old=old)
    assert again.record is not None
    assert again.record.before == sha256(own_rows(package) + b"bin/tool,,\n")
    written = carry_out(site, old, again)
    assert written == [package.ledger_path, RECORD]
    record = (site.root / RECORD).read_bytes()
    assert record.startswith(own_rows(package) + b"bin/tool,,\n" + package.ledger_path.encode())
    assert sha256(record) == again.record.after
    carry_out(site, again, None)
    assert (site.root / RECORD).read_bytes() == own_rows(package) + b"bin/tool,,\n"


@both
def test_rows_that_a_lost_ledger_left_are_not_the_releases(
    tmp_path: Path, package: Package
) -> None:
    site = target(tmp_path, package)
    carry_out(site, None, made(site))
    (site.root / package.ledger_path).unlink()
    new = made(site)
    assert new.record is not None
    assert new.record.before == sha256(own_rows(package))
    assert carry_out(site, None, new) == [package.ledger_path]
    assert len(our_rows((site.root / RECORD).read_bytes(), package)) == 3
    carry_out(site, new, None)
    assert (site.root / RECORD).read_bytes() == own_rows(package)


def test_an_empty_record_gets_rows_and_is_empty_again(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    (site.root / RECORD).write_bytes(b"")
    old = made(site)
    carry_out(site, None, old)
    assert carry_out(site, old, old) == []
    assert len(our_rows((site.root / RECORD).read_bytes(), VLLM)) == 3
    carry_out(site, old, None)
    assert (site.root / RECORD).read_bytes() == b""


def test_a_last_line_without_an_end_is_left_without_one(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    unended = own_rows(VLLM).rstrip()
    (site.root / RECORD).write_bytes(unended)
    old = made(site)
    assert old.record is not None
    assert old.record.before == sha256(unended)
    carry_out(site, None, old)
    again = made(site, old=old)
    assert again == old
    assert carry_out(site, old, again) == []
    carry_out(site, old, None)
    assert (site.root / RECORD).read_bytes() == unended


def test_rows_follow_the_distribution_to_another_record(tmp_path: Path) -> None:
    """The package was installed once more, by a distribution of another name."""
    site = target(tmp_path, VLLM)
    old = made(site)
    carry_out(site, None, old)
    (site.root / "b-2.dist-info").mkdir()
    other = "b-2.dist-info/RECORD"
    (site.root / other).write_bytes(b"vllm/a.py,,\n")
    new = made(site, other, old)
    assert new.record is not None
    assert new.record.before == sha256(b"vllm/a.py,,\n")
    assert carry_out(site, old, new)[-2:] == [RECORD, other]
    assert (site.root / RECORD).read_bytes() == own_rows(VLLM)
    assert sha256((site.root / other).read_bytes()) == new.record.after


def test_a_record_that_somebody_removed_is_not_made_again(tmp_path: Path) -> None:
    site = target(tmp_path, VLLM)
    old = made(site)
    carry_out(site, None, old)
    (site.root / RECORD).unlink()
    assert made(site, old=old).record is None
    assert made(site).record is None
    assert RECORD not in carry_out(site, old, old)
    assert RECORD not in carry_out(site, old, None)


def test_record_is_written_only_beside_the_package(tmp_path: Path) -> None:
    site = target(tmp_path / "site", VLLM)
    assert changes.record_path(site, site.root / RECORD) == RECORD
    assert changes.record_path(site, None) is None
    (tmp_path / "a.dist-info").mkdir()
    assert changes.record_path(site, tmp_path / "a.dist-info/RECORD") is None
    assert made(site, "../a.dist-info/RECORD").record is None
    (tmp_path / "link").symlink_to("site")
    assert changes.record_path(site, tmp_path / "link" / RECORD) == RECORD


def test_two_ledgers_are_the_same_whatever_overlay_wrote_them(tmp_path: Path) -> None:
    one = made(target(tmp_path, VLLM))
    assert changes.same(one, one._replace(overlay="0.0.1"))
    (first, *rest) = one.features
    for other in (
        one._replace(entries=one.entries[1:]),
        one._replace(folders=()),
        one._replace(record=None),
        one._replace(release="0.25.0"),
        one._replace(features=(first,)),
        one._replace(features=(first._replace(digest="x"), *rest)),
        one._replace(features=(first._replace(result=first.result._replace(feature="x")), *rest)),
        one._replace(
            features=(first._replace(result=first.result._replace(state=State.MISSING)), *rest)
        ),
    ):
        assert not changes.same(one, other)
    untested = first._replace(result=first.result._replace(untested=False), origin="x")
    assert changes.same(one, one._replace(features=(untested, *rest)))
