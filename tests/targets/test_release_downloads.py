"""Downloads of releases that end early, and what they tell meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from overlay.errors import PackageIndexError
from overlay.targets import http
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.fake_index import FakeIndex
from tests.support.release_sources import archive_path

pytestmark = pytest.mark.usefixtures("cache")


def test_a_full_disk_while_downloading(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http.IndexSession, "_download", full)

    with pytest.raises(PackageIndexError, match=r"No space left on device.*TMPDIR"):
        resolve("0.26.0")


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for version in ("0.26.0", "0.27.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    index.hashes["vllm-0.27.0.tar.gz"] = "0" * 64

    resolve("0.26.0")
    with pytest.raises(PackageIndexError):
        resolve("0.27.0")

    assert list(scratch.iterdir()) == []
    assert not list(archive_path("0.26.0").parent.glob(".*"))


def test_a_killed_download_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, index: FakeIndex
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    index.add(fake_vllm.sdist(tmp_path))
    code = (
        "import os, signal, sys; from overlay.targets import fetch as fetching, http; "
        "from overlay.targets.resolution import resolve; "
        "from overlay.targets.pip_config import IndexConfig; "
        "fetching.configured = lambda: IndexConfig((sys.argv[1],)); "
        "http.IndexSession._download = lambda self, url, file, *_: "
        "(file.write(b'half'), file.flush(), print(os.readlink(f'/proc/self/fd/{file.fileno()}'), "
        "flush=True), os.kill(os.getpid(), signal.SIGKILL)); "
        "resolve('0.26.0')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code, index.simple]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.startswith(str(scratch))
    assert list(scratch.iterdir()) == []


def test_progress_is_told(tmp_path: Path, index: FakeIndex) -> None:
    sdist, wheel = fake_vllm.sdist(tmp_path), fake_vllm.wheel(tmp_path, "0.15.1")
    index.add(sdist)
    index.add(wheel)
    calls: list[tuple[str, int, int | None]] = []

    resolve("0.26.0", progress=lambda *call: calls.append(call))

    size = sdist.stat().st_size
    assert calls[-1] == ("vLLM 0.26.0", size, size)
