"""Features that change the same lines clash: both are named, and each way out is one command."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.cli import PROPOSER, RUNNER, Cli, Result, digest
from tests.support.patches import hunk, patch_text, write_feature

FIRST, SECOND, THIRD = "our-a", "our-b", "our-c"


def propose(name: str) -> str:
    """A patch of the one line that all of them change."""
    lines = [
        "     def propose(self, tokens):",
        "-        drafts = [self._first(tokens)]",
        f"+        drafts = [self._first(tokens)]  # {name}",
    ]
    return patch_text(PROPOSER, hunk(lines, "SpecDecodeBaseProposer.propose"))


def capture(name: str) -> str:
    lines = [
        "         captured = 0",
        "-        for size in (1, 2, 4):",
        f"+        for size in (1, 2):  # {name}",
    ]
    return patch_text(RUNNER, hunk(lines, "GPUModelRunner.capture_model"))


@pytest.fixture
def ours(cli: Cli) -> Path:
    """A folder in the place of the team's; what is shipped changes no line."""
    shutil.rmtree(cli.shipped / "demo/10-propose")
    folder = cli.team.parent / "ours"
    folder.mkdir()
    return folder


def write(folder: Path, id_: str, text: str = "", **more: str | bytes) -> None:
    files = {"10-own/0.20.0..0.33.0.patch": text or propose(id_), **more}
    write_feature(folder, files, id=id_)


def ways(answer: Result) -> set[tuple[str, ...]]:
    """What the commands that are named leave out."""
    found = set()
    for words in answer.commands:
        if words[0] == "apply":
            found.add(tuple(b for a, b in pairwise(words) if a == "--without"))
    return found


def test_two_are_named_with_their_places_and_either_way_goes_on(
    cli: Cli, site: Path, ours: Path
) -> None:
    write(ours, FIRST)
    write(ours, SECOND)
    pristine = digest(site)
    for command in ("check", "status", "apply", "diff"):
        answer = cli(command, site, "--patches", ours)
        assert answer.exit == 1
        assert f"{FIRST} and {SECOND} clash" in answer.last
        told = answer.out + answer.err
        assert "! clash: " in told
        assert "drifted" not in told
        for id_ in (FIRST, SECOND):
            number = (
                propose(id_)
                .splitlines()
                .index(next(line for line in propose(id_).splitlines() if line.startswith("@@")))
            )
            assert f"({id_}/10-own/0.20.0..0.33.0.patch:{number + 1})" in told
    answer = cli("check", site, "--patches", ours)
    assert ways(answer) == {(FIRST,), (SECOND,)}
    for way in answer.commands:
        if way[0] == "apply":
            assert cli(*way).exit == 0
            assert cli("revert", site).exit == 0
            assert digest(site) == pristine
    state = cli("check", site, "--patches", ours, "--json").json["targets"][0]
    states = {each["feature"]: each["state"] for each in state["features"]}
    assert states[FIRST] == states[SECOND] == "drifted"


def test_of_three_on_the_same_lines_any_one_can_stay(cli: Cli, site: Path, ours: Path) -> None:
    for id_ in (FIRST, SECOND, THIRD):
        write(ours, id_)
    answer = cli("apply", site, "--patches", ours)
    assert f"{FIRST}, {SECOND} and {THIRD} clash" in answer.last
    assert ways(answer) == {(FIRST, SECOND), (FIRST, THIRD), (SECOND, THIRD)}
    assert cli(*answer.command("apply", "--without", FIRST, "--without", SECOND)).exit == 0


def test_each_way_out_keeps_what_was_chosen(cli: Cli, site: Path, ours: Path) -> None:
    for id_ in (FIRST, SECOND, THIRD):
        write(ours, id_)
    for chosen in (("--feature", FIRST, "--feature", SECOND), ("--without", THIRD)):
        answer = cli("check", site, "--patches", ours, *chosen)
        named = [words for words in answer.commands if words[0] == "apply"]
        assert named
        for words in named:
            assert cli("apply", "--dry-run", *words[1:]).exit == 0
            left = {b for a, b in pairwise(words) if a == "--feature"}
            assert left in ({FIRST}, {SECOND}) or "--without" in chosen


def test_one_that_meets_two_others_is_the_one_to_leave(cli: Cli, site: Path, ours: Path) -> None:
    """The first changes the lines of both others, which do not touch each other's."""
    write(ours, FIRST, **{"20-own/0.20.0..0.33.0.patch": capture(FIRST)})
    write(ours, SECOND)
    write(ours, THIRD, capture(THIRD))
    answer = cli("apply", site, "--patches", ours)
    assert answer.exit == 1
    assert ways(answer) == {(FIRST,)}
    assert cli(*answer.command("apply", "--without", FIRST)).exit == 0


def test_what_is_applied_stays(cli: Cli, site: Path, ours: Path) -> None:
    write(ours, FIRST)
    assert cli("apply", site, "--patches", ours).exit == 0
    write(ours, SECOND)
    answer = cli("apply", site, "--patches", ours)
    assert answer.exit == 1
    assert ways(answer) == {(SECOND,)}


def test_a_way_out_repeats_the_features_that_were_named(cli: Cli, site: Path, ours: Path) -> None:
    write(ours, FIRST, propose(FIRST))
    write(ours, SECOND, propose(SECOND), **{"20-b/0.20.0..0.33.0.patch": capture(SECOND)})
    write(ours, THIRD, capture(THIRD))
    for chosen, kept in (
        (("--feature", SECOND, "--feature", THIRD), {(SECOND,), (THIRD,)}),
        (("--without", FIRST), {()}),
    ):
        answer = cli("check", site, "--patches", ours, *chosen)
        steps = {words for words in map(tuple, answer.commands) if words[0] == "apply"}
        assert len(steps) == 2
        named = {tuple(b for a, b in pairwise(step) if a == "--feature") for step in steps}
        assert named == kept
        for step in steps:
            assert cli(*step, "--dry-run").exit == 0


def test_of_what_is_applied_it_is_not_said_that_it_is_not(cli: Cli, site: Path, ours: Path) -> None:
    write(ours, FIRST)
    assert cli("apply", site, "--feature", FIRST, "--patches", ours).exit == 0
    write(ours, SECOND)
    answer = cli("status", site, "--patches", ours)
    assert f"{FIRST}  applied" in answer.out
    assert "cannot be applied together" in answer.out


def test_what_has_drifted_besides_is_left_out_with_it(cli: Cli, site: Path, ours: Path) -> None:
    write(ours, FIRST)
    write(ours, SECOND)
    write(ours, THIRD, capture(THIRD).replace("captured = 0", "captured = 9"))
    answer = cli("apply", site, "--patches", ours)
    assert f"{FIRST} and {SECOND} clash; {THIRD} has drifted" in answer.last
    assert ways(answer) >= {(FIRST, THIRD), (SECOND, THIRD)}
    assert cli(*answer.command("apply", "--without", FIRST)).exit == 0


def test_modules_of_one_name_clash_as_well(cli: Cli, site: Path, ours: Path) -> None:
    for id_, text in ((FIRST, "A = 1\n"), (SECOND, "A = 2\n")):
        write(ours, id_, capture(id_) if id_ == FIRST else propose(id_))
        (ours / id_ / "files/vllm/v1").mkdir(parents=True)
        (ours / id_ / "files/vllm/v1/own.py").write_text(text)
    answer = cli("check", site, "--patches", ours)
    assert f"{FIRST} and {SECOND} clash" in answer.last
    assert ways(answer) == {(FIRST,), (SECOND,)}


def test_many_do_not_make_the_answer_long(cli: Cli, site: Path, ours: Path) -> None:
    for number in range(12):
        write(ours, f"own-{number:02d}")
    answer = cli("check", site, "--patches", ours)
    assert answer.exit == 1
    assert len(answer.out) < 60_000
    assert ways(answer)
