"""What the shipped features do to every release of vLLM: bytes, states and decisions."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.recording import processes
from tests.recording.recorder import Recorder, marked

#: Commands whose long texts are the same in more words: their digests are kept.
_HASHED = ("check SITE -v", "check SITE --json", "diff SITE")


def record(recorder: Recorder, release: str) -> None:
    """Record what one release becomes, on disk and in memory."""
    site = recorder.place / "site"
    recorder.words[site] = "SITE"
    _unpack(recorder, release, site)
    recorder.command("check SITE", files=False)
    for line in _HASHED:
        _keep_digest(recorder, line)
    pristine = recorder.files()
    decision, served = processes.decide(recorder, site, release)
    recorder.command("apply SITE")
    applied = recorder.files()
    recorder.command("status SITE", files=False)
    _keep_digest(recorder, "status SITE --json")
    others = [
        path for path, each in served.items() if each.split()[0] not in applied[f"site/{path}"]
    ]
    decision.append(f"served {len(served)} modules as applied, but for {others or 'none'}")
    recorder.keep("a process", decision)
    recorder.keep("a process of what is applied", processes.decide(recorder, site, release)[0])
    recorder.command("apply SITE", name="apply again")
    recorder.command("revert SITE", files=False)
    left = "nothing" if recorder.files() == pristine else "something"
    recorder.keep("what a revert leaves behind", [left])
    shutil.rmtree(site)


def record_all(recorder: Recorder) -> None:
    """Record what is said of the shipped features and of all releases together."""
    for line in ("list", "list -v", "doctor", "check --releases all", "log --matrix"):
        recorder.command(line, files=False)
    for line in ("list --json", "check --releases all --json", "log --matrix --json"):
        _keep_digest(recorder, line)


def _keep_digest(recorder: Recorder, line: str) -> None:
    status, out, err = recorder.run(line)
    text = recorder.plain(out)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    answer = [f"exit {status}", f"sha256 {digest} of {len(text.splitlines())} lines"]
    recorder.keep(line, answer + marked("! ", recorder.plain(err)))


def _unpack(recorder: Recorder, release: str, site: Path) -> None:
    """Lay out the files of a release that the shipped features name, and its version."""
    from overlay._features.folder import load
    from overlay._features.model import of_package, paths_of
    from overlay._features.sources import shipped_folder
    from overlay.package import VLLM
    from overlay.targets.releases import CachedRelease

    named = paths_of(of_package(load([shipped_folder()]), VLLM))
    with recorder.caching():
        archive = CachedRelease.open(release)
    for path in archive.paths():
        if path in named or path in ("vllm/__init__.py", "vllm/_version.py"):
            content = archive.read(path)
            assert content is not None
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
