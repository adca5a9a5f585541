"""Bytecode beside what apply and revert write: what must go, and what may stay."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.results import Change
from tests.support import one_package, transactions
from tests.support.faults import FaultyOs, faulty
from tests.support.transactions import ADDED, PROPOSER, PatchSet, Site, snapshot


def test_stale_bytecode_goes_with_its_module(installed: Site) -> None:
    folder = (installed.root / PROPOSER).parent / "__pycache__"
    other = folder / "proposer_of_another.cpython-311.pyc"
    other.write_bytes(b"not ours")
    installed.apply()
    assert list(folder.iterdir()) == [other]
    other.unlink()
    (folder / "proposer.cpython-312.opt-2.pyc").write_bytes(b"stale")
    added = (installed.root / ADDED).parent / "__pycache__"
    added.mkdir()
    (added / "graphs.cpython-311.pyc").write_bytes(b"of the added module")
    installed.revert()
    assert not folder.exists()
    assert not added.parent.exists()


def test_python_runs_what_stands_even_where_it_trusts_bytecode(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    module = "v1/worker/plain.py"
    (site.root / "vllm" / module).write_text("VALUE = 'pristine'\n")
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, str(site.root / "vllm" / module)], check=True)

    def value() -> str:
        code = "import plain; print(plain.VALUE)"
        folder = (site.root / "vllm" / module).parent
        done = subprocess.run(
            [sys.executable, "-B", "-c", code],
            cwd=folder,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout.strip()

    assert value() == "pristine"
    pristine = {**site.pristine, f"vllm/{module}": b"VALUE = 'pristine'\n"}
    patches = PatchSet("4" * 64, {f"vllm/{module}": b"VALUE = 'patched'\n"}, {})
    replace(site, pristine=pristine).apply(patches)
    assert value() == "patched"


def compiled(source: Path, mode: str) -> Path:
    """Compile a module; its bytecode."""
    command = [sys.executable, "-m", "compileall", "-q", "-f", "--invalidation-mode", mode]
    subprocess.run([*command, str(source)], check=True)
    return next((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


class NoUnlinkOfBytecode(FaultyOs):
    """A ``__pycache__`` that another user owns."""

    def unlink(self, name: str, **folder: int) -> None:
        if name.endswith(".pyc"):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        os.unlink(name, **folder)


@pytest.mark.parametrize("mode", ["timestamp", "checked-hash"])
def test_bytecode_that_python_checks_may_stay(site: Site, mode: str) -> None:
    bytecode = compiled(site.root / PROPOSER, mode)
    with faulty(NoUnlinkOfBytecode()):
        site.apply()
    assert bytecode.exists()
    assert not (site.root / ".vllm-overlay/journal.json").exists()


def test_bytecode_that_python_believes_may_not(site: Site) -> None:
    bytecode = compiled(site.root / PROPOSER, "unchecked-hash")
    before = snapshot(site.root)
    with faulty(NoUnlinkOfBytecode()), pytest.raises(TransactionError, match=r"\.pyc"):
        site.apply()
    assert bytecode.exists()
    assert snapshot(site.root) == before


def test_bytecode_of_a_file_of_the_same_time_and_size_may_not(site: Site) -> None:
    """Python tells sources apart by time and size only."""
    patches = PatchSet("5" * 64, {PROPOSER: b""}, {})
    path = site.root / PROPOSER
    pristine = {**site.pristine, PROPOSER: site.pristine[PROPOSER] + b"# A\n"}
    path.write_bytes(pristine[PROPOSER])
    plan = patches.plan(pristine)
    after = site.pristine[PROPOSER] + b"# B\n"
    plan = plan._replace(changes=(Change(PROPOSER, pristine[PROPOSER], after),))
    future = 4_000_000_000
    os.utime(path, (future, future))
    compiled(path, "timestamp")

    class SameTime(NoUnlinkOfBytecode):
        def fsync(self, file: int) -> None:
            os.utime(file, (future, future))

    with faulty(SameTime()), pytest.raises(TransactionError, match=r"\.pyc"):
        one_package.apply(site.root, plan, [patches.feature()], release="0.26.0")
    assert path.read_bytes() == pristine[PROPOSER]
    assert not (site.root / ".vllm-overlay").exists()
