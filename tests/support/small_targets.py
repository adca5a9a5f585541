"""A target of two modules for any package, and what a plan does to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction
from overlay.on_disk.changes import Application, Intent, Rebuilt, to_apply
from overlay.on_disk.files import Site
from overlay.package import VLLM, Package, package_named
from overlay.results import Change, FeatureResult, Plan, State
from overlay.untrusted import sha256
from tests.support.patches import feature

ASCEND = package_named("vllm_ascend")
both = pytest.mark.parametrize("package", [VLLM, ASCEND], ids=lambda package: package.name)
OWN, PATCHED, NEW, EDITED = b"own\n", b"patched\n", b"new\n", b"edited\n"
RECORD = "a-1.dist-info/RECORD"


@dataclass(frozen=True)
class Target:
    """A package of two modules, one of which a plan patches; it adds a third."""

    root: Path
    package: Package

    @property
    def patched(self) -> str:
        return f"{self.package.name}/a.py"

    @property
    def other(self) -> str:
        return f"{self.package.name}/b.py"

    @property
    def added(self) -> str:
        return f"{self.package.name}/new/c.py"

    @property
    def site(self) -> Site:
        return Site(self.root, self.package)

    def request(self, after: bytes = PATCHED) -> Application:
        changes = (Change(self.patched, OWN, after), Change(self.added, None, NEW))
        plan = Plan((FeatureResult("demo", State.PRISTINE),), changes)
        return Application(plan, (feature(),), "0.26.0", self.root / RECORD)

    def carry_out(self, intent: Intent) -> tuple[str, ...]:
        """Make the writes of an intent; the files of the package among them."""
        if intent.writes:
            transaction.execute(self.site, intent)
        return intent.changed

    def apply(self) -> None:
        assert self.carry_out(to_apply(self.site, self.request())) == (self.patched, self.added)

    def rebuilt(self) -> Rebuilt:
        """The ledger without RECORD, as it is reconstructed."""
        ledger = ledgers.load(self.root, self.package)
        assert ledger is not None
        return Rebuilt(ledger._replace(record=None), {sha256(OWN): OWN})


def target(folder: Path, package: Package) -> Target:
    root = (folder / "site").resolve()
    for path in (f"{package.name}/a.py", f"{package.name}/b.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(OWN)
    (root / RECORD).parent.mkdir()
    (root / RECORD).write_bytes(f"{package.name}/a.py,,\n".encode())
    return Target(root, package)


def lose(place: Target) -> Rebuilt:
    """Remove the overlay's own folder; what a reconstruction gives back."""
    rebuilt = place.rebuilt()
    for path in sorted((place.root / place.package.state_folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (place.root / place.package.state_folder).rmdir()
    return rebuilt
