"""Small targets, plans and snapshots for the tests of transactions."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from overlay._features.model import Feature
from overlay.on_disk import transaction as commit
from overlay.package import VLLM, ReleaseRange
from overlay.results import Change, FeatureResult, FileResult, HunkResult, Plan, State
from tests.support import fake_vllm, one_package

PROPOSER = "vllm/v1/spec_decode/proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ADDED = "vllm/v1/draft/parts/graphs.py"
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
        releases = ReleaseRange.parse("0.20.0..0.33.0", VLLM)
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
        return one_package.apply(
            self.root,
            patches.plan(self.pristine),
            [patches.feature()],
            release=release,
            record_file=self.record,
        )

    def revert(self) -> commit.Outcome:
        """Revert whatever is applied."""
        return one_package.revert(self.root)

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
    (cache / f"proposer.{sys.implementation.cache_tag}.pyc").write_bytes(b"stale")
    record = next(root.glob("*.dist-info")) / "RECORD"
    return Site(root, record, fake_vllm.files(RELEASE))


def checkout(folder: Path) -> Site:
    """A source tree without any metadata."""
    return Site(fake_vllm.tree(folder, RELEASE), None, fake_vllm.files(RELEASE))


def snapshot(root: Path, bytecode: bool = False) -> Snapshot:
    """Every file with its mode and bytes, every folder with its mode.

    :param bytecode: whether ``__pycache__`` counts.
    """
    found: Snapshot = {}
    folders = [""]
    for folder in folders:
        with os.scandir(root / folder) as items:
            for item in items:
                name = f"{folder}{item.name}"
                is_folder = item.is_dir(follow_symlinks=False)
                if is_folder:
                    if item.name == "__pycache__" and not bytecode:
                        continue
                    folders.append(f"{name}/")
                content = None
                if not is_folder:
                    with open(item.path, "rb") as file:
                        content = file.read()
                found[name] = (item.stat(follow_symlinks=False).st_mode, content)
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
    """A copy of a site that is made as new whenever it is asked for."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._wanted = snapshot(site.root, bytecode=True)
        self._copy = site.copy(folder / "copy")

    def fresh(self) -> Site:
        """The copy, as the site was; only what differs is written, for that is fast."""
        root = self._copy.root
        found = snapshot(root, bytecode=True)
        for path in sorted(found.keys() - self._wanted.keys(), reverse=True):
            _remove(root / path, found[path])
        for path, (mode, content) in sorted(self._wanted.items()):
            if found.get(path) == (mode, content):
                continue
            if content is None:
                (root / path).mkdir(exist_ok=True)
            else:
                # A new file, never the old one's bytes: that may be another file's second name.
                (root / path).unlink(missing_ok=True)
                (root / path).write_bytes(content)
            (root / path).chmod(stat.S_IMODE(mode))
        return self._copy


def _remove(path: Path, found: tuple[int, bytes | None]) -> None:
    if found[1] is None:
        path.rmdir()
    else:
        path.unlink()
