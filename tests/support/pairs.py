"""Two packages that are changed in one transaction, for the tests of transactions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overlay.features.model import Feature
from overlay.on_disk import journal
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from overlay.package import VLLM, Package, package_named
from overlay.results import Change, FeatureResult, FileResult, Plan
from tests.support import fake_vllm
from tests.support.transactions import ONE, RELEASE, PatchSet, Snapshot, snapshot

ASCEND = package_named("vllm_ascend")
VERSIONS = {VLLM: RELEASE, ASCEND: "0.23.0.post1"}


def renamed(path: str, package: Package) -> str:
    """The path of a module of vLLM in another package that is laid out alike."""
    return path.replace("vllm/", f"{package.name}/", 1)


def planned(patches: PatchSet, package: Package) -> Plan:
    """The plan of a patch set for a package."""
    pristine = fake_vllm.files(VERSIONS[package], package=package.name)
    plan = patches.plan({path.replace(f"{package.name}/", "vllm/", 1): data
                         for path, data in pristine.items()})  # fmt: skip
    changes = tuple(
        Change(renamed(change.path, package), change.before, change.after)
        for change in plan.changes
    )
    (result,) = plan.features
    files = tuple(
        FileResult(renamed(f.path, package), f.state, f.patch, f.hunks) for f in result.files
    )
    return Plan((FeatureResult(result.feature, result.state, files),), changes)


@dataclass(frozen=True)
class Pair:
    """vLLM and vllm-ascend below one folder.

    :ivar root: that folder; :ivar names: the folder of each package below it, vLLM's first.
    """

    root: Path
    names: tuple[str, str]

    def member(self, package: Package) -> journal.Member:
        """One of the packages."""
        return journal.Member(self.root / self.names[package == ASCEND], package)

    def record(self, package: Package) -> Path:
        """The RECORD of one of the packages."""
        stem = package.distribution.replace("-", "_")
        folder = self.member(package).root / f"{stem}-{VERSIONS[package]}.dist-info"
        return folder / "RECORD"

    def applying(self, package: Package, patches: PatchSet = ONE) -> commit.Work:
        """The work that applies a patch set to one of the packages."""
        features: Sequence[Feature] = [patches.feature()]
        return commit.applying(
            self.member(package).root,
            planned(patches, package),
            features,
            release=VERSIONS[package],
            record_file=self.record(package),
            package=package,
        )

    def apply(self, patches: PatchSet = ONE, order: Sequence[Package] = (VLLM, ASCEND)) -> None:
        """Apply a patch set to both, in one transaction."""
        commit.carry_out([self.applying(package, patches) for package in order])

    def revert(self, order: Sequence[Package] = (VLLM, ASCEND)) -> None:
        """Revert both, in one transaction."""
        works = [commit.reverting(self.member(package).root, package=package) for package in order]
        commit.carry_out(works)

    def recover(self, package: Package) -> str | None:
        """End what was interrupted, beginning at one of the packages."""
        return recover(self.member(package).root, package=package)

    def copy(self, folder: Path) -> Pair:
        """The same, elsewhere; ``folder`` must not exist."""
        shutil.copytree(self.root, folder, symlinks=True)
        return Pair(folder, self.names)

    def snapshots(self) -> dict[Package, Snapshot]:
        """The files of each package, without those of the other one."""
        found = snapshot(self.root)
        ascend = {path: each for path, each in found.items() if "ascend" in path}
        return {VLLM: {p: e for p, e in found.items() if p not in ascend}, ASCEND: ascend}


def installed(root: Path, *, together: bool) -> Pair:
    """Both packages with a RECORD each.

    :param together: whether they lie in one folder, as in site-packages.
    """
    names = ("site", "site") if together else ("vllm", "vllm-ascend")
    for package, name in zip((VLLM, ASCEND), names, strict=True):
        fake_vllm.site_packages(
            root / name,
            VERSIONS[package],
            distribution=package.distribution,
            package=package.name,
        )
    return Pair(root, names)
