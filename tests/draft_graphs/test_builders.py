"""The metadata builders of the captures where the target has PIECEWISE graphs. Needs vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.added_modules import added

upstream: Any = added("upstream")


def flash_attention_group(mode: str) -> Any:
    """An attention group of FlashAttention 3 as vLLM makes it, and its proposer."""
    from vllm.config import CUDAGraphMode, VllmConfig
    from vllm.v1.attention.backends import flash_attn
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    config = VllmConfig()
    config.model_config = mock.Mock(rswa_window=None)
    config.model_config.get_num_attention_heads.return_value = 8
    config.model_config.get_num_kv_heads.return_value = 8
    config.model_config.get_head_size.return_value = 64
    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode[mode]
    compilation.max_cudagraph_capture_size = 512
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64, dtype=torch.bfloat16)
    with mock.patch.object(flash_attn, "get_flash_attn_version", return_value=3):
        builder = flash_attn.FlashAttentionMetadataBuilder(
            spec, ["draft.0"], config, torch.device("cpu")
        )
    group = SimpleNamespace(metadata_builders=[builder])
    return SimpleNamespace(vllm_config=config, draft_attn_groups=[group])


def made(proposer: Any) -> Any:
    from vllm.v1.attention.backends import flash_attn

    with mock.patch.object(flash_attn, "get_flash_attn_version", return_value=3):
        return upstream.make_builders_of_full_graphs(proposer)


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_where_the_target_has_full_graphs_the_groups_own_builders_serve(mode: str) -> None:
    proposer = flash_attention_group(mode)
    assert proposer.draft_attn_groups[0].metadata_builders[0].max_num_splits > 0
    assert made(proposer) is None


def test_with_piecewise_graphs_the_number_of_splits_is_bounded_in_captures_alone() -> None:
    from vllm.config import CUDAGraphMode

    proposer = flash_attention_group("PIECEWISE")
    (group,) = proposer.draft_attn_groups
    (stock,) = group.metadata_builders
    assert stock.max_num_splits == 0, "0 means that the kernel chooses on the host"
    ((own,),) = builders = made(proposer)
    bound = proposer.vllm_config.attention_config.flash_attn_max_num_splits_for_cuda_graph
    assert own.max_num_splits == bound > 0
    assert (type(own), own.kv_cache_spec, own.layer_names, own.device) == (
        *(type(stock), stock.kv_cache_spec, stock.layer_names, stock.device),
    )
    assert proposer.vllm_config.compilation_config.cudagraph_mode == CUDAGraphMode.PIECEWISE
    assert own.vllm_config.model_config is proposer.vllm_config.model_config
    with upstream.builders_of_full_graphs(proposer, builders):
        assert group.metadata_builders == [own]
    assert group.metadata_builders == [stock]
    with pytest.raises(RuntimeError), upstream.builders_of_full_graphs(proposer, builders):
        raise RuntimeError
    assert group.metadata_builders == [stock]
    with upstream.builders_of_full_graphs(proposer, None):
        assert group.metadata_builders == [stock]
