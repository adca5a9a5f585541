"""A git repository of a test, with fixed authors and dates."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is optional to the overlay")


@dataclass(frozen=True)
class Repository:
    """A repository; ``folder`` is its work tree."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Repository:
        """An empty repository."""
        folder.mkdir(parents=True, exist_ok=True)
        repository = cls(folder)
        repository("init", "-q", "-b", "main")
        return repository

    def __call__(self, *arguments: str) -> str:
        """What git answers."""
        names = {
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@example.com",
            "GIT_AUTHOR_DATE": "2026-11-03T10:00:00+0000",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.com",
            "GIT_COMMITTER_DATE": "2026-11-03T10:00:00+0000",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        command = ["git", *arguments]
        env = {**os.environ, **names}
        done = subprocess.run(command, cwd=self.folder, env=env, check=True, capture_output=True)
        return done.stdout.decode()

    def commit(self, subject: str, files: dict[str, bytes]) -> str:
        """Commit files, and give the commit's id."""
        for name, data in files.items():
            place = self.folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        self("add", "-A")
        self("commit", "-q", "-m", subject)
        return self("rev-parse", "HEAD").strip()
