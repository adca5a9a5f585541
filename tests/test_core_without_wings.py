"""The core patches and serves where the wings, authoring and proof, are not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.recording.states import ADDED, PROPOSER, write_shipped, write_team
from tests.support import fake_vllm

REPOSITORY = Path(__file__).resolve().parents[1]
WINGS = {"authoring": "import new edit log prune port".split(), "proof": "bench verify".split()}
#: Command line -> exit status, in this order; SITE is an installation, TEAM a folder of patches.
CORE = {
    "--help": 0,
    "--version": 0,
    **{f"help {name}": 0 for name in "check apply revert status adopt diff list".split()},
    "list": 0,
    "list --json": 0,
    "check SITE": 0,
    "check SITE --json": 0,
    "diff SITE": 0,
    "apply SITE --patches TEAM": 0,
    "status SITE --patches TEAM": 0,
    "status SITE --patches TEAM --json": 0,
    "status --live": 0,
    "check SITE --patches TEAM": 0,
    "report SITE --patches TEAM --no-matrix --output page.html": 0,
    "revert SITE --feature window --patches TEAM": 0,
    "revert SITE": 0,
    "status SITE": 0,
    "apply SITE --dry-run": 0,
    "adopt SITE": 0,
    "doctor": 0,
    "doctor --json": 0,
    "cache dir": 0,
    "cache size": 0,
    "completion bash": 0,
    "chekc": 2,
}
#: An editable installation would find the wings where this checkout has them.
ALONE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
"""
RUN = """
import contextlib, io, json, sys
from overlay.cli.run import run
answers = {}
for line in json.load(sys.stdin):
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = run(line.split())
        out.flush()
    answers[line] = status, out.buffer.getvalue().decode()
json.dump([answers, [name for name in sys.modules if name.startswith("overlay.")]], sys.stdout)
"""
SERVE = f"""
from overlay.plugin import register
register()
import {PROPOSER.removesuffix(".py").replace("/", ".")} as proposer
import {ADDED.removesuffix(".py").replace("/", ".")} as added
import inspect, sys
assert "# patched" in inspect.getsource(proposer)
assert added.VALUE == 1
assert not any(name.startswith(("overlay.authoring", "overlay.proof")) for name in sys.modules)
"""


class Answer(NamedTuple):
    """What a command said, and its exit status."""

    status: int
    output: str


class House:
    """A copy of ``overlay/`` without the wings, small features, and an installed vLLM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        left_out = [REPOSITORY / "overlay" / wing for wing in WINGS]
        shutil.copytree(
            REPOSITORY / "overlay",
            folder / "code/overlay",
            ignore=lambda place, names: [name for name in names if Path(place, name) in left_out],
        )
        (folder / "run").mkdir(mode=0o700)
        write_shipped(folder / "code/overlay/patches")
        write_team(folder / "team")
        fake_vllm.site_packages(self.site, "0.26.0", {"vllm/__init__.py": b""})

    def python(self, code: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run code that imports this copy of ``overlay``, and the vLLM of the site."""
        path = os.pathsep.join(map(str, (self.folder / "code", self.site)))
        variables = {"PYTHONPATH": path, "HOME": str(self.folder), "PATH": os.environ["PATH"]}
        variables["XDG_RUNTIME_DIR"] = str(self.folder / "run")  # no other process's records
        return subprocess.run(
            [sys.executable, "-c", ALONE + code],
            cwd=self.folder,
            env={**variables, "OVERLAY_CACHE": str(self.folder / "cache"), "PIP_NO_INDEX": "1"},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *lines: str) -> dict[str, Answer]:
        """The answers of commands, all in one process."""
        places = {"SITE": str(self.site), "TEAM": str(self.folder / "team")}
        spelt = {" ".join(places.get(word, word) for word in line.split()): line for line in lines}
        done = self.python(RUN, json.dumps(list(spelt)))
        assert done.returncode == 0, done.stderr
        answers, modules = json.loads(done.stdout)
        assert not [name for name in modules if name.split(".")[1] in WINGS]
        return {spelt[line]: Answer(*answer) for line, answer in answers.items()}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


def test_the_commands_of_the_core_answer(house: House) -> None:
    answers = house.run(*CORE)
    wrong = [
        f"overlay {line}: exit {answer.status}, expected {CORE[line]}\n{answer.output}"
        for line, answer in answers.items()
        if answer.status != CORE[line]
    ]
    assert not wrong, "\n".join(wrong)
    assert (house.folder / "page.html").is_file()


def test_the_overview_lists_the_commands_that_there_are(house: House) -> None:
    (answer,) = house.run("--help").values()
    assert "  check " in answer.output
    for name in (command for wing in WINGS.values() for command in wing):
        assert f"  {name} " not in answer.output


def test_a_process_is_patched(house: House) -> None:
    done = house.python(SERVE)
    assert done.returncode == 0, done.stderr


def test_a_page_without_the_matrix_of_a_wing_says_so(house: House) -> None:
    (answer,) = house.run("report SITE --output page.html").values()
    assert answer.status in (0, 1), answer.output
    assert "Traceback" not in answer.output
    assert "overlay/authoring" in (house.folder / "page.html").read_text()


@pytest.mark.parametrize("wing", WINGS)
def test_a_command_of_a_wing_says_what_is_missing(house: House, wing: str) -> None:
    answers = house.run(*(f"{name} x" for name in WINGS[wing]))
    for name in WINGS[wing]:
        status, output = answers[f"{name} x"]
        assert status == 2, output
        assert f"overlay {name}" in output
        assert f"overlay/{wing}" in output, output
        assert "Traceback" not in output
