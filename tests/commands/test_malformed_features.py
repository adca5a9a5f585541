"""A malformed feature leaves itself out and nothing else: the other features' answers are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from overlay._features.folder import load_all
from tests.authoring.commands.test_import import SCHEMA
from tests.support import fake_vllm
from tests.support.cli import CAPTURE, PROPOSER, Cli
from tests.support.patches import write_feature

BAD = "team-bad"


def mine(cli: Cli) -> Path:
    """A patches folder of the test's own, beside the shipped one with its feature ``demo``."""
    return cli.team.with_name("mine")


def nonsense(folder: Path) -> Path:
    place = folder / "10-capture/0.20.0..0.33.0.patch"
    place.write_text("nonsense\n")
    return place


def no_range(folder: Path) -> Path:
    place = folder / "feature.toml"
    place.write_text(place.read_text().replace('releases = "', 'releases = "x'))
    return place


def many_digits(folder: Path) -> Path:
    place = folder / "feature.toml"
    place.write_text(f"required = {'9' * 5000}\n")
    return place


def not_utf8(folder: Path) -> Path:
    place = folder / "feature.toml"
    place.write_bytes(b"\xff\n")
    return place


@pytest.fixture(params=[nonsense, no_range, many_digits, not_utf8])
def place(cli: Cli, request: pytest.FixtureRequest) -> Path:
    """The malformed file of a feature that lies alone in the folder of the team."""
    harm: Callable[[Path], Path] = request.param
    folder = write_feature(mine(cli), {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id=BAD)
    place = harm(folder)
    (malformed,) = load_all([mine(cli)]).malformed
    assert malformed.id == BAD
    return place


def states(cli: Cli, *words: str | Path) -> tuple[int, dict[str, str]]:
    answer = cli("--patches", mine(cli), *words, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(answer.json)
    (target,) = answer.json["targets"]
    return answer.exit, {each["feature"]: each["state"] for each in target["features"]}


def test_what_is_asked_of_all_is_answered_for_the_others(cli: Cli, place: Path, site: Path) -> None:
    for command in ("check", "status"):
        assert states(cli, command, site) == (1, {"demo": "pristine", BAD: "drifted"})
        answer = cli("--patches", mine(cli), command, site)
        assert str(place) in answer.out
        assert f"{BAD} is malformed" in answer.last
    listed = cli("--patches", mine(cli), "list")
    assert (listed.exit, listed.last) == (1, f"Action needed: correct the files of {BAD}.")
    assert str(place) in listed.out
    assert "demo" in listed.out
    page = cli("--patches", mine(cli), "report", site, "--no-matrix")
    assert page.exit == 1
    assert str(place) in page.out


def test_apply_goes_on_where_it_is_left_out(cli: Cli, place: Path, site: Path) -> None:
    before = (site / PROPOSER).read_bytes()
    refused = cli("--patches", mine(cli), "apply", site)
    assert refused.exit == 1
    assert f"--without {BAD}" in refused.out
    assert (site / PROPOSER).read_bytes() == before
    for words in (("--without", BAD), ("--feature", "demo")):
        assert cli("--patches", mine(cli), "apply", site, *words).exit == 0
        assert (site / PROPOSER).read_bytes() != before
        assert states(cli, "status", site) == (1, {"demo": "applied", BAD: "drifted"})
        assert cli("--patches", mine(cli), "revert", site).exit == 0
        assert (site / PROPOSER).read_bytes() == before


def test_what_was_applied_before_it_became_malformed_can_be_reverted(cli: Cli, site: Path) -> None:
    folder = write_feature(mine(cli), {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id=BAD)
    before = {path: path.read_bytes() for path in (site / "vllm").rglob("*.py")}
    assert cli("--patches", mine(cli), "apply", site).exit == 0
    place = nonsense(folder)
    for command in ("check", "status"):
        assert states(cli, command, site) == (1, {"demo": "applied", BAD: "applied"})
        answer = cli("--patches", mine(cli), command, site)
        assert str(place) in answer.out
        assert f"{BAD} is applied, and its files cannot be used" in answer.last
    assert cli("--patches", mine(cli), "apply", site).exit == 1
    assert cli("--patches", mine(cli), "revert", site).exit == 0
    assert {path: path.read_bytes() for path in (site / "vllm").rglob("*.py")} == before


@pytest.mark.parametrize("command", ["check", "apply", "diff", "status"])
def test_what_was_named_and_is_malformed_is_an_error(
    cli: Cli, place: Path, site: Path, command: str
) -> None:
    if command == "status":  # it takes no --feature
        answer = cli("--patches", mine(cli), "log", BAD)
    else:
        answer = cli("--patches", mine(cli), command, site, "--feature", BAD)
    assert answer.exit == 2
    assert str(place) in answer.err


def test_a_folder_in_which_nothing_is_a_feature_is_an_error(cli: Cli, site: Path) -> None:
    (mine(cli) / "sub").mkdir(parents=True)
    answer = cli("--patches", mine(cli), "check", site)
    assert answer.exit == 2
    assert f"{mine(cli)}/sub: expected a feature.toml in it" in answer.err


def test_a_second_feature_of_an_id_is_called_by_its_place(cli: Cli, site: Path) -> None:
    write_feature(mine(cli), {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id="demo")
    exit_, found = states(cli, "check", site)
    assert (exit_, found) == (1, {"demo": "pristine", f"{mine(cli)}/demo": "drifted"})


def test_where_no_vllm_is_what_may_be_for_another_package_is_told(cli: Cli, tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "other", distribution="acme", package="acme")
    folder = write_feature(mine(cli), {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id=BAD)
    place = nonsense(folder)
    toml = folder / "feature.toml"
    toml.write_text(toml.read_text() + 'package = "acme"\n')
    answer = cli("--patches", mine(cli), "check", site)
    assert (answer.exit, str(place) in answer.err) == (2, True)
