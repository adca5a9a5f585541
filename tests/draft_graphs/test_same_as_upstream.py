"""On random batches, the draft graphs draft what upstream's code drafts. See `upstream_twin`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_fixtures import overlay, private_vllm
from private_copy import PrivateCopy

pytestmark = pytest.mark.engine

TWIN = Path(__file__).with_name("upstream_twin.py")


@pytest.fixture(scope="module")
def patched(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCopy]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("twin")):
        overlay("apply", copy.site, "--feature", "draft-graphs")
        yield copy


@pytest.mark.slow
def test_drafts_and_kv_cache_are_those_of_upstream(patched: PrivateCopy) -> None:
    ended = subprocess.run(
        [str(patched.python), str(TWIN), "--cases", "30"],
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    used = json.loads(ended.stdout.rpartition("TWIN ")[2])
    # Nothing is shown by a twin that the graphs leave to upstream.
    assert used["propose used"] > 200
    assert used["later_steps used"] > 50
