"""Ranks that tell each other how they draft, in threads of one process. Needs vLLM.

`test_unequal_ranks.py` does it with two processes over gloo; here any number of ranks meet over a
store in memory, so that laws and bugs are cheap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.added_modules import FOLDER, require_fit
from tests.draft_graphs.settings_mutations import SETTINGS_MUTATIONS, SettingsMutation
from tests.support.beside_vllm import put_beside_vllm
from tests.support.code_edits import edited

put_beside_vllm("draft-graphs")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.spec_decode.draft_graphs import policy, same_settings

#: Seconds to wait for a silent rank, and for ranks that all speak on a busy machine.
PATIENCE, ENDLESS = 1.0, 60.0
MODE = policy.MODE_VARIABLE
#: What a rank runs, None for one that says nothing.
Said = Mapping[str, str] | None


def meet(
    module: Any, rounds: Sequence[Sequence[Said]], *, data_parallel: int = 1
) -> list[list[str]]:
    """The errors of each rank, "" for none, in each round in which draft models are loaded.

    data_parallel: into how many data-parallel ranks, of as many tensor-parallel ones each, the
        ranks are divided.
    """
    store = torch.distributed.HashStore()
    here = threading.local()
    ranks = len(rounds[0])
    size = ranks // data_parallel

    def tensor_parallel() -> Any:
        first = here.rank // size * size
        return SimpleNamespace(
            world_size=size,
            ranks=list(range(10 + first, 10 + first + size)),
            rank_in_group=here.rank % size,
        )

    def across() -> Any:
        return SimpleNamespace(
            world_size=data_parallel, ranks=list(range(10 + here.rank % size, 10 + ranks, size))
        )

    def load(rank: int, said: Said) -> str:
        here.rank = rank
        time.sleep(0.005 * rank)  # so that the first one reads before the last one has spoken
        if said is None:
            return ""
        try:
            module.require_equal_settings(said, data_parallel=data_parallel > 1)
        except module.RanksDiffer as error:
            return str(error)
        return ""

    distributed = torch.distributed.distributed_c10d
    with (
        mock.patch.object(distributed, "_get_default_store", return_value=store),
        mock.patch("vllm.distributed.parallel_state.get_tp_group", tensor_parallel),
        mock.patch("vllm.distributed.parallel_state.get_dp_group", across),
        mock.patch.object(
            module, "PATIENCE", PATIENCE if any(None in said for said in rounds) else ENDLESS
        ),
        mock.patch.object(module, "INTERVAL", 0.005),
        ThreadPoolExecutor(ranks) as pool,
    ):
        # A silent rank counts no model, so nothing may come behind its round.
        return [list(pool.map(load, range(ranks), said)) for said in rounds]


SETTINGS = st.fixed_dictionaries(
    {MODE: st.sampled_from(["auto", "off"]), "patches": st.sampled_from(["a", "b"])}
)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_ranks_start_together_or_not_at_all(data: Any) -> None:
    data_parallel = data.draw(st.integers(1, 2))
    ranks = data_parallel * data.draw(st.integers(3 - data_parallel, 4 // data_parallel))
    said = st.lists(SETTINGS, min_size=ranks, max_size=ranks)
    rounds = data.draw(st.lists(said, min_size=1, max_size=3))
    for both, errors in zip(
        rounds, meet(same_settings, rounds, data_parallel=data_parallel), strict=True
    ):
        equal = all(each == both[0] for each in both)
        assert len(set(errors)) == 1
        assert (errors[0] == "") is equal


def test_a_rank_alone_asks_nobody() -> None:
    with mock.patch(
        "vllm.distributed.parallel_state.get_tp_group",
        return_value=SimpleNamespace(world_size=1, ranks=[3], rank_in_group=0),
    ):
        same_settings.require_equal_settings({}, data_parallel=False)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_silent_rank_is_named_by_all_others(silent: int) -> None:
    said: list[Said] = [{MODE: "auto"}] * 3
    said[silent] = None
    (errors,) = meet(same_settings, [said])
    assert errors[silent] == ""
    for rank in {0, 1, 2} - {silent}:
        assert f"tensor-parallel rank {10 + silent} did not say" in errors[rank]


@pytest.mark.parametrize("silent", [{0}, {3}, {2, 3}])
def test_silent_data_parallel_ranks_are_named_by_all_others(silent: set[int]) -> None:
    """Rank 3 has another vLLM, or a data-parallel rank of two is without the patches."""
    said: list[Said] = [None if rank in silent else {MODE: "auto"} for rank in range(4)]
    (errors,) = meet(same_settings, [said], data_parallel=2)
    named = ", ".join(str(10 + rank) for rank in sorted(silent))
    for rank in range(4):
        assert (f"rank {named} did not say within" in errors[rank]) is (rank not in silent)


def test_a_data_parallel_rank_that_gets_no_graphs_does_not_stop_the_others() -> None:
    graphs, none = {"drafts": "in graphs"}, {"drafts": "as upstream: no graphs"}
    both = [graphs, graphs, none, none], [graphs, none, graphs, none]
    alike, unlike = meet(same_settings, both, data_parallel=2)
    assert alike == [""] * 4
    assert "in graphs" in unlike[0]
    assert len(set(unlike)) == 1


def test_what_is_told_is_what_the_user_and_the_policy_said() -> None:
    granted = policy.Decision(first=True, later=("loop",))
    refused = policy.Decision(refusals=("one", "another"))
    told = same_settings.settings("step", granted, check=True, untried=False)
    assert (told[MODE], told[policy.CHECK_VARIABLE], told["drafts"]) == ("step", "on", "in graphs")
    other = same_settings.settings("off", refused, check=False, untried=True)
    assert other["drafts"] == "as upstream: one; another"
    assert told["patches"] == other["patches"] != ""
    assert {name for name in told if told[name] != other[name]} == told.keys() - {"vLLM", "patches"}


def mutated(mutation: SettingsMutation) -> Any:
    """The module with a bug."""
    source = (FOLDER / "draft_graphs" / "same_settings.py").read_text(encoding="utf-8")
    module: Any = ModuleType(same_settings.__name__)
    module.__package__ = same_settings.__package__
    module.__spec__ = same_settings.__spec__
    changes = [change[1:] for change in mutation.changes]
    exec(compile(edited(source, changes), mutation.name, "exec"), vars(module))
    return module


def is_right(module: Any) -> bool:
    """Whether ranks that are equal start, and others do not, whatever was said before."""
    auto, off = {MODE: "auto", "patches": "a"}, {MODE: "off", "patches": "a"}
    other = {MODE: "auto", "patches": "b"}
    first, second, third, fourth = meet(
        module, [[auto, auto], [auto, off], [auto, other], [off, off]]
    )
    (silent,) = meet(module, [[auto, None]])
    (apart,) = meet(module, [[auto, other]], data_parallel=2)
    devices = [{**auto, "drafts": "in graphs"}, {**auto, "drafts": "as upstream: no graphs"}]
    (mixed,) = meet(module, [devices], data_parallel=2)
    return (
        [*first, *fourth, *mixed] == [""] * 6 and all([*second, *third, *apart]) and bool(silent[0])
    )


@pytest.mark.parametrize("mutation", SETTINGS_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(mutation: SettingsMutation) -> None:
    require_fit(mutation.changes)
    assert is_right(same_settings)
    assert not is_right(mutated(mutation))
