"""The metadata builders of the captures where the target has PIECEWISE graphs. Needs vLLM.

The bugs of `scenario_mutations.BUILDER_MUTATIONS` are put in, and shown.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.graph_safe_attention import GraphSafeBuilder
from tests.draft_graphs.mutation_types import UnitMutation
from tests.draft_graphs.scenario_mutations import BUILDER_MUTATIONS
from tests.support.code_edits import edited

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1.spec_decode.draft_graphs import capture, draft_graphs, upstream


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


def made(proposer: Any, module: Any = upstream) -> Any:
    from vllm.v1.attention.backends import flash_attn

    with mock.patch.object(flash_attn, "get_flash_attn_version", return_value=3):
        return module.make_builders_of_full_graphs(proposer)


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


class NotedBuilder(GraphSafeBuilder):
    """Knows in which cudagraph mode of the target it was made."""

    def __init__(self, spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.device = spec, layer_names, device
        self.mode = vllm_config.compilation_config.cudagraph_mode.name


def modes_of_captures(monkeypatch: pytest.MonkeyPatch, capturing: Any) -> set[str]:
    """The modes that the builders were made for, of all builds of a capture beside PIECEWISE.

    :param capturing: the module `capture`.
    """
    from vllm.config import CUDAGraphMode

    drafter = Drafter()
    config = drafter.proposer.vllm_config
    config.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE
    (group,) = drafter.proposer.draft_attn_groups
    group.metadata_builders = [NotedBuilder(None, ["draft"], config, torch.device("cpu"))]
    built: list[str] = []
    stock = type(group).build_metadata_for_drafting

    def build(common_attn_metadata: Any, draft_index: int) -> Any:
        (builder,) = group.metadata_builders
        built.append(builder.mode)
        return stock(group, common_attn_metadata, draft_index)

    group.build_metadata_for_drafting = build
    monkeypatch.setattr(draft_graphs, "capture_keys", capturing.capture_keys)
    drafter.capture()
    assert drafter.keys, drafter.graphs.withdrawn
    assert [builder.mode for builder in group.metadata_builders] == ["PIECEWISE"]
    return set(built)


@pytest.mark.usefixtures("one_rank")
def test_captures_beside_piecewise_graphs_have_builders_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert modes_of_captures(monkeypatch, capture) == {"FULL_DECODE_ONLY"}


def with_bug(module: ModuleType, mutation: UnitMutation) -> Any:
    """The module once more, with the bug in it."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    for file, *edit in mutation.changes:
        source = edited(source, [edit], file)
    made_of: Any = ModuleType(f"{module.__name__}_with_bug")
    made_of.__package__ = module.__package__
    exec(compile(source, module.__file__, "exec", dont_inherit=True), vars(made_of))
    return made_of


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("mutation", BUILDER_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(mutation: UnitMutation, monkeypatch: pytest.MonkeyPatch) -> None:
    ((file, *_),) = mutation.changes
    if file == "capture.py":
        assert modes_of_captures(monkeypatch, with_bug(capture, mutation)) == {"PIECEWISE"}
    else:
        bug = with_bug(upstream, mutation)
        assert made(flash_attention_group("PIECEWISE"), bug) is None
        monkeypatch.setattr(upstream, "make_builders_of_full_graphs", lambda _: None)
        assert modes_of_captures(monkeypatch, capture) == {"PIECEWISE"}
