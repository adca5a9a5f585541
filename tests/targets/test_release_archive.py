"""Releases that were fetched: kept, read back, shared between processes, and damaged."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.cache import ABANDONED_AFTER
from overlay.errors import ArchiveError, PackageIndexError
from overlay.targets import Origin, Sources, releases
from overlay.targets.releases import (
    CachedRelease,
    DamagedError,
    write_to,
)
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.fake_index import PATH, PROJECT_PAGE, FakeIndex, is_whole
from tests.support.release_sources import archive_path

pytestmark = pytest.mark.usefixtures("cache")


def test_a_kept_release_needs_no_network(tmp_path: Path, index: FakeIndex, offline) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    offline()

    assert is_whole(resolve("0.26.0"))


def test_the_archive_is_a_zip_like_any_other(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")

    with zipfile.ZipFile(archive_path("0.26.0")) as archive:
        assert archive.testzip() is None
        assert archive.read(PATH) == fake_vllm.files()[PATH]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "index", "version"])
def test_a_damaged_archive_is_made_again(tmp_path: Path, index: FakeIndex, damage: str) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    path = archive_path("0.26.0")
    content = path.read_bytes()
    inside = content.find(PATH.encode()) + len(PATH) + 20
    comment = content.rfind(b"overlay-index ")
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "text": content[:inside] + b"XXXX" + content[inside + 4 :],
            "index": content.replace(b'"left_out"', b'"left-out"'),
            "version": content[:comment] + b"overlay-index 9" + content[comment + 15 :],
        }[damage]
    )

    assert is_whole(resolve("0.26.0"))
    assert path.read_bytes() == content
    assert index.asked("vllm-0.26.0.tar.gz") == 2


def test_a_file_that_is_damaged_while_the_target_is_in_use_is_made_again(
    tmp_path: Path, index: FakeIndex, offline
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    target = resolve("0.26.0")
    path = archive_path("0.26.0")
    content = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(bytes(len(content)))

    assert is_whole(target)
    assert path.read_bytes() == content

    with open(path, "r+b") as file:
        file.write(bytes(len(content)))
    index.statuses[PROJECT_PAGE] = [500] * 9
    with pytest.raises(PackageIndexError, match="answers 500"):
        target.read(PATH)


def _archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    sources = Sources("0.26.0", files, frozenset({"vllm/a.so"}))
    write_to(out, sources, Origin("vllm.tar.gz", "index", None, ("careful",)))
    return out.getvalue()


def _opened(raw: bytes) -> CachedRelease:
    return CachedRelease(lambda offset, length: raw[offset : offset + length], len(raw))


@given(
    st.dictionaries(
        st.text(
            st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1
        ).map("vllm/{}".format),
        st.binary(max_size=300),
        max_size=5,
    )
)
def test_the_archive_gives_back_what_was_written(files: dict[str, bytes]) -> None:
    found = _opened(_archive(files))

    assert found.paths() == sorted(files)
    assert {path: found.read(path) for path in files} == files
    assert (found.version, found.origin.warnings) == ("0.26.0", ("careful",))
    with pytest.raises(ArchiveError):
        found.read("vllm/a.so")


_TEXTS = {"vllm/a.py": b"print(1)\n" * 30, "vllm/b.py": bytes(range(256))}
_WRITTEN = _archive(_TEXTS)


@pytest.mark.parametrize("change", [1, 0x20, 0x80])
def test_no_damaged_byte_is_passed_on(change: int) -> None:
    refused = 0
    for at in range(len(_WRITTEN)):
        raw = bytearray(_WRITTEN)
        raw[at] ^= change
        try:
            found = _opened(bytes(raw))
            texts = {path: found.read(path) for path in _TEXTS}
        except DamagedError:
            refused += 1
            continue
        assert texts == _TEXTS
        assert (found.version, found.paths()) == ("0.26.0", sorted(_TEXTS))
        assert found.origin == Origin("vllm.tar.gz", "index", None, ("careful",))
    assert refused > sum(map(len, _TEXTS.values())) / 4


def test_who_waits_for_a_release_takes_what_the_other_one_fetched(
    tmp_path: Path, index: FakeIndex, offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    path = archive_path("0.26.0")
    aside = path.rename(path.with_suffix(".aside"))
    offline()
    waiting = threading.Event()
    acquire = filelock.FileLock.acquire

    def announce(self: filelock.FileLock, *args: Any, **options: Any) -> object:
        waiting.set()
        return acquire(self, *args, **options)

    with ThreadPoolExecutor(1) as pool:
        with filelock.FileLock(f"{path}.lock"):
            monkeypatch.setattr(filelock.FileLock, "acquire", announce)
            target = pool.submit(resolve, "0.26.0")
            assert waiting.wait(30)
            aside.rename(path)

        assert is_whole(target.result(30))


def test_a_process_that_fetches_for_too_long_is_named(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "LOCK_SECONDS", 0.1)
    path = archive_path("0.26.0")
    path.parent.mkdir(parents=True)

    with filelock.FileLock(f"{path}.lock"), pytest.raises(PackageIndexError) as caught:
        resolve("0.26.0")

    assert f"{path}.lock" in str(caught.value)


def test_processes_that_want_the_same_release_fetch_it_once(
    tmp_path: Path, index: FakeIndex
) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    code = (
        "import sys; from overlay.targets import fetch as fetching; "
        "from overlay.targets.resolution import resolve; "
        "from overlay.targets.pip_config import IndexConfig; "
        "fetching.configured = lambda: IndexConfig((sys.argv[1],)); "
        "sys.stdout.buffer.write(resolve('0.26.0').read(sys.argv[2]))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, index.simple, PATH],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(6)
    ]

    for process in started:
        out, errors = process.communicate(timeout=60)
        assert (out, errors) == (fake_vllm.files()[PATH], b"")
    assert index.asked(sdist.name) == 1


@pytest.mark.parametrize("where", ["a file", "read-only"])
def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, index: FakeIndex, cache: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    if where == "a file":
        cache.write_text("in the way")
    else:
        make = tempfile.mkstemp

        def refuse(*words: Any, **options: Any) -> tuple[int, str]:
            if str(options.get("dir", "")).startswith(str(cache)):
                raise PermissionError(13, "Permission denied")
            return make(*words, **options)

        monkeypatch.setattr(tempfile, "mkstemp", refuse)  # root may write everywhere

    target = resolve("0.26.0")

    assert is_whole(target)
    assert len(target.warnings) == 1
    assert "set OVERLAY_CACHE" in target.warnings[0]


def test_what_a_killed_process_left_in_the_cache_is_taken_away(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    path = archive_path("0.26.0")
    path.parent.mkdir(parents=True)
    abandoned, young = (path.parent / f".{path.name}.{end}.new" for end in ("abc", "def"))
    for unfinished in (abandoned, young):
        unfinished.write_bytes(b"half")
    long_ago = time.time() - 2 * ABANDONED_AFTER
    os.utime(abandoned, (long_ago, long_ago))

    resolve("0.26.0")

    # Another process may be writing the younger one at this moment.
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, young.name}


def test_a_release_that_does_not_exist_leaves_nothing_in_the_cache(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.add(fake_vllm.sdist(tmp_path))

    with pytest.raises(PackageIndexError):
        resolve("0.26.9")

    assert list(archive_path("0.26.9").parent.iterdir()) == []


@pytest.mark.parametrize("spelling", ["0.26", "0.26.0", "v0.26", "0.26.0+cpu", "0.26.0.0"])
def test_a_release_is_kept_once_however_it_is_spelt(
    tmp_path: Path, index: FakeIndex, offline, spelling: str
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve(spelling)
    offline()

    assert is_whole(resolve("0.26.0"))
    assert is_whole(resolve("0.26"))
    assert [entry.name for entry in archive_path("0.26.0").parent.iterdir()] == ["vllm-0.26.0.zip"]


def test_a_label_that_no_index_has_is_dropped_and_said(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))

    target = resolve("0.26.0+cpu")

    assert is_whole(target)
    assert "vLLM 0.26.0 was taken for 0.26.0+cpu" in target.warnings[0]
    index.statuses[PROJECT_PAGE] = [500] * 9
    assert is_whole(resolve("0.26.0+cpu"))  # in the cache, and no index can be asked


def _everybody_may_write(path: Path) -> None:
    path.parent.chmod(0o777)


def _linked(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


def _a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _somebody_elses(path: Path) -> None:
    os.chown(path.parent, 12345, 12345)


@pytest.mark.parametrize(
    "harm",
    [
        _everybody_may_write,
        _linked,
        _a_pipe,
        pytest.param(
            _somebody_elses,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
        ),
    ],
)
def test_a_cache_that_others_could_have_written_is_not_believed(
    tmp_path: Path, index: FakeIndex, harm: Callable[[Path], None]
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    path = archive_path("0.26.0")
    forged = {**fake_vllm.files(), PATH: b"import os\n"}
    with open(path, "wb") as file:
        write_to(file, Sources("0.26.0", forged, frozenset()), Origin("a", "b", None, ()))
    harm(path)

    target = resolve("0.26.0")

    assert is_whole(target)
    assert "was not used" in " ".join(target.warnings)
    assert index.asked("vllm-0.26.0.tar.gz") == 2


def test_why_a_cache_is_not_used_is_one_warning_for_all_releases(
    tmp_path: Path, index: FakeIndex
) -> None:
    for version in ("0.26.0", "0.27.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    folder = archive_path("0.26.0").parent
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.symlink_to(elsewhere)
    (warning,) = {*resolve("0.26.0").warnings, *resolve("0.27.0").warnings}
    assert f"the cache {folder} was not used" in warning
    assert f"{folder} is a symbolic link" in warning
    assert "remove the link; or set OVERLAY_CACHE to a folder of your own" in warning
