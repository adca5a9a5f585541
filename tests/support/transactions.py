"""Small targets, plans and snapshots for the tests of transactions."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from overlay.model import Change, Feature, FeatureResult, FileResult, HunkResult, Plan
from overlay.releases import ReleaseRange
from overlay.states import State
from overlay.transaction import commit
from tests.support import fake_vllm

PROPOSER = "vllm/v1/spec_decode/proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ADDED = "vllm/v1/draft/graphs.py"
RELEASE = "0.26.0"

Snapshot = dict[str, "tuple[int, bytes | None]"]


@dataclass(frozen=True)
class PatchSet:
    """What some version of the patches does: path to the text that it appends, or the new file."""

    digest: str
    patched: dict[str, bytes]
    added: dict[str, bytes]

    def plan(self, pristine: dict[str, bytes]) -> Plan:
        """The plan for a target with these pristine files."""
        changes = [
            Change(path, pristine[path], pristine[path] + text)
            for path, text in self.patched.items()
        ]
        changes += [Change(path, None, text) for path, text in self.added.items()]
        hunk = HunkResult("<module>", State.PRISTINE, 3)
        files = [FileResult(p, State.PRISTINE, "draft/01-x/a.patch", (hunk,)) for p in self.patched]
        files += [FileResult(path, State.PRISTINE) for path in self.added]
        result = FeatureResult("draft", State.PRISTINE, tuple(files))
        return Plan((result,), tuple(sorted(changes, key=lambda change: change.path)))

    def feature(self) -> Feature:
        """The feature that the plan is for."""
        releases = ReleaseRange.parse("0.20.0..0.33.0")
        origin = "shipped"
        return Feature("draft", "Draft", "why", "", releases, (), (), (), origin, self.digest)


ONE = PatchSet(
    "1" * 64,
    {PROPOSER: b"\n\nPATCHED = 1\n", RUNNER: b"\n\nRUNS = 1\n"},
    {ADDED: b"GRAPHS = 1\n"},
)
#: Changes one file of ONE otherwise, leaves one out, adds another module elsewhere.
TWO = PatchSet(
    "2" * 64,
    {PROPOSER: b"\n\nPATCHED = 2\n", "vllm/v1/worker/__init__.py": b"TWO = 2\n"},
    {"vllm/v1/other/loop.py": b"LOOP = 2\n"},
)


@dataclass(frozen=True)
class Site:
    """A fake installation, or a checkout where ``record`` is ``None``."""

    root: Path
    record: Path | None
    pristine: dict[str, bytes]

    def apply(self, patches: PatchSet = ONE, release: str = RELEASE) -> commit.Outcome:
        """Apply ``patches``."""
        return commit.apply(
            self.root,
            patches.plan(self.pristine),
            [patches.feature()],
            release=release,
            record_file=self.record,
        )

    def revert(self) -> commit.Outcome:
        """Revert whatever is applied."""
        return commit.revert(self.root)

    def copy(self, folder: Path) -> Site:
        """The same, elsewhere; ``folder`` must not exist."""
        shutil.copytree(self.root, folder, symlinks=True)
        record = folder / self.record.relative_to(self.root) if self.record else None
        return replace(self, root=folder, record=record)


def installed(folder: Path) -> Site:
    """An installation with a RECORD, and stale bytecode beside a module that is patched."""
    root = fake_vllm.site_packages(folder, RELEASE)
    cache = root / "vllm/v1/spec_decode/__pycache__"
    cache.mkdir()
    (cache / "proposer.cpython-311.pyc").write_bytes(b"stale")
    record = next(root.glob("*.dist-info")) / "RECORD"
    return Site(root, record, fake_vllm.files(RELEASE))


def checkout(folder: Path) -> Site:
    """A source tree without any metadata."""
    return Site(fake_vllm.tree(folder, RELEASE), None, fake_vllm.files(RELEASE))


def snapshot(root: Path) -> Snapshot:
    """Every file with its mode and bytes, every folder with its mode; no bytecode."""
    found: Snapshot = {}
    for path in sorted(root.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        status = path.lstat()
        found[path.relative_to(root).as_posix()] = (
            status.st_mode,
            path.read_bytes() if path.is_file() else None,
        )
    return found


@contextmanager
def memory_folder(otherwise: Path) -> Iterator[Path]:
    """A folder on a memory disk where there is one: thousands of small copies fit none other."""
    try:
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        yield otherwise
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Copies:
    """Fresh copies of a site, each removed when the next one is asked for."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site, self._folder, self._numbers = site, folder, itertools.count()
        self._last: Path | None = None

    def fresh(self) -> Site:
        """One more copy."""
        if self._last is not None:
            shutil.rmtree(self._last)
        self._last = self._folder / f"copy-{next(self._numbers)}"
        return self._site.copy(self._last)
