"""``overlay new ID --file``: a feature that does not exist yet, edited as files of a release."""

from __future__ import annotations

import json
import shutil
import signal
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.authoring import disk
from overlay.authoring.commands.edit_report import NewReport
from overlay.planning.planner import plan
from overlay.report.codes import Code, Verdict
from overlay.results import State
from tests.support import releases
from tests.support.cli import PROPOSER, RUNNER, Cli, edit
from tests.support.faults import FaultyOs, faulty, in_child, killing
from tests.support.releases import Index, Release

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)

FOLDER = Path("stop-fix@0.26.0")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return releases.install(monkeypatch)


@pytest.fixture
def work(cli: Cli, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return cli


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A folder of patches that is not there yet."""
    return tmp_path / "ours"


def begin(cli: Cli, ours: Path, *more: str) -> None:
    """Begin a session for ``stop-fix`` with the runner's file."""
    words = ["new", "stop-fix", "--file", RUNNER, "--release", "0.26.0", "--patches", ours]
    result = cli(*words, *more)
    assert result.exit == 0, result.err
    assert result.command("edit")[:3] == (
        "edit",
        "--commit",
        str(Path("stop-fix@0.26.0").resolve()),
    )


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def restore(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_files_of_a_release_become_a_feature(work: Cli, ours: Path) -> None:
    begin(work, ours, "--title", "Count one more")
    assert (FOLDER / RUNNER).read_bytes() == releases.files("0.26.0")[RUNNER]
    assert not ours.exists()
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    (FOLDER / "vllm/v1/extra.py").write_text("EXTRA = 1\n")
    wanted = {path: (FOLDER / path).read_bytes() for path in (RUNNER, "vllm/v1/extra.py")}
    result = work("edit", "--commit", FOLDER, "--json")
    assert result.exit == 0, result.out + result.err
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["edit"]["releases"] == "0.24.0..0.26.0"  # 0.27.0 returns otherwise
    assert not FOLDER.exists()
    (feature,) = load([ours])
    assert (feature.id, feature.title) == ("stop-fix", "Count one more")
    tree = Release(releases.files("0.26.0"))
    planned = plan([feature], tree, Version("0.26.0"))
    assert {change.path: change.after for change in planned.changes} == wanted


def test_releases_that_have_the_change_are_told(
    work: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "        self.captured_graphs = captured\n"
    files = releases.files

    def with_the_line(release: str) -> dict[str, bytes]:
        found = files(release)
        if release == "0.27.0":
            last = b"        return captured or 0\n"
            found[RUNNER] = found[RUNNER].replace(last, line.encode() + last)
            found["vllm/v1/extra.py"] = b"EXTRA = 1\n"  # a feature is all of its modules, too
        return found

    monkeypatch.setattr(releases, "files", with_the_line)
    begin(work, ours)
    edit(FOLDER, RUNNER, "        return captured\n", f"{line}        return captured\n")
    (FOLDER / "vllm/v1/extra.py").write_text("EXTRA = 1\n")
    result = work("edit", "--commit", FOLDER)
    assert result.exit == 0, result.out + result.err
    assert "releases from 0.27.0 on get nothing of this edit" in result.out
    (feature,) = load([ours])
    assert feature.merged == Version("0.27.0")


@pytest.mark.parametrize("named", ["as printed", "relative", "twice", "through a link"])
def test_the_folder_that_is_named_again_need_not_be_there(
    work: Cli, ours: Path, tmp_path: Path, named: str
) -> None:
    begun = work("new", "stop-fix", "--file", RUNNER, "--release", "0.26.0", "--patches", ours)
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    (tmp_path / "link").symlink_to(tmp_path)
    words = {
        "as printed": begun.command("edit"),
        "relative": ("edit", "--commit", FOLDER, "--patches", "../ours"),
        "twice": ("--patches", ours, "edit", "--commit", FOLDER, "--patches", "../ours"),
        "through a link": ("edit", "--commit", FOLDER, "--patches", tmp_path / "link/ours"),
    }
    result = work(*words[named])
    assert result.exit == 0, result.err
    assert [feature.id for feature in load([ours])] == ["stop-fix"]


def test_another_folder_that_is_not_there_is_said(work: Cli, ours: Path) -> None:
    begin(work, ours)
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    result = work("edit", "--commit", FOLDER, "--patches", "../theirs")
    assert result.exit == 2
    assert "theirs" in result.err
    assert not ours.exists()
    assert FOLDER.exists()


def test_the_new_feature_stacks_on_those_before_it(work: Cli, ours: Path) -> None:
    begin(work, ours, "--file", PROPOSER)
    assert "# patched" in (FOLDER / PROPOSER).read_text()  # by the shipped feature
    assert "(1, 2, 4, 8)" not in (FOLDER / RUNNER).read_text()  # a folder that was not named
    edit(FOLDER, PROPOSER, "  # patched", "  # patched twice")
    assert work("edit", "--commit", FOLDER).exit == 0
    features = load([work.shipped, ours])
    tree = Release(releases.files("0.26.0"))
    planned = plan(features, tree, Version("0.26.0"))
    assert planned.state is State.PRISTINE
    changed = {change.path: change.after or b"" for change in planned.changes}
    assert b"# patched twice" in changed[PROPOSER]


def test_a_feature_that_is_applied_later_is_not_below(work: Cli) -> None:
    words = ["new", "a-fix", "--file", RUNNER, "--release", "0.26.0", "--patches", work.team]
    assert work(*words).exit == 0
    assert "(1, 2, 4, 8)" not in Path("a-fix@0.26.0", RUNNER).read_text()
    words[1] = "z-fix"
    assert work(*words).exit == 0
    assert "(1, 2, 4, 8)" in Path("z-fix@0.26.0", RUNNER).read_text()


def test_further_files_join_and_only_a_commit_or_abort_end_it(work: Cli, ours: Path) -> None:
    begin(work, ours)
    unchanged = work("edit", "--commit", FOLDER, "--json")
    assert (unchanged.exit, unchanged.json["code"]) == (1, "unchanged")
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    more = ["new", "stop-fix", "--file", PROPOSER, "--release", "0.26.0", "--patches", ours]
    assert work(*more).exit == 0
    assert "captured + 1" in (FOLDER / RUNNER).read_text()
    edit(FOLDER, PROPOSER, "self.model = None", "self.model = 1")
    assert work("edit", "--commit", FOLDER).exit == 0
    (feature,) = load([ours])
    assert len(feature.topics) == 2
    begin_again = ["new", "other", "--file", RUNNER, "--patches", ours]
    assert work(*begin_again).exit == 0
    folder = Path("other@0.27.0")  # the newest release
    assert work("edit", "--abort", folder).exit == 0
    assert not folder.exists()


def refused(cli: Cli, ours: Path, word: str) -> None:
    """A commit is refused with a word, and nothing is lost."""
    before, patches = snapshot(FOLDER), snapshot(ours)
    result = cli("edit", "--commit", FOLDER)
    assert result.exit == 2
    assert word in result.err
    assert (snapshot(FOLDER), snapshot(ours)) == (before, patches)


def test_what_a_feature_cannot_carry_is_refused(work: Cli, ours: Path) -> None:
    begin(work, ours)
    (FOLDER / RUNNER).write_text("def f(:\n")
    refused(work, ours, "is not Python")
    (FOLDER / RUNNER).write_bytes(releases.files("0.26.0")[RUNNER])
    (FOLDER / "vllm/notes.so").write_text("hello")
    refused(work, ours, "neither a module nor a data file")


def test_a_removed_module_and_an_added_data_file_are_carried(work: Cli, ours: Path) -> None:
    begin(work, ours, "--file", PROPOSER)
    (FOLDER / RUNNER).unlink()
    (FOLDER / "vllm/notes.json").write_text("{}")
    text = (FOLDER / PROPOSER).read_text()
    (FOLDER / PROPOSER).write_text(text.replace("self.model = None", "self.model = 1"))
    result = work("edit", "--commit", FOLDER)
    assert result.exit == 0, result.out + result.err
    assert (ours / "stop-fix/files/vllm/notes.json").read_text() == "{}"
    removals = [
        path for path in (ours / "stop-fix").glob("*/*.patch") if b"deleted" in path.read_bytes()
    ]
    assert len(removals) == 1


def test_a_feature_that_came_or_changed_meanwhile_is_said(work: Cli, ours: Path) -> None:
    begin(work, ours, "--file", PROPOSER)
    edit(FOLDER, PROPOSER, "self.model = None", "self.model = 1")
    module = work.shipped / "demo/files/vllm/v1/spec_decode/demo.py"
    module.write_text("VALUE = 2\n")
    refused(work, ours, "demo changed since the session began")
    module.write_text("VALUE = 1\n")
    shutil.copytree(work.team / "team-capture", ours / "stop-fix")
    toml = ours / "stop-fix/feature.toml"
    toml.write_text(toml.read_text().replace("team-capture", "stop-fix"))
    refused(work, ours, "stop-fix changed since the session began")


def test_releases_that_were_not_tried_for_one_reason_are_one_line() -> None:
    unread = {"0.24.0": "release 0.24.0: no network", "0.25.0": "release 0.25.0: no network"}
    report = NewReport(
        Verdict(Code.NO_PROBLEM, "Nothing."),
        feature="x",
        release="0.26.0",
        target="t",
        unread={**unread, "0.26.0": "is cut"},
    )
    lines = ["".join(span.text for span in (*x.head, *x.body)) for x in report.own_lines()]
    assert lines == [
        "0.24.0 and 0.25.0 were not tried: release 0.24.0: no network",
        "0.26.0 was not tried: is cut",
    ]


def test_a_release_that_left_the_index_takes_nothing_away(
    work: Cli, ours: Path, index: Index
) -> None:
    begin(work, ours)
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    index.gone |= {"0.26.0", "0.24.0"}
    result = work("edit", "--commit", FOLDER)
    assert result.exit == 0
    assert "0.24.0 was not tried" in result.out
    (feature,) = load([ours])
    assert str(feature.releases) == "0.25.0..0.26.0"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["mine"], "--from-edits"),
        (["mine"], "--file"),
        (["mine", "--file", RUNNER, "--from-edits"], "in one way"),
        (["mine", "0.26.0", "--file", RUNNER], "go with --from-edits"),
        (["mine", "--file", RUNNER, "--update"], "go with --from-edits"),
        (["mine", "--from-edits", "--release", "0.26.0"], "goes with --file"),
        (["Mine", "--file", RUNNER], "lower-case-with-hyphens"),
        (["team-capture", "--file", RUNNER], "expected no feature of that id"),
        (["team-capture", "--file", RUNNER], "or `overlay edit team-capture --patches "),
        (["demo", "--file", RUNNER], "expected no feature of that id"),
        (["mine", "--file", "../x.py"], "--file"),
        (["mine", "--file", "vllm/no.py"], "has no such file"),
        (["mine", "--file", RUNNER, "--release", "new"], "--release"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    work: Cli, arguments: list[str], word: str
) -> None:
    before = snapshot(work.team)
    result = work("new", *arguments, "--patches", work.team)
    assert result.exit == 2
    assert word in result.err
    assert not list(Path().iterdir())
    assert snapshot(work.team) == before


def test_killed_at_every_call_of_a_commit_nothing_is_lost(work: Cli, ours: Path) -> None:
    """The feature is not there, or whole, and the session is whole until it is."""
    begin(work, ours)
    edit(FOLDER, RUNNER, "return captured\n", "return captured + 1\n")
    start = snapshot(FOLDER)
    with faulty(FaultyOs(), disk) as counted:
        assert work("edit", "--commit", FOLDER).exit == 0
    last = snapshot(ours)
    for at in range(1, counted.count + 1):
        shutil.rmtree(ours)
        restore(FOLDER, start)

        def child(at: int = at) -> None:
            with faulty(FaultyOs(at, killing), disk):
                work("edit", "--commit", FOLDER)

        assert in_child(child) == -signal.SIGKILL
        committed = bool(load([ours])) if ours.exists() else False
        if FOLDER.exists():
            assert snapshot(FOLDER) == start
            assert work("edit", "--commit", FOLDER, "--json").json["code"] == "committed"
        else:
            assert committed
        assert not FOLDER.exists()
        disk.finish_switch(ours)
        left = snapshot(ours)
        assert {name: data for name, data in left.items() if not name.startswith(".")} == last
