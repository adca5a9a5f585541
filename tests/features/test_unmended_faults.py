"""Faults of `scripts/unmended_faults.toml`, on each release's own functions: who has them.

A release that has one no longer fails here, and so does one that begins to.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.documents import parse_toml
from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange
from overlay.targets.resolution import resolve

pytestmark = pytest.mark.network

UNMENDED = Path(__file__).resolve().parents[2] / "scripts/unmended_faults.toml"
DRAFTER = "vllm/v1/spec_decode/llm_base_proposer.py"


def releases_with(words: str) -> list[str]:
    """The releases that are said to have the fault whose symptom has these words."""
    faults = parse_toml(UNMENDED.read_text(encoding="utf-8"))["faults"]
    (fault,) = (each for each in faults if words in each["symptom"])
    span = ReleaseRange.parse(fault["releases"], VLLM)
    return [release for release in KNOWN_RELEASES if Version(release) in span]


def test_nothing_of_v2_asks_whether_the_draft_is_to_run_eagerly() -> None:
    ignoring = []
    for release in KNOWN_RELEASES:
        target = resolve(release)
        v2 = [path for path in target.paths() if path.startswith("vllm/v1/worker/gpu/")]
        texts = [target.read(path) or b"" for path in v2 if path.endswith(".py")]
        assert len(texts) > 50
        assert b"speculative_config.enforce_eager" in (target.read(DRAFTER) or b"")
        if not any(re.search(rb"(speculative|draft)\w*\.enforce_eager", text) for text in texts):
            ignoring.append(release)
    assert ignoring == releases_with("enforce_eager of the draft")
