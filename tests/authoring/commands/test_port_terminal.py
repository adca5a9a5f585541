"""``overlay port`` in a terminal: the keys that a person presses at each conflict."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.cli.run import run
from overlay.planning.planner import plan
from overlay.results import State
from tests.support import port_world as world
from tests.support.cli import Cli
from tests.support.releases import know
from tests.support.terminal import Terminal

PROMPT = "what: "
SESSION = Path("port-0.24.0")


@pytest.fixture
def ours(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A feature that conflicts on 0.24.0, on small releases; a working folder of the test's own."""
    know(monkeypatch, world.NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: world.Tree(name))
    monkeypatch.setenv("TERM", "dumb")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    world.write(tmp_path / "ours")
    return tmp_path / "ours"


def port(ours: Path) -> Terminal:
    """The port as it is typed, up to its first question."""
    terminal = Terminal(
        lambda: run(["port", "replay", "--releases", "0.24.0", "--patches", str(ours)])
    )
    terminal.wait_for(PROMPT)
    return terminal


def state(ours: Path) -> State:
    """The state of the feature on the release that it was ported to."""
    (feature,) = load([ours])
    return plan([feature], world.Tree("0.24.0"), Version("0.24.0")).features[0].state


def test_the_conflict_is_shown_with_the_keys(ours: Path) -> None:
    terminal = port(ours)
    texts = ("Runner.capture", "stream=None", "replay_graph", "<<<<<<<")
    for text in (*texts, "[u] not needed in", "1 of 1:"):
        assert text in terminal.screen
    terminal.type("q\r")
    assert terminal.end() == 1
    assert f"--continue{SESSION.resolve()}" in "".join(terminal.screen.split())  # wraps
    assert (SESSION / "replay/10-runner" / world.PATH).is_file()
    assert state(ours) is State.DRIFTED


def test_mine_is_placed_and_kept(ours: Path) -> None:
    terminal = port(ours)
    terminal.type("p\r")
    terminal.wait_for(PROMPT)  # it is a proposal, shown without markers
    assert "wrote a proposal to port-0.24.0/replay" in terminal.screen
    terminal.type("k\r")
    assert terminal.end() == 1  # 0.23.0 in between waits for a review
    assert "as it is; it goes into the patches" in terminal.screen
    assert "0.23.0" in terminal.screen
    assert not SESSION.exists()
    assert state(ours) is State.PRISTINE


def test_a_conflict_cannot_be_kept_and_other_keys_are_refused(ours: Path) -> None:
    terminal = port(ours)
    terminal.type("x\r")
    terminal.wait_for("'x' is not one of")
    terminal.wait_for(PROMPT)
    terminal.type("k\r")  # the markers are in it still
    terminal.wait_for("has a marker of a conflict: nothing was taken")
    terminal.wait_for("<<<<<<<")
    terminal.wait_for(PROMPT)
    terminal.type("u\r")
    terminal.end()
    assert not SESSION.exists()
    assert state(ours) is State.UPSTREAMED


def test_e_opens_the_editor_of_the_person(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = world.IN_THE_WAY.replace(b"self.note_begin(count)", b"self.note_begin(count + 1)")
    editor = tmp_path / "editor.py"
    editor.write_text(f"import sys\nopen(sys.argv[1], 'wb').write({wanted!r})\n")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {editor}")
    terminal = port(ours)
    terminal.type("e\r")
    terminal.end()
    assert not SESSION.exists()
    (feature,) = load([ours])
    (change,) = plan([feature], world.Tree("0.24.0"), Version("0.24.0")).changes
    assert change.after == wanted


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["control-c", "control-d"])
def test_leaving_at_the_question_loses_nothing(ours: Path, key: str) -> None:
    terminal = port(ours)
    laid = (SESSION / "replay/10-runner" / world.PATH).read_bytes()
    terminal.type(key)
    assert terminal.end() == 1
    assert f"--continue{SESSION.resolve()}" in "".join(terminal.screen.split())  # wraps
    assert (SESSION / "replay/10-runner" / world.PATH).read_bytes() == laid
    assert state(ours) is State.DRIFTED


@pytest.mark.parametrize(
    ("pager", "words"),
    [
        ("sh -c 'head -n 1; exit 3'", "the pager sh ended with 3; without it:"),
        ("sh -c 'kill -9 $$'", "the pager sh ended with -9; without it:"),
        ("no-such-pager", "the pager cannot be run"),
        ("sh -c '", "the pager cannot be run"),
    ],
)
def test_a_pager_that_dies_is_said_and_nothing_is_lost(
    ours: Path, pager: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits has some hundred letters: all of it is in the pipe before the pager ends."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 12)))
    monkeypatch.setenv("PAGER", pager)
    terminal = port(ours)
    said = terminal.screen.index(words)
    assert terminal.screen.index(">>>>>>>", said) > said  # the end of the last view
    terminal.type("q\r")
    assert terminal.end() == 1
    assert (SESSION / "replay/10-runner" / world.PATH).is_file()


def test_skipping_leaves_the_feature_as_it_was(ours: Path) -> None:
    before = {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()}
    terminal = port(ours)
    terminal.type("s\r")
    terminal.end()
    assert not SESSION.exists()
    assert before == {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()}
