"""An interrupted transaction: commands that read tell of it, commands that write end it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import fake_vllm, faults
from tests.support.cli import Cli, digest
from tests.support.sites import stamps

READING = [
    ("check",),
    ("status",),
    ("diff",),
    ("apply", "--dry-run"),
]


class KilledRenaming(faults.FaultyOs):
    """The process is killed where the first module would get its new bytes."""

    def replace(self, source: str, destination: str, **folders: int) -> None:
        if destination.endswith(".py"):
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace(source, destination, **folders)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site")


def interrupt(cli: Cli, site: Path, *command: str) -> None:
    """Kill a command in the middle of its transaction."""

    def die() -> None:
        with faults.faulty(KilledRenaming()):
            cli(*command, site)

    assert faults.in_child(die) == -signal.SIGKILL
    assert (site / ".vllm-overlay/journal.json").exists()


@pytest.mark.parametrize("action", ["apply", "revert"])
@pytest.mark.parametrize("reading", READING, ids=" ".join)
def test_a_command_that_reads_tells_of_it_and_changes_nothing(
    cli: Cli, site: Path, action: str, reading: tuple[str, ...]
) -> None:
    if action == "revert":
        assert cli("apply", site).exit == 0
    interrupt(cli, site, action)
    before = digest(site), stamps(site)
    result = cli(*reading, site)
    assert (digest(site), stamps(site)) == before
    assert result.exit == 1
    assert f"an interrupted {action} waits to be ended in {site}" in result.out + result.err
    assert f"`overlay apply {site}` or `overlay revert {site}`" in result.out + result.err
    assert "an apply or revert was interrupted" in result.last
    again = cli(*reading, "--json", site)
    assert again.exit == again.json["exit"] == 1
    (target,) = again.json["targets"]
    assert target["interrupted"] is True
    assert (digest(site), stamps(site)) == before


def test_apply_ends_it_and_says_so(cli: Cli, site: Path) -> None:
    pristine = digest(site)
    interrupt(cli, site, "apply")
    result = cli("apply", site)
    assert result.exit == 0
    assert f"warning: an interrupted apply was finished in {site}" in result.out
    assert cli("status", site).last == "demo is applied to vLLM 0.26.0."
    assert cli("revert", site).exit == 0
    assert digest(site) == pristine


def test_revert_ends_it_and_says_so(cli: Cli, site: Path) -> None:
    pristine = digest(site)
    interrupt(cli, site, "apply")
    result = cli("revert", site)
    assert result.exit == 0
    assert f"warning: an interrupted apply was finished in {site}" in result.out
    assert digest(site) == pristine


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_root_does_not_end_what_another_user_wrote_down(cli: Cli, site: Path, command: str) -> None:
    interrupt(cli, site, "apply")
    for path in [site, *site.rglob("*")]:
        os.chown(path, 4711, 4711)
    before = digest(site), stamps(site)
    result = cli(command, site)
    assert result.exit == 2
    assert f"{site / '.vllm-overlay'} belongs to user 4711" in result.err
    assert "as the user who owns" in result.err
    assert (digest(site), stamps(site)) == before


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_journal_that_others_can_write_is_not_believed(
    cli: Cli, site: Path, command: str
) -> None:
    interrupt(cli, site, "apply")
    (site / ".vllm-overlay/journal.json").chmod(0o666)
    before = digest(site), stamps(site)
    result = cli(command, site)
    assert result.exit == 2
    assert "can be written by others (mode 0666)" in result.err
    assert (digest(site), stamps(site)) == before


def test_a_state_folder_that_others_can_write_is_named(cli: Cli, site: Path) -> None:
    assert cli("apply", site).exit == 0
    assert "can be written by others" not in cli("status", site).out
    (site / ".vllm-overlay").chmod(0o777)
    for command in ("status", "check"):
        result = cli(command, site)
        assert f"{site / '.vllm-overlay'} can be written by others (mode 0777)" in result.out
