"""Several features in one target, and edits beside them: what stays, and what is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSER, RUNNER, Cli, digest, edit
from tests.support.patches import hunk, patch_text, write_feature

# Edits after us


def test_an_edit_after_us_is_said_and_never_lost(cli: Cli, site: Path) -> None:
    cli("apply", site)
    edit(site, PROPOSER, "# patched", "# patched, and mine")
    before = digest(site)
    status = cli("status", site)
    assert (status.exit, status.last) == (1, "Action needed: demo has drifted on vLLM 0.26.0.")
    for command in ("apply", "revert"):
        result = cli(command, site)
        assert result.exit == 1
        assert PROPOSER in result.out
        assert digest(site) == before
    assert cli("revert", site).last == (
        f"Nothing was reverted in vLLM 0.26.0: {PROPOSER} was edited since."
    )


def test_a_file_that_was_edited_is_one_problem_however_many_patches_it_has(
    cli: Cli, site: Path
) -> None:
    first = patch_text(PROPOSER, hunk([" import x", "+import y"]))
    second = patch_text(PROPOSER, hunk([" import z", "+import a"]))
    topics = {"10-a/0.20.0..0.33.0.patch": first, "20-b/0.20.0..0.33.0.patch": second}
    write_feature(cli.team, topics, id="team-second")
    (site / PROPOSER).write_text("import x\nimport z\n" + (site / PROPOSER).read_text())
    assert cli("--patches", cli.team, "apply", site).exit == 0
    edit(site, PROPOSER, "# patched", "# patched, and mine")
    checked = cli("--patches", cli.team, "check", site)
    assert checked.exit == 1
    assert checked.out.count(f"drifted: {PROPOSER}") == 1  # once for both features
    step = f"`overlay revert --keep-as ID --patches {cli.team} {site}`"
    assert checked.out.count(f"next:  run {step}") == 1
    assert (
        "demo/10-propose/0.20.0..0.33.0.patch, team-second/10-a/0.20.0..0.33.0.patch and "
        "team-second/20-b/0.20.0..0.33.0.patch"
    ) in checked.out
    assert "not the release's own" not in checked.out  # it was, in part, ours


def test_an_edit_before_us_is_said_by_apply_too(cli: Cli, site: Path) -> None:
    edit(site, PROPOSER, "self.model = None", "self.model = None  # mine")
    before = digest(site)
    for options in (["--dry-run"], [], []):
        applied = cli("apply", site, *options)
        assert applied.exit == 0
        assert f"warning: {PROPOSER}: it is not the release's own file" in applied.out
    cli("revert", site)
    assert digest(site) == before


def test_an_edit_beside_our_lines_is_an_edit_too(cli: Cli, tmp_path: Path) -> None:
    checkout = fake_vllm.tree(tmp_path / "checkout")  # no RECORD tells that the file is edited
    only_team = ("--patches", cli.team, "apply", "--feature", "team-capture", checkout)
    assert cli(*only_team).exit == 0
    with (checkout / RUNNER).open("a") as file:
        file.write("MINE = 1\n")
    before = digest(checkout)
    result = cli(*only_team)
    assert (result.exit, result.last) == (
        1,
        "Nothing was written to vLLM 0.26.0: team-capture has drifted.",
    )
    assert RUNNER in result.out
    assert digest(checkout) == before


def test_apply_mends_what_was_put_back(cli: Cli, site: Path) -> None:
    original = (site / PROPOSER).read_bytes()
    cli("--patches", cli.team, "apply", site)
    (site / PROPOSER).write_bytes(original)
    status = cli("--patches", cli.team, "status", site)
    assert (status.exit, status.last) == (
        1,
        "Action needed: demo is applied in part on vLLM 0.26.0.",
    )
    assert cli("--patches", cli.team, "apply", site).exit == 0
    assert cli("--patches", cli.team, "status", site).exit == 0


# Several features


def test_patches_of_a_team_stack_on_the_shipped_ones(cli: Cli, site: Path) -> None:
    before = digest(site)
    result = cli("--patches", cli.team, "apply", site)
    assert result.last == "Applied demo and team-capture to vLLM 0.26.0, 3 files written."
    assert "(1, 2, 4, 8)" in (site / RUNNER).read_text()
    assert cli("--patches", cli.team, "status", site).last == (
        "demo and team-capture are applied to vLLM 0.26.0."
    )
    assert cli("revert", site).exit == 0
    assert digest(site) == before


def test_the_environment_names_folders_too(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_feature(tmp_path / "third", {f"files/{ADDED}x.py": ""}, id="third")
    monkeypatch.setenv("OVERLAY_PATCHES", f"{cli.team}{os.pathsep}")
    found = cli("--patches", tmp_path / "third", "check", site, "--json").json
    assert [one["feature"] for one in found["targets"][0]["features"]] == [
        "demo",
        "team-capture",
        "third",
    ]


def test_a_subset_keeps_what_is_applied(cli: Cli, site: Path) -> None:
    assert cli("--patches", cli.team, "apply", "--feature", "team-capture", site).exit == 0
    assert "# patched" not in (site / PROPOSER).read_text()
    status = cli("--patches", cli.team, "status", site)
    assert (status.exit, status.last) == (
        0,
        "team-capture is applied to vLLM 0.26.0; demo is not.",
    )
    assert cli("--patches", cli.team, "apply", "--feature", "demo", site).exit == 0
    assert "# patched" in (site / PROPOSER).read_text()
    assert "(1, 2, 4, 8)" in (site / RUNNER).read_text()
    assert cli("--patches", cli.team, "status", site).last == (
        "demo and team-capture are applied to vLLM 0.26.0."
    )


def test_the_answer_is_about_what_was_meant(cli: Cli, site: Path) -> None:
    cli("--patches", cli.team, "apply", site)
    for command in ("apply", "check"):
        result = cli("--patches", cli.team, command, "--feature", "team-capture", site, "--json")
        (answer,) = result.json["targets"]
        assert [one["feature"] for one in answer["features"]] == ["team-capture"]
        assert answer["state"] == "applied"


def test_an_apply_never_takes_a_team_s_patches_out_unasked(cli: Cli, site: Path) -> None:
    cli("--patches", cli.team, "apply", site)
    before = digest(site)
    result = cli("apply", site)
    assert result.exit == 1
    assert f"team-capture (from {cli.team})" in result.out
    assert f"name it (--patches {cli.team}" in result.out
    assert digest(site) == before


def test_what_a_folder_that_is_not_at_hand_applied_is_never_nothing(cli: Cli, site: Path) -> None:
    cli("--patches", cli.team, "apply", "--feature", "team-capture", site)
    said = f"team-capture (from {cli.team}) is applied and not among these patches"
    for command in (["status"], ["check"], ["apply", "--dry-run"], ["apply"]):
        result = cli(*command, site)
        assert (result.exit, said in result.last) == (1, True), result
        assert result.out.count("not among these patches") == 2  # its cause, and the last line
        assert "warning" not in result.out
        data = cli(*command, site, "--json").json["targets"][0]
        assert [one["feature"] for one in data["features"]] == ["demo", "team-capture"]
        assert data["obstacles"][0]["code"] == "not-at-hand"
    assert cli("status", "--patches", cli.team, site).exit == 0


def test_an_unknown_feature_is_a_usage_error_that_lists_them(cli: Cli, site: Path) -> None:
    result = cli("check", "--feature", "demos", site)
    assert result.exit == 2
    assert "demos: expected one of demo;" in result.err


def test_a_newer_form_of_a_patch_is_announced_and_applied(cli: Cli, site: Path) -> None:
    cli("apply", site)
    (cli.shipped / "demo/files" / ADDED).write_text("VALUE = 2\n")
    status = cli("status", site)
    assert status.exit == 0
    assert "warning: feature demo was applied in another form" in status.out
    assert cli("apply", site).last == "Applied demo to vLLM 0.26.0, 1 file written."
    assert (site / ADDED).read_text() == "VALUE = 2\n"


def test_a_newer_form_that_does_not_fit_leaves_the_older_one(cli: Cli, site: Path) -> None:
    cli("apply", site)
    folder = cli.shipped / "demo/10-propose"
    (folder / "0.20.0..0.33.0.patch").write_text(
        patch_text(PROPOSER, hunk(["-not there", "+x"], "SpecDecodeBaseProposer.propose"))
    )
    before = digest(site)
    result = cli("apply", site)
    assert (result.exit, result.last) == (
        1,
        "Nothing was written to vLLM 0.26.0: demo has drifted.",
    )
    assert digest(site) == before
    assert cli("status", site).exit == 0


def test_what_another_command_applies_meanwhile_stays(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan of one apply and its transaction, another one applies something else."""
    from overlay.on_disk import transaction as commit

    cli_patches = ("--patches", cli.team)
    plain = commit.carry_out
    once = iter([True])

    def late(*arguments: Any, **options: Any) -> object:
        if next(once, False):
            assert cli(*cli_patches, "apply", "--feature", "team-capture", site).exit == 0
        return plain(*arguments, **options)

    monkeypatch.setattr(commit, "carry_out", late)
    assert cli(*cli_patches, "apply", "--feature", "demo", site).exit == 0
    assert cli(*cli_patches, "status", site).last == (
        "demo and team-capture are applied to vLLM 0.26.0."
    )


def test_what_another_command_takes_off_meanwhile_stays_off(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan of an apply and its transaction, another command takes a feature off."""
    from overlay.on_disk import transaction as commit

    cli_patches = ("--patches", cli.team)
    assert cli(*cli_patches, "apply", "--feature", "team-capture", site).exit == 0
    plain = commit.carry_out
    once = iter([True])

    def late(*arguments: Any, **options: Any) -> object:
        if next(once, False):
            assert cli(*cli_patches, "revert", "--feature", "team-capture", site).exit == 0
        return plain(*arguments, **options)

    monkeypatch.setattr(commit, "carry_out", late)
    assert cli(*cli_patches, "apply", "--feature", "demo", site).exit == 0
    assert cli("status", site).last == "demo is applied to vLLM 0.26.0."


def test_features_that_touch_the_same_lines_are_refused_with_both_names(
    cli: Cli, site: Path
) -> None:
    change = hunk(
        [
            "     def propose(self, tokens):",
            "-        drafts = [self._first(tokens)]",
            "+        drafts = [self._first(tokens)]  # theirs",
        ],
        "SpecDecodeBaseProposer.propose",
    )
    patches = {"10-theirs/0.20.0..0.33.0.patch": patch_text(PROPOSER, change)}
    write_feature(cli.team, patches, id="theirs")
    before = digest(site)
    result = cli("--patches", cli.team, "apply", site)
    assert (result.exit, result.last) == (
        1,
        "Nothing was written to vLLM 0.26.0: demo and theirs clash.",
    )
    assert (
        "demo (demo/10-propose/0.20.0..0.33.0.patch:7) and theirs (theirs/10-theirs/" in result.out
    )
    for id_ in ("demo", "theirs"):
        assert ("apply", "--without", id_) in {words[:3] for words in result.commands}
    assert "or make one patch of both" in result.out
    assert digest(site) == before
