"""Which layers look beyond their data-parallel rank, and what follows from it. Needs vLLM."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.added_modules import added

ranks: Any = added("ranks")
couplings: Any = added("coupling")
Module: Any = torch.nn.Module


def layer(module: str, name: str) -> type:
    cls: type = getattr(importlib.import_module(f"vllm.model_executor.{module}"), name)
    return cls


#: Of the drafts that run in graphs, and of those that may once.
ALONE = (
    ("models.llama_eagle3", "Eagle3LlamaForCausalLM"),
    ("models.llama_eagle3", "LlamaModel"),
    ("models.llama_eagle3", "LlamaDecoderLayer"),
    ("models.llama_eagle", "EagleLlamaForCausalLM"),
    ("models.llama", "LlamaMLP"),
    ("models.llama", "LlamaAttention"),
    ("models.deepseek_v2", "DeepseekV2MLAAttention"),
    ("models.deepseek_v2", "DeepseekV2MLP"),
    ("models.mimo_mtp", "MiMoMTP"),
    ("models.ernie_mtp", "ErnieMTP"),
    ("layers.attention.attention", "Attention"),
    ("layers.linear", "QKVParallelLinear"),
    ("layers.linear", "RowParallelLinear"),
    ("layers.vocab_parallel_embedding", "VocabParallelEmbedding"),
    ("layers.vocab_parallel_embedding", "ParallelLMHead"),
    ("layers.logits_processor", "LogitsProcessor"),
    ("layers.layernorm", "RMSNorm"),
    ("layers.activation", "SiluAndMul"),
)
TOGETHER = (
    ("layers.fused_moe.runner.moe_runner", "MoERunner"),
    ("layers.fused_moe.routed_experts", "RoutedExperts"),
    ("models.qwen3_moe", "Qwen3MoeSparseMoeBlock"),
    ("models.deepseek_v2", "DeepseekV2MoE"),
    ("models.mixtral", "MixtralMoE"),
    ("models.mimo_v2", "MiMoV2MoE"),
)


@pytest.mark.parametrize(("module", "name"), ALONE)
def test_layers_of_dense_drafts_stay_on_their_rank(module: str, name: str) -> None:
    assert not couplings.looks_beyond_its_rank(layer(module, name))


@pytest.mark.parametrize(("module", "name"), TOGETHER)
def test_layers_of_experts_reach_other_ranks(module: str, name: str) -> None:
    assert couplings.looks_beyond_its_rank(layer(module, name))


def get_dp_group() -> Any:
    """Stands for vLLM's."""


def helper() -> Any:
    return get_dp_group()


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """As vLLM's decorators do it: the function is in a closure only."""

    def replaced(*args: Any) -> Any:
        return function(*args)

    return replaced


class Plain(Module):  # type: ignore[misc]  # Any, to mypy
    def forward(self, x: Any) -> Any:
        return x


class Calls(Plain):
    def forward(self, x: Any) -> Any:
        return get_dp_group().all_gather(x)


class CallsInside(Plain):
    def forward(self, x: Any) -> Any:
        def gather() -> Any:
            return get_dp_group().all_gather(x)

        return gather()


class Inherits(Calls):
    pass


class ThroughAHelper(Plain):
    def forward(self, x: Any) -> Any:
        return helper()


class InAProperty(Plain):
    @property
    def group(self) -> Any:
        return get_dp_group()


class InACachedProperty(Plain):
    @functools.cached_property
    def group(self) -> Any:
        return get_dp_group()


class InAStaticMethod(Plain):
    @staticmethod
    @functools.cache
    def group() -> Any:
        return get_dp_group()


class Decorated(Plain):
    @kept
    def forward(self, x: Any) -> Any:
        return get_dp_group()


class ReadsCounts(Plain):
    def forward(self, x: Any) -> Any:
        return x.context.dp_metadata


class HasAnEpGroup(Plain):
    def forward(self, x: Any) -> Any:
        return self.ep_group


REACHING = (
    Calls,
    CallsInside,
    Inherits,
    ThroughAHelper,
    InAProperty,
    InACachedProperty,
    InAStaticMethod,
    Decorated,
    ReadsCounts,
    HasAnEpGroup,
)


@pytest.mark.parametrize("cls", REACHING, ids=lambda cls: cls.__name__)
def test_code_that_names_other_ranks_is_found_wherever_it_stands(cls: type) -> None:
    assert couplings.looks_beyond_its_rank(cls)
    assert not couplings.looks_beyond_its_rank(Plain)


def proposer(*layers: Any, ranks: int = 2, **more: Any) -> Any:
    parallel = SimpleNamespace(data_parallel_size=ranks, **more)
    return SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel), model=torch.nn.Sequential(*layers)
    )


def test_a_draft_without_such_layers_needs_no_other_rank() -> None:
    assert couplings.coupling(proposer(Plain(), torch.nn.Linear(2, 2))) == couplings.Coupling()


def test_one_such_layer_anywhere_is_the_reason_and_is_named() -> None:
    deep = torch.nn.Sequential(Plain(), torch.nn.Sequential(Calls()))
    found = couplings.coupling(proposer(Plain(), deep))
    assert found.together
    assert "2 data-parallel ranks" in found.reason
    assert "Calls" in found.reason
    assert "Plain" not in found.reason


def test_ranks_that_come_and_go_draft_as_upstream() -> None:
    for layer in (Plain(), Calls()):
        found = couplings.coupling(proposer(layer, enable_elastic_ep=True))
        assert found.manner is couplings.Manner.REFUSED
        assert "elastic" in found.reason


def test_a_drafter_with_dummy_passes_of_its_own_drafts_as_upstream() -> None:
    """dflash: the hook that takes the slots away before a dummy pass is not in its version."""
    from vllm.v1.spec_decode.dflash import DFlashProposer
    from vllm.v1.spec_decode.eagle import EagleProposer

    for kind, refused in ((EagleProposer, False), (DFlashProposer, True)):
        drafter = object.__new__(kind)
        vars(drafter).update(vars(proposer(Plain())))
        reason = couplings.coupling(drafter).reason
        assert bool(reason) == refused
        vars(drafter).update(vars(proposer(Plain(), ranks=1)))
        assert couplings.coupling(drafter) == couplings.Coupling()
    assert "DFlashProposer has dummy passes of its own" in reason


def test_without_data_parallelism_nothing_matters() -> None:
    assert couplings.coupling(proposer(Calls(), ranks=1)) == couplings.Coupling()
    assert ranks.token_counts(proposer(ranks=1).vllm_config, 5) is None


def test_the_counts_of_all_ranks_are_made_up_from_ones_own() -> None:
    counts = ranks.token_counts(proposer(ranks=3).vllm_config, 5)
    assert counts.tolist() == [5, 5, 5]
    assert counts.dtype == torch.int32
    assert counts.device.type == "cpu"


def group(votes: list[int], answer: int) -> Any:
    """A group whose ranks vote `answer` at least, as far as this rank is told."""

    def all_reduce(tensor: Any, op: Any, group: Any) -> None:
        assert group == "cpu"
        votes.append(int(tensor.item()))
        tensor.fill_(min(int(tensor.item()), answer))

    return SimpleNamespace(world_size=2, cpu_group="cpu", ranks=[0, 1]), all_reduce


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_all_ranks_go_by_the_one_that_wants_least(own: bool, others: bool) -> None:
    votes: list[int] = []
    both, all_reduce = group(votes, int(others))
    with (
        mock.patch("vllm.distributed.parallel_state.get_dp_group", return_value=both),
        mock.patch("vllm.distributed.parallel_state.get_tp_group", return_value=both),
        mock.patch("torch.distributed.monitored_barrier"),
        mock.patch("torch.distributed.all_reduce", all_reduce),
    ):
        for layer in (Plain(), Calls()):
            assert ranks.all_ranks_want(proposer(layer), own) is (own and others)
    assert len(votes) == 4  # asked whatever it wants itself, in both groups


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "draft", [proposer(Calls(), enable_elastic_ep=True), proposer(Calls(), ranks=1)]
)
def test_where_nothing_is_to_be_agreed_nobody_is_asked(own: bool, draft: Any) -> None:
    with mock.patch("torch.distributed.all_reduce", side_effect=AssertionError):
        assert ranks.all_ranks_want(draft, own) is own


def gathering(theirs: list[dict[str, str]]) -> Any:
    """A group in which another rank has gathered these plans."""

    def all_gather_object(gathered: list[Any], tables: list[dict[str, str]], group: Any) -> None:
        assert group == "cpu"
        gathered[:] = [tables, theirs]

    return SimpleNamespace(world_size=2, cpu_group="cpu", ranks=[0, 1]), all_gather_object


@pytest.mark.parametrize(
    ("theirs", "lines"),
    [
        ({"mode": "loop", "graphs": "8"}, []),
        (
            {"mode": "step", "graphs": "8"},
            ["  rank 0: mode = loop", "  rank 1: mode = step"],
        ),
        (
            {"error": "out of memory"},
            [
                *("  rank 0: error = nothing", "  rank 1: error = out of memory"),
                *("  rank 0: graphs = 8", "  rank 1: graphs = nothing"),
                *("  rank 0: mode = loop", "  rank 1: mode = nothing"),
            ],
        ),
    ],
)
def test_what_ranks_plan_differently_is_a_table(theirs: dict[str, str], lines: list[str]) -> None:
    both, all_gather_object = gathering([theirs])
    one = SimpleNamespace(world_size=1)
    with (
        mock.patch("vllm.distributed.parallel_state.get_dp_group", return_value=both),
        mock.patch("vllm.distributed.parallel_state.get_tp_group", return_value=one),
        mock.patch("torch.distributed.monitored_barrier"),
        mock.patch("torch.distributed.all_gather_object", all_gather_object),
    ):
        assert ranks.differences({"mode": "loop", "graphs": "8"}) == lines


# What vLLM makes of data parallelism


class Started(Exception):
    """An engine core would have been made."""


@pytest.mark.parametrize("has_experts", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_only_targets_with_experts_have_ranks_that_depend_on_each_other(
    has_experts: bool, rank: int
) -> None:
    """`vllm serve --data-parallel-size 2` starts its ranks so, whatever balances their load."""
    from vllm.config import ParallelConfig
    from vllm.v1.engine import core

    parallel = ParallelConfig(data_parallel_size=2, is_moe_model=has_experts)
    config = SimpleNamespace(
        parallel_config=parallel,
        kv_transfer_config=None,
        model_config=SimpleNamespace(is_moe=has_experts),
    )
    made = []

    def engine(kind: str) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            made.append(kind)
            raise Started

        return make

    run = core.EngineCoreProc.run_engine_core
    handlers = mock.patch("signal.signal")
    with (
        handlers,
        mock.patch.object(core, "EngineCoreProc", engine("alone")),
        mock.patch.object(core, "DPEngineCoreProc", engine("together")),
        mock.patch.object(core, "set_process_title"),
        mock.patch.object(core, "decorate_logs"),
        pytest.raises(Started),
    ):
        run(vllm_config=config, dp_rank=rank, local_dp_rank=rank)
    assert made == ["together" if has_experts else "alone"]
    assert parallel.data_parallel_size == (2 if has_experts else 1)
    assert parallel.data_parallel_rank == (rank if has_experts else 0)


def test_offline_ranks_with_a_dense_target_are_refused_by_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.config import ParallelConfig

    monkeypatch.setenv("VLLM_DP_SIZE", "2")
    monkeypatch.setenv("VLLM_DP_RANK", "1")
    with pytest.raises(ValueError, match="not supported/useful"):
        ParallelConfig(is_moe_model=False)
    assert ParallelConfig(is_moe_model=True).data_parallel_size == 2
