"""kill -9 and kill -15 of every command: the target ends whole, and nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support import fake_vllm, forked_programs
from tests.support.cli import ADDED, PROPOSE, RUNNER, digest, edit
from tests.support.fake_index import serve
from tests.support.forked_programs import ForkedProgram, ForkedPrograms
from tests.support.patches import write_feature

ONLY = ("--feature", "demo")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)

#: Command -> whether it may change the target.
COMMANDS: dict[tuple[str, ...], bool] = {
    ("check", *ONLY): False,
    ("status",): False,
    ("diff", *ONLY): False,
    ("apply", "--dry-run", *ONLY): False,
    ("apply", *ONLY): True,
    ("revert",): True,
    ("revert", *ONLY): True,
    ("adopt",): True,
}


class Killed:
    """Runs commands as processes of their own, and kills them."""

    def __init__(self, folder: Path, commands: ForkedPrograms) -> None:
        self.commands = commands
        self.folder, self.patches = folder, folder / "patches"
        files = {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
        write_feature(self.patches, files)
        self.environment = {
            **os.environ,
            "OVERLAY_PATCHES": str(self.patches),
            "OVERLAY_CACHE": str(folder / "cache"),
        }

    def start(self, *words: str | Path) -> ForkedProgram:
        return self.commands.start("overlay", [*map(str, words)], self.folder, self.environment)

    def run(self, *words: str | Path) -> int | None:
        process = self.start(*words)
        process.communicate(timeout=60)
        return process.returncode


@pytest.fixture(scope="module")
def commands() -> Iterator[ForkedPrograms]:
    """They start with what they import, so that they are killed at their work."""
    with forked_programs.forked_programs(forked_programs.commands()) as forks:
        yield forks


def nothing_runs(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(
            words,
            number,
            id=f"{' '.join(words)}-{number}",
            # What writes nothing to a target has nothing to end behind this signal.
            marks=() if writes or number == signal.SIGKILL else pytest.mark.thorough,
        )
        for words, writes in COMMANDS.items()
        for number in SIGNALS
    ],
)
def test_a_killed_command_leaves_a_whole_target(
    tmp_path: Path, commands: ForkedPrograms, words: tuple[str, ...], number: signal.Signals
) -> None:
    killed = Killed(tmp_path, commands)
    site = fake_vllm.site_packages(tmp_path / "site")
    pristine = digest(site)
    if words[0] in ("revert", "adopt", "status"):
        assert killed.run("apply", *ONLY, site) == 0
    if words[0] == "adopt":
        shutil.rmtree(site / ".vllm-overlay")
    before = digest(site)
    began = time.monotonic()
    killed.run(*words, site)
    lasts = time.monotonic() - began
    for moment in (0.5, 0.8, 0.95):
        if words[0] == "adopt":
            shutil.rmtree(site / ".vllm-overlay", ignore_errors=True)
        process = killed.start(*words, site)
        time.sleep(lasts * moment)
        process.send_signal(number)
        process.communicate(timeout=30)  # no other process holds its pipes
        assert nothing_runs(process.pid)
        if not COMMANDS[words]:
            assert digest(site) == before
    if words[0] == "adopt":
        killed.run("adopt", site)  # without a ledger the next one would be refused
    assert killed.run("apply", *ONLY, site) == 0
    assert killed.run("revert", site) == 0
    assert digest(site) == pristine


#: Commands that write patches, caches or sessions, or nothing.  Words in capitals are places:
#: ``DIFF`` is a file to import, ``EDITED`` an installation with an edit, ``OURS`` a new folder of
#: patches, ``TEAM`` one with the feature ``demo``.
OTHERS = [
    ("doctor",),
    ("list", "--releases"),
    ("cache", "size"),
    ("cache", "clean"),
    ("import", "DIFF", "--id", "mine", "--patches", "OURS"),
    ("new", "mine", "EDITED", "--from-edits", "--releases", "0.33.0", "--patches", "OURS"),
    ("edit", "demo", "--release", "0.33.0", "--patches", "TEAM"),
    ("port", "demo", "--releases", "0.33.0", "--write", "--patches", "TEAM"),
    ("prune", "--releases", "0.32.0", "--write", "--patches", "TEAM"),
    ("log", "demo", "--releases", "0.32.0..0.33.0", "--patches", "TEAM"),
    ("log", "--matrix", "--releases", "0.32.0..0.33.0", "--patches", "TEAM"),
    ("completion", "zsh"),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a package index that serves two small releases."""
    folder = tmp_path_factory.mktemp("index")
    with serve() as running:
        for version in ("0.32.0", "0.33.0"):
            running.add(fake_vllm.wheel(folder, version))
        yield running.simple


def places(folder: Path, team: Path) -> dict[str, str]:
    """What the words in capitals are called in a test's folder."""
    (folder / "x.diff").write_text("--- a/vllm/x.py\n+++ b/vllm/x.py\n@@ -1 +1 @@\n-a\n+b\n")
    site = fake_vllm.site_packages(folder / "edited", "0.33.0")
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    return {
        "DIFF": str(folder / "x.diff"),
        "EDITED": str(site),
        "OURS": str(folder / "ours"),
        "TEAM": str(team),
    }


@pytest.mark.slow
@pytest.mark.parametrize("words", OTHERS, ids=lambda words: " ".join(words[:2]))
def test_a_killed_command_leaves_no_process_and_no_lock(
    tmp_path: Path,
    commands: ForkedPrograms,
    index: str,
    words: tuple[str, ...],
    pytestconfig: pytest.Config,
) -> None:
    """What they write is looked at before each call in ``test_every_call*.py``."""
    every = [(number, moment) for number in SIGNALS for moment in (0.4, 0.9)]
    # Each signal and each moment once; ``--thorough`` takes each signal at each moment.
    kills = every if pytestconfig.getoption("--thorough") else [every[0], every[-1]]
    killed = Killed(tmp_path, commands)
    # A folder of patches that the environment names is not the one to be written to.
    team = killed.patches.rename(tmp_path / "team")
    killed.patches.mkdir()
    named = [places(tmp_path, team).get(word, word) for word in words]
    killed.environment |= {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull}
    began = time.monotonic()
    assert killed.run(*named) in (0, 1, 2)
    lasts = time.monotonic() - began
    for number, moment in kills:
        for session in tmp_path.glob("*@*"):
            shutil.rmtree(session)
        process = killed.start(*named)
        time.sleep(lasts * moment)
        process.send_signal(number)
        process.communicate(timeout=30)  # nobody else holds its pipes
        deadline = time.monotonic() + 5
        while not nothing_runs(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for left in (tmp_path / "cache").rglob("*.lock"):
            FileLock(left).acquire(timeout=0)  # the file may stay, the lock may not
    folders = [team, *(folder for folder in (tmp_path / "ours",) if folder.is_dir())]
    assert killed.run("list", *(word for folder in folders for word in ("--patches", folder))) == 0
