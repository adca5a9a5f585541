"""Each thing that a receipt rests on, one by one and without waiting."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overlay.on_disk import receipt
from overlay.untrusted import sha256

DECISION = {"way": "disk"}
NAME = "0" * 64


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision may rest on files of this moment."""
    monkeypatch.setattr(receipt, "_SETTLED", -(10**12))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    folder = tmp_path / "patches" / "demo"
    folder.mkdir(parents=True)
    (folder / "feature.toml").write_text('id = "demo"\n')
    return folder.parent


def keep(cache: Path, *folders: Path, name: str = NAME) -> bool:
    evidence = receipt.Evidence([], map(str, folders))
    return receipt.write(cache, name, DECISION, {}, evidence)


def test_a_decision_without_patches_folders_is_kept(cache: Path) -> None:
    assert keep(cache)
    assert receipt.read(cache, NAME) == DECISION


def test_a_receipt_may_be_laid_out_in_lines(cache: Path) -> None:
    assert keep(cache)
    text = cache / f"{NAME}.json"
    body = json.dumps(json.loads(text.read_bytes().partition(b"\n")[2]), indent=1).encode()
    text.write_bytes(sha256(body).encode() + b"\n" + body)
    assert receipt.read(cache, NAME) == DECISION


def test_a_receipt_that_is_too_large_is_not_used(cache: Path) -> None:
    long = {"way": "x" * (1 << 20)}
    assert receipt.write(cache, NAME, long, {}, receipt.Evidence([], []))
    assert receipt.read(cache, NAME) is None


@pytest.mark.parametrize("field", ["schema", "decision", "files", "folders"])
def test_a_receipt_without_one_of_its_fields_is_not_used(cache: Path, field: str) -> None:
    assert keep(cache)
    text = cache / f"{NAME}.json"
    document = json.loads(text.read_bytes().partition(b"\n")[2])
    for changed in ({k: v for k, v in document.items() if k != field}, document | {field: 7}):
        body = json.dumps(changed).encode()
        text.write_bytes(sha256(body).encode() + b"\n" + body)
        assert receipt.read(cache, NAME) is None


def test_a_folder_that_others_may_write_is_another_one(cache: Path, patches: Path) -> None:
    for changed in (patches, patches / "demo"):
        assert keep(cache, patches)
        assert receipt.read(cache, NAME) == DECISION
        mode = changed.stat().st_mode
        changed.chmod(0o777)
        assert receipt.read(cache, NAME) is None
        changed.chmod(mode)
        assert receipt.read(cache, NAME) == DECISION


def test_a_link_in_a_folder_counts_and_not_what_it_leads_to(
    cache: Path, patches: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (patches / "link").symlink_to(elsewhere)
    assert keep(cache, patches)
    elsewhere.chmod(0o700)
    assert receipt.read(cache, NAME) == DECISION
    (patches / "link").unlink()
    assert receipt.read(cache, NAME) is None


def test_a_folder_that_changed_at_the_last_moment_keeps_nothing(
    patches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt, "_SETTLED", 5)
    changed = max(path.lstat().st_ctime_ns for path in (patches, *patches.rglob("*")))
    evidence = receipt.Evidence([], [str(patches)])
    evidence._began = changed + 5
    assert evidence.folders() is None
    evidence._began += 1
    assert list(evidence.folders() or ()) == [str(patches)]


def test_what_was_just_written_stays_though_others_look_newer(cache: Path) -> None:
    assert keep(cache, name="1" * 64)
    for number in range(1, 65):
        other = cache / f"{number:064x}.json"
        other.write_bytes(b"x")
        os.utime(other, (2**33, 2**33))
    assert keep(cache)
    assert receipt.read(cache, NAME) == DECISION
    assert len(list(cache.iterdir())) == 64
    assert not (cache / f"{'1' * 64}.json").exists()


def test_a_file_that_differs_from_what_was_read_keeps_nothing(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    for read, kept in ((sha256(b"2"), False), (None, False), (sha256(b"1"), True)):
        evidence = receipt.Evidence([], [])
        assert receipt.write(cache, NAME, DECISION, {str(file): read}, evidence) is kept
    assert receipt.read(cache, NAME) == DECISION
    file.unlink()
    assert receipt.read(cache, NAME) is None


def test_the_order_of_variables_is_no_matter_and_that_of_folders_is() -> None:
    variables = {"OVERLAY_A": "1", "OVERLAY_B": "2"}
    name = receipt.name_of(["/a"], variables, ["/b", "/c"])
    assert receipt.name_of(["/a"], dict(reversed(variables.items())), ["/b", "/c"]) == name
    assert receipt.name_of(["/a"], variables, ["/c", "/b"]) != name


def test_modules_of_a_checkout_count_by_their_places_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a process runs, and also where a module only moves."""
    folder = tmp_path / "overlay"
    for name in ("one", "other"):
        (folder / name).mkdir(parents=True)
    (folder / "one" / "module.py").write_text("VALUE = 1\n")
    before = receipt.build(str(folder))
    monkeypatch.chdir(folder / "other")
    assert receipt.build(str(folder)) == before
    (folder / "one" / "module.py").rename(folder / "other" / "module.py")
    assert receipt.build(str(folder)) != before
