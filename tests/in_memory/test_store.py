"""The private store: verified before use, refused where others could have written."""

from __future__ import annotations

import fcntl
import inspect
import linecache
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType
from typing import IO

import pytest

from overlay.cache import ABANDONED_AFTER
from overlay.in_memory import module_cache as store
from overlay.in_memory.module_cache import Store, StoreError, entry_key
from tests.in_memory.stored import TEXTS
from tests.in_memory.test_store_harm import change_code, truncate


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


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000])
def test_the_folders_are_private(cache: Store, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache.save("key", TEXTS, {})
    finally:
        os.umask(before)
    for place in (cache.folder, *cache.folder.rglob("*")):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o077, place


def test_a_harmed_entry_can_be_made_again(cache: Store) -> None:
    cache.save("key", TEXTS, {})
    truncate(cache.folder / "key")
    cache.discard("key")
    cache.save("key", TEXTS, {})
    assert cache.load("key") is not None


def test_an_entry_that_goes_while_it_is_read_is_refused(
    cache: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save("key", TEXTS, {})
    shutil.rmtree(cache.folder / "key")
    monkeypatch.setattr(os.path, "lexists", lambda place: True)  # it went just after this
    with pytest.raises(StoreError, match="expected a file or folder of your own"):
        cache.load("key")


def changed(file: Path) -> None:
    file.write_bytes(b"def other():\n    'Not what runs.'\n    return 1\n")
    os.utime(file, (1, 1))


def removed(file: Path) -> None:
    shutil.rmtree(file.parent.parent)


@pytest.mark.parametrize("later", [changed, removed])
def test_the_source_that_is_shown_is_the_one_that_was_verified(
    cache: Store, later: Callable[[Path], None]
) -> None:
    # A form feed ends no line for the compiler, so it must end none here.
    source = b"# one\x0c page\ndef f():\n    return 1 // 0\n"
    cache.save("key", {"vllm/shown.py": (source, None)}, {})
    linecache.clearcache()  # what save() shows is not what is asked here
    entry = cache.load("key")
    assert entry is not None
    (module,) = entry.modules
    names: dict[str, object] = {"__name__": "shown"}
    exec(module.code, names)
    later(module.file)
    linecache.checkcache()
    f = names["f"]
    assert isinstance(f, FunctionType)
    assert inspect.getsource(f) == "def f():\n    return 1 // 0\n"
    with pytest.raises(ZeroDivisionError) as failed:
        f()
    assert traceback.extract_tb(failed.value.__traceback__)[-1].line == "return 1 // 0"


def test_nothing_of_a_refused_entry_is_shown(cache: Store) -> None:
    cache.save("key", TEXTS, {})
    linecache.clearcache()
    change_code(cache.folder / "key")
    with pytest.raises(StoreError):
        cache.load("key")
    assert linecache.cache == {}


def abandoned(cache: Store, name: str, seconds: float) -> Path:
    """What a process leaves that was killed ``seconds`` ago while it wrote."""
    made = cache.folder / f".making-{name}"
    (made / "vllm").mkdir(parents=True)
    (made / "vllm/a.py").write_bytes(b"VALUE =")
    os.utime(made, (time.time() - seconds,) * 2)
    return made


def test_what_killed_makers_left_goes_with_the_next_write(cache: Store, tmp_path: Path) -> None:
    cache.folder.mkdir(mode=0o700)
    for number in range(40):
        abandoned(cache, f"old{number}", ABANDONED_AFTER + 60)
    fresh = abandoned(cache, "fresh", ABANDONED_AFTER - 60)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = cache.folder / ".making-link"
    link.symlink_to(elsewhere)
    os.utime(elsewhere, (1, 1))
    cache.save("key", TEXTS, {})
    assert {path.name for path in cache.folder.iterdir()} == {"key", fresh.name, link.name}
    assert (fresh / "vllm/a.py").exists()
    assert elsewhere.exists()


def test_without_locks_an_entry_is_made_and_nothing_is_judged_abandoned(
    cache: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(descriptor: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    cache.folder.mkdir(mode=0o700)
    old = abandoned(cache, "old", ABANDONED_AFTER + 60)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    cache.save("key", TEXTS, {})
    assert old.exists()


#: A process that stops in the middle of writing an entry, until it is killed.
HALTING = """
import sys, time
from pathlib import Path
from overlay.in_memory import module_cache as store

write = store._write

def halt(file, data):
    write(file, data)
    print(file.relative_to(sys.argv[1]).parts[0], flush=True)
    time.sleep(120)

store._write = halt
store.Store(Path(sys.argv[1])).save("key", {"vllm/a.py": (b"VALUE = 1\\n", None)}, {})
"""

#: A process that reads one entry after the other, and makes it where it is not there.
WORKING = """
import sys
from pathlib import Path
from overlay.in_memory.module_cache import Store

TEXTS = {f"vllm/m{number}.py": (b"VALUE = 1\\n" * 999, "0" * 64) for number in range(5)}
cache = Store(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    entry = cache.load(f"key{number}") or cache.save(f"key{number}", TEXTS, {"number": number})
    assert {m.path: (m.source, m.pristine) for m in entry.modules} == TEXTS
    assert entry.facts == {"number": number}
"""


def start(code: str, cache: Store) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(cache.folder)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_what_a_living_process_makes_is_never_taken_from_it(cache: Store) -> None:
    halted = start(HALTING, cache)
    try:
        made = cache.folder / line_of(halted.stdout)
        assert made.name.startswith(".making-")
        long_ago = time.time() - 10 * ABANDONED_AFTER
        os.utime(made, (long_ago, long_ago))
        cache.save("key1", TEXTS, {})
        assert (made / "vllm/a.py").exists()
        os.utime(made, (long_ago, long_ago))
        halted.send_signal(signal.SIGKILL)
        halted.wait(60)
        cache.save("key2", TEXTS, {})
        assert not made.exists()
    finally:
        end(halted)


def test_many_processes_share_one_cache_while_one_is_killed_in_the_middle(cache: Store) -> None:
    halted = start(HALTING, cache)
    workers = [start(WORKING, cache) for _ in range(4)]
    try:
        made = cache.folder / line_of(halted.stdout)
        assert [line_of(worker.stdout) for worker in workers] == ["ready"] * 4
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        halted.send_signal(signal.SIGKILL)
        said = [worker.communicate(timeout=600)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * 4, said
        # Nothing half made but what the killed one left, and its key is free for the next.
        keys = {f"key{number}" for number in range(10)}
        assert {path.name for path in cache.folder.iterdir()} == keys | {made.name}
        assert cache.load("key") is None
        cache.save("key", TEXTS, {})
    finally:
        for process in (halted, *workers):
            end(process)


def test_many_makers_of_one_entry_agree(cache: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda _: cache.save("key", TEXTS, {}), range(16)))
    assert {entry.folder for entry in entries} == {cache.folder / "key"}
    assert [path.name for path in cache.folder.iterdir()] == ["key"]


def test_old_entries_go_first_and_the_new_one_stays(cache: Store) -> None:
    cache.folder.mkdir(mode=0o700)
    unfinished = abandoned(cache, "fresh", 60)  # it is not an entry: neither counted nor evicted
    for number in range(store.MAX_ENTRIES + 3):
        cache.save(f"key{number:02}", TEXTS, {})
        os.utime(cache.folder / f"key{number:02}", (number, number))
    kept = {f"key{number:02}" for number in range(3, store.MAX_ENTRIES + 3)}
    assert {path.name for path in cache.folder.iterdir()} == kept | {unfinished.name}


def test_a_cache_of_large_entries_keeps_the_newest_that_fit(
    cache: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"vllm/a.py": (b"# " + b"x" * 5000 + b"\n", None)}
    cache.save("key0", large, {})
    size = sum(file.stat().st_size for file in cache.folder.rglob("*") if file.is_file())
    monkeypatch.setattr(store, "MAX_BYTES", 3 * size + size // 2)
    os.utime(cache.folder / "key0", (0, 0))
    for number in range(1, 6):
        cache.save(f"key{number}", large, {})
        os.utime(cache.folder / f"key{number}", (number, number))
    assert {path.name for path in cache.folder.iterdir()} == {"key3", "key4", "key5"}
    monkeypatch.setattr(store, "MAX_BYTES", size - 1)
    cache.save("key6", large, {})  # too large by itself, and used all the same
    assert {path.name for path in cache.folder.iterdir()} == {"key6"}


def test_a_text_that_does_not_compile_leaves_nothing(cache: Store) -> None:
    with pytest.raises(SyntaxError):
        cache.save("key", {"vllm/a.py": (b"def", None)}, {})
    assert list(cache.folder.iterdir()) == []


def test_the_key_depends_on_every_part() -> None:
    assert len({entry_key("a", "b"), entry_key("ab"), entry_key("b", "a"), entry_key("a")}) == 4
