"""The commands as a user sees them: exit codes, sentences, and what was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlay import __version__
from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSER, RUNNER, Cli, cli, digest
from tests.support.patches import hunk, patch_text, write_feature

__all__ = ["cli"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site-packages")


def edit(site: Path, path: str, old: str, new: str) -> None:
    text = (site / path).read_text()
    assert old in text
    (site / path).write_text(text.replace(old, new))


def drift(site: Path) -> None:
    edit(site, PROPOSER, "drafts = [self._first(tokens)]", "drafts = list(self._first(tokens))")


# apply, status, revert


def test_from_pristine_to_applied_and_back(cli: Cli, site: Path) -> None:
    before = digest(site)
    checked = cli("check", site)
    assert (checked.exit, checked.last) == (
        0,
        "Nothing needs you: demo can be applied to vLLM 0.26.0.",
    )
    assert cli("status", site).last == (
        "Nothing is applied to vLLM 0.26.0: `overlay apply` would apply demo."
    )
    assert digest(site) == before

    applied = cli("apply", site)
    assert (applied.exit, applied.last) == (0, "Applied demo to vLLM 0.26.0, 2 files written.")
    assert "# patched" in (site / PROPOSER).read_text()
    assert (site / ADDED).read_text() == "VALUE = 1\n"
    assert cli("status", site).last == "demo is applied to vLLM 0.26.0."
    assert cli("check", site).last == "Nothing needs you: demo is applied to vLLM 0.26.0."

    reverted = cli("revert", site)
    assert (reverted.exit, reverted.last) == (
        0,
        "Reverted vLLM 0.26.0: took demo out, 1 file restored and 1 removed.",
    )
    assert digest(site) == before
    assert not (site / ".vllm-overlay").exists()


def test_a_second_apply_and_a_second_revert_write_nothing(cli: Cli, site: Path) -> None:
    cli("apply", site)
    stamps = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    again = cli("apply", site)
    assert (again.exit, again.last) == (
        0,
        "Nothing to do: demo is applied to vLLM 0.26.0 already.",
    )
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == stamps
    cli("revert", site)
    twice = cli("revert", site)
    assert (twice.exit, twice.last) == (
        0,
        "Nothing to revert: the overlay has changed nothing in vLLM 0.26.0.",
    )


def test_a_dry_run_writes_nothing(cli: Cli, site: Path) -> None:
    before = digest(site)
    result = cli("apply", "--dry-run", site)
    assert result.exit == 0
    assert result.last == (
        "Nothing was written: apply would put demo into vLLM 0.26.0, 1 file patched and 1 added "
        "in all."
    )
    assert digest(site) == before
    cli("apply", site)
    assert cli("apply", "--dry-run", site).last == (
        "Nothing was written, and nothing would be: demo is applied to vLLM 0.26.0 already."
    )


def test_apply_writes_nothing_where_something_needs_the_user(cli: Cli, site: Path) -> None:
    drift(site)
    edit(site, RUNNER, "captured = 0", "captured = 1")
    before = digest(site)
    result = cli("--patches", cli.team, "apply", site)
    assert result.exit == 1
    assert result.last == (
        "Nothing was written to vLLM 0.26.0: demo is drifted and team-capture is drifted."
    )
    assert f"{PROPOSER} in SpecDecodeBaseProposer.propose" in result.out
    assert f"{RUNNER} in GPUModelRunner.capture_model" in result.out
    assert result.out.count("next:") == 2
    assert digest(site) == before


def test_an_untested_release_wants_to_be_asked_for(cli: Cli, tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "newer", version="0.99.0")
    checked = cli("check", site)
    assert checked.exit == 0
    assert checked.last == (
        "demo would fit vLLM 0.99.0, but nobody tested it there: apply wants --untested."
    )
    before = digest(site)
    refused = cli("apply", site)
    assert refused.exit == 1
    assert refused.last == (
        "Nothing was written: nobody tested demo on vLLM 0.99.0; `overlay apply --untested` "
        "applies what matches all the same."
    )
    assert digest(site) == before
    assert cli("apply", "--untested", site).exit == 0
    # What is applied needs no second permission.
    again = cli("apply", site)
    assert (again.exit, again.last.split(":")[0]) == (0, "Nothing to do")


def test_what_does_not_concern_a_release_is_left_out(cli: Cli, tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "older", version="0.15.1")
    result = cli("apply", site)
    assert (result.exit, result.last) == (
        0,
        "Nothing to do in vLLM 0.15.1: demo is not made for it.",
    )
    assert cli("apply", site, "--json").json["targets"][0]["features"][0]["state"] == "inapplicable"


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_files_and_releases_are_not_written_to(cli: Cli, tmp_path: Path, command: str) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    before = wheel.read_bytes()
    for target in (wheel, fake_vllm.sdist(tmp_path), "0.26.0"):
        result = cli(command, target)
        assert result.exit == 2
        assert result.out == ""
        assert f"which {command} cannot write to" in result.err
    assert wheel.read_bytes() == before
    assert not (tmp_path / "cache").exists()  # nothing was fetched to find that out


# Edits after us


def test_an_edit_after_us_is_said_and_never_lost(cli: Cli, site: Path) -> None:
    cli("apply", site)
    edit(site, PROPOSER, "# patched", "# patched, and mine")
    before = digest(site)
    status = cli("status", site)
    assert (status.exit, status.last) == (1, "vLLM 0.26.0 needs you: demo is drifted.")
    for command in ("apply", "revert"):
        result = cli(command, site)
        assert result.exit == 1
        assert PROPOSER in result.out
        assert digest(site) == before
    assert cli("revert", site).last == (
        f"Nothing was reverted in vLLM 0.26.0: {PROPOSER} was edited after us."
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
    assert checked.out.count(f"drifted: {PROPOSER}") == 2  # once for each feature
    assert checked.out.count("next:  put the edit aside") == 2
    assert (
        "team-second/10-a/0.20.0..0.33.0.patch, team-second/20-b/0.20.0..0.33.0.patch"
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
        "Nothing was written to vLLM 0.26.0: team-capture is drifted.",
    )
    assert RUNNER in result.out
    assert digest(checkout) == before


def test_apply_mends_what_was_put_back(cli: Cli, site: Path) -> None:
    original = (site / PROPOSER).read_bytes()
    cli("--patches", cli.team, "apply", site)
    (site / PROPOSER).write_bytes(original)
    status = cli("--patches", cli.team, "status", site)
    assert (status.exit, status.last) == (1, "vLLM 0.26.0 needs you: demo is partial.")
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
    assert result.exit == 2
    assert f"team-capture (from {cli.team})" in result.err
    assert "--patches" in result.err
    assert digest(site) == before


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
        "Nothing was written to vLLM 0.26.0: demo is drifted.",
    )
    assert digest(site) == before
    assert cli("status", site).exit == 0


# check


def test_several_targets_are_a_table_and_each_answers(cli: Cli, site: Path, tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path, version="0.27.0")
    drift(site)
    result = cli("check", wheel, site)
    lines = result.out.splitlines()
    assert result.exit == 1
    assert lines[0].split() == ["target", "demo"]
    assert lines[1].split() == [str(wheel), "pristine"]
    assert lines[2].split() == [str(site), "drifted", "!"]
    assert result.last == f"1 of 2 targets needs you: {site}."


def test_a_target_that_cannot_be_read_does_not_hide_the_others(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    result = cli("check", site, tmp_path / "no-such", tmp_path / "nor-this", "--json")
    assert result.exit == 2
    assert [one["target"] for one in result.json["targets"]] == [str(site)]
    assert "no-such" in result.json["error"]
    assert "nor-this" in result.json["error"]


def test_a_damaged_ledger_of_one_target_does_not_hide_the_others(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    other = fake_vllm.site_packages(tmp_path / "other")
    cli("apply", site)
    (site / ".vllm-overlay/ledger.json").write_text("{")
    result = cli("check", site, other, "--json")
    assert result.exit == 2
    assert [one["target"] for one in result.json["targets"]] == [str(other)]
    assert result.json["error"].startswith(f"{site}: ")
    assert result.json["verdict"] == "1 of 2 targets could not be checked: see the errors."


def test_many_targets_are_checked_in_processes(cli: Cli, tmp_path: Path) -> None:
    wheels = [
        fake_vllm.wheel(tmp_path / release, version=release)
        for release in ("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0")
    ]
    broken = tmp_path / "broken.whl"
    broken.write_bytes(wheels[0].read_bytes()[:100])
    result = cli("check", *wheels, broken, "--json")
    assert result.exit == 2
    assert [one["vllm"] for one in result.json["targets"]] == [
        "0.20.0",
        "0.21.0",
        "0.22.0",
        "0.23.0",
        "0.24.0",
    ]
    assert str(broken) in result.json["error"]


def test_a_bad_range_of_releases_is_a_usage_error(cli: Cli) -> None:
    result = cli("check", "--releases", "0.20.0..", "--json")
    assert (result.exit, result.json["exit"], result.json["command"]) == (2, 2, "check")
    assert "0.20.0.." in result.json["error"]


# diff


def test_the_diff_alone_stands_on_standard_output(cli: Cli, site: Path) -> None:
    pristine = cli("diff", site)
    assert pristine.exit == 0
    assert pristine.out.startswith(f"diff --git a/{ADDED} b/{ADDED}\n")
    assert "+        drafts = [self._first(tokens)]  # patched\n" in pristine.out
    assert pristine.err.splitlines()[-1] == ("The diff puts demo into vLLM 0.26.0, 2 files in all.")
    cli("apply", site)
    assert cli("diff", site).out == pristine.out


def test_there_is_no_part_of_a_diff(cli: Cli, site: Path) -> None:
    drift(site)
    result = cli("--patches", cli.team, "diff", site)
    assert (result.exit, result.out) == (1, "")
    assert result.err.splitlines()[-1] == "There is no diff for vLLM 0.26.0: demo is drifted."


# list


def test_list_shows_the_features(cli: Cli) -> None:
    toml = cli.shipped / "demo/feature.toml"
    text = toml.read_text().replace('why = "To test."', 'why = """To test,\nin two lines."""')
    toml.write_text(text + 'needs = ["model runner V1"]\n')
    result = cli("--patches", cli.team, "list")
    assert (result.exit, result.last) == (0, "2 features, no holes.")
    assert "10-propose  0.20.0..0.33.0" in result.out
    found = cli("list", "--json").json
    assert found["features"][0]["added"] == [ADDED]
    assert found["features"][0]["needs"] == ["model runner V1"]
    shown = cli("list", "-v").out.splitlines()
    assert "  why:      To test, in two lines." in shown
    assert "  needs:    model runner V1" in shown
    assert found["targets"] == []


def test_a_hole_needs_the_user(cli: Cli) -> None:
    write_feature(cli.team, {"10-capture/0.20.0..0.22.1.patch": CAPTURE}, id="holed")
    result = cli("--patches", cli.team, "list")
    assert (result.exit, result.last) == (1, "1 topic with holes: 10-capture of holed.")
    assert "10-capture has no variant for 0.23.0, " in result.out


def test_malformed_patches_are_all_named(cli: Cli, site: Path) -> None:
    (cli.shipped / "demo/10-propose/0.20.0..0.33.0.patch").write_text("nonsense\n")
    write_feature(cli.team, {}, id="team-empty")
    result = cli("--patches", cli.team, "check", site)
    assert (result.exit, result.out) == (2, "")
    assert "0.20.0..0.33.0.patch:1" in result.err
    assert "team-empty" in result.err
    assert result.last == "overlay check stopped: see the error."


# Help


@pytest.mark.parametrize("command", ["check", "apply", "revert", "status", "diff", "list"])
def test_every_help_has_an_example(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit == 0
    assert "Example:\n" in result.out
    assert f"overlay {command}" in result.out.split("Example:")[1]


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"overlay {__version__}\n"


def test_what_another_command_applies_meanwhile_stays(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan of one apply and its transaction, another one applies something else."""
    from overlay.transaction import commit

    cli_patches = ("--patches", cli.team)
    plain = commit.apply
    once = iter([True])

    def late(*arguments: object, **options: object) -> object:
        if next(once, False):
            assert cli(*cli_patches, "apply", "--feature", "team-capture", site).exit == 0
        return plain(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "apply", late)
    assert cli(*cli_patches, "apply", "--feature", "demo", site).exit == 0
    assert cli(*cli_patches, "status", site).last == (
        "demo and team-capture are applied to vLLM 0.26.0."
    )


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
        "Nothing was written to vLLM 0.26.0: demo is drifted and theirs is drifted.",
    )
    assert "demo (demo/10-propose/0.20.0..0.33.0.patch) and theirs (theirs/10-theirs/" in result.out
    assert "next:  leave one of them out, or make one patch of both" in result.out
    assert digest(site) == before
