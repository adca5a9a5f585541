"""The files of a target as a transaction finds them: links, forms, owners, and what it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk.files import Owner, Site, foreign_state, unwritable
from overlay.package import VLLM, Package, package_named
from overlay.untrusted import MAX_BYTES
from tests.support import transactions
from tests.support.faults import in_child

ASCEND = package_named("vllm_ascend")
STRANGER, NOBODY = 1234, 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
both = pytest.mark.parametrize("package", [VLLM, ASCEND], ids=lambda package: package.name)


def target(folder: Path, package: Package) -> Path:
    """A folder that holds a package of two modules, one of them in a folder, and state."""
    for path in (f"{package.name}/a.py", f"{package.name}/v1/b.py", package.ledger_path):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x\n")
    (folder / package.pristine_folder).mkdir()
    return folder.resolve()


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user can reach."""
    with transactions.memory_folder(tmp_path) as folder:
        folder.chmod(0o755)
        yield folder


# Paths


@both
def test_a_link_to_a_module_inside_the_package_is_followed(
    tmp_path: Path, package: Package
) -> None:
    root = target(tmp_path, package)
    (root / package.name / "link.py").symlink_to("v1/b.py")
    site = Site(root, package)
    assert site.real(f"{package.name}/link.py") == f"{package.name}/v1/b.py"
    assert site.real(f"{package.name}/new.py") == f"{package.name}/new.py"
    assert site.read(f"{package.name}/link.py") == b"x\n"
    assert site.read(f"{package.name}/new.py") is None


@both
def test_a_link_to_anything_else_inside_the_target_is_refused(
    tmp_path: Path, package: Package
) -> None:
    root = target(tmp_path, package)
    (root / "beside.py").write_bytes(b"")
    place = root / package.name / "link.py"
    place.symlink_to("../beside.py")
    with pytest.raises(TransactionError) as caught:
        Site(root, package).real(f"{package.name}/link.py")
    assert str(caught.value).startswith(
        f"{place} leads to {root / 'beside.py'}: expected a file inside {root / package.name}"
    )


def test_what_is_not_a_plain_file_is_named(tmp_path: Path) -> None:
    root = target(tmp_path, VLLM)
    with pytest.raises(TransactionError) as caught:
        Site(root).real("vllm/v1")
    expected = f"{root}/vllm/v1: expected a plain file, found a folder. Nothing was changed"
    assert str(caught.value) == expected


def test_a_file_too_large_to_be_a_module_is_named(tmp_path: Path) -> None:
    root = target(tmp_path, VLLM)
    os.truncate(root / "vllm/a.py", MAX_BYTES + 1)
    with pytest.raises(TransactionError) as caught:
        Site(root).read("vllm/a.py")
    assert str(caught.value).startswith(f"{root}/vllm/a.py: ")
    assert str(caught.value).endswith(". Nothing was changed")


@both
def test_a_link_in_the_place_of_the_state_is_refused(tmp_path: Path, package: Package) -> None:
    root = target(tmp_path, package)
    (root / package.pristine_folder).rmdir()
    (root / package.pristine_folder).symlink_to("elsewhere")
    with pytest.raises(TransactionError, match="found a symbolic link"):
        Site(root, package)


@both
def test_only_the_overlays_own_state_is_listed(tmp_path: Path, package: Package) -> None:
    root = target(tmp_path, package)
    copy = f"{package.pristine_folder}/{'a' * 64}"
    for path in (copy, f"{package.pristine_folder}/notes", f"{package.state_folder}/mine"):
        (root / path).write_bytes(b"")
    assert Site(root, package).state_files() == {package.ledger_path, copy}


@both
def test_a_folder_is_one_inside_the_package(tmp_path: Path, package: Package) -> None:
    root, name = target(tmp_path, package), package.name
    for link, end in (("other", "v1"), ("whole", "."), ("up", ".."), ("out", "/")):
        (root / name / link).symlink_to(end)
    site = Site(root, package)
    folders = {path: site.real_folder(f"{name}/{path}") for path in ("v1", "other", "new")}
    assert folders == {"v1": f"{name}/v1", "other": f"{name}/v1", "new": f"{name}/new"}
    assert [site.real_folder(f"{name}/{path}") for path in ("whole", "up", "out")] == [None] * 3


# Owners


@as_root
def test_a_new_file_belongs_to_whom_its_folder_belongs(tmp_path: Path) -> None:
    root = target(tmp_path, VLLM)
    os.chown(root / "vllm/v1", STRANGER, STRANGER)
    assert Site(root).form("vllm/v1/new.py").owner == Owner(STRANGER, STRANGER)
    assert Site(root).form("vllm/v1/no/new.py").owner == Owner(STRANGER, STRANGER)
    assert Site(root).form("vllm/v1/b.py").owner == Owner(0, 0)


@both
def test_a_state_that_others_may_write_is_foreign(tmp_path: Path, package: Package) -> None:
    root = target(tmp_path, package)
    folder = root / package.state_folder
    folder.chmod(0o755)
    assert foreign_state(root, package) is None
    folder.chmod(0o757)
    told = foreign_state(root, package)
    assert told is not None
    assert told.startswith(f"{folder} can be written by others")
    assert told.endswith(f"; what it says of this {package.title} may not be true")


@as_root
@both
def test_a_state_is_its_users_roots_or_that_of_the_packages_owner(
    tmp_path: Path, package: Package
) -> None:
    root = target(tmp_path, package)
    folder = root / package.state_folder
    os.chown(folder, STRANGER, STRANGER)
    assert f"{folder} belongs to " in (foreign_state(root, package) or "")
    os.chown(root / package.name, STRANGER, STRANGER)
    assert foreign_state(root, package) is None
    folder.chmod(0o775)
    assert foreign_state(root, package) is not None  # a group of which nothing is known
    os.chown(folder, 0, 0)
    assert foreign_state(root, package) is None  # the private group of its owner


def test_without_state_or_package_nothing_is_foreign(tmp_path: Path) -> None:
    assert foreign_state(tmp_path) is None
    (tmp_path / "vllm").mkdir()
    assert foreign_state(tmp_path) is None


# What the system refuses


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_missing_permission_names_the_owner_of_the_nearest_place(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.on_disk.files.user_name", lambda user: f"user {user}")
    place, owner = tmp_path / "a.py", tmp_path.stat().st_uid
    for path in (place, tmp_path / "no/such/a.py"):
        told = str(unwritable(OSError(number, os.strerror(number), str(path)), "So it is."))
        assert told.startswith(f"{path}: ")
        assert told.endswith(f"So it is. {tmp_path} belongs to user {owner}.")
    place.touch()
    told = str(unwritable(OSError(number, os.strerror(number), str(place)), "So it is."))
    assert told.endswith(f"So it is. {place} belongs to user {owner}.")


def test_no_owner_is_named_where_none_is_missing_or_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "full", str(tmp_path))
    nowhere = OSError(errno.EACCES, "refused")
    assert str(unwritable(full, "So it is.")).endswith("So it is.")
    assert str(unwritable(nowhere, "So it is.")).endswith("So it is.")

    def gone(path: object) -> os.stat_result:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "stat", gone)
    refused = OSError(errno.EACCES, "refused", str(tmp_path))
    assert str(unwritable(refused, "So it is.")).endswith("So it is.")


@as_root
def test_a_folder_that_hides_what_is_in_it_is_named(public: Path) -> None:
    hidden = public / "hidden"
    hidden.mkdir(mode=0o700)

    def work() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with pytest.raises(PermissionError) as caught:
            os.stat(hidden / "vllm/a.py")
        assert f"{hidden} belongs to root." in str(unwritable(caught.value, "So it is."))

    assert in_child(work) == 0
