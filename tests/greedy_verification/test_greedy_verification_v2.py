"""Greedy verification on model runner V2 samples what each release's own rejection sampler does.

Triton's interpreter runs the kernels on the CPU, in a process that starts with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # in the environment of the engine
pytest.importorskip("triton")

from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "vllm/v1/worker/gpu"
#: What a greedy batch goes through.
CODE = (
    "spec_decode/rejection_sampler.py",
    "spec_decode/rejection_sampler_utils.py",
    "spec_decode/probabilistic_rejection_sampler_utils.py",
    "sample/sampler.py",
    "sample/output.py",
)
CHANGED = (
    *("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.26.0"),
    *("0.27.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)


def interpreted(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.greedy_verification.v2_interpreted", *arguments],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


@functools.cache
def code(release: str) -> tuple[bytes | None, ...]:
    target = resolve(release)
    return tuple(target.read(f"{FOLDER}/{name}") for name in CODE)


def test_a_plain_batch_is_verified_as_each_release_does() -> None:
    kernels = interpreted("laws", "12", *CHANGED)
    assert list(kernels) == list(CHANGED)
    assert {ours for _, ours in kernels.values()} == {2}
    assert kernels["0.33.0"][0] == 6


def test_every_release_is_one_that_was_tried() -> None:
    tried = {code(release) for release in CHANGED}
    assert [str(r) for r in KNOWN_RELEASES if code(str(r)) not in tried] == []


def test_each_mistake_is_noticed() -> None:
    told = interpreted("mistakes")
    assert told["mistakes"] > 40
    assert told["unfit"] == []
    assert told["unnoticed"] == []
