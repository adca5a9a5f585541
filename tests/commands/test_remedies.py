"""What a message says to do ends the problem: each remedy is read from the answer and followed.

The problems are those for which a review found wrong advice: patches of one's own with a wrong
scope, modules that do not compile, a lost or damaged ledger, patches that git applied, a folder
that is not at hand, files edited since, settings with which vLLM would not start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import fake_vllm
from tests.support.cli import CAPTURE, PROPOSER, RUNNER, Cli, Result, digest, drift
from tests.support.patches import write_feature

SCOPE = "GPUModelRunner.capture_model"
WITHOUT_A_TARGET = ("list", "port")
MODULE = "vllm/v1/mine.py"


class World(NamedTuple):
    """A fake installation, and a folder of one's own patches."""

    cli: Cli
    site: Path
    mine: Path

    def own(self, patch: str = CAPTURE, **files: str) -> None:
        """Write a feature of one's own."""
        name = "10-capture/0.20.0..0.33.0.patch"
        write_feature(self.mine, {name: patch, **files}, id="mine")

    def check(self) -> Result:
        return self.cli("check", "--patches", self.mine, self.site)


def wrong_scope(scope: str) -> Callable[[World], Result]:
    def make(world: World) -> Result:
        world.own(CAPTURE.replace(f"@@ {SCOPE}", f"@@ {scope}"))
        return world.check()

    return make


def correct_the_scope(world: World, answer: Result) -> Result:
    """In the file and line that the answer names."""
    text = answer.out + answer.err
    named = re.search(r"(mine/10-capture/\S+\.patch):(\d+)", text)
    assert named is not None
    path, number = world.mine / named[1], int(named[2])
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = re.sub(r"(@@.*@@ ).*", rf"\1{SCOPE}", lines[number - 1])
    path.write_text("".join(lines))
    return world.check()


def no_python(world: World) -> Result:
    world.own(**{f"files/{MODULE}": "def broken(:\n"})
    return world.check()


def correct_the_module(world: World, answer: Result) -> Result:
    named = re.search(r"next: +correct (.+)", answer.out)
    assert named is not None
    Path(named[1]).write_text("def whole() -> None: ...\n")
    return world.check()


def a_tab(world: World) -> Result:
    world.own(CAPTURE.replace("\n         captured", "\n\t        captured"))
    return world.check()


def write_the_blank(world: World, answer: Result) -> Result:
    named = re.search(r"(/.+\.patch):(\d+): the line begins with a tab", answer.out)
    assert named is not None
    path, number = Path(named[1]), int(named[2])
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = " " + lines[number - 1].removeprefix("\t")
    path.write_text("".join(lines))
    return world.check()


def ledger_lost(world: World) -> Result:
    world.cli("apply", world.site)
    shutil.rmtree(world.site / ".vllm-overlay")
    return world.cli("status", world.site)


def applied_by_git(world: World) -> Result:
    diff = world.cli("diff", world.site).out
    git = ["git", "-C", str(world.site), "apply", "-"]
    subprocess.run(git, input=diff.encode(), check=True, capture_output=True)
    return world.cli("check", world.site)


def ledger_damaged(world: World) -> Result:
    world.cli("apply", world.site)
    (world.site / ".vllm-overlay/ledger.json").write_text("[" * 200_000)
    return world.cli("status", world.site)


def copies_gone(world: World) -> Result:
    world.cli("apply", world.site)
    shutil.rmtree(world.site / ".vllm-overlay/pristine")
    return world.cli("status", world.site)


def reinstall(world: World, answer: Result) -> Result:
    """As pip does, and the folder that the answer names goes."""
    named = re.search(r"remove the folder (\S+) beside it, and apply again", answer.out)
    assert named is not None
    shutil.rmtree(world.site / named[1])
    shutil.rmtree(world.site / "vllm")
    fake_vllm.site_packages(world.site)
    assert world.cli("apply", world.site).exit == 0
    return world.cli("status", world.site)


def folder_not_at_hand(world: World) -> Result:
    world.cli("apply", "--patches", world.cli.team, "--feature", "team-capture", world.site)
    return world.cli("status", world.site)


def name_the_folder(world: World, answer: Result) -> Result:
    named = re.search(r"name it \((--patches) (\S+),", answer.out)
    assert named is not None
    return world.cli("apply", named[1], named[2], world.site)


def edited_before(world: World) -> Result:
    world.own(CAPTURE)
    path = world.site / RUNNER
    path.write_text(path.read_text().replace("(1, 2, 4)", "(1, 2, 4, 16)"))
    return world.check()


def put_back(world: World, answer: Result) -> Result:
    assert "if somebody edited this file, reinstall vLLM; otherwise" in answer.out
    fake_vllm.site_packages(world.site)
    return world.check()


def required(world: World) -> Result:
    return world.cli("status", "--require", "demo", world.site)


def own_required(world: World) -> Result:
    world.own()
    return world.cli("status", "--patches", world.mine, "--require", "mine", world.site)


def half_put_back(world: World) -> Result:
    world.own()
    path = world.site / PROPOSER
    pristine = path.read_bytes()
    assert world.cli("apply", "--patches", world.mine, world.site).exit == 0
    path.write_bytes(pristine)
    return world.check()


def one_does_not_fit(world: World) -> Result:
    drift(world.site)
    return world.cli("apply", "--patches", world.cli.team, world.site)


def follow(*words: str) -> Callable[[World, Result], Result]:
    """The command that the answer names, as it is printed, from another working folder."""

    def run(world: World, answer: Result) -> Result:
        return world.cli.follow(answer, *words)

    return run


CASES = {
    "a scope misspelt": (wrong_scope(f"{SCOPE}s"), 1, correct_the_scope),
    "a scope without its class": (wrong_scope("capture_model"), 1, correct_the_scope),
    "the scope of another function": (
        wrong_scope("GPUModelRunner._capture"),
        1,
        correct_the_scope,
    ),
    "a scope as it is written in Python": (
        wrong_scope("def capture_model(self) -> int:"),
        1,
        correct_the_scope,
    ),
    "a module that does not compile": (no_python, 1, correct_the_module),
    "a tab for a blank": (a_tab, 1, write_the_blank),
    "a lost ledger, taken over": (ledger_lost, 1, follow("adopt")),
    "a lost ledger, taken out": (ledger_lost, 1, follow("revert")),
    "patches that git applied": (applied_by_git, 1, follow("adopt")),
    "a damaged ledger": (ledger_damaged, 2, follow("revert")),
    "pristine copies that are gone": (copies_gone, 1, reinstall),
    "a folder that is not at hand": (folder_not_at_hand, 1, name_the_folder),
    "a folder that is gone for good": (folder_not_at_hand, 1, follow("revert")),
    "a file that was edited before": (edited_before, 1, put_back),
    "one feature that does not fit": (one_does_not_fit, 1, follow("apply", "--without", "demo")),
    "a required feature": (required, 1, follow("apply", "--feature")),
    "a required feature of one's own": (own_required, 1, follow("apply", "--feature")),
    "half of it put back": (half_put_back, 1, follow("apply")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_answer_says_ends_the_problem(cli: Cli, tmp_path: Path, case: str) -> None:
    """Every command in the answer names the target and the folder of patches that were named."""
    provoke, code, remedy = CASES[case]
    site = fake_vllm.site_packages(tmp_path / "an environment" / "site-packages")
    world = World(cli, site, tmp_path / "patches of one's own")
    answer = provoke(world)
    assert answer.exit == code, answer
    for command in answer.commands:
        assert command[0] in WITHOUT_A_TARGET or str(site) in command, command
        assert not world.mine.exists() or str(world.mine) in command, command
    # Whatever stopped with an error has told it whole; the others tell one cause once.
    assert answer.out.count("next:") == (1 if code == 1 else 0), answer.out
    after = remedy(world, answer)
    assert after.exit == 0, after


def test_advice_without_a_need_changes_nothing(cli: Cli, site: Path) -> None:
    """Both ways out of a lost ledger can be taken one after the other."""
    pristine = digest(site)
    ledger_lost(World(cli, site, site))
    assert cli("adopt", site).exit == 0
    assert cli("adopt", site).exit == 0
    assert cli("revert", site).exit == 0
    assert cli("revert", site).exit == 0
    assert digest(site) == pristine
    assert (site / PROPOSER).is_file()
