"""The private store: verified before use, refused where others could have written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from overlay.auto import store
from overlay.auto.store import Store, StoreError, entry_key

TEXTS: dict[str, tuple[bytes, str | None]] = {
    "vllm/a.py": (b"VALUE = 1\n", "0" * 64),
    "vllm/new/__init__.py": (b"def f():\n    return 2\n", None),
}


@pytest.fixture
def cache(tmp_path: Path) -> Store:
    return Store(tmp_path / "modules")


def test_an_entry_comes_back_as_it_was_saved(cache: Store) -> None:
    cache.save("key", TEXTS, {"features": ["x"]})
    entry = cache.load("key")
    assert entry is not None
    assert {m.path: (m.source, m.pristine) for m in entry.modules} == TEXTS
    assert entry.facts == {"features": ["x"]}
    for module in entry.modules:
        assert module.code.co_filename == str(module.file)
        assert module.file.read_bytes() == module.source


def test_nothing_there_is_no_entry(cache: Store) -> None:
    assert cache.load("key") is None


def test_the_folders_are_private(cache: Store) -> None:
    cache.save("key", TEXTS, {})
    for place in (cache.folder, *cache.folder.rglob("*")):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o077, place


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


def newer_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"schema": 99, "modules": {}}))


def open_the_folder(folder: Path) -> None:
    folder.chmod(0o777)


def open_the_cache(folder: Path) -> None:
    folder.parent.chmod(0o775)


def open_a_file(folder: Path) -> None:
    (folder / "vllm/a.code").chmod(0o666)


def link_a_file(folder: Path) -> None:
    file = folder / "vllm/a.py"
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")


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
        open_the_folder,
        open_the_cache,
        open_a_file,
        link_a_file,
        replace_by_link,
    ],
)
def test_a_harmed_entry_is_refused(cache: Store, harm: Callable[[Path], None]) -> None:
    cache.save("key", TEXTS, {})
    harm(cache.folder / "key")
    with pytest.raises(StoreError):
        cache.load("key")


def test_a_foreign_entry_is_refused(cache: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    cache.save("key", TEXTS, {})
    os.chown(cache.folder / "key" / "vllm/a.code", 12345, 12345)
    with pytest.raises(StoreError, match="12345"):
        cache.load("key")


def test_a_harmed_entry_can_be_made_again(cache: Store) -> None:
    cache.save("key", TEXTS, {})
    truncate(cache.folder / "key")
    cache.discard("key")
    cache.save("key", TEXTS, {})
    assert cache.load("key") is not None


def test_many_makers_of_one_entry_agree(cache: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda _: cache.save("key", TEXTS, {}), range(16)))
    assert {entry.folder for entry in entries} == {cache.folder / "key"}
    assert [path.name for path in cache.folder.iterdir()] == ["key"]


def test_old_entries_go_first_and_the_new_one_stays(cache: Store) -> None:
    for number in range(store.MAX_ENTRIES + 3):
        cache.save(f"key{number:02}", TEXTS, {})
        os.utime(cache.folder / f"key{number:02}", (number, number))
    names = sorted(path.name for path in cache.folder.iterdir())
    assert len(names) <= store.MAX_ENTRIES
    assert f"key{store.MAX_ENTRIES + 2:02}" in names
    assert "key00" not in names


def test_a_text_that_does_not_compile_leaves_nothing(cache: Store) -> None:
    with pytest.raises(SyntaxError):
        cache.save("key", {"vllm/a.py": (b"def", None)}, {})
    assert list(cache.folder.iterdir()) == []


def test_the_key_depends_on_every_part() -> None:
    assert len({entry_key("a", "b"), entry_key("ab"), entry_key("b", "a"), entry_key("a")}) == 4
