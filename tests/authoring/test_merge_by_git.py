"""Law 9: the three-way merge agrees with ``git merge-file``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from overlay.authoring.merge import merge
from tests.authoring.test_merge import distinct


@pytest.mark.skipif(shutil.which("git") is None, reason="the peer is git's own merge")
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=distinct())
def test_it_agrees_with_git_on_texts_without_repeated_lines(
    tmp_path: Path, texts: tuple[list[str], list[str], list[str]]
) -> None:
    """Law 9: both find a conflict, or both make the same text."""
    base, ours, theirs = texts
    files = [tmp_path / name for name in ("ours", "base", "theirs")]
    for file, text in zip(files, (ours, base, theirs), strict=True):
        file.write_text("".join(f"{line}\n" for line in text))
    done = subprocess.run(
        ["git", "merge-file", "-p", *map(str, files)], capture_output=True, check=False
    )
    merged = merge(base, ours, theirs)
    assert bool(merged.conflicts) is (done.returncode > 0)
    if not merged.conflicts:
        assert done.stdout.decode().splitlines() == list(merged.lines)
