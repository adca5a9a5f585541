"""A small tree and the plans of features against it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from packaging.version import Version

from overlay._features.model import Feature
from overlay.planning.planner import plan
from overlay.results import Plan
from tests.support.patches import MemoryTree, hunk

A = "vllm/a.py"
TEXT = b"""\
import os


def f(x):
    y = x
    z = y
    return z


def g(x):
    return x
"""
NEW = b"VALUE = 1\n"
HUNK = hunk(["     y = x", "+    y += 1", "     z = y"], "f")
LATER = hunk([" def g(x):", "-    return x", "+    return -x"], "g")
RELEASE = Version("0.26.0")


def planned(
    *features: Feature,
    files: Mapping[str, bytes] | None = None,
    release: str | None = "0.26.0",
    record: Mapping[str, str] | None = None,
) -> Plan:
    tree = MemoryTree({A: TEXT} if files is None else files)
    return plan(features, tree, None if release is None else Version(release), record)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
