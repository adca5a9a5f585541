"""On random batches, the draft graphs draft what upstream's code drafts.

See `upstream_twin`, and `mla_twin` for latent attention.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import overlay, private_vllm
from private_copy import PrivateCopy

pytestmark = pytest.mark.engine

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def patched(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCopy]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("twin")):
        overlay("apply", copy.site, "--feature", "draft-graphs")
        yield copy


def run_twin(patched: PrivateCopy, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(patched.python), str(FOLDER / script), *options],
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )


def drafted(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.rpartition("TWIN ")[2])


@pytest.mark.slow
def test_drafts_and_kv_cache_are_those_of_upstream(patched: PrivateCopy) -> None:
    used = drafted(run_twin(patched, "upstream_twin.py", "--cases", "30"))
    # Nothing is shown by a twin that the graphs leave to upstream.
    assert used["propose used"] > 200
    assert used["later_steps used"] > 50


@pytest.mark.slow
def test_with_mla_they_are_those_of_upstream(patched: PrivateCopy) -> None:
    used = drafted(run_twin(patched, "mla_twin.py", "--cases", "20"))
    for backend in ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", "FLASHINFER_MLA"):
        assert used[backend]["propose used"] > 40, backend
        assert used[backend]["later_steps used"] > 10, backend
    alone = used["TRITON_MLA, single tokens"]
    assert "propose used" not in alone
    assert alone["later_steps used"] > 40


# What a module would do that builds the metadata once and keeps it: a schedule of the warm-up.
BUILD = """        _, metadata = proposer.build_per_group_and_layer_attn_metadata(
            self.metadata(reqs, query_len, seq_lens), draft_index=draft_index
        )
"""
KEPT = """        kept = self.__dict__.setdefault("kept", {})
        if (reqs, query_len) not in kept:
            kept[reqs, query_len] = proposer.build_per_group_and_layer_attn_metadata(
                self.metadata(reqs, query_len, seq_lens), draft_index=draft_index
            )
        _, metadata = kept[reqs, query_len]
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["FLASH_ATTN_MLA", "FLASHMLA"])
def test_a_schedule_that_is_not_made_anew_is_found_out(patched: PrivateCopy, backend: str) -> None:
    passes = patched.site / "vllm/v1/spec_decode/draft_graphs/passes.py"
    source = passes.read_text(encoding="utf-8")
    assert source.count(BUILD) == 1
    try:
        passes.write_text(source.replace(BUILD, KEPT), encoding="utf-8")
        ended = run_twin(patched, "mla_twin.py", "--cases", "6", "--only", backend)
    finally:
        passes.write_text(source, encoding="utf-8")
    assert ended.returncode != 0
    assert "AssertionError: case " in ended.stderr  # drafts or KV cache, not the capture
