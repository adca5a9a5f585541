"""The command line in this process, with small features in the place of the shipped ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay.cli.run import run
from tests.support.patches import hunk, patch_text

PROPOSER = "vllm/v1/spec_decode/proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ADDED = "vllm/v1/spec_decode/demo.py"

PROPOSE = patch_text(
    PROPOSER,
    hunk(
        [
            "     def propose(self, tokens):",
            "-        drafts = [self._first(tokens)]",
            "+        drafts = [self._first(tokens)]  # patched",
        ],
        "SpecDecodeBaseProposer.propose",
    ),
)

CAPTURE = patch_text(
    RUNNER,
    hunk(
        [
            "         captured = 0",
            "-        for size in (1, 2, 4):",
            "+        for size in (1, 2, 4, 8):",
        ],
        "GPUModelRunner.capture_model",
    ),
)


@dataclass(frozen=True)
class Result:
    """What one command did."""

    exit: int
    out: str
    err: str

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands that the answer names, as a shell splits them; ``overlay`` is left out."""
        named = re.findall(r"`overlay ([^`]*)`", self.out + self.err)
        return tuple(dict.fromkeys(tuple(shlex.split(words)) for words in named))

    def command(self, *words: str) -> tuple[str, ...]:
        """The only command in the answer that begins with some words, as it is printed."""
        (command,) = (each for each in self.commands if each[: len(words)] == words)
        return command

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def last(self) -> str:
        """The last line of the human output."""
        return (self.out or self.err).splitlines()[-1]


@dataclass
class Cli:
    """Runs commands; ``shipped`` and ``team`` are folders of features."""

    shipped: Path
    team: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Result:
        self.capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = self.capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def follow(self, answer: Result, *words: str) -> Result:
        """Run the command that an answer names, as it is printed, from another working folder.

        :param words: the first ones of it.
        """
        here = Path.cwd()
        os.chdir("/")
        try:
            return self(*answer.command(*words))
        finally:
            os.chdir(here)


def digest(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def edit(site: Path, path: str, old: str, new: str) -> None:
    """Replace a text of a file, which has to be there."""
    text = (site / path).read_text()
    assert old in text
    (site / path).write_text(text.replace(old, new))


def drift(site: Path) -> None:
    """Change a line that the shipped feature would change."""
    edit(site, PROPOSER, "drafts = [self._first(tokens)]", "drafts = list(self._first(tokens))")
