"""The commands as a user sees them: exit codes, sentences, and what was written."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from overlay import __version__
from overlay.cli import COMMANDS
from overlay.cli import cli as group
from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSER, RUNNER, Cli, digest, drift, edit
from tests.support.patches import write_feature

# apply, status, revert


def test_from_pristine_to_applied_and_back(cli: Cli, site: Path) -> None:
    before = digest(site)
    checked = cli("check", site)
    assert (checked.exit, checked.last) == (
        0,
        "Nothing needs you: demo can be applied to vLLM 0.26.0.",
    )
    assert cli("status", site).last == (
        f"Nothing is applied to vLLM 0.26.0: `overlay apply {site}` would apply demo."
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
        "Nothing was written to vLLM 0.26.0: demo and team-capture have drifted."
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
        "demo would fit vLLM 0.99.0, but was not tested there: `overlay apply --untested "
        f"{site}` applies it anyway."
    )
    before = digest(site)
    refused = cli("apply", site)
    assert refused.exit == 1
    assert refused.last == (
        "Nothing was written: demo was not tested on vLLM 0.99.0; `overlay apply --untested "
        f"{site}` applies what matches anyway."
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
    assert result.last == f"Action needed on 1 of 2 targets: {site}."


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
    assert result.err.splitlines()[-1] == "There is no diff for vLLM 0.26.0: demo has drifted."


def test_the_diff_says_of_an_edited_file_what_status_says(cli: Cli, site: Path) -> None:
    """The ledger knows both texts, so the edit is not taken for a patch of somebody else's."""
    cli("apply", site)
    edit(site, PROPOSER, "# patched", "# patched, and edited")
    status, diff = cli("status", site), cli("diff", site)
    assert (status.exit, diff.exit, diff.out) == (1, 1, "")
    told = [line for line in status.out.splitlines() if line.startswith("    ")]
    assert any("was edited since" in line for line in told)
    assert any("revert --keep-as ID" in line for line in told)
    assert set(told) <= set(diff.err.splitlines())
    assert "RECORD" not in diff.err


# list


def test_list_says_what_shows_that_upstream_has_a_feature(cli: Cli) -> None:
    table = '[[upstreamed]]\npath = "vllm/a.py"\nscope = "{}"\nlines = [{}]\nshare = 0.6\n'
    two = table.format("first", '"one = 1 + 1"') + table.format("second", '"two = 2", "three = 3"')
    toml = cli.team / "team-capture/feature.toml"
    before = toml.read_text()
    toml.write_text(f"{before}{two}")
    told = "retires:  once a release has all of its 3 new lines in first, second (from 60% of"
    assert told in cli("list", "--patches", cli.team).out
    toml.write_text(f'{before}merged = "0.33.0"\n{two}')
    told = "retires:  from 0.33.0 on, where upstream merged it; where the release is not known"
    assert told in cli("list", "--patches", cli.team).out


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
    assert (result.exit, result.err) == (1, "")
    assert "0.20.0..0.33.0.patch:1" in result.out
    assert f"{cli.team}/team-empty" in result.out
    assert result.last == "Action needed: demo and team-empty are malformed on vLLM 0.26.0."


# Help


@pytest.mark.parametrize("command", ["check", "apply", "revert", "status", "diff", "list"])
def test_every_help_has_an_example(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit == 0
    assert "Example:\n" in result.out
    assert f"overlay {command}" in result.out.split("Example:")[1]


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"overlay {__version__}\n"


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(cli: Cli) -> None:
    for words in (("chekc",), ("help", "chekc")):
        result = cli(*words)
        assert result.exit == 2
        assert "No such command 'chekc'. Did you mean 'check'?" in result.err
    assert "Did you mean" not in cli("frobnicate").err


def test_the_overview_has_every_command_with_its_own_first_sentence(cli: Cli) -> None:
    overview = cli("--help").out
    assert re.findall(r"(?m)^(\w+):$", overview) == ["Use", "Author", "Prove", "Other", "Options"]
    for name, entry in COMMANDS.items():
        below = overview.partition(f"\n{entry.group}:\n")[2].partition("\n\n")[0]
        assert re.search(rf"(?m)^  {name} +{re.escape(entry.summary)}$", below), name
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert command.name == name
        assert command.short_help == entry.summary
    assert set(group.commands) == set(COMMANDS)
