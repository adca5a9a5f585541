"""``overlay edit``, as a user calls it: a feature edited as files, and what survives what."""

from __future__ import annotations

import json
import shutil
import signal
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlay._features.folder import load
from overlay.authoring import disk
from tests.support import releases
from tests.support.cli import ADDED, CAPTURE, PROPOSER, RUNNER, Cli, edit
from tests.support.faults import FaultyOs, faulty, in_child, killing
from tests.support.patches import write_feature
from tests.support.releases import Index

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)

FOLDER = "team-capture@0.26.0"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return releases.install(monkeypatch)


@pytest.fixture
def team(cli: Cli, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder; ``team-capture`` serves 0.20.0 to 0.33.0."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return cli


def begin(cli: Cli, *more: str) -> Path:
    result = cli("edit", "team-capture", "--release", "0.26.0", "--patches", cli.team, *more)
    assert result.exit == 0, result.err
    return Path(FOLDER)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def ranges(cli: Cli) -> dict[str, list[str]]:
    (feature,) = load([cli.team])
    return {
        topic.name: [str(variant.releases) for variant in topic.variants]
        for topic in feature.topics
    }


def test_a_session_holds_the_release_with_the_feature_applied(team: Cli) -> None:
    folder = begin(team)
    assert "for size in (1, 2, 4, 8):" in (folder / RUNNER).read_text()
    assert (folder / ".base" / RUNNER).read_bytes() == releases.files("0.26.0")[RUNNER]
    assert not (folder / PROPOSER).exists()


def test_a_commit_makes_the_patch_of_the_files(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    (folder / "vllm/v1/extra.py").write_text("EXTRA = 1\n")
    result = team("edit", "--commit", folder)
    assert result.exit == 0, result.out + result.err
    assert f"{RUNNER}" in result.out
    assert "1 hunk in GPUModelRunner.capture_model" in result.out
    assert not folder.exists()
    (feature,) = load([team.team])
    assert [added.path for added in feature.added] == ["vllm/v1/extra.py"]
    again = team("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    assert again.exit == 0
    assert "(1, 2, 4, 8, 16)" in (folder / RUNNER).read_text()


def test_releases_on_which_the_edit_does_not_land_keep_what_they_had(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "return captured\n", "return captured + 1\n")
    result = team("edit", "--commit", folder, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.exit == 1
    assert result.json["code"] == "committed-in-part"
    assert result.json["edit"]["left"] == ["0.27.0"]
    assert result.json["edit"]["releases"] == "0.24.0..0.26.0"
    assert ranges(team) == {"10-capture": ["0.20.0..0.26.0", "0.27.0..0.33.0"]}


def test_a_commit_without_a_change_says_so_and_keeps_the_session(team: Cli) -> None:
    """Law 8."""
    folder = begin(team)
    before, patches = snapshot(folder), snapshot(team.team)
    result = team("edit", "--commit", folder, "--json")
    assert (result.exit, result.json["code"]) == (1, "unchanged")
    assert "Nothing was edited" in result.json["verdict"]
    assert (snapshot(folder), snapshot(team.team)) == (before, patches)
    (folder / f"{RUNNER}.orig").write_text("left by a tool")
    assert team("edit", "--commit", folder).exit == 1
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    assert team("edit", "--commit", folder).exit == 0


def test_a_file_that_is_the_releases_own_again_is_named(team: Cli) -> None:
    folder = begin(team)
    (folder / RUNNER).write_bytes(releases.files("0.26.0")[RUNNER])
    (folder / ADDED).parent.mkdir(parents=True, exist_ok=True)
    (folder / ADDED).write_text("VALUE = 1\n")
    result = team("edit", "--commit", folder)
    assert result.exit == 0
    assert f"{RUNNER}  as the release has it" in result.out


def test_only_abort_removes_a_session(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2")
    again = team("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    assert again.exit == 2
    assert "--abort" in again.err
    broken = team("edit", "--commit", folder)
    assert broken.exit == 2
    assert "is not Python" in broken.err
    assert "(1, 2" in (folder / RUNNER).read_text()
    aborted = team("edit", "--abort", folder)
    assert (aborted.exit, folder.exists()) == (0, False)
    assert team("edit", "--abort", folder).exit == 2


def test_further_files_join_a_session(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    begin(team, "--file", PROPOSER)
    assert "(1, 2)" in (folder / RUNNER).read_text()
    edit(folder, PROPOSER, "self.model = None", "self.model = 1")
    assert team("edit", "--commit", folder).exit == 0
    assert ranges(team) == {
        "10-capture": ["0.20.0..0.33.0"],
        "20-proposer": ["0.20.0..0.33.0"],
    }


def test_a_file_of_the_release_that_was_copied_in_is_edited_and_not_added(team: Cli) -> None:
    folder = begin(team)
    (folder / PROPOSER).parent.mkdir(parents=True)
    text = releases.files("0.26.0")[PROPOSER].replace(b"self.model = None", b"self.model = 1")
    (folder / PROPOSER).write_bytes(text)
    assert team("edit", "--commit", folder).exit == 0
    (feature,) = load([team.team])
    assert not feature.added
    assert "20-proposer" in ranges(team)


def test_added_modules_are_edited_and_removed(team: Cli) -> None:
    folder = begin(team)
    (folder / "vllm/one.py").write_text("ONE = 1\n")
    (folder / "vllm/two.py").write_text("TWO = 1\n")
    assert team("edit", "--commit", folder).exit == 0
    begin(team)
    (folder / "vllm/one.py").write_text("ONE = 2\n")
    (folder / "vllm/two.py").unlink()
    result = team("edit", "--commit", folder)
    assert result.exit == 0
    assert "removed" in result.out
    (feature,) = load([team.team])
    assert [(each.path, each.content) for each in feature.added] == [("vllm/one.py", b"ONE = 2\n")]


@pytest.mark.parametrize("hunk", [False, True])
def test_releases_that_have_the_feature_by_memory_get_nothing_of_an_edit(
    team: Cli, hunk: bool
) -> None:
    toml = team.team / "team-capture/feature.toml"
    memory = 'merged = "0.27.0"\n'
    toml.write_text(memory + toml.read_text())
    folder = begin(team)
    (folder / "vllm/v1/extra.py").write_text("EXTRA = 1\n")
    if hunk:
        edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    result = team("edit", "--commit", folder)
    assert result.exit == 0, result.out + result.err
    assert "releases from 0.27.0 on get nothing of this edit" in result.out
    assert result.last == "Committed team-capture for 0.24.0..0.26.0."
    assert toml.read_text().startswith(memory)  # only a person takes it back
    assert ranges(team) == {"10-capture": ["0.20.0..0.33.0"]}
    begin(team)
    (folder / "vllm/v1/extra.py").write_text("EXTRA = 2\n")
    told = team("edit", "--commit", folder, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert (told["edit"]["releases"], told["edit"]["merged"]) == ("0.24.0..0.26.0", "0.27.0")


def test_a_feature_that_removes_a_file_is_edited_again(team: Cli) -> None:
    folder, init = begin(team, "--file", "vllm/__init__.py"), "vllm/__init__.py"
    (folder / init).unlink()
    assert team("edit", "--commit", folder).exit == 0
    again = team("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    assert f"{RUNNER}  to edit" in again.out
    assert init not in again.out
    assert team("edit", "--commit", folder).exit == 1  # nothing was edited
    begin(team, "--file", "vllm/v1/__init__.py")
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    result = team("edit", "--commit", folder)
    assert result.exit == 0, result.err
    assert sorted(ranges(team)) == ["10-capture", "20-vllm"]


def test_a_folder_of_patches_may_have_a_colon_in_its_path(team: Cli, tmp_path: Path) -> None:
    place = tmp_path / "our:patches"
    shutil.copytree(team.team, place)
    result = team("edit", "team-capture", "--release", "0.26.0", "--patches", place)
    assert result.exit == 0, result.err
    edit(Path(FOLDER), RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    result = team("edit", "--commit", FOLDER)
    assert result.exit == 0, result.err


def refused(cli: Cli, folder: Path, word: str) -> None:
    """A commit is refused with a word, and nothing is lost."""
    before, patches = snapshot(folder), snapshot(cli.team)
    result = cli("edit", "--commit", folder)
    assert result.exit == 2
    assert word in result.err
    assert (snapshot(folder), snapshot(cli.team)) == (before, patches)


def test_what_a_feature_cannot_carry_is_refused(team: Cli) -> None:
    folder = begin(team)
    (folder / RUNNER).write_bytes(releases.files("0.26.0")[RUNNER])
    refused(team, folder, "error: team-capture/feature.toml: the feature does nothing")
    (folder / "vllm/notes.so").write_bytes(b"hello")
    refused(team, folder, "notes.so")
    (folder / "vllm/notes.so").unlink()
    (folder / "vllm/bad.py").write_text("def f(:\n")
    refused(team, folder, "does not compile")


def test_an_edited_base_is_said(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    edit(folder, f".base/{RUNNER}", "captured = 0", "captured = 5")
    refused(team, folder, "it was edited")


def test_a_feature_that_changed_meanwhile_is_said(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    patch = team.team / "team-capture/10-capture/0.20.0..0.33.0.patch"
    text = patch.read_text()
    patch.write_text(text.replace("2, 4, 8)", "2, 4, 9)"))
    refused(team, folder, "team-capture changed since the session began")
    patch.write_text(text)
    assert team("edit", "--commit", folder).exit == 0


def test_a_feature_below_that_changed_meanwhile_is_said(team: Cli) -> None:
    folder = begin(team, "--file", PROPOSER)
    edit(folder, PROPOSER, "self.model = None", "self.model = 1")
    assert "# patched" in (folder / PROPOSER).read_text()  # of the shipped feature
    module = team.shipped / "demo/files" / ADDED
    module.write_text("VALUE = 2\n")
    refused(team, folder, "demo changed since the session began")


def test_a_feature_that_vanished_is_said(team: Cli, tmp_path: Path) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    (team.team / "team-capture").rename(tmp_path / "away")
    refused(team, folder, "expected one of demo")
    (tmp_path / "away").rename(team.team / "team-capture")
    assert team("edit", "--commit", folder).exit == 0


def test_a_release_that_vanished_takes_nothing_away(team: Cli, index: Index) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    index.gone |= {"0.26.0", "0.25.0"}
    (folder / "vllm/one.py").write_text("ONE = 1\n")
    refused(team, folder, "whether vLLM 0.26.0 has such a file cannot be told")
    (folder / "vllm/one.py").unlink()
    result = team("edit", "--commit", folder)
    assert result.exit == 1
    assert "0.25.0 was not tried" in result.out
    assert ranges(team) == {
        "10-capture": ["0.20.0..0.25.0", "0.26.0..0.33.0"],
    }
    gone = team("edit", "team-capture", "--release", "0.25.0", "--patches", team.team)
    assert gone.exit == 2
    assert "not on the index" in gone.err


def test_a_release_on_which_the_feature_does_not_land_is_for_port(team: Cli) -> None:
    (team.team / "team-capture/10-capture/0.20.0..0.33.0.patch").write_text(
        (team.team / "team-capture/10-capture/0.20.0..0.33.0.patch")
        .read_text()
        .replace("captured = 0", "captured = 7")
    )
    result = team("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    assert result.exit == 2
    assert "overlay port team-capture --releases 0.26.0" in result.err
    assert not Path(FOLDER).exists()


def test_a_feature_before_it_that_changes_the_same_lines_is_left_out_and_named(team: Cli) -> None:
    write_feature(team.team, {"10-a/0.20.0..0.33.0.patch": CAPTURE}, id="a-capture")
    result = team("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    assert result.exit == 0
    assert "without a-capture" in result.out
    edit(Path(FOLDER), RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    assert team("edit", "--commit", FOLDER).exit == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "give one of"),
        (["team-capture", "--commit", "x"], "give one of"),
        (["--commit", "x", "--release", "0.26.0"], "begin a session"),
        (["--commit", "nowhere"], "expected a session"),
        (["--abort", "."], "expected a session"),
        (["nothing"], "expected one of demo"),
        (["team-capture", "--release", "new"], "--release"),
        (["team-capture", "--release", "0.26.0", "--file", "../x.py"], "--file"),
        (["team-capture", "--release", "0.26.0", "--file", "vllm/no.py"], "has no such file"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    team: Cli, arguments: list[str], word: str
) -> None:
    result = team("edit", *arguments, "--patches", team.team)
    assert result.exit == 2
    assert word in result.err
    assert not list(Path().iterdir())


def test_the_session_of_a_killed_commit_ends_with_the_next_commit(
    team: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")

    def killed(session: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("overlay.authoring.commands.edit.finish", killed)
        assert team("edit", "--commit", folder).exit == 130
    assert folder.exists()
    result = team("edit", "--commit", folder, "--json")
    assert (result.exit, result.json["code"]) == (0, "committed")
    assert not folder.exists()


def test_files_that_are_not_the_sessions_stay(team: Cli) -> None:
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    (folder / "notes.md").write_text("why")
    result = team("edit", "--commit", folder)
    assert result.exit == 0
    assert "holds other files" in result.last
    assert list(snapshot(folder)) == ["notes.md"]


def test_killed_at_every_call_of_a_commit_nothing_is_lost(
    team: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patches are as before or as after, and the session is whole until they are."""
    folder = begin(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    (folder / "vllm/one.py").write_text("ONE = 1\n")
    start, first = snapshot(folder), snapshot(team.team)

    def again() -> None:
        for place, wanted in ((folder, start), (team.team, first)):
            shutil.rmtree(place, ignore_errors=True)
            for name, data in wanted.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(data)

    with faulty(FaultyOs(), disk) as counted:
        assert team("edit", "--commit", folder).exit == 0
    last = snapshot(team.team)
    for at in range(1, counted.count + 1):
        again()

        def work(at: int = at) -> None:
            with faulty(FaultyOs(at, killing), disk):
                team("edit", "--commit", folder)

        assert in_child(work) == -signal.SIGKILL
        (feature,) = load([team.team])
        committed = bool(feature.added)
        if folder.exists():
            assert snapshot(folder) == start
            assert team("edit", "--commit", folder, "--json").json["code"] == "committed"
        else:
            assert committed
        assert not folder.exists()
        disk.finish_switch(team.team)
        left = snapshot(team.team)
        assert {name: data for name, data in left.items() if not name.startswith(".")} == last
