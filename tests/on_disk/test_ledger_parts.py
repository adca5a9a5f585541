"""What is read of a ledger and its copies, part by part, for any package."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import LedgerError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, LedgerLost
from overlay.package import VLLM, Package, package_named
from overlay.results import FeatureResult, State
from overlay.untrusted import sha256

ASCEND = package_named("vllm_ascend")
GOOD, BAD, GONE = b"good", b"bad", b"gone"


def example(package: Package) -> Ledger:
    """A ledger of three files, one of which was added, and two features, one of them applied."""
    entries = tuple(
        Entry(f"{package.name}/{name}.py", before, "0" * 64, 0o644, 0)
        for name, before in (
            ("a", sha256(GOOD)),
            ("b", sha256(BAD)),
            ("c", None),
            ("d", sha256(GONE)),
        )
    )
    features = tuple(
        LedgerFeature("digest", "shipped", FeatureResult(name, state), None)
        for name, state in (("first", State.UPSTREAMED), ("second", State.APPLIED))
    )
    return Ledger("0.1.0", "0.26.0", features, entries, (), None)


def with_copies(root: Path, package: Package) -> None:
    folder = root / package.pristine_folder
    folder.mkdir(parents=True)
    (folder / sha256(GOOD)).write_bytes(GOOD)
    (folder / sha256(BAD)).write_bytes(b"other bytes")


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_each_copy_that_revert_would_miss_is_named(tmp_path: Path, package: Package) -> None:
    with_copies(tmp_path, package)
    damaged = ledgers.damaged_copies(tmp_path, example(package), package)
    assert damaged == (f"{package.name}/b.py", f"{package.name}/d.py")


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_a_copy_is_read_or_said_to_be_missing_in_its_package(
    tmp_path: Path, package: Package
) -> None:
    with_copies(tmp_path, package)
    read = ledgers.copies(tmp_path, package)
    assert read(sha256(GOOD)) == GOOD
    for data, found in ((BAD, "other bytes are there"), (GONE, "nothing is there")):
        with pytest.raises(LedgerError) as caught:
            read(sha256(data))
        assert found in str(caught.value)
        assert ledgers.reinstall(package=package) in str(caught.value)
    (tmp_path / package.pristine_folder / sha256(GONE)).mkdir()
    with pytest.raises(LedgerError, match="cannot be read") as caught:
        read(sha256(GONE))
    assert ledgers.reinstall(package=package) in str(caught.value)


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_a_ledger_that_is_gone_or_no_file_is_said_to_be(tmp_path: Path, package: Package) -> None:
    assert ledgers.load(tmp_path, package) is None
    (tmp_path / package.pristine_folder).mkdir(parents=True)
    with pytest.raises(LedgerLost, match="pristine copies are there") as lost:
        ledgers.load(tmp_path, package)
    assert ledgers.reinstall(package=package) in str(lost.value)
    assert "; `overlay revert` removes what it can prove" in str(lost.value)
    (tmp_path / package.journal_path).write_text("{}")
    assert ledgers.load(tmp_path, package) is None
    (tmp_path / package.ledger_path).mkdir()
    with pytest.raises(LedgerError, match="cannot be read") as caught:
        ledgers.load(tmp_path, package)
    assert not isinstance(caught.value, LedgerLost)
    assert ledgers.reinstall(package=package) in str(caught.value)


def test_what_to_reinstall_names_the_distribution_and_its_release() -> None:
    assert "reinstall vllm-ascend (pip install --force-reinstall --no-deps vllm-ascend, or" in (
        ledgers.reinstall(package=ASCEND)
    )
    assert "--no-deps vllm==0.26.0, or" in ledgers.reinstall("0.26.0")
    assert f"remove the folder {ASCEND.state_folder} " in ledgers.reinstall(package=ASCEND)


def test_one_ledger_is_told_from_another_and_from_none() -> None:
    vllm, ascend = example(VLLM), example(ASCEND)
    assert ledgers.digest(vllm) == sha256(ledgers.encode(vllm))
    assert ledgers.digest(None) == sha256(b"")
    assert len({ledgers.digest(each) for each in (vllm, ascend, None)}) == 3


def test_an_entry_and_a_feature_are_found_by_their_names() -> None:
    ledger = example(VLLM)
    for entry in ledger.entries:
        assert ledger.entry(entry.path) is entry
    for feature in ledger.features:
        assert ledger.feature(feature.result.feature) is feature
    assert ledger.entry("vllm/z.py") is None
    assert ledger.feature("third") is None
    assert ledger.applied == ledger.features[1:]
    assert example(ASCEND).package == ASCEND


def test_only_a_record_beside_the_package_is_one() -> None:
    told = [
        ledgers.is_record(path)
        for path in ("a.dist-info/RECORD", "a/RECORD", "a.dist-info/METADATA", "RECORD")
    ]
    assert told == [True, False, False, False]
    assert not ledgers.is_record("b/a.dist-info/RECORD")


def test_only_a_hash_in_its_folder_is_a_copy() -> None:
    good = f"{ASCEND.pristine_folder}/{'a' * 64}"
    assert ledgers.is_pristine_copy(good, ASCEND)
    assert not ledgers.is_pristine_copy(good, VLLM)
    assert not ledgers.is_pristine_copy(good[:-1], ASCEND)
    assert not ledgers.is_pristine_copy(f"{ASCEND.state_folder}/{'a' * 64}", ASCEND)
    assert not ledgers.is_pristine_copy("a" * 64, ASCEND)


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_it_is_read_back_for_its_package_and_only_up_to_a_size(
    tmp_path: Path, package: Package
) -> None:
    (tmp_path / package.state_folder).mkdir()
    path = tmp_path / package.ledger_path
    path.write_bytes(ledgers.encode(example(package)))
    assert ledgers.load(tmp_path, package) == example(package)
    path.write_bytes(b" " * (ledgers.MAX_STATE_BYTES + 1))
    with pytest.raises(LedgerError, match=f"at most {ledgers.MAX_STATE_BYTES}"):
        ledgers.load(tmp_path, package)
