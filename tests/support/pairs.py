"""Two packages that are changed one after the other, for the tests of transactions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overlay._features.model import Feature
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from overlay.package import VLLM, Package, package_named
from overlay.results import Change, FeatureResult, FileResult, Plan
from tests.support import fake_vllm
from tests.support.one_package import target
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

    def place(self, package: Package) -> Path:
        """The folder that holds one of the packages."""
        return self.root / self.names[package == ASCEND]

    def record(self, package: Package) -> Path:
        """The RECORD of one of the packages."""
        stem = package.distribution.replace("-", "_")
        folder = self.place(package) / f"{stem}-{VERSIONS[package]}.dist-info"
        return folder / "RECORD"

    def applying(self, package: Package, patches: PatchSet = ONE) -> commit.Work:
        """The work that applies a patch set to one of the packages."""
        features: Sequence[Feature] = [patches.feature()]
        place = target(self.place(package), VERSIONS[package], self.record(package), package)
        return commit.applying(place, planned(patches, package), features)

    def reverting(self, package: Package) -> commit.Work:
        """The work that reverts one of the packages."""
        return commit.reverting(target(self.place(package), package=package))

    def apply(self, patches: PatchSet = ONE, order: Sequence[Package] = (VLLM, ASCEND)) -> None:
        """Apply a patch set to both."""
        commit.carry_out([self.applying(package, patches) for package in order])

    def revert(self, order: Sequence[Package] = (VLLM, ASCEND)) -> None:
        """Revert both."""
        commit.carry_out([self.reverting(package) for package in order])

    def recover(self, package: Package) -> str | None:
        """End what was interrupted in one of the packages."""
        return recover(self.place(package), package=package)

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
