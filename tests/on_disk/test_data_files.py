"""Data files, whole files and removals: on disk with the same promises as patched modules."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.folder import read_feature
from overlay._features.model import Feature
from overlay._features.sources import ErrorList
from overlay.authoring.composing import compose_file, whole_file
from overlay.authoring.writing import render_patch
from overlay.errors import LedgerError, RevertRefused, TransactionError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import Condition, PristineView, conditions, void
from overlay.on_disk.rebuild import rebuild
from overlay.on_disk.recovery import recover
from overlay.planning.diff import render
from overlay.planning.planner import plan
from overlay.results import Plan, State
from overlay.untrusted import sha256
from tests.support import faults, one_package
from tests.support.faults import FaultyOs, faulty
from tests.support.patches import MemoryTree, write_feature
from tests.support.transactions import RELEASE, Copies, memory_folder, snapshot

HEADERS = {"Description": "A test", "Origin": "the tests", "Last-Update": "2026-11-20"}
INIT = "vllm/__init__.py"
MODULE = "vllm/v1/old.py"
CONFIG = "vllm/kernels/h100.json"
BINARY = "vllm/kernels/a.co"
TEMPLATE = "vllm/new/chat.jinja"
FILES = {
    INIT: b"",
    MODULE: b"def old():\n    return 1\n",
    CONFIG: b'{\n  "block": 16,\n  "stages": 2\n}\n',
    BINARY: bytes(range(256)),
}
AFTER: dict[str, bytes | None] = {
    MODULE: None,
    CONFIG: b'{\n  "block": 32,\n  "stages": 2\n}\n',
    BINARY: b"\0new" * 20,
    TEMPLATE: b"{{ x }}\n",
    "vllm/v1/renamed.py": FILES[MODULE],
}


def feature_of(
    place: Path, before: Mapping[str, bytes], after: Mapping[str, bytes | None]
) -> Feature:
    """The feature that makes some files of others, written and read as every command does."""
    files: dict[str, str | bytes] = {}
    for number, (path, data) in enumerate(sorted(after.items()), 10):
        if path not in before:
            assert data is not None
            files[f"files/{path}"] = data
            continue
        hunks = compose_file(path, before[path], data) if data is not None else ()
        patch = render_patch(HEADERS, path, hunks or (whole_file(before[path], data),))
        files[f"{number}-topic/0.20.0..0.33.0.patch"] = patch.encode()
    folder = write_feature(place, files)
    errors = ErrorList()
    feature = read_feature(folder, place, "test", errors)
    assert feature is not None, errors
    return feature


def laid(root: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def planned(feature: Feature, files: Mapping[str, bytes]) -> Plan:
    return plan([feature], MemoryTree(files), Version(RELEASE))


class Disk:
    """A target with a feature; `Copies` makes it again."""

    def __init__(self, root: Path, feature: Feature, files: Mapping[str, bytes]) -> None:
        self.root, self.feature, self.files = root, feature, files
        self.plan = planned(feature, files)
        assert self.plan.state is State.PRISTINE, self.plan

    def copy(self, folder: Path) -> Disk:
        laid(folder, self.files)
        return Disk(folder, self.feature, self.files)

    def apply(self) -> object:
        return one_package.apply(self.root, self.plan, [self.feature], release=RELEASE)

    def revert(self) -> object:
        return one_package.revert(self.root, release=RELEASE)


def contents(root: Path) -> dict[str, bytes]:
    return {
        path: data
        for path, (_, data) in snapshot(root).items()
        if data is not None and path.startswith("vllm/")
    }


def merged(before: Mapping[str, bytes], after: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {path: data for path, data in {**before, **after}.items() if data is not None}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(laid(tmp_path / "t", FILES), feature_of(tmp_path / "p", FILES, AFTER), FILES)


texts = st.lists(st.sampled_from(["a", "b", "  x", "é", "", "{", "# -*- c"]), max_size=6).map(
    lambda lines: "\n".join(lines).encode()
)
data = st.one_of(texts, texts.map(lambda text: text + b"\n"), st.binary(max_size=40))
names = st.sampled_from(
    [f"vllm/{name}" for name in ("a.json", "b/c.jinja", "d.cuh", "e.co", "py.typed")]
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=25)
@given(before=st.dictionaries(names, data), after=st.dictionaries(names, st.none() | data))
def test_apply_makes_the_files_revert_the_old_ones_and_git_apply_the_same(
    before: dict[str, bytes],
    after: dict[str, bytes | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("law")
    before = {INIT: b"", **before}
    after = {
        path: new
        for path, new in after.items()
        if new != before.get(path) and (new is not None or path in before)
    }
    if not after:
        return
    target = Disk(laid(place / "t", before), feature_of(place / "p", before, after), before)
    whole = snapshot(target.root)
    target.apply()
    assert contents(target.root) == merged(before, after)
    assert not target.apply().wrote  # a second apply writes nothing
    target.revert()
    assert snapshot(target.root) == whole
    diff = render(target.plan.changes)
    git = laid(place / "g", before)
    subprocess.run(["git", "init", "-q"], cwd=git, check=True)
    if diff:
        subprocess.run(["git", "apply", "-"], cwd=git, input=diff, check=True)
    assert contents(git) == merged(before, after)


@pytest.mark.slow
def test_each_patch_is_taken_by_git_apply(disk: Disk, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=disk.root, check=True)
    for patch in sorted((tmp_path / "p/demo").glob("*/*.patch")):
        subprocess.run(["git", "apply", str(patch)], cwd=disk.root, check=True)
    there = merged(FILES, AFTER)
    assert contents(disk.root) == {p: d for p, d in there.items() if p in FILES}


@pytest.mark.slow
def test_a_kill_or_a_full_disk_at_any_call_leaves_one_of_two_states(
    disk: Disk, tmp_path: Path
) -> None:
    with memory_folder(tmp_path) as folder:
        _die_everywhere(disk, folder)


def _die_everywhere(disk: Disk, tmp_path: Path) -> None:
    patched = disk.copy(tmp_path / "patched")
    patched.apply()
    before, after = snapshot(disk.root), snapshot(patched.root)
    for name, start in (("apply", disk), ("revert", patched)):
        copies = Copies(start, tmp_path / name)  # type: ignore[arg-type] - has what it needs
        if start is patched:
            copies._copy.apply()
        counted = FaultyOs()
        with faulty(counted):
            getattr(copies.fresh(), name)()
        for call in range(1, counted.count + 1):
            site = copies.fresh()
            with faulty(FaultyOs(call, faults.dying, lasting=True)), pytest.raises(faults.Dead):
                getattr(site, name)()
            for path, found in snapshot(site.root).items():
                whole_states = [state[path] for state in (before, after) if path in state]
                assert not whole_states or found in whole_states, (name, call, path)
            recover(site.root)
            assert snapshot(site.root) in (before, after), (name, call)
            if call % 3:
                continue
            site = copies.fresh()
            full = FaultyOs(call, faults.failing(28), lasting=True)
            with faulty(full), contextlib.suppress(TransactionError):
                getattr(site, name)()
            recover(site.root)
            assert snapshot(site.root) in (before, after), (name, call)


def test_a_removed_file_keeps_its_mode_and_its_other_names(disk: Disk, tmp_path: Path) -> None:
    (disk.root / MODULE).chmod(0o755)
    cache = tmp_path / "cache"
    cache.hardlink_to(disk.root / MODULE)
    disk.apply()
    assert not (disk.root / MODULE).exists()
    assert cache.read_bytes() == FILES[MODULE]
    disk.revert()
    assert (disk.root / MODULE).stat().st_mode & 0o777 == 0o755


def test_the_ledger_tells_what_became_of_each_file(disk: Disk) -> None:
    disk.apply()
    ledger = ledgers.load(disk.root)
    assert ledger is not None
    tree = PristineView(_Tree(disk.root), ledger, ledgers.copies(disk.root), RELEASE)
    assert set(conditions(ledger, tree.tree.read).values()) == {Condition.OURS}
    assert {path: tree.read(path) for path in AFTER} == {path: FILES.get(path) for path in AFTER}
    assert json.loads((disk.root / ".vllm-overlay/ledger.json").read_text())["schema"] == 3
    (disk.root / MODULE).write_bytes(FILES[MODULE])
    assert conditions(ledger, tree.tree.read)[MODULE] is Condition.PRISTINE
    (disk.root / MODULE).write_bytes(b"MINE = 1\n")
    assert conditions(ledger, tree.tree.read)[MODULE] is Condition.EDITED
    with pytest.raises(RevertRefused, match="edited after"):
        disk.revert()


class _Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        place = self.root / path
        return place.read_bytes() if place.exists() else None


def test_what_another_release_lacks_is_not_put_back_there(tmp_path: Path) -> None:
    """Removed from one release, and then another one came that never had the file."""
    feature = feature_of(tmp_path / "p", FILES, {MODULE: None})
    disk = Disk(laid(tmp_path / "t", FILES), feature, FILES)
    disk.apply()
    ledger = ledgers.load(disk.root)
    assert ledger is not None
    assert void(ledger, conditions(ledger, _Tree(disk.root).read), "0.27.0")
    view = PristineView(_Tree(disk.root), ledger, ledgers.copies(disk.root), "0.27.0")
    assert view.read(MODULE) is None
    one_package.revert(disk.root, release="0.27.0")
    assert not (disk.root / MODULE).exists()


def test_a_lost_ledger_puts_no_removed_file_out_of_mind(disk: Disk) -> None:
    """The bytes of a removed file cannot be worked out from its patch, so nothing is reverted."""
    disk.apply()
    record = {path: sha256(data) for path, data in FILES.items()}
    with pytest.raises(LedgerError, match=r"vllm/v1/old\.py"):
        rebuild([disk.feature], _Tree(disk.root), Version(RELEASE), record)
    assert rebuild([disk.feature], MemoryTree(FILES), Version(RELEASE), record).ledger.entries == ()
