"""An entry of the private store that is not as it was made is refused, whatever was done to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overlay.in_memory.module_cache import Store, StoreError
from overlay.untrusted import sha256
from tests.in_memory.stored import TEXTS


@pytest.fixture
def cache(tmp_path: Path) -> Store:
    return Store(tmp_path / "modules")


def truncate(folder: Path) -> None:
    file = folder / "vllm/a.py"
    file.write_bytes(file.read_bytes()[:-1])


def change_code(folder: Path) -> None:
    file = folder / "vllm/a.code"
    file.write_bytes(file.read_bytes() + b"\0")


def lose_a_file(folder: Path) -> None:
    (folder / "vllm/a.py").unlink()


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def write_manifest(folder: Path, manifest: object) -> None:
    body = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(sha256(body).encode() + b"\n" + body)


def newer_manifest(folder: Path) -> None:
    write_manifest(folder, {"schema": 99, "modules": {}})


def empty_manifest(folder: Path) -> None:
    write_manifest(folder, {"schema": 2})


def no_manifest(folder: Path) -> None:
    write_manifest(folder, [])


def open_the_folder(folder: Path) -> None:
    folder.chmod(0o777)


def open_the_cache(folder: Path) -> None:
    folder.parent.chmod(0o775)


def open_an_inner_folder(folder: Path) -> None:
    (folder / "vllm/new").chmod(0o777)


def open_a_folder_between(folder: Path) -> None:
    (folder / "vllm/v1").chmod(0o775)


def link(place: Path, folder: Path) -> None:
    place.rename(folder / "elsewhere")
    place.symlink_to(folder / "elsewhere")


def link_an_inner_folder(folder: Path) -> None:
    link(folder / "vllm/new", folder)


def open_a_file(folder: Path) -> None:
    (folder / "vllm/a.code").chmod(0o666)


def link_a_file(folder: Path) -> None:
    link(folder / "vllm/a.py", folder)


def dangle(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("nowhere")


def replace_by_link(folder: Path) -> None:
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.symlink_to(moved)


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        change_code,
        lose_a_file,
        damage_manifest,
        newer_manifest,
        empty_manifest,
        no_manifest,
        open_the_folder,
        open_the_cache,
        open_an_inner_folder,
        open_a_folder_between,
        link_an_inner_folder,
        open_a_file,
        link_a_file,
        replace_by_link,
        dangle,
    ],
)
def test_a_harmed_entry_is_refused(cache: Store, harm: Callable[[Path], None]) -> None:
    cache.save("key", TEXTS, {})
    harm(cache.folder / "key")
    with pytest.raises(StoreError):
        cache.load("key")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Store:
    cache = Store(tmp_path_factory.mktemp("law") / "modules")
    cache.save("key", TEXTS, {"features": ["x"], "digest": "a" * 64})
    return cache


@given(st.data())
def test_no_byte_of_an_entry_can_change_unseen(stored: Store, data: st.DataObject) -> None:
    files = sorted(file for file in stored.folder.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files), label="file")
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole)), label="at")
    old = data.draw(st.integers(0, 8), label="bytes taken out")
    new = data.draw(st.binary(max_size=8), label="bytes put in")
    harmed = whole[:at] + new + whole[at + old :]
    assume(harmed != whole)
    try:
        file.write_bytes(harmed)
        with pytest.raises(StoreError):
            stored.load("key")
    finally:
        file.write_bytes(whole)
    assert stored.load("key") is not None


@pytest.mark.parametrize("part", ["", "vllm", "vllm/new", "vllm/a.code", "manifest.json"])
def test_a_foreign_entry_is_refused(cache: Store, part: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    cache.save("key", TEXTS, {})
    os.chown(cache.folder / "key" / part, 12345, 12345)
    with pytest.raises(StoreError, match="12345"):
        cache.load("key")
