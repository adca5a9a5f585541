"""SIGKILL, SIGTERM or a full disk before every call of a command that changes the disk.

The law: what is not a target's is whole, too.  A patches folder has a feature as it was or as the
command makes it; a cache is readable; no lock is held and no unfinished file is taken for a whole
one; and the same command goes through afterwards.  Transactions have their own tests (``on_disk``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay._features.sources import entries
from overlay.cache import PrivateFolder
from overlay.cli.run import run
from overlay.planning.scope_cache import Memo
from tests.authoring.test_importing import CHANGE, RELEASES, Tree
from tests.support import audited, fake_vllm
from tests.support.cli import Cli, digest
from tests.support.faults import in_child
from tests.support.releases import serve

FAULTS: dict[str, audited.Fault] = {
    "killed": audited.killed,
    "terminated": audited.terminated,
    "full": audited.full,
}

#: Exit statuses of a command with each fault: the signal's, the one that answers it, or an error.
#: A call whose failure costs nothing (a cache that is not written) is passed over: 0 or 1.
ENDS = {"killed": {-9}, "terminated": {-15, 143, 0, 1}, "full": {0, 1, 2}}


def command(*words: str | Path) -> Callable[[], None]:
    """A command, for a forked process: it ends with the command's exit status."""

    def work() -> None:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        status = run([str(word) for word in words])
        if status:
            os._exit(status)

    return work


# Commands that read


@pytest.mark.parametrize(
    "words",
    [
        ("check", "SITE"),
        ("status", "SITE"),
        ("diff", "SITE"),
        ("apply", "--dry-run", "SITE"),
        ("list",),
        ("cache", "dir"),
        ("cache", "size"),
        ("--help",),
        ("completion", "zsh"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_changes_nothing_but_the_cache(
    cli: Cli, site: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """By its calls, whatever the files look like afterwards; a kill can leave nothing behind."""
    named = [str(site) if word == "SITE" else word for word in words]
    cli(*named)  # fills the cache
    cache = str(tmp_path / "cache")
    for call in audited.calls(command(*named), tmp_path):
        assert call.partition(" ")[2].startswith(cache), call


# Commands that write


class Import:
    """``overlay import`` into a folder that holds another feature already."""

    def __init__(self, folder: Path) -> None:
        self.ours = folder / "ours"
        self.change = folder / "fix.diff"
        self.change.write_bytes(CHANGE)
        self.act = command("import", self.change, "--id", "count-runs", "--patches", self.ours)

    def act_once(self) -> None:
        """Import without a fault, which also fills the caches, so that every later run is alike."""
        assert in_child(self.act) == 0

    def reset(self) -> None:
        shutil.rmtree(self.ours, ignore_errors=True)

    def whole(self) -> None:
        """Whatever is there is the whole feature, or nothing; hidden leftovers are ignored."""
        if not self.ours.exists():
            return
        seen = {name for name in os.listdir(self.ours) if not name.startswith(".")}
        assert seen in (set(), {"count-runs"})
        if seen:
            assert digest(self.ours / "count-runs") == self.wanted

    def learn(self) -> None:
        self.wanted = digest(self.ours / "count-runs")


@pytest.mark.parametrize("fault", FAULTS)
def test_an_import_that_is_interrupted_leaves_a_whole_feature_or_none(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    serve(monkeypatch, RELEASES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(name))
    work = Import(tmp_path)
    work.act_once()
    work.learn()
    work.reset()
    names = audited.calls(work.act, tmp_path)
    assert len(names) > 5
    for number in range(1, len(names) + 1):
        work.reset()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], work.act) in ENDS[fault], where
        work.whole()
        if not (work.ours / "count-runs").exists():
            again = ["import", work.change, "--id", "count-runs", "--patches", work.ours]
            if work.ours.exists() and "count-runs" in entries(work.ours):
                again.append("--update")  # it is there, on its way to its place
            assert cli(*again).exit == 0, where
        assert cli("list", "--patches", work.ours).exit == 0, where
        assert digest(work.ours / "count-runs") == work.wanted, where


@pytest.mark.parametrize("fault", FAULTS)
def test_an_adoption_that_is_interrupted_is_done_or_not_begun_in_the_end(
    cli: Cli, tmp_path: Path, fault: str
) -> None:
    start = fake_vllm.site_packages(tmp_path / "start")
    assert cli("apply", start).exit == 0
    patched = digest(start)
    shutil.rmtree(start / ".vllm-overlay")
    place = tmp_path / "site"

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)

    fresh()
    act = command("adopt", place)
    names = audited.calls(act, tmp_path)
    for number in range(1, len(names) + 1, 3):
        fresh()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], act) in ENDS[fault], where
        assert cli("adopt", place).exit == 0, where
        assert digest(place) == patched, where


@pytest.mark.parametrize("fault", FAULTS)
def test_emptying_the_cache_can_be_done_again(cli: Cli, tmp_path: Path, fault: str) -> None:
    cache = tmp_path / "cache"

    def fresh() -> None:
        for name in (
            "releases/vllm-0.26.0.zip",
            f"modules/{'a' * 16}/x.py",
            f"receipts/{'b' * 16}",
        ):
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            (cache / name).write_bytes(b"{}")
        for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
            folder.chmod(0o700)

    fresh()
    act = command("cache", "clean")
    names = audited.calls(act, tmp_path)
    assert names
    for number in range(1, len(names) + 1):
        fresh()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], act) in ENDS[fault], where
        assert cli("cache", "clean").exit == 0, where
        assert not [path for path in cache.rglob("*") if path.is_file()], where


# What is written into a cache


def _entry(folder: Path) -> Callable[[], object]:
    return lambda: PrivateFolder(folder / "cache/a").write("entry", b"new" * 1000)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_cache_holds_is_whole(tmp_path: Path, fault: str) -> None:
    """An entry is as it was or as it is written; what is unfinished is not among the entries."""
    work = _entry(tmp_path)
    place = tmp_path / "cache/a"
    names = audited.calls(work, tmp_path)
    (name,) = PrivateFolder(place).entries()
    wanted = PrivateFolder(place).read(name)
    for old in (None, b"old"):
        for number in range(1, len(names) + 1):
            shutil.rmtree(tmp_path / "cache")
            if old is not None:
                PrivateFolder(place).write(name, old)
            audited.at_call(number, FAULTS[fault], work)
            folder = PrivateFolder(place)
            assert set(folder.entries()) <= {name}
            assert folder.read(name) in (old, wanted)
            work()
            assert folder.read(name) == wanted


@pytest.mark.parametrize("size", [0, 1, 100])
def test_an_entry_that_does_not_fit_on_the_disk_is_not_written(tmp_path: Path, size: int) -> None:
    place = tmp_path / "cache/a"
    PrivateFolder(place).write("entry", b"old")
    assert audited.limited(size, _entry(tmp_path)) == 70
    assert PrivateFolder(place).entries() == ["entry"]
    assert PrivateFolder(place).read("entry") == b"old"
    assert os.listdir(place) == ["entry"]


def test_a_cache_that_cannot_be_written_costs_no_plan(cli: Cli, site: Path, tmp_path: Path) -> None:
    """A memo is a matter of speed: a check of a target goes through on a full disk."""
    assert Memo() is not None
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert audited.limited(0, command("check", site)) == 0
    names = audited.calls(command("check", site), tmp_path)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    for number in range(1, len(names) + 1):
        assert audited.at_call(number, audited.full, command("check", site)) == 0
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
