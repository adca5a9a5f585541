"""Places that may not be written, or belong to somebody else; disks that are full or read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from tests.support import transactions
from tests.support.faults import in_child
from tests.support.sites import interrupt_in_the_middle, stamps
from tests.support.transactions import Site, snapshot

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@as_root
def test_root_leaves_the_owner_as_it_was(site: Site) -> None:
    for path in [site.root, *site.root.rglob("*")]:
        os.chown(path, 1234, 2345)
    site.apply()
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in [site.root, *site.root.rglob("*")]}
    assert owners == {(1234, 2345)}
    site.revert()
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in [site.root, *site.root.rglob("*")]}
    assert owners == {(1234, 2345)}


# Where nothing may be written


@as_root
@pytest.mark.parametrize("umask", [0o777, 0o477, 0o377])
def test_a_user_can_use_what_was_written_whatever_the_umask(public: Path, umask: int) -> None:
    site = transactions.installed(public / "site")
    for path in [site.root, *site.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    before = snapshot(site.root)

    def work() -> None:
        os.umask(umask)
        site.apply()
        assert not site.apply().wrote
        site.revert()

    assert as_nobody(work) == 0
    assert snapshot(site.root) == before


def as_nobody(work: Callable[[], object]) -> int:
    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    return in_child(run)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder that every user can reach."""
    with transactions.memory_folder(tmp_path) as folder:
        folder.chmod(0o755)
        yield folder


@as_root
def test_another_users_installation_is_named_and_left_alone(public: Path) -> None:
    site = transactions.installed(public / "site")
    before = snapshot(site.root)

    def work() -> None:
        with pytest.raises(TransactionError) as caught:
            site.apply()
        said = str(caught.value)
        assert str(site.root) in said
        assert "Permission denied" in said
        assert "as it was before the apply" in said
        assert f"{site.root} belongs to root" in said

    assert as_nobody(work) == 0
    assert snapshot(site.root) == before


@as_root
def test_only_some_folders_are_writable(public: Path) -> None:
    """The staging finds it out, before the first file is touched."""
    site = transactions.installed(public / "site")
    for path in [site.root, *site.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    os.chown(site.root / "vllm/v1/worker", 0, 0)
    before = snapshot(site.root)

    def work() -> None:
        with pytest.raises(TransactionError, match=r"worker.*Permission denied"):
            site.apply()

    assert as_nobody(work) == 0
    assert snapshot(site.root) == before


@as_root
def test_a_read_only_installation_that_is_patched_is_fine(public: Path) -> None:
    site = transactions.installed(public / "site")
    site.apply()
    before = stamps(site.root)

    def work() -> None:
        outcome = site.apply()
        assert not outcome.wrote
        with pytest.raises(TransactionError, match="as it was before the revert"):
            site.revert()
        assert recover(site.root) is None

    assert as_nobody(work) == 0
    assert stamps(site.root) == before


@as_root
def test_an_interrupted_apply_is_told_by_who_cannot_end_it(public: Path) -> None:
    site = transactions.installed(public / "site")
    before = snapshot(site.root)
    interrupt_in_the_middle(site)
    middle = snapshot(site.root)

    def work() -> None:
        with pytest.raises(TransactionError, match="could not be ended here") as caught:
            recover(site.root)
        assert "between two states" in str(caught.value)
        assert "belongs to root" in str(caught.value)
        with commit.reading(site.root) as interrupted:
            assert interrupted is not None
        with pytest.raises(TransactionError, match="between two states"):
            site.apply()

    assert as_nobody(work) == 0
    assert snapshot(site.root) == middle
    assert recover(site.root) == f"an interrupted apply was finished in {site.root}"
    site.revert()
    assert snapshot(site.root) == before


# After an interruption


def mount(*arguments: str) -> None:
    """Mount something, or skip the test where that is not allowed."""
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount here: {done.stderr.strip()}")


def fill(file: Path) -> None:
    """Use up the space of a file system."""

    def write() -> None:
        with file.open("ab", buffering=0) as out:
            while True:
                out.write(b"x" * 4096)

    with pytest.raises(OSError, match="No space left"):
        write()


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """No injected fault: a file system that is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder))
    try:
        site = transactions.installed(folder / "site")
        before = snapshot(site.root)
        filler = folder / "filler"
        fill(filler)
        with pytest.raises(TransactionError, match="free some space") as caught:
            site.apply()
        assert "as it was before the apply" in str(caught.value)
        assert snapshot(site.root) == before
        filler.unlink()
        site.apply()
        fill(filler)
        patched = snapshot(site.root)
        with pytest.raises(TransactionError, match="as it was before the revert"):
            site.revert()
        assert snapshot(site.root) == patched
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_disk_for_real(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    site = transactions.installed(folder / "site")
    patched = site.copy(folder / "patched")
    patched.apply()
    before = snapshot(folder)
    mount("--bind", str(folder), str(folder))
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(TransactionError, match="read-only"):
            site.apply()
        assert not patched.apply().wrote
        with pytest.raises(TransactionError, match="read-only"):
            patched.revert()
        assert not site.revert().wrote
        assert recover(site.root) is None
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert snapshot(folder) == before
