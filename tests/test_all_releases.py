"""All 19 releases, as a user would: check, apply, apply again, diff, revert.

CI takes some of them (``tests/support/covering.py``): that each hunk lands on each release is shown
by ``tests/features/test_shipped_features.py``.

The sources come from the configured package index, once, into the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay._features.folder import load
from overlay._features.model import of_package, paths_of
from overlay._features.sources import shipped_folder
from overlay.cli.run import run
from overlay.package import KNOWN_RELEASES, VLLM
from overlay.targets.releases import CachedRelease
from overlay.targets.resolution import resolve
from tests.support.covering import each_release

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Command:
    """The command line, whose commands must end with 0.

    :ivar alone: whether each has a process of its own, as a user's has; else they share the
        imports and the features of this one.
    """

    capsys: pytest.CaptureFixture[str]
    alone: bool

    def __call__(self, *arguments: str | Path) -> str:
        """What a command prints."""
        words = list(map(str, arguments))
        if self.alone:
            command = [sys.executable, "-m", "overlay", *words]
            ended = subprocess.run(
                command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=600
            )
            status, output, errors = ended.returncode, ended.stdout, ended.stderr
        else:
            self.capsys.readouterr()
            status = run(words)
            output, errors = self.capsys.readouterr()
        assert status == 0, f"overlay {arguments}:\n{output}{errors}"
        return output

    def answer(self, *arguments: str | Path) -> dict[str, Any]:
        """The command's JSON, of one target."""
        report = json.loads(self(*arguments, "--json"))
        assert report["exit"] == 0
        (target,) = report["targets"]
        return dict(target)


def states(target: dict[str, Any]) -> dict[str, str]:
    return {feature["feature"]: feature["state"] for feature in target["features"]}


def unpack(release: str, folder: Path, only: Container[str] | None = None) -> Path:
    """The Python sources of a release, or some of them, as its sdist has them."""
    resolve(release)  # fetches it where it is not in the cache
    kept = CachedRelease.open(release)
    for path in kept.paths():
        if only is not None and path not in only:
            continue
        content = kept.read(path)
        assert content is not None
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def of_patches() -> set[str]:
    """The files of vLLM of which the shipped patches speak, and those that say its release."""
    paths = paths_of(of_package(load([shipped_folder()]), VLLM))
    return {"vllm/__init__.py", "vllm/_version.py", *paths}


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of each file, and every folder."""
    # By paths as texts: there are thousands, six times for each release.
    start, digests = len(f"{folder}/"), dict[str, str]()
    for place, folders, files in os.walk(folder):
        digests.update((f"{place}/{name}"[start:], "folder") for name in folders)
        for name in files:
            with open(f"{place}/{name}", "rb", buffering=0) as file:
                digests[f"{place}/{name}"[start:]] = hashlib.sha256(file.read()).hexdigest()
    return digests


def written(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What any write, replacement or touch below the folder would change."""
    stats = {path: path.stat() for path in (folder, *folder.rglob("*"))}
    return {str(path): (s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats.items()}


def git_apply(diff: str, folder: Path, *options: str) -> None:
    ended = subprocess.run(
        ["git", "apply", "--verbose", *options, "-"],
        input=diff,
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("release", each_release())
def test_a_release_from_check_to_revert(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = Command(capsys, alone=release == KNOWN_RELEASES[-1])
    answer = overlay.answer
    tree = unpack(release, tmp_path / "tree")
    pristine = hashes(tree)
    assert len(pristine) > 1000

    expected = states(answer("check", release))
    assert expected["active-lora-graphs"] == "upstreamed"
    assert expected["draft-graphs"] == "pristine"
    assert set(expected.values()) <= {"upstreamed", "pristine", "inapplicable"}
    assert states(answer("check", tree)) == expected
    assert hashes(tree) == pristine

    applied = answer("apply", tree)
    assert states(applied) == {
        feature: "applied" if state == "pristine" else state for feature, state in expected.items()
    }
    patched = hashes(tree)
    touched = {
        path for path in patched.keys() | pristine if patched.get(path) != pristine.get(path)
    }
    sources = {path for path in touched if path.endswith(".py")}
    for path in sources:
        compile((tree / path).read_bytes(), path, "exec", dont_inherit=True)
    reported = {file["path"] for one in applied["features"] for file in one["files"]}
    assert sources <= reported
    assert touched - sources <= {p for p in touched if p.startswith(".vllm-overlay")} | {
        str(Path(path).parent.as_posix()) for path in sources
    }

    before = written(tree)
    assert states(answer("apply", tree)) == states(applied)
    assert states(answer("status", tree)) == states(applied)
    assert written(tree) == before

    if shutil.which("git"):
        by_git = unpack(release, tmp_path / "git", only=sources)
        diff = overlay("diff", release)
        git_apply(diff, by_git, "--check")
        git_apply(diff, by_git)
        made = {path: digest for path, digest in hashes(by_git).items() if digest != "folder"}
        assert made == {path: patched[path] for path in sources}

    overlay("revert", tree)
    assert hashes(tree) == pristine
    assert states(answer("status", tree)) == expected


def test_every_release_has_what_the_metrics_are_put_into() -> None:
    """See ``overlay/in_memory/metrics_watch.py``: names of vLLM's that it relies on."""
    for release in map(str, KNOWN_RELEASES):
        target = resolve(release)
        registry = (target.read("vllm/v1/metrics/prometheus.py") or b"").decode()
        assert "from prometheus_client import REGISTRY" in registry, release
        assert "multiprocess.MultiProcessCollector(registry)" in registry, release
        loggers = (target.read("vllm/v1/metrics/loggers.py") or b"").decode()
        logging = loggers.partition("class LoggingStatLogger(")[2].partition("\nclass ")[0]
        assert "    def log(self" in logging, release
