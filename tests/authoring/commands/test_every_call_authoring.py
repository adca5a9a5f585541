"""SIGKILL, SIGTERM or a full disk before every call of a command of a patch's life.

Law 8: a folder of patches holds each feature as it was or as the command makes it, a session can
be ended, and the same command goes through afterwards.  ``import`` is in ``test_every_call.py``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from overlay._features.folder import load
from overlay.targets import Target, resolution
from tests.commands.test_every_call import ENDS, FAULTS, command
from tests.support import audited, fake_vllm, releases
from tests.support.cli import CAPTURE, RUNNER, Cli, edit
from tests.support.faults import in_child
from tests.support.patches import write_feature

#: Every call of commands that read releases takes minutes.
pytestmark = pytest.mark.thorough

SESSION = "capture@0.26.0"


@pytest.fixture
def ours(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of patches whose feature serves the small releases but the last one."""
    opened: dict[str, Target] = {}
    for release in releases.RELEASES:
        tree = fake_vllm.tree(tmp_path / "releases" / release, release, releases.files(release))
        opened[release] = replace(resolution.resolve(str(tree)), name=release, root=None)
    real = resolution.resolve

    def resolve(name: str | None, **options: object) -> Target:
        # Options are passed through as they come.
        return opened[name] if name in opened else real(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(resolution, "resolve", resolve)
    releases.know(monkeypatch, releases.RELEASES)
    for module in ("log", "matrix"):
        known = f"overlay.authoring.commands.{module}.releases"
        monkeypatch.setattr(known, lambda *_, **__: releases.RELEASES)
    monkeypatch.setattr(resolution, "resolve_each", lambda name, *_, **__: (opened[name],))
    shutil.rmtree(cli.shipped / "demo")
    place = tmp_path / "ours"
    spans = ("0.24.0..0.24.0", "0.25.0..0.26.0")
    patches = {f"10-capture/{span}.patch": CAPTURE for span in spans}
    write_feature(place, patches, "capture", "0.24.0..0.26.0")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return place


def contents(folder: Path) -> str:
    """What every reader of a folder of patches sees; nothing in it may be malformed."""
    if not folder.is_dir():
        return ""
    return str([(feature.id, feature.digest) for feature in load([folder])])


def calls_of(
    act: Callable[[], None], folder: Path, fresh: Callable[[], None], ends: int = 0
) -> list[str]:
    """The calls of a command that change the disk, in order.

    :param fresh: makes the state that the command is run in.
    :param ends: its exit status.
    """
    fresh()
    assert in_child(act) == ends  # fills the caches, so that every later run is alike
    fresh()
    names = audited.calls(act, folder, ends)
    assert len(names) > 3, names
    return names


def met(names: list[str], fault: str) -> range:
    """The numbers of the calls that a fault meets: each call is met by one of the faults."""
    return range(1 + list(FAULTS).index(fault), len(names) + 1, len(FAULTS))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (("port", "capture", "--releases", "0.27.0", "--write"), 0),
        (("prune", "--releases", "0.25.0", "--write"), 0),
        (("new", "mine", "SITE", "--from-edits"), 0),
        (("edit", "--commit", SESSION), 1),  # the other variant keeps what it had
    ],
    ids=["port", "prune", "new", "edit"],
)
def test_a_folder_of_patches_is_as_before_or_as_after(
    ours: Path, site: Path, tmp_path: Path, fault: str, words: tuple[str, ...], ends: int
) -> None:
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    begin = command("edit", "capture", "--release", "0.26.0", "--patches", ours)
    start, work = tmp_path / "start", Path.cwd()
    shutil.copytree(ours, start)

    def fresh() -> None:
        for place in (ours, *work.iterdir()):
            shutil.rmtree(place)
        shutil.copytree(start, ours)
        if words[0] == "edit":
            assert in_child(begin) == 0
            edit(work / SESSION, RUNNER, "(1, 2, 4, 8)", "(1, 2)")

    named = [str(site) if word == "SITE" else word for word in words]
    act = command(*named, "--patches", ours)
    names = calls_of(act, tmp_path, fresh, ends)
    before = contents(start)
    fresh()
    assert in_child(act) == ends
    after = contents(ours)
    assert before != after
    for number in met(names, fault):
        fresh()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], act) in ENDS[fault], where
        left = contents(ours)
        assert left in (before, after), where
        if left == before:
            assert in_child(act) == ends, where
            assert contents(ours) == after, where


@pytest.mark.parametrize("fault", FAULTS)
def test_a_session_that_was_begun_in_part_can_be_ended(
    ours: Path, tmp_path: Path, fault: str
) -> None:
    act = command("edit", "capture", "--release", "0.26.0", "--patches", ours)
    before, work = contents(ours), Path.cwd()

    def fresh() -> None:
        for place in work.iterdir():
            shutil.rmtree(place)

    names = calls_of(act, tmp_path, fresh)
    for number in met(names, fault):
        fresh()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], act) in ENDS[fault], where
        assert contents(ours) == before, where
        if (work / SESSION).exists():
            assert in_child(command("edit", "--abort", SESSION)) == 0, where
        assert in_child(act) == 0, where


@pytest.mark.parametrize("fault", FAULTS)
def test_a_session_that_was_aborted_in_part_can_be_aborted_again(
    ours: Path, tmp_path: Path, fault: str
) -> None:
    begin = command("edit", "capture", "--release", "0.26.0", "--patches", ours)
    act, work = command("edit", "--abort", SESSION), Path.cwd()

    def fresh() -> None:
        for place in work.iterdir():
            shutil.rmtree(place)
        assert in_child(begin) == 0

    names = calls_of(act, tmp_path, fresh)
    for number in met(names, fault):
        fresh()
        where = f"{fault} at {number}, {names[number - 1]}"
        assert audited.at_call(number, FAULTS[fault], act) in ENDS[fault], where
        if (work / SESSION).exists():
            assert in_child(act) == 0, where
        assert not (work / SESSION).exists(), where


@pytest.mark.parametrize(
    "words",
    [
        ("log", "capture"),
        ("log", "--matrix"),
        ("prune", "--releases", "0.25.0"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_changes_nothing_but_the_cache(
    cli: Cli, ours: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    act = command(*words, "--patches", ours)
    ends = in_child(act)
    assert ends in (0, 1)  # 1: a release wants a port
    before = contents(ours)
    cache, temporary = str(tmp_path / "cache"), tempfile.gettempdir()
    there = sorted(os.listdir(temporary))
    for call in audited.calls(act, tmp_path, ends):
        path = call.partition(" ")[2]  # relative where a temporary folder is emptied
        assert not path.startswith("/") or path.startswith((cache, temporary)), call
    assert os.listdir() == []
    assert contents(ours) == before
    assert sorted(os.listdir(temporary)) == there
