"""Changes as public repositories carry them, imported as they are; patch makes the same bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.planning.planner import plan
from tests.authoring.commands.test_import import releases
from tests.authoring.test_importing import BASE, PATCHED, PATH
from tests.authoring.test_paths import EPOCHS, part
from tests.support.cli import Cli
from tests.support.patches import MemoryTree

__all__ = ["releases"]  # the fixture

RELEASE = "0.22.0"
DATES = ("2026-08-01 10:00:00.000000000 +0200", "2026-08-02 10:00:00.000000000 +0200")
OURS = b"def started():\n    return 1\n"
INSIDE = PATH.removeprefix("vllm/")
DIST = "usr/local/lib/python3.12/dist-packages/"
PROSE = "Fix the count of runs\n\nSee the report.\n---\n"


def edited(old: str, new: str) -> str:
    return part(f"{old}{PATH}", f"{new}{PATH}", BASE, PATCHED, ("", ""))


#: Name -> where patch is called, its -p, and the diffs in their order.
SHAPES = {
    "inside the package, with dates, on top of each other": (
        "vllm",
        1,
        [
            part(f"a/{INSIDE}", f"b/{INSIDE}", BASE, PATCHED, DATES),
            part("a/v1/ours.py", "b/v1/ours.py", None, OURS, DATES),
            part("a/v1/ours.py", "b/v1/ours.py", OURS, OURS.replace(b"1", b"2"), DATES),
        ],
    ),
    "dist-packages, blank lines without their blank": (
        ".",
        6,
        [edited(f"a/{DIST}", f"b/{DIST}").replace("\n \n", "\n\n")],
    ),
    "git without ids": (
        ".",
        1,
        [f"diff --git a/{PATH} b/{PATH}\n{edited('a/', 'b/')}"],
    ),
    "prose before the diff": (".", 1, [PROSE + edited("a/", "b/")]),
    "a copy of the folder, with new files of the epoch": (
        ".",
        0,
        [
            f"diff -ruN vllm.orig/v1/runner.py {PATH}\n"
            + part("vllm.orig/v1/runner.py", PATH, BASE, PATCHED, DATES)
            + "diff -ruN vllm.orig/v1/ours.py vllm/v1/ours.py\n"
            + part("vllm.orig/v1/ours.py", "vllm/v1/ours.py", None, OURS, (EPOCHS[1], DATES[1]))
        ],
    ),
    "python/": (".", 2, [edited("a/python/", "b/python/")]),
    "absolute": (".", 6, [edited(f"/{DIST}", f"/{DIST}")]),
    "numbered sides": (".", 1, [edited("1/", "2/")]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_imported_as_it_is(cli: Cli, tmp_path: Path, name: str) -> None:
    if shutil.which("patch") is None:
        pytest.skip("no patch")
    folder, strip, diffs = SHAPES[name]
    site = tmp_path / "site"
    (site / PATH).parent.mkdir(parents=True)
    (site / PATH).write_bytes(BASE)
    (site / "vllm.orig/v1").mkdir(parents=True)
    (site / "vllm.orig/v1/runner.py").write_bytes(BASE)
    files = []
    for number, data in enumerate(diffs):
        files.append(tmp_path / f"{number}.diff")
        files[-1].write_text(data)
        words = ["patch", f"-p{strip}", "--no-backup-if-mismatch", "-i", files[-1]]
        subprocess.run(words, cwd=site / folder, check=True, capture_output=True)
    ours = tmp_path / "ours"
    each = ("--each",) if len(files) > 1 else ()
    result = cli("import", *files, "--id", "c", "--patches", ours, *each)
    assert result.exit == 0, result.err
    changes = plan(load([ours]), MemoryTree({PATH: BASE}), Version(RELEASE)).changes
    made = {change.path: change.after for change in changes}
    there = {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in (site / "vllm").rglob("*.py")
    }
    assert made == there


def test_the_file_that_a_build_writes_is_left_out(cli: Cli, tmp_path: Path) -> None:
    """A diff of two installations has it, and a feature would change what vLLM says it is."""
    version = part("a/vllm/_version.py", "b/vllm/_version.py", b"version = 1\n", b"v = 2\n", DATES)
    for site in ("", f"a/{DIST}"):
        row = part(
            f"{site}vllm-1.dist-info/RECORD",
            f"{site}vllm-1.dist-info/RECORD",
            b"a\n",
            b"b\n",
            DATES,
        )
        (tmp_path / "c.diff").write_text(version + edited("a/", "b/") + row)
        told = cli(
            "import", tmp_path / "c.diff", "--id", "c", "--patches", tmp_path / "p", "--update"
        )
        assert told.exit == 0, told.err
        assert "left out  2 packaging" in told.out
