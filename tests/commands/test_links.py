"""Links that lead out of the target: each is named, by every command, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import TargetError, TransactionError
from overlay.untrusted import all_unreadable, way_out
from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSER, RUNNER, Cli, digest


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site-packages")


def lead_out(site: Path, *paths: str) -> Path:
    """Move files of a target outside and leave links in their places."""
    outside = site.parent / "outside"
    outside.mkdir()
    for path in paths:
        moved = outside / Path(path).name
        (site / path).rename(moved)
        (site / path).symlink_to(moved)
    return outside


@pytest.mark.parametrize("command", ["check", "status", "apply", "diff"])
def test_every_link_of_a_pristine_target_is_named(cli: Cli, site: Path, command: str) -> None:
    outside = lead_out(site, PROPOSER, RUNNER)
    before = digest(outside)
    result = cli("--patches", cli.team, command, site)
    assert result.exit == 2
    for path in (PROPOSER, RUNNER):
        assert result.err.count(f"{site / path} leads out of the target, to {outside}") == 1
    assert digest(outside) == before


@pytest.mark.parametrize("command", ["check", "status", "apply", "diff", "revert"])
def test_every_link_of_a_patched_target_is_named(cli: Cli, site: Path, command: str) -> None:
    assert cli("--patches", cli.team, "apply", site).exit == 0
    outside = lead_out(site, PROPOSER, RUNNER, ADDED)
    before = digest(outside)
    arguments: list[str | Path] = [] if command == "revert" else ["--patches", cli.team]
    result = cli(*arguments, command, site)
    assert result.exit == 2
    for path in (PROPOSER, RUNNER, ADDED):
        assert result.err.count(f"{site / path} leads out of the target, to {outside}") == 1
    assert digest(outside) == before


def test_a_folder_is_named_once_however_many_files_it_holds(cli: Cli, site: Path) -> None:
    lead_out(site, "vllm/v1/spec_decode", RUNNER)
    result = cli("--patches", cli.team, "check", "--json", site)
    lines = result.json["error"].splitlines()
    assert [line.split(" leads out")[0] for line in lines] == [
        f"{site}: {site / 'vllm/v1/spec_decode'}",
        f"{site}: {site / RUNNER}",
    ]


def test_files_that_no_feature_needs_are_not_asked_for(cli: Cli, site: Path) -> None:
    lead_out(site, PROPOSER, RUNNER)
    result = cli("check", site)  # without the team's feature, which is the runner's
    assert "proposer.py leads out" in result.err
    assert RUNNER not in result.err


def test_the_first_part_that_leads_out_is_told(tmp_path: Path) -> None:
    root = (tmp_path / "root").resolve()
    (root / "vllm" / "a").mkdir(parents=True)
    (root / "vllm" / "inside").symlink_to("a")
    (root / "vllm" / "a" / "out").symlink_to(tmp_path)
    assert way_out(root, "vllm/inside/x.py") is None
    assert way_out(root, "vllm/inside/out/b/x.py") == (
        root / "vllm/inside/out",
        str(tmp_path.resolve()),
    )


def test_another_error_stays_what_it_was() -> None:
    def read(path: str) -> None:
        raise TargetError(f"{path} is bad")

    with pytest.raises(TransactionError, match=r"^the plan is old$"), all_unreadable("ab", read):
        raise TransactionError("the plan is old")
    with pytest.raises(TargetError, match=r"^a is bad\nb is bad$"), all_unreadable("ba", read):
        read("b")
    many = [f"{name}.py" for name in "abcdef"]

    def link(path: str) -> None:
        raise TargetError(f"/site/{path} leads out, to /else/{path}: replace the link by a copy")

    with pytest.raises(TargetError) as error, all_unreadable(many, link):
        link("a.py")
    assert str(error.value) == (
        "/site/a.py leads out, to /else/a.py: replace the link by a copy; the same of 5 further "
        "files: b.py, c.py, d.py and 2 more"
    )
