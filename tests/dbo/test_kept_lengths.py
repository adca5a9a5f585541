"""Sequence lengths of micro-batches: where a request is cut, a graph reads those of the step."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm
from tests.support.covering import each_release

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("dbo")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker import dbo_lengths, ubatch_utils

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
REQUESTS = 16


def metadata(lengths: list[int], k: int, kept: Any) -> Any:
    """A batch in which each request has 1 + k tokens; its lengths lie in the runner's buffer."""
    count = len(lengths)
    starts = torch.arange(count + 1, dtype=torch.int32) * (1 + k)
    kept[:count] = torch.tensor(lengths, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=kept[:count],
        num_reqs=count,
        num_actual_tokens=count * (1 + k),
        max_query_len=1 + k,
        max_seq_len=max(lengths),
        block_table_tensor=torch.zeros((count, 4), dtype=torch.int32),
        slot_mapping=torch.arange(count * (1 + k)),
        seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
    )


def split(lengths: list[int], k: int, micro_batches: int, kept: Any) -> tuple[Any, list[Any]]:
    """The batch, and what vLLM makes of it for each micro-batch."""
    whole = metadata(lengths, k, kept)
    tokens = np.full(len(lengths), 1 + k, dtype=np.int32)
    slices, _ = ubatch_utils.maybe_create_ubatch_slices(
        True, tokens, int(tokens.sum()), len(lengths), micro_batches
    )
    return whole, ubatch_utils.split_attn_metadata(slices, whole)


def hooked(runner: Any, lengths: list[int], k: int, micro_batches: int, kept: Any) -> list[Any]:
    """As the patched runner does it."""
    whole, parts = split(lengths, k, micro_batches, kept)
    for number, part in enumerate(parts):
        dbo_lengths.keep_lengths(runner, number, part, whole)
    return parts


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dbo_lengths.VARIABLE, raising=False)


@given(data=st.data(), k=st.integers(1, 7), requests=st.integers(1, REQUESTS))
def test_a_graph_of_any_size_reads_the_lengths_of_the_step(
    data: Any, k: int, requests: int
) -> None:
    """Captured: where lengths lay at the first step. What lies there later is what vLLM made."""
    micro_batches = data.draw(st.integers(2, max(2, min(4, requests))))
    batches = st.lists(st.integers(1 + k, 4000), min_size=requests, max_size=requests)
    runner = SimpleNamespace(max_num_reqs=REQUESTS)
    kept = torch.zeros(REQUESTS, dtype=torch.int32)
    captured = [
        part.seq_lens for part in hooked(runner, data.draw(batches), k, micro_batches, kept)
    ]
    other = data.draw(st.integers(1, REQUESTS))
    if other >= micro_batches:  # a step of another size in between
        hooked(runner, [5000] * other, k, micro_batches, kept)
    lengths = data.draw(batches)
    hooked(runner, lengths, k, micro_batches, kept)
    _, expected = split(lengths, k, micro_batches, torch.zeros_like(kept))
    for part, mine in zip(expected, captured, strict=True):
        assert mine.tolist() == part.seq_lens.tolist()


def test_without_the_feature_a_graph_keeps_the_lengths_of_its_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upstream's defect, which is what the switch leaves."""
    monkeypatch.setenv(dbo_lengths.VARIABLE, "off")
    runner = SimpleNamespace(max_num_reqs=REQUESTS)
    kept = torch.zeros(REQUESTS, dtype=torch.int32)
    captured = hooked(runner, [100], 3, 2, kept)[0].seq_lens
    hooked(runner, [200], 3, 2, kept)
    assert captured.tolist() == [98]


def test_lengths_that_nothing_cuts_are_left_where_they_are() -> None:
    runner = SimpleNamespace(max_num_reqs=REQUESTS)
    kept = torch.zeros(REQUESTS, dtype=torch.int32)
    for part in hooked(runner, [10, 20, 30, 40], 3, 2, kept):
        assert part.seq_lens.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr()
    assert not hasattr(runner, dbo_lengths.BUFFERS)


@pytest.mark.network
@pytest.mark.parametrize("release", each_release("dbo"))
def test_every_release_keeps_them_before_it_builds_the_metadata(release: str) -> None:
    features = [each for each in load([shipped_folder()]) if each.id == "dbo"]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    (after,) = [change.after for change in changes if change.path == RUNNER]
    assert after is not None
    (loop,) = [
        node
        for node in ast.walk(ast.parse(after))
        if isinstance(node, ast.For) and "split_attn_metadata" in ast.unparse(node.iter)
    ]
    imported, hook, build = loop.body
    assert ast.unparse(imported) == "from vllm.v1.worker.dbo_lengths import keep_lengths"
    assert ast.unparse(hook) == "keep_lengths(self, ubid, _cm, cm)"
    assert ast.unparse(build) == "_build_attn_group_metadata(kv_cache_gid, attn_gid, _cm, ubid)"
