"""The script of ``docs/keeping-up.md``: run as it is on the page, each night of a small story."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from overlay._features.folder import load
from overlay._features.model import of_package, paths_of
from overlay._features.sources import shipped_folder
from overlay.cache import cache_folder
from overlay.package import KNOWN_RELEASES, VLLM
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.cli import digest
from tests.support.fake_index import FakeIndex, serve
from tests.support.git_repository import Repository, needs_git
from tests.support.markdown import ROOT
from tests.support.patches import hunk, patch_text

PAGE = ROOT / "docs/keeping-up.md"
BASE = "0.33.0"
PATH = "vllm/v1/engine/detokenizer.py"
HEADERS = f"Description: A test\nOrigin: the tests\nLast-Update: 2026-11-20\nBase: {BASE}\n\n"

pytestmark = [pytest.mark.network, needs_git]


def block(name: str) -> str:
    """A file that the page holds."""
    match = re.search(
        rf"<!-- file: {re.escape(name)} -->\n```\w+\n(.*?)```\n", PAGE.read_text(), re.DOTALL
    )
    assert match is not None
    return match[1]


@dataclass
class Night:
    """A team's clone, and the index that its pip is configured for."""

    clone: Repository
    index: FakeIndex
    folder: Path

    def publish(self, version: str, changed: dict[str, bytes | None] | None = None) -> None:
        """A release with the files of ``BASE`` that patches speak of, and with changes."""
        target = resolve(BASE)
        paths = {PATH, *paths_of(of_package(load([shipped_folder()]), VLLM))}
        extra: dict[str, bytes | None] = {path: target.read(path) for path in sorted(paths)}
        self.index.add(fake_vllm.sdist(self.folder, version, {**extra, **(changed or {})}))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the script sees: this overlay, this index, a cache of its own."""
        kept = {name: value for name, value in os.environ.items() if "OVERLAY" not in name}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": str(self.folder / "installed"),
            "OVERLAY_CACHE": str(self.folder / "cache"),
            "PIP_INDEX_URL": self.index.simple,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": os.devnull,
            "NO_COLOR": "1",
        }

    def run(self) -> tuple[int, str]:
        """The script's exit status, and its report."""
        shutil.rmtree(self.clone.folder / "port-0.34.0", ignore_errors=True)  # a fresh clone
        done = subprocess.run(
            ["sh", "nightly.sh"],
            cwd=self.clone.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (self.clone.folder / "report.txt").read_text() == done.stdout
        return done.returncode, done.stdout + done.stderr

    def diff(self) -> str:
        return self.clone("diff", "-M", "--", "our-patches")


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the known releases; each night leaves there what it has read of their modules.

    To read them takes a night fifteen seconds, and an entry is named by the text it is of.
    """
    cache = tmp_path_factory.mktemp("warm")
    for folder in (cache, cache / "releases"):
        folder.mkdir(mode=0o700, exist_ok=True)
    for release in KNOWN_RELEASES:  # on a fresh machine no other test may have fetched it yet
        resolve(release)
    for archive in (cache_folder() / "releases").glob("vllm-0.[23]*.zip"):
        shutil.copy(archive, cache / "releases" / archive.name)
    return cache


@pytest.fixture
def night(tmp_path: Path, warm_cache: Path) -> Iterator[Night]:
    command = tmp_path / "bin/overlay"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m overlay "$@"\n')
    command.chmod(0o755)
    # As pip installs it: of a checkout, port would write the shipped features as well.
    package = tmp_path / "installed/overlay"
    shutil.copytree(ROOT / "overlay", package)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "patches", package / "patches", ignore=leave)
    shipped = digest(package / "patches")
    shutil.copytree(warm_cache, tmp_path / "cache")
    source = (resolve(BASE).read(PATH) or b"").decode()
    lines = source.split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith("class FastIncrementalDetok"))
    place = tmp_path / "team/our-patches/count-tokens"
    (place / "10-detokenizer").mkdir(parents=True)
    (place / "feature.toml").write_text(
        f'id = "count-tokens"\ntitle = "Count"\nwhy = "w"\nreason = "local"\n'
        f'releases = "{BASE}..{BASE}"\n[[upstreamed]]\npath = "{PATH}"\n'
        'lines = ["COUNT_OF_TOKENS_SEEN = 0"]\n'
    )
    added = ["+COUNT_OF_TOKENS_SEEN = 0", "+", "+"]
    text = patch_text(PATH, hunk([*added, f" {lines[at]}"]), headers=HEADERS)
    (place / f"10-detokenizer/{BASE}..{BASE}.patch").write_text(text)
    clone = Repository.create(tmp_path / "team")
    clone.commit("Our patches", {"nightly.sh": block("nightly.sh").encode()})
    with serve() as index:
        made = Night(clone, index, tmp_path)
        index.add(fake_vllm.sdist(tmp_path, BASE))  # known: nothing of it is fetched
        yield made
    shutil.copytree(tmp_path / "cache/syntax", warm_cache / "syntax", dirs_exist_ok=True)
    assert digest(package / "patches") == shipped
    # Beside the sources other tests may write bytecode meanwhile.
    there = digest(ROOT / "patches")
    assert {path: there[path] for path in there if "__pycache__" not in path} == shipped


def test_a_team_hears_of_new_releases_and_gets_a_diff(night: Night) -> None:
    status, said = night.run()
    assert status == 0, said
    assert "no release that is newer" in said
    assert night.diff() == ""

    night.publish("0.34.0")
    status, said = night.run()
    assert status == 0, said
    assert "\nvLLM 0.34.0\n" in said, said
    assert '+releases = "0.33.0..0.34.0"' in night.diff()
    assert "+++ b/our-patches/count-tokens/10-detokenizer/0.33.0..0.34.0.patch" in night.diff()
    assert "10-detokenizer/0.33.0..0.34.0.patch" in said
    night.clone.commit("Reviewed", {})
    status, said = night.run()
    assert (status, night.diff()) == (0, ""), said

    source = resolve(BASE).read(PATH) or b""
    night.publish("0.35.0", {PATH: b"COUNT_OF_TOKENS_SEEN = 0\n" + source})
    status, said = night.run()
    assert status == 0, said
    assert '+merged = "0.35.0"' in night.diff()


# The workflow

#: What a stub of the command ``gh`` does: it has no pull request, and notes what is asked of it.
_GH = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
test "$1 $2" != "pr view"
"""


class Workflow:
    """The workflow of the page, its shell steps run as GitHub's runner runs them.

    The actions that it uses are not run: the clone is there, and so is the overlay.
    """

    def __init__(self, night: Night) -> None:
        self.night = night
        (self.job,) = workflow()["jobs"].values()
        self.outputs: dict[str, str] = {}
        self.asked = night.folder / "gh.log"
        self.asked.touch()
        for name, text in (("gh", _GH.format(log=self.asked)), ("pip", "#!/bin/sh\n")):
            command = night.folder / "bin" / name
            command.write_text(text)
            command.chmod(0o755)
        self.origin = Repository(night.folder / "origin.git")
        night.clone("clone", "-q", "--bare", ".", str(self.origin.folder))
        night.clone("remote", "add", "origin", str(self.origin.folder))

    def run(self) -> dict[str, int]:
        """The exit status of each shell step by its name, up to the first that fails.

        What the steps gave is in ``outputs``.
        """
        outputs = self.outputs
        statuses: dict[str, int] = {}
        for step in self.job["steps"]:
            if "run" not in step:
                continue
            name = step.get("name", step.get("id", step["run"]))
            statuses[name] = self._step(step, outputs)
            if statuses[name]:
                break
        return statuses

    def report(self) -> str:
        """What the script of the page has told."""
        return (self.night.clone.folder / "report.txt").read_text()

    def _step(self, step: dict[str, Any], outputs: dict[str, str]) -> int:
        written = self.night.folder / "outputs"
        written.write_text("")
        more = {name: _filled(value, outputs) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "-e", "-c", _filled(step["run"], outputs)],
            cwd=self.night.clone.folder,
            env={**self.night.environment, "GITHUB_OUTPUT": str(written), **more},
            check=False,
        )
        for line in written.read_text().splitlines():
            name, _, value = line.partition("=")
            outputs[f"steps.{step['id']}.outputs.{name}"] = value
        return done.returncode


def _filled(text: str, outputs: dict[str, str]) -> str:
    """A text with the values of its expressions; an unknown one is an error."""
    known = {"github.token": "a-token", "github.run_id": "1", **outputs}
    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda match: known[match[1]], text)


def workflow() -> dict[str, Any]:
    """The workflow as GitHub reads it, but for ``on``, which YAML 1.1 takes for a truth value."""
    read = yaml.safe_load(block(".github/workflows/new-vllm.yml"))
    read["on"] = read.pop(True)
    assert isinstance(read, dict)
    return read


def test_the_workflow_is_one_that_github_can_read() -> None:
    read = workflow()
    assert set(read) == {"name", "on", "permissions", "jobs"}
    (schedule,) = read["on"]["schedule"]
    assert len(schedule["cron"].split()) == 5
    assert read["permissions"] == {"contents": "write", "pull-requests": "write"}
    (job,) = read["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    for step in job["steps"]:
        assert ("run" in step) is not ("uses" in step)
        assert set(step) <= {"id", "name", "uses", "with", "env", "run"}
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
    ids = {step["id"] for step in job["steps"] if "id" in step}
    named = re.findall(r"\$\{\{\s*steps\.(\w+)\.", block(".github/workflows/new-vllm.yml"))
    assert set(named) <= ids


def test_the_workflow_opens_a_pull_request_with_the_diff(night: Night) -> None:
    job = Workflow(night)
    night.publish("0.34.0")
    assert set(job.run().values()) == {0}
    asked = job.asked.read_text()
    assert "pr create --head new-vllm --title Patches for new vLLM releases" in asked
    diff = job.origin("diff", "-M", "main", "new-vllm")
    assert '+releases = "0.33.0..0.34.0"' in diff
    changed = job.origin("diff", "--name-only", "main", "new-vllm").split()
    assert all(name.startswith("our-patches/") for name in changed)


def test_the_workflow_fails_where_something_needs_a_person(night: Night) -> None:
    job = Workflow(night)
    source = (resolve(BASE).read(PATH) or b"").decode()
    night.publish("0.34.0", {PATH: source.replace("class FastIncr", "class QuickIncr").encode()})
    *passed, last = job.run().items()
    assert last == ("Fail where something needs a person", 1)
    assert {status for _, status in passed} == {0}
    assert job.asked.read_text() == ""
    assert "new-vllm" not in job.origin("branch", "--list")
    assert job.outputs["steps.nightly.outputs.status"] == "1"
    assert "conflict" in job.report()
    assert night.diff() == "", "a conflict writes nothing"


def test_the_workflow_stops_at_an_error(night: Night) -> None:
    job = Workflow(night)
    night.index.files.clear()
    *_, last = job.run().items()
    assert last == ("nightly", 1)
    assert job.asked.read_text() == ""
    assert job.outputs["steps.nightly.outputs.status"] == "2"
    assert "expected files of vllm on" in job.report()
