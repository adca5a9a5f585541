"""Completion in a real bash, with readline on a terminal: what a user sees behind the Tab key."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash")
SECONDS = 60.0

pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")


class Terminal:
    """A bash on a terminal of its own, in a folder that holds ``srcdir/``."""

    def __init__(self, folder: Path) -> None:
        command = folder / "bin" / "overlay"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m overlay "$@"\n')
        command.chmod(0o755)
        (folder / "srcdir").mkdir()
        (folder / "inputrc").write_text("set enable-bracketed-paste off\nset bell-style none\n")
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [str(BASH), "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "INPUTRC": str(folder / "inputrc"),
                "TERM": "dumb",
                "PS1": "> ",
                "HOME": str(folder),
                "HISTFILE": "",
            },
        )
        os.close(slave)

    def type(self, keys: str, until: str) -> str:
        """Type, and read until some text appears.

        :returns: what appeared, the keys' own echo included.
        """
        os.write(self.master, keys.encode())
        shown = b""
        deadline = time.monotonic() + SECONDS
        while until.encode() not in shown:
            assert time.monotonic() < deadline, (until, shown)
            if select.select([self.master], [], [], 0.1)[0]:
                shown += os.read(self.master, 4096)
        return shown.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    try:
        opened.type('eval "$(overlay completion bash)"; echo re""ady\n', "ready")
        yield opened
    finally:
        opened.close()


def test_the_tab_key_completes_commands_options_features_releases_and_folders(
    terminal: Terminal,
) -> None:
    for typed, expected in (
        ("overlay app", "overlay apply "),
        ("overlay apply --fea", "overlay apply --feature "),
        ("overlay apply --feature draft-gr", "overlay apply --feature draft-graphs "),
        ("overlay check 0.31", "overlay check 0.31.0 "),
        ("overlay check src", "overlay check srcdir"),
        ("overlay completion b", "overlay completion bash "),
    ):
        shown = terminal.type(f"{typed}\t", expected[len(typed) :])
        assert expected in shown.replace("\r", "").replace("\a", "")
        terminal.type("\x15\n", "> ")  # clears the line


def test_a_malformed_patches_folder_completes_nothing_and_says_nothing(
    terminal: Terminal, tmp_path: Path
) -> None:
    """A shell has no place for the error, and what a stranger called a folder is never run."""
    (tmp_path / "patches" / "$(touch evil)").mkdir(parents=True)
    terminal.type(f'export OVERLAY_PATCHES={tmp_path}/patches; echo se""t\n', "set")
    shown = terminal.type('overlay apply --feature dr\t\x15echo do""ne\n', "done")
    assert "draft-graphs" not in shown
    assert "rror" not in shown
    assert not (tmp_path / "evil").exists()
