"""The workflows of a hosted CI: what linters say of them, what they may, and what they run.

What needs a host's service is run by nothing here: see ``NOT_RUN``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from overlay import __version__
from scripts import release
from scripts.environment import PYTHONS
from tests.support import fake_vllm
from tests.support.fake_index import serve
from tests.support.markdown import ROOT

FOLDER = ROOT / ".github/workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
#: The tests of this file, or of test_packaging.py, that run a step's commands.
RUN = {
    ("new-vllm", "Check"),
    ("new-vllm", "Open or edit the issue"),
    ("release", "Build"),
    ("tests", "Build"),
}
#: Why a step's commands are run by no test.
NOT_RUN = {
    ("docs", "Install"): "the site's test builds it with the tools of the development environment",
    ("docs", "Build"): "the site's test",
    ("new-vllm", "Install"): "test_packaging.py installs the wheel",
    ("release", "Attest for the package index"): "who signs is known to the host alone",
    ("release", "Publish"): "the package index knows the host",
    ("release", "Make the release"): "of the host",
    ("tests", "Install"): "of the environment in which the tests run",
    ("tests", "Test"): "these tests",
}


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (name, key, job) for name, flow in WORKFLOWS.items() for key, job in flow["jobs"].items()
    ]


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(name, step) for name, _, job in jobs() for step in job["steps"]]


def commands(workflow: str, title: str) -> str:
    (step,) = (step for name, step in steps() if name == workflow and step.get("name", "") == title)
    return str(step["run"])


def test_each_step_is_run_or_has_a_reason() -> None:
    ran = {(name, step["name"]) for name, step in steps() if "run" in step}
    assert ran == RUN | NOT_RUN.keys()
    assert not RUN & NOT_RUN.keys()


def test_actions_are_pinned_by_commit_and_one_action_by_one() -> None:
    text = "\n".join(path.read_text() for path in FOLDER.glob("*.yml"))
    pins = dict[str, set[str]]()
    for use in re.findall(r"uses: (.*)", text):
        match = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40} # v[\d.]+)", use)
        assert match is not None, use
        pins.setdefault(match[1], set()).add(match[2])
    assert all(len(commits) == 1 for commits in pins.values())


def test_nothing_is_granted_but_to_a_job_that_names_it() -> None:
    assert all(flow["permissions"] == {} for flow in WORKFLOWS.values())
    write = {
        (name, key, right)
        for name, key, job in jobs()
        for right, grant in job["permissions"].items()
        if grant == "write"
    }
    assert write == {
        ("docs", "deploy", "id-token"),
        ("docs", "deploy", "pages"),
        ("new-vllm", "check", "issues"),
        ("release", "announce", "contents"),
        ("release", "publish", "attestations"),
        ("release", "publish", "id-token"),
    }


def test_the_pythons_that_are_claimed_are_those_that_are_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    tests = WORKFLOWS["tests"]["jobs"]
    assert tests["python"]["strategy"]["matrix"]["python"] == claimed
    assert tests["engine"]["strategy"]["matrix"]["python"] == list(PYTHONS)
    (least,) = SpecifierSet(re.findall(r'requires-python = "(.*)"', text)[0])
    assert str(least) == f">={claimed[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("linter", ["actionlint", "zizmor"])
def test_the_linters_find_nothing(linter: str) -> None:
    if linter == "zizmor" and sys.version_info < (3, 11):
        pytest.skip("zizmor needs Python 3.11")
    program = shutil.which(linter, path=os.path.dirname(sys.executable))
    assert program is not None
    options = ["--offline", "--no-progress"] if linter == "zizmor" else []
    files = [str(path) for path in FOLDER.glob("*.yml")]
    done = subprocess.run(
        [program, *options, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


#: A `gh` that has one list of issues: a file for each, with its text.
GH = """#!/bin/sh
case "$1 $2" in
    "issue list") ls issues ;;
    "issue create") [ "$3" = --title ] && cp "$6" issues/7 ;;
    "issue edit") cp "$5" "issues/$3" ;;
    *) exit 9 ;;
esac
"""


@pytest.mark.slow
def test_a_new_release_opens_one_issue_that_the_next_night_edits(tmp_path: Path) -> None:
    programs = {"gh": GH, "overlay": f'#!/bin/sh\nexec "{sys.executable}" -m overlay "$@"\n'}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "issues").mkdir()

    def night() -> list[str]:
        for title in ("Check", "Open or edit the issue"):
            (tmp_path / "step.sh").write_text(commands("new-vllm", title))
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
            subprocess.run(shell, cwd=tmp_path, env=environment, check=True)
        for left in ("issue.md", "report.json", "before.json"):
            (tmp_path / left).unlink(missing_ok=True)  # a fresh machine
        return [path.read_text() for path in (tmp_path / "issues").iterdir()]

    with serve() as index:
        environment = {
            **{name: text for name, text in os.environ.items() if "OVERLAY" not in name},
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OVERLAY_CACHE": str(tmp_path / "cache"),
            "PIP_INDEX_URL": index.simple,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        index.add(fake_vllm.sdist(tmp_path, "0.33.0"))
        assert night() == []
        index.add(fake_vllm.sdist(tmp_path, "0.99.0"))
        (first,) = night()
        assert "| 0.99.0 | draft-graphs |" in first
        index.add(fake_vllm.sdist(tmp_path, "0.99.1"))
        (second,) = night()
        assert "| 0.99.0 | draft-graphs |" in second
        assert "| 0.99.1 | draft-graphs |" in second


# The release


LOG = """# Changelog

## [1.1.0] - 2026-12-24

Two lines.

- One.

## [1.0.0] - unreleased

- Zero.
"""


def test_the_notes_are_what_the_changelog_says_of_the_version() -> None:
    assert release.notes("1.1.0", LOG, tag="v1.1.0") == "Two lines.\n\n- One.\n"
    assert release.notes("1.0.0", LOG, tag=None) == "- Zero.\n"


@pytest.mark.parametrize(
    ("number", "tag", "text"),
    [
        ("1.2.0", None, r"expected a part '## \[1.2.0\] - DATE', found none"),
        ("1.1.0", "v1.0.0", "expected the tag v1.1.0 of overlay/__init__.py, found v1.0.0"),
        ("1.0.0", "v1.0.0", "expected the date of 1.0.0, found 'unreleased'"),
    ],
)
def test_another_version_than_the_tag_says_is_not_released(
    number: str, tag: str | None, text: str
) -> None:
    with pytest.raises(release.ReleaseFailed, match=text):
        release.notes(number, LOG, tag=tag)


def test_this_version_is_in_the_changelog_in_forty_points_at_most() -> None:
    notes = release.notes(__version__, (ROOT / "CHANGELOG.md").read_text(), tag=None)
    assert 1 <= notes.count("\n- ") <= 40


def test_builds_that_differ_are_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*command: str | Path) -> None:
        folder = Path(command[-1])
        folder.mkdir()
        (folder / "it-1.0.whl").write_text(str(folder))
        (folder / "it-1.0.tar.gz").write_text("")

    monkeypatch.setattr(release, "run", build)
    with pytest.raises(release.ReleaseFailed, match=r"two builds of it-1\.0\.whl differ"):
        release.build(tmp_path / "out", tmp_path)


def test_a_tool_that_is_missing_is_named_with_what_brings_it() -> None:
    with pytest.raises(release.ReleaseFailed, match=r"expected no-such-tool on PATH .*environment"):
        release.run("no-such-tool")


@pytest.mark.slow
@pytest.mark.network
def test_what_is_released_is_made_and_checked(tmp_path: Path) -> None:
    """All of it but the tests out of the source distribution: those are a test of their own."""
    out = tmp_path / "dist"
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, ROOT / "scripts/release.py", "--untested", "--out", out]
    subprocess.run(command, env={**os.environ, "PATH": path}, check=True)
    names = {path.name for path in out.iterdir()} - {".gitignore"}
    stem = f"vllm_overlay-{__version__}"
    assert names == {
        f"{stem}-py3-none-any.whl",
        f"{stem}.tar.gz",
        f"{stem}.cdx.json",
        "notes.md",
    }
    bill = json.loads((out / f"{stem}.cdx.json").read_text())
    assert bill["metadata"]["component"]["version"] == __version__
    assert {"click", "requests", "rich"} <= {part["name"] for part in bill["components"]}
    assert str(tmp_path) not in json.dumps(bill)
