"""``overlay port``, as a user calls it: what it says, writes, lays out, and ends with."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import holes, load
from overlay._features.model import PortedWay
from overlay.authoring.commands.port import port
from overlay.authoring.commands.port_report import OpenFile, PortReport
from overlay.authoring.commands.port_session import Key, ask
from overlay.commands.request import Request
from overlay.errors import OverlayError
from overlay.planning.planner import plan
from overlay.report.codes import Code
from overlay.results import State
from tests.support import port_world as world
from tests.support.cli import Cli
from tests.support.patches import hunk, patch_text, write_feature
from tests.support.releases import know

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Releases that are small and need no network; a working folder of the test's own."""
    know(monkeypatch, world.NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: world.Tree(name))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    world.write(tmp_path / "ours")
    return tmp_path / "ours"


def no_such_release(name: str, **_: object) -> world.Tree:
    if name not in world.RELEASES:
        raise OverlayError(f"vLLM {name}: there is none on the index")
    return world.Tree(name)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def state(ours: Path, release: str) -> State:
    (feature,) = load([ours])
    return plan([feature], world.Tree(release), Version(release)).features[0].state


def test_what_lands_is_written_only_when_asked(cli: Cli, ours: Path) -> None:
    before = files(ours)
    result = cli("port", "replay", "--releases", "0.22.0", "--patches", ours)
    assert result.exit == 0
    assert "can be ported" in result.last
    assert files(ours) == before
    written = cli("port", "replay", "--releases", "0.22.0", "--write", "--patches", ours)
    assert written.exit == 0
    assert "Ported replay to 0.22.0" in written.last
    assert (ours / "replay/10-runner/0.21.0..0.22.0.patch").is_file()
    assert 'releases = "0.21.0..0.22.0"' in (ours / "replay/feature.toml").read_text()
    assert state(ours, "0.22.0") is State.PRISTINE


def test_a_dry_run_lays_nothing_out_and_neither_way_is_warned_of(cli: Cli, ours: Path) -> None:
    before = files(ours)
    words = ("port", "replay", "--releases", "0.24.0", "--patches", ours)  # its lines conflict
    looked = cli(*words, "--dry-run")
    assert looked.exit == 1
    assert looked.last == "Action needed: 1 to resolve; omit --dry-run to open a session."
    assert "warning:" not in looked.err
    assert files(ours) == before
    assert not Path("port-0.24.0").exists()
    assert cli(*words, "--dry-run", "--write").exit == 2
    proposed = cli(*words)
    assert proposed.exit == 1
    assert "`overlay port` will write from 0.4.0 on" in proposed.err
    assert cli("port", "--show", "--dry-run").exit == 2
    cli("port", "--abort")


def test_the_release_as_the_last_argument_is_the_former_spelling(cli: Cli, ours: Path) -> None:
    now = cli("port", "replay", "--releases", "0.22.0", "--dry-run", "--patches", ours)
    former = cli("port", "replay", "0.22.0", "--dry-run", "--patches", ours)
    assert (former.exit, former.out) == (now.exit, now.out)
    (line,) = [each for each in former.err.splitlines() if each.startswith("warning: ")]
    assert "--releases RANGE" in line


def test_where_a_release_has_no_more_what_it_is_for_nothing_is_to_port(
    cli: Cli, ours: Path
) -> None:
    toml = ours / "replay/feature.toml"
    toml.write_text(f'obsolete_without = ["vllm/v1/gone.py"]\n{toml.read_text()}')
    before = files(ours)
    words = (
        "port",
        "replay",
        "--releases",
        "0.24.0",
        "--patches",
        ours,
    )  # where its lines conflict
    result = cli(*words, "--write")
    assert (result.exit, "Nothing to port" in result.last) == (0, True)
    assert "nothing to do" in result.out
    assert "vLLM has no vllm/v1/gone.py any more, which the feature is for" in result.out
    assert files(ours) == before
    assert not Path("port-0.24.0").exists()
    answer = cli(*words, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    (entry,) = [each for each in answer["port"]["features"] if each["release"] == "0.24.0"]
    assert (entry["outcome"], entry["shown"]) == ("upstream", "")
    assert entry["obsolete"] == "vLLM has no vllm/v1/gone.py any more, which the feature is for"


def test_a_malformed_neighbour_keeps_nobody_from_what_was_named(cli: Cli, ours: Path) -> None:
    bad = write_feature(ours, {}, id="bad") / "feature.toml"
    bad.write_text("= 1\n")
    words = ("--write", "--patches", ours)
    for refused in (
        cli("port", "--all", "--releases", "0.22.0", *words),
        cli("port", "bad", "--releases", "0.22.0", *words),
    ):
        assert refused.exit == 2
        assert f"{bad}:1: it is not TOML" in refused.err
    before = bad.read_bytes()
    assert cli("port", "replay", "--releases", "0.22.0", *words).exit == 0
    assert (ours / "replay/10-runner/0.21.0..0.22.0.patch").is_file()
    assert bad.read_bytes() == before
    assert cli("edit", "bad", "--patches", ours).exit == 2
    assert cli("edit", "replay", "--patches", ours).exit == 0


def test_a_second_port_writes_nothing(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.22.0", "--write", "--patches", ours)
    before = files(ours)
    again = cli("port", "replay", "--releases", "0.22.0", "--write", "--patches", ours)
    assert again.exit == 0
    assert "Nothing to port" in again.last
    assert files(ours) == before


def test_what_was_merged_waits_for_review_and_continue_takes_it(cli: Cli, ours: Path) -> None:
    result = cli("port", "replay", "--releases", "0.23.0", "--write", "--patches", ours)
    assert result.exit == 1
    assert "1 to review" in result.last
    edited = Path("port-0.23.0/replay/10-runner", world.PATH)
    assert b"prepare_replay" in edited.read_bytes()
    assert state(ours, "0.23.0") is State.DRIFTED
    ended = cli("port", "--continue", "--patches", ours)
    assert ended.exit == 0, ended.err
    assert not Path("port-0.23.0").exists()
    assert state(ours, "0.23.0") is State.PRISTINE
    (feature,) = load([ours])
    made = [v.patch for v in feature.topics[0].variants if Version("0.23.0") in v.releases]
    assert made[0].headers["Base"] == "0.23.0"
    assert made[0].ported is PortedWay.BY_HAND


def test_accept_writes_a_merge_at_once(cli: Cli, ours: Path) -> None:
    result = cli(
        "port", "replay", "--releases", "0.23.0", "--write", "--accept", "merged", "--patches", ours
    )
    assert result.exit == 0
    assert state(ours, "0.23.0") is State.PRISTINE
    assert b"Ported-From: 0.22.0 merged" in b"".join(files(ours).values()) or (
        b"Ported-From: 0.21.0 merged" in b"".join(files(ours).values())
    )


def test_a_conflict_is_shown_refused_with_markers_and_taken_once_it_is_edited(
    cli: Cli, ours: Path
) -> None:
    before = files(ours)
    assert cli("port", "replay", "--releases", "0.24.0", "--patches", ours).exit == 1
    shown = cli("port", "--show", "--patches", ours)
    assert shown.exit == 1
    for text in ("upstream", "stream=None", "yours", "prepare_replay", "<<<<<<<", "|||||||"):
        assert text in shown.out
    edited = Path("port-0.24.0/replay/10-runner", world.PATH)
    refused = cli("port", "--continue", "--patches", ours)
    assert refused.exit == 2
    assert "expected no markers" in refused.err
    assert files(ours) == before
    wanted = world.IN_THE_WAY.replace(
        b"            self.run_graph(size, stream=None)\n",
        b"            self.prepare_replay(size)\n            self.run_graph(size, stream=None)\n",
    )
    edited.write_bytes(wanted)
    ended = cli("port", "--continue", "--patches", ours)
    assert ended.exit == 1
    step = f"`overlay port replay --releases 0.23.0 --patches {ours}`"
    assert f"nothing serves 0.23.0 in between; {step} goes on" in ended.last
    (feature,) = load([ours])
    made = plan([feature], world.Tree("0.24.0"), Version("0.24.0"))
    assert made.changes[0].after == wanted
    assert state(ours, "0.22.0") is State.PRISTINE  # it lies between, and lands


def test_the_releases_own_text_is_a_retirement(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(world.IN_THE_WAY)
    result = cli("port", "--continue", "--patches", ours)
    assert (result.exit, result.last.partition(";")[0]) == (
        0,
        "Noted that upstream has replay in 0.24.0",
    )
    assert 'merged = "0.24.0"' in (ours / "replay/feature.toml").read_text()
    assert state(ours, "0.24.0") is state(ours, "0.26.0") is State.UPSTREAMED


def test_on_an_older_release_only_that_release_is_retired(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.20.0", "--patches", ours)
    assert cli("port", "--retire", "replay", "--patches", ours).exit == 0
    assert "merged" not in (ours / "replay/feature.toml").read_text()
    assert state(ours, "0.20.0") is State.UPSTREAMED
    assert state(ours, "0.21.0") is State.PRISTINE


def test_a_feature_that_was_retired_adds_no_module_there(cli: Cli, ours: Path) -> None:
    """Nothing of such a release would call it."""
    module = ours / "replay/files/vllm/v1/replaying.py"
    module.parent.mkdir(parents=True)
    module.write_text("REPLAYED = True\n")
    cli("port", "replay", "--releases", "0.20.0", "--patches", ours)
    assert cli("port", "--retire", "replay", "--patches", ours).exit == 0
    (feature,) = load([ours])
    retired, served = (
        plan([feature], world.Tree(name), Version(name)) for name in ("0.20.0", "0.21.0")
    )
    assert retired.features[0].state is State.UPSTREAMED
    assert retired.changes == ()
    assert {change.path for change in served.changes} == {world.PATH, "vllm/v1/replaying.py"}
    told = cli("log", "replay", "--patches", ours, "--json").json["log"]["releases"]
    assert {entry["release"]: entry["means"] for entry in told}["0.20.0"] == "memory"


def test_upstream_is_remembered(cli: Cli, ours: Path) -> None:
    result = cli("port", "--all", "--releases", "0.25.0", "--write", "--patches", ours)
    assert "upstream" in result.out
    assert state(ours, "0.26.0") is State.UPSTREAMED
    assert 'merged = "0.25.0"' in (ours / "replay/feature.toml").read_text()


def test_a_release_that_upstream_took_the_change_back_from_leaves_no_hole(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fix that was picked to a release's branch, and came to the next release later."""
    texts = {"0.21.0": world.BASE, "0.22.0": world.PATCHED, "0.23.0": world.OTHER_FUNCTION}
    know(monkeypatch, texts)
    monkeypatch.setattr(
        "overlay.targets.resolution.resolve", lambda name, **_: world.Tree(name, texts)
    )
    ours = tmp_path / "picked"
    world.write(ours)
    result = cli("port", "replay", "--releases", "all", "--write", "--patches", ours)
    assert result.exit == 0, result.out
    (feature,) = load([ours])
    assert holes(feature, texts) == ()
    assert str(feature.releases) == "0.21.0..0.23.0"
    states = {
        name: plan([feature], world.Tree(name, texts), Version(name)).features[0].state
        for name in texts
    }
    assert list(states.values()) == [State.PRISTINE, State.UPSTREAMED, State.PRISTINE]
    again = files(ours)
    assert cli("port", "replay", "--releases", "all", "--write", "--patches", ours).exit == 0
    assert files(ours) == again


def test_all_means_the_features_of_the_folders_that_are_named(cli: Cli, ours: Path) -> None:
    shutil.copytree(ours / "replay", cli.shipped / "shipped-replay")
    toml = cli.shipped / "shipped-replay/feature.toml"
    toml.write_text(toml.read_text().replace('"replay"', '"shipped-replay"'))

    def ported(*more: object) -> set[str]:
        features = cli("port", "--all", "--releases", "0.26.0", "--json", *more).json["port"][
            "features"
        ]
        return {feature["feature"] for feature in features}

    assert "shipped-replay" not in ported()  # not a checkout
    (cli.shipped.parent / "pyproject.toml").touch()
    assert "shipped-replay" in ported()
    shutil.rmtree("port-0.26.0", ignore_errors=True)
    assert ported("--patches", ours) == {"replay"}


@pytest.mark.parametrize("action", ["--skip", "--abort"])
def test_what_is_left_out_changes_nothing(cli: Cli, ours: Path, action: str) -> None:
    """Law 8: behind ``--abort`` there is nothing to continue."""
    before = files(ours)
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    words = [action, "replay"] if action == "--skip" else [action]
    assert cli("port", *words, "--patches", ours).exit == 0
    assert not Path("port-0.24.0").exists()
    assert files(ours) == before
    nothing = cli("port", "--continue", "--patches", ours)
    assert nothing.exit == 2
    assert "found none" in nothing.err


def test_a_session_is_not_overwritten(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    before = files(Path("port-0.24.0"))
    again = cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    assert again.exit == 2
    assert "--continue" in again.err
    assert files(Path("port-0.24.0")) == before


def test_patches_that_were_edited_meanwhile_end_nothing(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    patch = ours / "replay/10-runner/0.21.0..0.21.0.patch"
    patch.write_text(patch.read_text().replace("warm=True", "warm=False"))
    session = files(Path("port-0.24.0"))
    refused = cli("port", "--continue", "--patches", ours)
    assert refused.exit == 2
    assert "were changed since" in refused.err
    assert files(Path("port-0.24.0")) == session


@pytest.mark.parametrize("words", [("0.24.0", "--show"), ("--show",), ("--all", "all")])
def test_the_json_is_as_the_schema_says(cli: Cli, ours: Path, words: tuple[str, ...]) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    if words[0] == "0.24.0":
        words = ("port-0.24.0", "--show")
    result: Any = cli("port", *words, "--json", "--patches", ours)
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["port"]["features"]


RESOLVERS = {
    "takes yours": (
        "import sys; open(sys.argv[4], 'wb').write(open(sys.argv[2], 'rb').read())",
        "",
    ),
    "keeps the markers": ("pass", "markers"),
    "is not Python": ("import sys; open(sys.argv[4], 'w').write('def (')", "not Python"),
    "fails": ("raise SystemExit('no idea')", "no idea"),
    "fails without a word": ("raise SystemExit(3)", "found 3: it said nothing"),
    "hangs": ("import time; time.sleep(60)", "longer than"),
    "writes elsewhere": ("open({outside!r}, 'a').write('#')", "which it was not given"),
    "edits its inputs": ("import sys; open(sys.argv[1], 'w').write('')", "alone"),
    "removes its result": ("import os, sys; os.remove(sys.argv[4])", "found none"),
}


@pytest.mark.parametrize("kind", RESOLVERS)
def test_a_resolver_only_proposes(
    cli: Cli, ours: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.authoring.resolvers.propose.__defaults__", (2.0,))
    code, refusal = RESOLVERS[kind]
    program = tmp_path / "resolver.py"
    program.write_text(code.format(outside=str(ours / "replay/feature.toml")))
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    edited = Path("port-0.24.0/replay/10-runner", world.PATH)
    laid, patches = edited.read_bytes(), files(ours / "replay/10-runner")
    result = cli("port", "--resolver", f"{sys.executable} {program}", "--patches", ours)
    if refusal:
        assert result.exit == 2
        assert refusal in result.err
        assert edited.read_bytes() == laid
    else:
        assert result.exit == 1
        assert "review" in result.last
        assert edited.read_bytes() == world.PATCHED
    assert files(ours / "replay/10-runner") == patches


def test_a_resolver_is_found_from_the_folder_that_it_is_named_in(cli: Cli, ours: Path) -> None:
    program = Path("tools/resolver")
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen(sys.argv[4], 'w').write('a = 1\\n')\n"
    )
    program.chmod(0o755)
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    result = cli("port", "--resolver", "./tools/resolver", "--patches", ours)
    assert result.exit == 1, result.err
    laid = Path("port-0.24.0/replay/10-runner", world.PATH)
    assert laid.read_text() == "a = 1\n"


def test_what_it_is_given_must_name_features_and_releases(cli: Cli, ours: Path) -> None:
    assert cli("port", "--patches", ours).exit == 2
    assert cli("port", "replay", "--patches", ours).exit == 2
    nothing = cli("port", "nothing", "--releases", "0.22.0", "--patches", ours).err
    assert "ID nothing: expected one of" in nothing
    assert cli("port", "replay", "soon", "--patches", ours).exit == 2
    both = cli("port", "--show", "--abort", "--patches", ours)
    assert both.exit == 2
    assert "one of them" in both.err


@pytest.fixture
def waiting(ours: Path) -> PortReport:
    """A port of which one file waits."""
    return port(Request((str(ours),), ("replay",)), "0.24.0")


@pytest.mark.parametrize(
    ("keys", "state_there"),
    [
        ("pk", State.PRISTINE),
        ("u", State.UPSTREAMED),
        ("kpk", State.PRISTINE),
        ("r", State.UPSTREAMED),
        ("s", State.DRIFTED),
    ],
)
def test_in_a_terminal_each_conflict_is_asked_about(
    waiting: PortReport, ours: Path, keys: str, state_there: State
) -> None:
    """0.23.0 in between waits for a review of its own, where 0.24.0 is served."""
    answers = iter(keys)
    shown: list[OpenFile] = []

    def question(file: OpenFile, which: str) -> Key:
        shown.append(file)
        return Key(next(answers))

    report = ask(Request((str(ours),)), waiting, question)
    assert (report.code is Code.HOLES) is (state_there is State.PRISTINE)
    assert len(shown) == len(keys)
    assert shown[0].markers
    assert shown[0].scopes[0].scope == "Runner.capture"
    assert not Path("port-0.24.0").exists()
    assert state(ours, "0.24.0") is state_there


def test_placing_mine_puts_it_before_upstreams_lines(waiting: PortReport, ours: Path) -> None:
    answers = iter("pq")
    report = ask(Request((str(ours),)), waiting, lambda file, _: Key(next(answers)))
    assert report.exit == 1
    text = Path("port-0.24.0/replay/10-runner", world.PATH).read_text()
    mine, theirs = text.index("replay_graph"), text.index("stream=None")
    assert mine < theirs


@pytest.mark.skipif(shutil.which("git") is None, reason="--tool is git's merge tool")
def test_the_merge_tool_of_git_gets_the_three_texts(
    cli: Cli, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    settings.write_text("")
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    unset = cli("port", "--tool", "--patches", ours)
    assert unset.exit == 2
    assert "merge.tool" in unset.err
    seen = tmp_path / "seen"
    settings.write_text(
        '[merge]\ntool = mine\n[mergetool "mine"]\n'
        f'cmd = "cat $BASE $REMOTE > {seen} && cp $LOCAL $MERGED"\n'
        "trustExitCode = true\n"
    )
    result = cli("port", "--tool", "--patches", ours)
    assert result.exit == 1, result.err
    assert seen.read_bytes() == world.BASE + world.IN_THE_WAY
    assert Path("port-0.24.0/replay/10-runner", world.PATH).read_bytes() == world.PATCHED


def test_a_file_that_the_release_lacks_can_be_retired_or_skipped(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {name: text for name, text in world.RELEASES.items() if name < "0.24.0"}
    monkeypatch.setattr(
        "overlay.targets.resolution.resolve", lambda name, **_: world.Tree(name, gone)
    )
    assert cli("port", "replay", "--releases", "0.24.0", "--patches", ours).exit == 1
    shown = cli("port", "--show", "--patches", ours)
    assert "the release has no such file" in shown.out
    assert "--retire" in shown.last
    refused = cli("port", "--continue", "--patches", ours)
    assert refused.exit == 2
    assert "--retire or --skip replay" in refused.err
    assert cli("port", "--skip", "replay", "--patches", ours).exit == 0


def test_a_release_that_nobody_has_is_an_error_where_memory_would_answer(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = ours / "replay/feature.toml"
    toml.write_text('merged = "0.25.0"\n' + toml.read_text())
    monkeypatch.setattr("overlay.targets.resolution.resolve", no_such_release)
    before = files(ours)
    result = cli("port", "replay", "--releases", "0.99.0", "--write", "--patches", ours)
    assert result.exit == 2
    assert "vLLM 0.99.0" in result.err
    assert files(ours) == before


def test_what_is_ported_in_one_command_stands_on_each_other(cli: Cli, tmp_path: Path) -> None:
    """The second edits the module that the first adds."""
    folder, span = tmp_path / "stack", "0.21.0..0.21.0"
    module = b"def scale(x):\n    y = x\n    return y * 2\n"
    write_feature(folder, {"files/vllm/ours.py": module}, id="a", releases=span)
    edit = hunk(["     y = x", "-    return y * 2", "+    return y * 3"], "scale")
    text = patch_text("vllm/ours.py", edit)
    write_feature(folder, {f"10-ours/{span}.patch": text}, id="b", releases=span)
    alone = cli("port", "b", "--releases", "0.22.0", "--patches", folder)
    assert "missing" in alone.out
    assert cli("port", "--abort", "port-0.22.0", "--patches", folder).exit == 0
    answer = cli("port", "a", "b", "--releases", "0.22.0", "--write", "--patches", folder)
    assert (answer.exit, answer.last) == (
        0,
        f"Ported a and b to 0.22.0; `overlay check --patches {folder}` tries it.",
    )
    assert [str(feature.releases) for feature in load([folder])] == ["0.21.0..0.22.0"] * 2
    assert cli("check", "0.22.0", "--patches", folder, "--feature", "a", "--feature", "b").exit == 0
