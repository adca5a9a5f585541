"""An installation that an earlier overlay patched: read, upgraded and reverted by this one.

What the earlier ones left lies in ``earlier_overlays``, whose ``make.py`` recorded it from the
code of their commits: patched targets, and targets in which a command was killed.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.commands.earlier_overlays.make import DEMO, FORMER, HERE, NOW, Tree, lay, tree, write
from tests.support.cli import ADDED, PROPOSER, RUNNER, Cli, Result
from tests.support.patches import write_feature

RECORDED = {
    file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(HERE.glob("*.json"))
}
LEDGER = ".vllm-overlay/ledger.json"


def _entries(commit: str, state: str) -> Tree:
    document = RECORDED[commit]
    paths = document["states"][state].items()
    return {path: document["texts"][key].encode() for path, key in paths}


def _cases(*starts: str) -> list[tuple[str, str]]:
    return [
        (commit, state)
        for commit, document in RECORDED.items()
        for state in document["states"]
        if state.startswith(starts)
    ]


each_state = pytest.mark.parametrize(
    ("commit", "state"), _cases("applied", "demo", "apply-", "rev")
)
each_commit = pytest.mark.parametrize("commit", RECORDED)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site-packages"


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """The command line with the features of the records, as they are called now."""
    shutil.rmtree(cli.shipped)
    write(cli.shipped, NOW, ascend=True)
    return cli


def _states(answer: Result) -> dict[str, str]:
    """State of each feature."""
    features = (each for target in answer.json["targets"] for each in target["features"])
    return {feature["feature"]: feature["state"] for feature in features}


def test_there_are_records_of_each_schema_of_former_ids_and_of_two_packages() -> None:
    schemas, former, packages = set(), set(), set()
    for commit, document in RECORDED.items():
        entries = _entries(commit, "applied")
        schemas.add(json.loads(entries[LEDGER])["schema"])
        former.add(document["former_ids"])
        packages.add(".vllm_ascend-overlay/ledger.json" in entries)
        assert document["commit"].startswith(commit)
    assert schemas == {1, 2}
    assert former == packages == {True, False}
    assert set(FORMER) - set(NOW) == {"dbo-drafts", "dbo-eagle3"}


@each_state
def test_it_is_read_and_reverted(cli: Cli, site: Path, commit: str, state: str) -> None:
    before = _entries(commit, state)
    lay(site, before)
    status = cli("status", "--json", site)
    if "killed" not in state:
        assert status.exit == 0
        dbo = "applied" if state == "applied" else "pristine"
        expected = {"demo": "applied", "dbo": dbo}
        if "vllm_ascend/__init__.py" in before:
            expected["ascend"] = dbo
        assert _states(status) == _states(cli("check", "--json", site)) == expected
        assert cli("status", "--require", "demo", site).exit == 0
        assert cli("status", "--require", "dbo-drafts", site).exit == (dbo != "applied")
        assert cli("apply", "--dry-run", site).exit == 0
    else:
        interrupted = [target["interrupted"] for target in status.json["targets"]]
        assert any(interrupted) is any(path.endswith("/journal.json") for path in before)
        assert cli("check", site).exit in (0, 1)
    assert tree(site) == before, "who reads writes nothing"
    assert cli("revert", site).exit == 0
    assert tree(site) == _entries(commit, "pristine")


def _by_any_overlay(files: dict[str, bytes]) -> dict[str, bytes]:
    version = re.compile(rb'"overlay": "[^"]*"')
    ledgers = {
        name: version.sub(b"", files[name]) for name in files if name.endswith("ledger.json")
    }
    return files | ledgers


@each_state
def test_it_is_upgraded(cli: Cli, site: Path, tmp_path: Path, commit: str, state: str) -> None:
    """To patches of which one changed since; the bytes are those of a fresh installation.

    A package of which nothing changed keeps its ledger, with the overlay that wrote it.
    """
    newer = {name: text.replace("# patched", "# again") for name, text in DEMO.items()}
    shutil.rmtree(cli.shipped / "demo")
    write_feature(cli.shipped, {**newer, f"files/{ADDED}": "VALUE = 2\n"}, id="demo")
    lay(tmp_path / "fresh", _entries(commit, "pristine"))
    assert cli("apply", tmp_path / "fresh").exit == 0
    expected = tree(tmp_path / "fresh")
    assert b"# again" in expected[PROPOSER]
    lay(site, _entries(commit, state))
    if "killed" not in state:
        assert "demo was applied in another form, by vllm-overlay 0.1.0" in cli("status", site).out
    assert cli("apply", site).exit == 0
    assert _by_any_overlay(tree(site)) == _by_any_overlay(expected)
    if "killed" not in state:
        assert "another form" not in cli("status", site).out
        assert cli("apply", site).last.startswith("Nothing to do")


@each_commit
@pytest.mark.parametrize("name", ["dbo", "dbo-drafts"])
def test_one_of_its_features_is_reverted(cli: Cli, site: Path, commit: str, name: str) -> None:
    """At once, or after the upgrade that the refusal names; the refusal tells what is applied."""
    lay(site, _entries(commit, "applied"))
    answer = cli("revert", "--json", "--feature", name, site)
    if answer.exit:
        assert _states(answer) == {"demo": "applied", "dbo": "applied"}
        assert tree(site) == _entries(commit, "applied")
        refused = cli("revert", "--feature", name, site)
        assert "no patches applied" not in refused.out
        assert cli.follow(refused, "apply").exit == 0
        assert cli("revert", "--feature", name, site).exit == 0
    states = _states(cli("status", "--json", site))
    assert (states["demo"], states["dbo"]) == ("applied", "pristine")
    assert tree(site)[RUNNER] == _entries(commit, "pristine")[RUNNER]


@each_commit
def test_a_feature_that_is_gone_is_reverted(cli: Cli, site: Path, commit: str) -> None:
    shutil.rmtree(cli.shipped / "demo")
    lay(site, _entries(commit, "applied"))
    answer = cli("status", site)
    assert "demo" in answer.out
    assert cli("revert", site).exit == 0
    assert tree(site) == _entries(commit, "pristine")


@each_commit
def test_what_somebody_edited_since_is_not_reverted(cli: Cli, site: Path, commit: str) -> None:
    lay(site, _entries(commit, "applied"))
    (site / PROPOSER).write_bytes((site / PROPOSER).read_bytes() + b"# edited\n")
    before = tree(site)
    answer = cli("revert", site)
    assert answer.exit != 0
    assert PROPOSER in answer.out + answer.err
    assert tree(site) == before


@each_commit
def test_without_its_ledger_it_is_reverted(cli: Cli, site: Path, commit: str) -> None:
    lay(site, _entries(commit, "applied"))
    (site / LEDGER).unlink()
    assert cli("revert", site).exit == 0
    assert tree(site) == _entries(commit, "pristine")
