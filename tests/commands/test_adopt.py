"""Patches that are in a vLLM without a ledger: recognised, taken over, never guessed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSER, Cli, digest, edit
from tests.support.patches import write_feature


def by_git(cli: Cli, site: Path, *options: str | Path) -> None:
    """Patch as README shows: the diff, through git."""
    diff = cli("diff", *options, site).out
    subprocess.run(
        ["git", "-C", site, "apply", "-"], input=diff.encode(), check=True, capture_output=True
    )


def lose(cli: Cli, site: Path) -> None:
    cli("apply", site)
    shutil.rmtree(site / ".vllm-overlay")


@pytest.mark.parametrize("way", [by_git, lose])
def test_the_bytes_of_an_apply_are_recognised_and_taken_over(
    cli: Cli, site: Path, tmp_path: Path, way: object
) -> None:
    pristine = digest(site)
    other = fake_vllm.site_packages(tmp_path / "other")
    cli("apply", other)
    way(cli, site)  # type: ignore[operator]  # functions of a parametrized table
    patched = digest(site)
    for command in (["status"], ["check"], ["apply"]):
        result = cli(*command, site)
        assert (result.exit, "demo is patched in without a ledger" in result.last) == (1, True)
        assert result.out.count("next:") == 1
        assert result.command("adopt") == ("adopt", str(site))
        assert cli(*command, site, "--json").json["code"] == "unrecorded"
    assert digest(site) == patched
    adopted = cli("adopt", site)
    assert (adopted.exit, adopted.last) == (
        0,
        f"Took over demo in vLLM 0.26.0: `overlay revert {site}` can take them out now.",
    )
    assert digest(site) == digest(other)  # the ledger too: the two are equal byte for byte
    assert cli("status", site).exit == 0
    again = cli("adopt", site)
    assert (again.exit, again.last.split(":")[0]) == (0, "Nothing to adopt in vLLM 0.26.0")
    assert cli("revert", site).exit == 0
    assert digest(site) == pristine


def test_only_the_features_that_are_there_are_taken_over(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    other = fake_vllm.site_packages(tmp_path / "other")
    options = ("--patches", cli.team, "--feature", "team-capture")
    cli("apply", *options, other)
    by_git(cli, site, *options)
    assert cli("adopt", "--patches", cli.team, site).exit == 0
    assert digest(site) == digest(other)


def test_a_module_that_others_share_is_no_drift_of_theirs(cli: Cli, site: Path) -> None:
    """What is there without a ledger is one feature's; another that adds the same bytes fits."""
    shared = {f"files/{ADDED}": "VALUE = 1\n", "files/vllm/v1/theirs.py": "x = 1\n"}
    write_feature(cli.team, shared, id="team-shares")
    options = ("--patches", cli.team)
    by_git(cli, site, *options, "--feature", "demo")
    for command in ("check", "status", "revert"):
        result = cli(command, *options, site)
        assert result.exit == 1
        assert "demo is patched in without a ledger" in result.last
        assert "drifted" not in result.out
        assert "reinstall" not in result.out
    assert cli("adopt", *options, site).exit == 0
    assert cli("apply", *options, site).exit == 0


def test_an_edit_beside_our_lines_is_not_taken_over(cli: Cli, site: Path) -> None:
    by_git(cli, site)
    edit(site, PROPOSER, "self.model = None", "self.model = None  # mine")
    before = digest(site)
    result = cli("adopt", site)
    assert result.exit == 2
    assert PROPOSER in result.err
    assert "Nothing was changed" in result.err
    assert digest(site) == before


def test_nothing_is_taken_over_where_nothing_proves_it(cli: Cli, tmp_path: Path) -> None:
    checkout = fake_vllm.tree(tmp_path / "checkout")
    by_git(cli, checkout)
    before = digest(checkout)
    result = cli("adopt", checkout)
    assert (result.exit, "no RECORD" in result.err) == (2, True)
    assert digest(checkout) == before


def test_a_pristine_vllm_has_nothing_to_adopt(cli: Cli, site: Path) -> None:
    before = digest(site)
    assert cli("adopt", site).exit == 0
    assert digest(site) == before
    (site / ADDED).write_text("MINE = 1\n")
    assert cli("adopt", site).exit == 2


def test_a_damaged_pristine_copy_is_told_before_revert_fails(cli: Cli, site: Path) -> None:
    cli("apply", site)
    (copy,) = (site / ".vllm-overlay/pristine").iterdir()
    for harm in (lambda: copy.write_bytes(b"other"), copy.unlink):
        harm()
        status = cli("status", site)
        assert (status.exit, "pristine copy is missing or damaged" in status.last) == (1, True)
        assert f"overlay revert {site}` would fail" in status.out
        assert "reinstall vLLM" in status.out
        assert cli("status", site, "--json").json["targets"][0]["obstacles"][0]["code"] == (
            "copies-damaged"
        )
        assert cli("revert", site).exit == 2
