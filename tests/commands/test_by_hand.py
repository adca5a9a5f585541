"""A vLLM that somebody patched by hand: every command says so, and ``adopt`` takes it over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.authoring.commands.test_new import index
from tests.authoring.test_importing import diff
from tests.support import fake_vllm
from tests.support.cli import RUNNER, Cli, digest, edit
from tests.support.releases import know

__all__ = ["index"]  # the fixture

EXTRA = "vllm/v1/extra.py"
TEXT = fake_vllm.files("0.26.0")[RUNNER]
AFTER = TEXT.replace(
    b"        captured = 0\n", b"        captured = 0\n        self.sizes_left = 3\n"
)
ADDED = b"def scale(x):\n    y = x\n    return y * 2\n"
CHANGED = ADDED.replace(b"    y = x\n", b"    assert x > 0\n    y = x\n")

#: Diffs that are imported in turn, each on top of those before.
STACKS = {
    "an edit": (diff(RUNNER, TEXT, AFTER),),
    "a module": (diff(EXTRA, None, ADDED),),
    "an edit and a module": (diff(RUNNER, TEXT, AFTER) + diff(EXTRA, None, ADDED),),
    "a module, then an edit of it": (diff(EXTRA, None, ADDED), diff(EXTRA, ADDED, CHANGED)),
}


class World:
    """An installation, the features of a stack, and their diffs."""

    def __init__(self, cli: Cli, folder: Path, stack: tuple[bytes, ...]) -> None:
        self.cli, self.stack = cli, stack
        self.site = fake_vllm.site_packages(folder / "site")
        self.ours = folder / "ours"
        files = [folder / f"{number}.diff" for number in range(len(stack))]
        for file, data in zip(files, stack, strict=True):
            file.write_bytes(data)
        made = cli("import", *files, "--each", "--id", "our", "--patches", self.ours)
        assert made.exit == 0, made.out + made.err

    def patch(self) -> None:
        for data in self.stack:
            words = ["git", "-C", self.site, "apply", "-"]
            subprocess.run(words, input=data, check=True, capture_output=True)

    def __call__(self, command: str, *more: str) -> tuple[int, str, str]:
        result = self.cli(command, self.site, "--patches", self.ours, *more)
        return int(result.exit), result.out + result.err, result.last


@pytest.fixture(params=STACKS)
def world(
    request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    know(monkeypatch, ["0.25.0", "0.26.0"])
    return World(cli, tmp_path, STACKS[request.param])


def test_each_command_says_that_it_was_applied_without_the_overlay(world: World) -> None:
    pristine = digest(world.site)
    world.patch()
    patched = digest(world.site)
    for command in ("check", "status", "apply", "revert"):
        code, told, last = world(command)
        assert code == 1, told
        assert "patched in without a ledger" in last
        assert "applied without the overlay" in told
        assert "`overlay adopt" in told
        assert "has it already" not in told
        assert digest(world.site) == patched
    assert world("adopt")[0] == 0
    assert world("status")[0] == 0
    assert world("revert")[0] == 0
    assert digest(world.site) == pristine


def test_what_was_edited_since_is_never_called_upstreams(world: World) -> None:
    world.patch()
    for path in (RUNNER, EXTRA):
        if (world.site / path).exists():
            with (world.site / path).open("a") as file:
                file.write("# mine\n")
    code, told, _ = world("check")
    if len(world.stack) == 1 and world.stack != STACKS["a module"]:
        assert "the change is there already, in a file that is not the release's own" in told
    assert code == 1
    assert "has it already" not in told
    code, told, _ = world("adopt")
    assert code == 2
    assert "remove the folder" not in told, "there is none"


def test_a_release_that_has_the_change_has_it_whoever_edited_the_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, ["0.25.0", "0.26.0"])
    world = World(cli, tmp_path, STACKS["an edit"])
    newer = fake_vllm.site_packages(tmp_path / "newer", "0.27.0", extra={RUNNER: AFTER})
    edit(newer, RUNNER, "def helper(value)", "def helper(value, more=None)")
    result = cli("check", newer, "--patches", world.ours, "--feature", "our-01")
    assert result.exit == 0
    assert "upstreamed" in result.out
