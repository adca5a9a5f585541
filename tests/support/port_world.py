"""A small world to port in: releases of one file, and a feature that was made on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay.authoring.composing import compose
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.variants import base_has
from overlay.authoring.writing import render_patch
from tests.support.patches import write_feature

PATH = "vllm/v1/runner.py"
BASE = b"""\
import os


class Runner:
    def capture(self):
        sizes = [1, 2, 4]
        count = len(sizes)
        self.note_begin(count)
        for size in sizes:
            self.run_graph(size)
        self.note_end(count)
        return sizes

    def run_graph(self, size):
        self.last_size = size
        return size


def helper(value):
    first = value + 1
    second = first * 2
    return second
"""
#: What the feature makes of it.
PATCHED = BASE.replace(
    b"            self.run_graph(size)\n",
    b"            self.prepare_replay(size)\n            self.replay_graph(size, warm=True)\n",
)
OTHER_FUNCTION = BASE.replace(b"value + 1", b"value + 10")
NEAR = BASE.replace(b"        count = len(sizes)\n", b"        count = len(sizes) + 1\n")
IN_THE_WAY = BASE.replace(
    b"            self.run_graph(size)\n", b"            self.run_graph(size, stream=None)\n"
)
MERGED = PATCHED.replace(b"        return sizes\n", b"        return list(sizes)\n")
REWORKED = MERGED.replace(
    b"            self.prepare_replay(size)\n            self.replay_graph(size, warm=True)\n",
    b"            self.replay_all(size)\n",
)
OLDER = BASE.replace(b"self.run_graph(size)\n        self", b"self.capture_one(size)\n        self")
#: Release -> its text: older, the base, another function, the same one, the same line, then
#: upstream has the change, and works on it.
RELEASES: Mapping[str, bytes] = {
    "0.20.0": OLDER,
    "0.21.0": BASE,
    "0.22.0": OTHER_FUNCTION,
    "0.23.0": NEAR,
    "0.24.0": IN_THE_WAY,
    "0.25.0": MERGED,
    "0.26.0": REWORKED,
}
NAMES = tuple(RELEASES)
HEADERS = {"Description": "Replay", "Origin": "the tests", "Last-Update": "2026-11-20"}


class Tree:
    """One release."""

    def __init__(self, release: str, texts: Mapping[str, bytes] = RELEASES) -> None:
        self.release, self.texts = release, texts

    def read(self, path: str) -> bytes | None:
        return self.texts.get(self.release) if path == PATH else None


def porter(texts: Mapping[str, bytes] = RELEASES) -> Porter:
    """A porter over the releases of the world, or of another one."""
    return Porter(ReleaseTexts(tuple(texts), lambda name: Tree(name, texts)))


def write(
    folder: Path,
    before: bytes = BASE,
    after: bytes = PATCHED,
    base: str = "0.21.0",
    id: str = "replay",  # noqa: A002 - named as in feature.toml
    topic: str = "10-runner",
) -> Feature:
    """Write a feature of one topic, made on one release, below a folder of patches."""
    hunks = compose(before, after)
    headers = {**HEADERS, "Base": base}
    if known := base_has(hunks, before):
        headers["Base-Has"] = "\n".join(known)
    text = render_patch(headers, PATH, hunks)
    write_feature(folder, {f"{topic}/{base}..{base}.patch": text}, id, f"{base}..{base}")
    return load([folder])[-1]
