"""``check``, ``apply --dry-run`` and ``apply`` agree in every state that a target can be in.

The code that ``check`` answers with predicts both, whatever was done to the target before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSER, RUNNER, Cli, digest

#: Code of ``check`` -> code of ``apply --dry-run``, code of ``apply``, whether apply writes.
PREDICTED: dict[str, tuple[str, str, bool]] = {
    "can-be-applied": ("would-apply", "applied", True),
    "apply-completes": ("would-apply", "applied", True),
    "can-be-updated": ("would-apply", "applied", True),
    "leftovers": ("leftovers", "removed", True),
    "applied": ("already-applied", "already-applied", False),
    "nothing-to-patch": ("nothing-to-patch", "nothing-to-patch", False),
    "untested": ("untested-refused", "untested-refused", False),
}

Step = Callable[[Cli, Path], object]


def _replace(path: str, old: str, new: str) -> Step:
    def act(cli: Cli, site: Path) -> None:
        if (site / path).exists():
            file = site / path
            file.write_text(file.read_text().replace(old, new))

    return act


def _put_back(path: str) -> Step:
    def act(cli: Cli, site: Path) -> None:
        content = fake_vllm.files().get(path)
        if content is None:
            (site / path).unlink(missing_ok=True)
        else:
            (site / path).write_bytes(content)

    return act


def _reinstall(version: str) -> Step:
    def act(cli: Cli, site: Path) -> None:
        for info in site.glob("*.dist-info"):
            shutil.rmtree(info)
        fake_vllm.site_packages(site, version=version)

    return act


def _run(*words: str) -> Step:
    return lambda cli, site: cli(*words, site)


def _team(*words: str) -> Step:
    return lambda cli, site: cli("--patches", cli.team, *words, site)


def _without(path: str) -> Step:
    def act(cli: Cli, site: Path) -> None:
        place = site / path
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    return act


STEPS: dict[str, Step] = {
    "apply": _run("apply"),
    "apply untested": _run("apply", "--untested"),
    "apply the team's": _team("apply"),
    "apply one": _team("apply", "--feature", "team-capture"),
    "revert": _run("revert"),
    "revert one": _team("revert", "--feature", "demo"),
    "adopt": _run("adopt"),
    "edit what is patched": _replace(PROPOSER, "# patched", "# patched, and mine"),
    "edit beside it": _replace(PROPOSER, "self.model = None", "self.model = None  # mine"),
    "edit what would be patched": _replace(PROPOSER, "[self._first(tokens)]", "[]"),
    "edit the other file": _replace(RUNNER, "captured = 0", "captured = 0  # mine"),
    "edit a module": _replace(ADDED, "VALUE = 1", "VALUE = 2"),
    "put a file back": _put_back(PROPOSER),
    "put a module back": _put_back(ADDED),
    "put the other back": _put_back(RUNNER),
    "remove a file": _without(PROPOSER),
    "lose the folder": _without(".vllm-overlay"),
    "lose the ledger": _without(".vllm-overlay/ledger.json"),
    "lose the copies": _without(".vllm-overlay/pristine"),
    "reinstall": _reinstall("0.26.0"),
    "upgrade": _reinstall("0.27.0"),
    "upgrade beyond": _reinstall("0.99.0"),
    "go back": _reinstall("0.15.0"),
}

ASKED = ([], ["--patches"], ["--feature", "demo"], ["--patches", "--feature", "team-capture"])


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    asked=st.sampled_from(ASKED),
    installed=st.booleans(),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_check_predicts_apply(
    cli: Cli, tmp_path: Path, steps: list[str], asked: list[str], installed: bool
) -> None:
    site = tmp_path / "site"
    shutil.rmtree(site, ignore_errors=True)
    (fake_vllm.site_packages if installed else fake_vllm.tree)(site)
    for step in steps:
        STEPS[step](cli, site)
    words: list[str | Path] = []
    for word in asked:
        words += [word, cli.team] if word == "--patches" else [word]
    before = digest(site)
    checked = cli("check", *words, site, "--json")
    tried = cli("apply", "--dry-run", *words, site, "--json")
    assert digest(site) == before
    done = cli("apply", *words, site, "--json")
    codes = (checked.json["code"], tried.json["code"], done.json["code"])
    if checked.exit == 2:
        assert (tried.exit, done.exit) == (2, 2), codes
        expected = None
    else:
        expected = PREDICTED.get(codes[0], (codes[0], codes[0], False))
        assert codes[1:] == expected[:2], (codes, checked.json, done.json)
    wrote = digest(site) != before
    assert wrote == (expected is not None and expected[2]), codes
    if wrote:
        assert cli("check", *words, site).exit == 0


@pytest.mark.parametrize("step", sorted(STEPS))
def test_each_step_does_something_to_a_patched_target(cli: Cli, tmp_path: Path, step: str) -> None:
    """A step that never does anything would make the law above say less than it seems to."""
    site = fake_vllm.site_packages(tmp_path / "site")
    before: dict[str, str] = {}
    if step in ("apply", "apply untested", "apply the team's", "apply one"):
        before = digest(site)
    elif step == "adopt":
        cli("apply", site)
        shutil.rmtree(site / ".vllm-overlay")
        before = digest(site)
    elif step == "edit what would be patched":
        before = digest(site)
    else:
        cli("--patches", cli.team, "apply", site)
        before = digest(site)
    STEPS[step](cli, site)
    assert digest(site) != before
