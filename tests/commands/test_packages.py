"""Commands on several packages: each installed one that has features, together or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSE, PROPOSER, Cli, Result, digest, edit
from tests.support.patches import write_feature
from tests.support.transactions import snapshot

ASCEND = "vllm_ascend"
ASCEND_PROPOSER = PROPOSER.replace("vllm/", f"{ASCEND}/")
ASCEND_ADDED = ADDED.replace("vllm/", f"{ASCEND}/")
RELEASE = "0.23.0.post1"
RANGE = "0.20.2rc1..0.30.0rc2"


def of(package: str, text: str) -> str:
    """A patch of vLLM as one of another package."""
    return text.replace(" a/vllm/", f" a/{package}/").replace(" b/vllm/", f" b/{package}/")


def feature_for(folder: Path, package: str, releases: str, name: str) -> Path:
    """Write a feature of another package into a folder of patches."""
    return write_feature(
        folder,
        {
            f"10-propose/{releases}.patch": of(package, PROPOSE),
            f"files/{package}/v1/spec_decode/demo.py": "VALUE = 2\n",
        },
        id=name,
        releases=releases,
        toml=f'package = "{package}"',
    )


def install(folder: Path, package: str, version: str) -> Path:
    """Install another package."""
    name = package.replace("_", "-")
    return fake_vllm.site_packages(folder, version, distribution=name, package=package)


@pytest.fixture
def both(cli: Cli, site: Path) -> Path:
    """vLLM and vllm-ascend in one folder, and a feature for each."""
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    return install(site, ASCEND, RELEASE)


@pytest.fixture
def apart(
    cli: Cli, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """vLLM and vllm-ascend in two folders of this Python, as in the images for NPUs."""
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    other = install(tmp_path / "vllm-ascend", ASCEND, RELEASE)
    path = [entry for entry in sys.path if not _has_packages(entry)]
    monkeypatch.setattr(sys, "path", [str(site), str(other), *path])
    return site, other


def _has_packages(entry: str) -> bool:
    return any(os.path.exists(os.path.join(entry, name)) for name in ("vllm", ASCEND))


def states(result: Result) -> dict[str, dict[str, str]]:
    """The state of each feature, by package."""
    return {
        target["package"]: {each["feature"]: each["state"] for each in target["features"]}
        for target in result.json["targets"]
    }


def test_every_package_that_has_features_is_treated(cli: Cli, both: Path) -> None:
    before = snapshot(both)
    found = cli("check", both, "--json")
    assert found.exit == 0
    assert states(found) == {"vllm": {"demo": "pristine"}, ASCEND: {"lengths": "pristine"}}
    assert {target["vllm"] for target in found.json["targets"]} == {"0.26.0", RELEASE}
    done = cli("apply", both)
    assert done.exit == 0
    assert done.last == (
        "Applied demo to vLLM 0.26.0, 2 files written; applied lengths to vllm-ascend "
        "0.23.0.post1, 2 files written."
    )
    assert (both / ".vllm-overlay/ledger.json").exists()
    assert (both / ".vllm_ascend-overlay/ledger.json").exists()
    told = cli("status", both, "--json", "--require", "all", "--require", "lengths")
    assert told.exit == 0
    assert states(told) == {"vllm": {"demo": "applied"}, ASCEND: {"lengths": "applied"}}
    patched = snapshot(both)
    assert cli("apply", both, "--json").json["code"] == "already-applied"
    assert snapshot(both) == patched
    assert cli("revert", both).exit == 0
    assert snapshot(both) == before


def test_packages_in_two_folders_of_one_python(cli: Cli, apart: tuple[Path, Path]) -> None:
    before = [snapshot(root) for root in apart]
    assert states(cli("apply", "--json")) == {
        "vllm": {"demo": "applied"},
        ASCEND: {"lengths": "applied"},
    }
    told = cli("status", "--json").json["targets"]
    assert [target["root"] for target in told] == [str(root) for root in apart]
    assert cli("revert").exit == 0
    assert [snapshot(root) for root in apart] == before


def test_a_feature_for_a_package_that_is_not_installed_is_silent(cli: Cli, site: Path) -> None:
    plain = cli("check", site, "--json")
    shown = cli("check", site)
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    assert cli("check", site, "--json").out == plain.out
    assert cli("check", site).out == shown.out
    named = cli("apply", site, "--feature", "lengths", "--json")
    assert named.exit == 0
    (target,) = named.json["targets"]
    (told,) = target["features"]
    assert (told["state"], told["reason"]) == ("inapplicable", "vllm-ascend is not installed here")
    required = cli("apply", site, "--require", "lengths", "--json")
    assert (required.exit, required.json["code"]) == (1, "required-missing")


def test_a_folder_with_the_other_package_alone(cli: Cli, tmp_path: Path) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    root = install(tmp_path / "alone", ASCEND, "0.24.0rc1")
    assert states(cli("check", root, "--json")) == {ASCEND: {"lengths": "pristine"}}
    assert cli("apply", root, "--json").exit == 0


@pytest.mark.parametrize("version", ["0.20.2rc1", "0.23.0rc1", "0.23.0", RELEASE, "0.30.0rc2"])
def test_named_release_candidates_are_in_the_range(cli: Cli, tmp_path: Path, version: str) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    root = install(tmp_path / "site", ASCEND, version)
    (target,) = cli("check", root, "--json").json["targets"]
    (told,) = target["features"]
    assert (told["state"], told.get("untested", False)) == ("pristine", False)


@pytest.mark.parametrize(("version", "state"), [("0.20.1", "inapplicable"), ("0.30.0", "pristine")])
def test_releases_beyond_the_range(cli: Cli, tmp_path: Path, version: str, state: str) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    root = install(tmp_path / "site", ASCEND, version)
    (target,) = cli("check", root, "--json").json["targets"]
    (told,) = target["features"]
    assert told["state"] == state
    assert told.get("untested", False) is (state == "pristine")


@pytest.mark.parametrize("broken", [PROPOSER, ASCEND_PROPOSER])
def test_nothing_is_written_where_one_package_does_not_fit(
    cli: Cli, both: Path, broken: str
) -> None:
    edit(both, broken, "drafts = [self._first(tokens)]", "drafts = list(self._first(tokens))")
    before = snapshot(both)
    refused = cli("apply", both)
    assert refused.exit == 1
    assert "Nothing was written to" in refused.last
    assert ("vLLM 0.26.0" if broken == PROPOSER else "vllm-ascend 0.23.0.post1") in refused.last
    assert snapshot(both) == before
    # What is to be installed again is the package that was edited.
    title = "vLLM" if broken == PROPOSER else "vllm-ascend"
    assert f"if somebody edited this file, reinstall {title}; otherwise" in refused.out
    told = cli("apply", both, "--json").json
    assert f"reinstall {title};" in json.dumps(told)


@pytest.mark.parametrize("at", [0, 1])
def test_nothing_is_written_where_one_package_cannot_be(
    cli: Cli, apart: tuple[Path, Path], at: int
) -> None:
    folder = apart[at] / (".vllm-overlay", ".vllm_ascend-overlay")[at]
    folder.write_text("in the way")
    before = [snapshot(root) for root in apart]
    refused = cli("apply")
    assert refused.exit == 2
    assert str(apart[at]) in refused.err + refused.out
    assert [snapshot(root) for root in apart] == before


@pytest.mark.parametrize("edited", [PROPOSER, ASCEND_PROPOSER])
def test_nothing_is_reverted_where_one_package_was_edited(
    cli: Cli, both: Path, edited: str
) -> None:
    assert cli("apply", both).exit == 0
    edit(both, edited, "class SpecDecodeBaseProposer", "class  SpecDecodeBaseProposer")
    before = snapshot(both)
    refused = cli("revert", both)
    assert refused.exit == 1
    assert edited in refused.last
    assert snapshot(both) == before


def test_one_feature_goes_and_the_other_package_stays_as_it_is(cli: Cli, both: Path) -> None:
    before = snapshot(both)
    assert cli("apply", both).exit == 0
    assert cli("revert", both, "--feature", "lengths").exit == 0
    assert states(cli("status", both, "--json")) == {
        "vllm": {"demo": "applied"},
        ASCEND: {"lengths": "pristine"},
    }
    assert cli("revert", both, "--feature", "demo").exit == 0
    assert snapshot(both) == before


def test_an_upgrade_of_one_package_alone(cli: Cli, both: Path) -> None:
    """The other one's ledger, files and rows are not touched by it."""
    assert cli("apply", both).exit == 0
    mine = {path: text for path, text in digest(both).items() if "ascend" not in path}
    for path in [*both.glob("vllm_ascend*"), both / ".vllm_ascend-overlay"]:
        shutil.rmtree(path)
    install(both, ASCEND, "0.24.0rc1")
    assert states(cli("status", both, "--json")) == {
        "vllm": {"demo": "applied"},
        ASCEND: {"lengths": "pristine"},
    }
    assert cli("apply", both).exit == 0
    assert {path: text for path, text in digest(both).items() if "ascend" not in path} == mine
    assert cli("revert", both).exit == 0


def test_removing_a_package_as_pip_does_takes_all_of_the_overlay(cli: Cli, both: Path) -> None:
    assert cli("apply", both).exit == 0
    (info,) = both.glob("vllm_ascend-*.dist-info")
    for row in (info / "RECORD").read_text().splitlines():
        (both / row.split(",")[0]).unlink(missing_ok=True)
    left = {path for path in digest(both) if "ascend" in path}
    assert left == set()
    assert states(cli("status", both, "--json")) == {"vllm": {"demo": "applied"}}


def test_a_package_of_a_team(cli: Cli, site: Path) -> None:
    """Any package of pure Python: known by its metadata and nothing else."""
    feature_for(cli.team, "transformers", "4.50.0..4.60.0", "team-transformers")
    install(site, "transformers", "4.55.1")
    before = snapshot(site)
    assert "transformers" not in cli("check", site).out
    found = cli("apply", site, "--patches", cli.team, "--json")
    assert states(found)["transformers"] == {"team-transformers": "applied"}
    assert found.json["targets"][1]["vllm"] == "4.55.1"
    # Without the team's folder it is seen, and not left behind half.
    told = cli("status", site, "--json")
    assert states(told)["transformers"] == {"team-transformers": "applied"}
    assert cli("revert", site).exit == 0
    assert snapshot(site) == before


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        ("vllm-ascend", "is not the name of a package as Python imports it, such as vllm_ascend"),
        ("json", "is a part of Python itself"),
        ("overlay", "is a part of the overlay itself"),
        ("../x", "is not the name of a package"),
        ("class", "is not the name of a package"),
    ],
)
def test_what_cannot_be_a_package(cli: Cli, site: Path, package: str, problem: str) -> None:
    write_feature(cli.team, {}, id="bad", toml=f'package = "{package}"')
    shutil.rmtree(cli.team / "team-capture")
    result = cli("check", site, "--patches", cli.team)
    assert result.exit == 1
    assert problem in result.err + result.out


@pytest.mark.parametrize("wrong", [PROPOSER, "vllm_ascend/../vllm/x.py"])
def test_a_feature_patches_its_own_package_only(cli: Cli, site: Path, wrong: str) -> None:
    text = PROPOSE.replace(PROPOSER, wrong)
    files = {f"10-propose/{RANGE}.patch": text}
    write_feature(cli.team, files, id="bad", releases=RANGE, toml=f'package = "{ASCEND}"')
    result = cli("check", site, "--patches", cli.team)
    assert result.exit == 1
    assert wrong in result.err + result.out


def test_files_of_the_other_package(cli: Cli, tmp_path: Path) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    for build in (fake_vllm.wheel, fake_vllm.sdist):
        path = build(tmp_path, RELEASE, distribution="vllm-ascend", package=ASCEND)
        assert states(cli("check", path, "--json")) == {ASCEND: {"lengths": "pristine"}}
        text = cli("diff", path).out
        assert f"+++ b/{ASCEND_PROPOSER}" in text
        assert cli("apply", path).exit == 2


def test_a_package_that_two_distributions_own_is_an_error(cli: Cli, both: Path) -> None:
    before = digest(both)
    fake_vllm.site_packages(both, RELEASE, distribution="vllm-ascend-mine", package=ASCEND)
    refused = cli("apply", both)
    assert refused.exit == 2
    assert "expected one distribution that owns vllm_ascend/" in refused.err + refused.out
    added = {path for path in digest(both).keys() - before.keys() if "mine" not in path}
    assert added == set()


def test_list_shows_packages(cli: Cli) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    entries = {entry["feature"]: entry for entry in cli("list", "--json").json["features"]}
    assert "package" not in entries["demo"]
    assert entries["lengths"]["package"] == ASCEND
    (only,) = cli("list", "--package", "vllm-ascend", "--json").json["features"]
    assert only["feature"] == "lengths"
    assert cli("list", "--package", "1x").exit == 2


def test_patches_without_a_ledger_are_adopted_in_both(cli: Cli, both: Path) -> None:
    before = snapshot(both)
    assert cli("apply", both).exit == 0
    patched = snapshot(both)
    for name in (".vllm-overlay", ".vllm_ascend-overlay"):
        shutil.rmtree(both / name)
    assert states(cli("status", both, "--json"))[ASCEND] == {"lengths": "partial"}
    done = cli("adopt", both)
    assert done.exit == 0
    assert "vLLM 0.26.0" in done.last
    assert "vllm-ascend 0.23.0.post1" in done.last
    assert snapshot(both) == patched
    assert "othing to adopt" in cli("adopt", both).last
    assert cli("revert", both).exit == 0
    assert snapshot(both) == before


def test_a_ledger_that_is_lost_in_one_package(cli: Cli, both: Path) -> None:
    before = snapshot(both)
    assert cli("apply", both).exit == 0
    (both / ".vllm_ascend-overlay/ledger.json").write_bytes(b"{")
    assert cli("status", both).exit == 2
    assert cli("revert", both).exit == 0
    assert snapshot(both) == before


def test_doctor_knows_of_both(cli: Cli, apart: tuple[Path, Path]) -> None:
    told = cli("doctor", "--json").json["targets"]
    assert [target["package"] for target in told] == ["vllm", ASCEND]
