"""A new user's day: the command itself, in processes of its own, on what can go wrong."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from overlay.cli import COMMANDS
from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSE, PROPOSER, RUNNER, Cli, digest
from tests.support.patches import hunk, patch_text, write_feature

REPOSITORY = Path(__file__).resolve().parents[2]
VARIANT = "0.20.0..0.33.0.patch"
DEMO = {f"10-propose/{VARIANT}": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}


@dataclass
class Command:
    """The command, with a team's folder of patches; the shipped ones do not fit a fake vLLM."""

    patches: Path
    code: Path = REPOSITORY
    environment: dict[str, str] = field(default_factory=dict)

    def line(self, *arguments: str | Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "overlay",
            "--patches",
            str(self.patches),
            *map(str, arguments),
        ]

    @property
    def env(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if "OVERLAY" not in name}
        return {**clean, "PYTHONPATH": str(self.code), "NO_COLOR": "1", **self.environment}

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(*arguments),
            cwd=self.patches,
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def command(tmp_path: Path) -> Command:
    write_feature(tmp_path / "team", DEMO)
    return Command(tmp_path / "team", environment={"OVERLAY_CACHE": str(tmp_path / "cache")})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site")


# Ctrl-C


def _interrupt_at_random(command: Command, site: Path, rounds: int, seed: int) -> set[bool]:
    """Interrupt apply and revert ``rounds`` times each; whether each took effect."""
    pristine = digest(site)
    began = time.monotonic()
    assert command("apply", "--feature", "demo", site).returncode == 0
    lasts = time.monotonic() - began
    patched = digest(site)
    chance = random.Random(seed)
    outcomes = set()
    for number in range(2 * rounds):
        action = ("revert", site) if number % 2 == 0 else ("apply", "--feature", "demo", site)
        process = subprocess.Popen(
            command.line(*action),
            cwd=command.patches,
            env=command.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Python takes no notice of Ctrl-C where a shell began it in the background. There are
            # no threads here, beside which this could hang.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        time.sleep(chance.uniform(0.4, 1.1) * lasts)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        # Python itself may still be starting; it reads the overlay's own .pth file then.
        starting = "overlay" not in err or "init_import_site" in err
        assert process.returncode in (0, 130, -signal.SIGINT) or starting, err
        status = command("check", "--feature", "demo", "--json", site)
        found = digest(site)
        assert found in (pristine, patched)
        for said, done in (("Reverted", pristine), ("Applied", patched)):
            assert said not in out or found == done
        (target,) = json.loads(status.stdout)["targets"]
        assert target["state"] == ("applied" if found == patched else "pristine")
        outcomes.add(found == patched)
        if (found == patched) is (number % 2 == 0):
            assert command(*action).returncode == 0
    return outcomes


def test_ctrl_c_at_some_moments(command: Command, site: Path) -> None:
    _interrupt_at_random(command, site, rounds=3, seed=1)


@pytest.mark.slow
@pytest.mark.thorough  # test_faults.py interrupts at every call, the test above a real process
def test_ctrl_c_at_many_moments(command: Command, site: Path) -> None:
    assert _interrupt_at_random(command, site, rounds=30, seed=2) == {True, False}


# What others read


def test_the_diff_goes_through_git_and_does_what_apply_does(
    command: Command, site: Path, tmp_path: Path
) -> None:
    theirs = fake_vllm.tree(tmp_path / "theirs")
    line = shlex.join(command.line("diff", "--feature", "demo", theirs))
    piped = subprocess.run(
        f"{line} | git -C {shlex.quote(str(theirs))} apply",
        shell=True,
        cwd=command.patches,
        env={**command.env, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert piped.returncode == 0, piped.stderr
    assert command("apply", "--feature", "demo", site).returncode == 0
    assert digest(theirs / "vllm") == digest(site / "vllm")
    # What somebody else put there is not ours to take out.
    found = json.loads(command("check", "--feature", "demo", "--json", theirs).stdout)
    assert found["targets"][0]["state"] == "upstreamed"
    assert command("revert", theirs).returncode == 0
    assert digest(theirs / "vllm") == digest(site / "vllm")


def test_json_is_what_the_design_says_and_alone(command: Command, site: Path) -> None:
    for name, options in (
        ("check", ["--feature", "demo"]),
        ("apply", ["--feature", "demo", "--dry-run"]),
        ("apply", ["--feature", "demo"]),
        ("status", []),
        ("revert", []),
    ):
        done = command(name, *options, "--json", site)
        # On a busy machine a command may say what it waits for.
        assert re.fullmatch(r"((reading|checked) .*\n)*", done.stderr)
        answer = json.loads(done.stdout)
        assert list(answer) == ["schema", "command", "exit", "code", "verdict", "targets"]
        assert (answer["schema"], answer["command"], answer["exit"]) == (2, name, done.returncode)
        (target,) = answer["targets"]
        further = {
            "in_memory",
            "model_runner",
            "not_in_memory",
            "obstacles",
            "left_out",
        }  # only where there are some
        assert [key for key in target if key not in further] == [
            *("target", "package", "vllm", "root", "state", "applied", "interrupted"),
            *("warnings", "features"),
        ]
        assert (target["target"], target["root"], target["vllm"]) == (
            str(site),
            str(site),
            "0.26.0",
        )
        (demo,) = [one for one in target["features"] if one["feature"] == "demo"]
        assert list(demo) == ["feature", "state", "files"]
        files = {file["path"]: file for file in demo["files"]}
        assert set(files) == {PROPOSER, ADDED}
        assert all(list(file) == ["path", "state", "patch", "hunks"] for file in files.values())
        assert files[ADDED]["hunks"] == []
        for hunk_ in files[PROPOSER]["hunks"]:
            assert list(hunk_) == [*("scope", "state", "line", "reason", "next", "candidates")]
    read_only = json.loads(command("check", "--json", fake_vllm.wheel(site.parent)).stdout)
    assert read_only["targets"][0]["root"] is None


def test_the_last_line_agrees_with_the_exit_code(command: Command, site: Path) -> None:
    only = ("--feature", "demo")
    for arguments, code, last in (
        (("check", *only, site), 0, "Nothing needs you: demo can be applied to vLLM 0.26.0."),
        (("apply", *only, site), 0, "Applied demo to vLLM 0.26.0, 2 files written."),
        (("check", *only, site), 0, "Nothing needs you: demo is applied to vLLM 0.26.0."),
        (("revert", site.parent), 2, "error: "),
    ):
        done = command(*arguments)
        assert done.returncode == code
        shown = (done.stderr if code == 2 else done.stdout).splitlines()[-1]
        assert shown.startswith(last)
    (site / PROPOSER).write_text("")
    done = command("revert", site)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("Nothing was reverted in vLLM 0.26.0: ")


def test_every_example_of_the_help_is_understood(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No example meets an error of usage, whatever it finds on this machine."""
    monkeypatch.chdir(tmp_path)  # one of them writes a page there
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr("overlay.commands.check.releases", lambda span: ())
    seen = set()
    for name in ("", *COMMANDS):
        shown = cli(*([name] if name else []), "--help").out
        for line in re.sub(r"\\\n\s*", " ", shown).splitlines():
            if not line.strip().startswith("overlay "):
                continue
            words = shlex.split(line, comments=True)[1:]
            ends = (at for at, word in enumerate(words) if word in ("|", ">", ">>"))
            words = words[: next(ends, None)]
            result = cli(*words)
            assert "shows what is possible" not in result.err, line
            seen.add(next(word for word in words if word in COMMANDS))
    assert seen == set(COMMANDS)


# Folders of patches


def test_a_folder_named_by_option_and_environment_is_one(
    command: Command, site: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(command.patches)
    command.environment["OVERLAY_PATCHES"] = str(tmp_path / "link")
    done = command("--patches", ".", "list", "--json")
    ids = [one["feature"] for one in json.loads(done.stdout)["features"]]
    assert ids.count("demo") == 1
    assert command("apply", "--feature", "demo", site).returncode == 0


def test_every_way_a_patch_can_fail_is_told_at_once(cli: Cli, tmp_path: Path) -> None:
    twice = (
        fake_vllm.files()[PROPOSER]
        .decode()
        .replace(
            "        return drafts\n",
            "        tokens = 1\n        tokens = 1\n        return drafts\n",
        )
    )
    site = fake_vllm.site_packages(tmp_path / "site", extra={PROPOSER: twice.encode()})
    inside = "SpecDecodeBaseProposer.propose"
    for feature, path, lines, scope in (
        ("ambiguous-lines", PROPOSER, ["         tokens = 1", "+        pass"], inside),
        ("renamed-scope", PROPOSER, ["         return drafts", "+        pass"], f"{inside}d"),
        ("rewritten", PROPOSER, ["         return tokens", "+        pass"], inside),
        ("no-file", "vllm/v1/gone.py", [" x", "+y"], "<module>"),
        ("no-python", RUNNER, ["         captured = 0", "+        captured = ="], "GPUModelRunner"),
        (
            "same-lines",
            PROPOSER,
            ["-        drafts = [self._first(tokens)]", "+        drafts = []"],
            inside,
        ),
    ):
        patch = patch_text(path, hunk(lines, scope))
        write_feature(cli.team, {f"10-x/{VARIANT}": patch}, id=feature)
    before = digest(site)
    result = cli("--patches", cli.team, "apply", site)
    assert result.exit == 1
    for words in (
        "ambiguous-lines     ambiguous !",
        "renamed-scope       missing !",
        "rewritten           drifted !",
        "no-file             missing !",
        "no-python           drifted !",
        f"expected the scope {inside}d, found none of that name; similar ones are {inside}",
        "expected the file vllm/v1/gone.py, found none",
        "the patched file is not Python",
        "next:  correct no-python/",
        "next:  leave one of them out, ",
        ", or make one patch of both",
    ):
        assert " ".join(words.split()) in " ".join(result.out.split()), words
    assert digest(site) == before


# Two overlays


def test_two_overlays_of_different_versions(command: Command, site: Path, tmp_path: Path) -> None:
    old = Command(tmp_path / "old-team", tmp_path / "old", command.environment)
    shutil.copytree(REPOSITORY / "overlay", old.code / "overlay")
    shutil.copytree(REPOSITORY / "patches", old.code / "overlay/patches")
    version = old.code / "overlay/__init__.py"
    version.write_text('__version__ = "0.0.9"\n')
    older = {**DEMO, f"20-capture/{VARIANT}": CAPTURE, f"files/{ADDED}": "VALUE = 0\n"}
    write_feature(old.patches, older)
    pristine = digest(site)

    assert old("apply", "--feature", "demo", site).returncode == 0
    checked = command("check", "--feature", "demo", site)
    assert checked.returncode == 0
    assert "demo was applied in another form, by vllm-overlay 0.0.9" in checked.stdout
    assert command("apply", "--feature", "demo", site).returncode == 0
    assert (site / ADDED).read_text() == "VALUE = 1\n"
    assert (site / RUNNER).read_bytes() == fake_vllm.files()[RUNNER]
    assert old("revert", site).returncode == 0
    assert digest(site) == pristine
