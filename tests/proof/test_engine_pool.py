"""What engines print is kept in files of their own."""

import os
import sys
from pathlib import Path

import pytest

from overlay.proof.engine_pool import Job, run_jobs


@pytest.mark.slow
def test_a_log_is_written_through_no_link(tmp_path: Path) -> None:
    other, log = tmp_path / "other", tmp_path / "auto.log"
    other.write_text("somebody's", encoding="utf-8")
    log.symlink_to(other)
    command = (sys.executable, "-c", "print(input())")
    job = Job("auto", command, os.environ, tmp_path, log)

    ended = run_jobs([job], at_a_time=1, deadline=60, on_engine=lambda job, end: None)["auto"]

    assert (ended.status, ended.log.strip()) == (0, "go")
    assert other.read_text(encoding="utf-8") == "somebody's"
    assert not log.is_symlink()
