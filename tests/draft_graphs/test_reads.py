"""What a graph reads is known: whatever moves is noticed, and the graphs are captured again.

The proposer of `upstream_twin.py` with recordings for graphs; needs vLLM.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# What is imported below needs both of them.
pytest.importorskip("torch")
pytest.importorskip("vllm")

import torch

from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-graphs")

from vllm.v1.spec_decode.draft_graphs import capture, draft_graphs, ranks, reads

from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.mutation_types import UnitMutation
from tests.draft_graphs.reads_mutations import READS_MUTATIONS
from tests.draft_graphs.test_builders import with_bug

pytestmark = pytest.mark.usefixtures("one_rank")


class Holder:
    """A plain object with a tensor, as a quantisation method or an attention implementation."""

    def __init__(self, value: Any) -> None:
        self.held = value


def tensor(*size: int) -> torch.Tensor:
    return torch.randn(size or (4, 4))


def make_model() -> torch.nn.Module:
    """A model with tensors in every place where vLLM's have some."""
    model = torch.nn.Module()
    model.layer = torch.nn.Linear(4, 4)
    model.lm_head = torch.nn.Embedding(8, 4)
    model.register_buffer("table", tensor())
    model.layer.workspace = tensor()
    model.layer.fused = [tensor(), tensor()]
    model.layer.by_name = {"scale": tensor(), "rest": (tensor(), [tensor()])}
    model.layer.quant_method = Holder(Holder([tensor()]))
    model.layer.scale_float = 0.5
    # As the globals of a compiled model, which PyTorch 2.13 keeps beside it.
    model.compiled = Holder({"KVCache": tuple[torch.Tensor, torch.Tensor], "table": tensor()})
    return model


def replace_data(model: torch.nn.Module) -> None:
    model.layer.weight.data = model.layer.weight.data.clone()


def replace_parameter(model: torch.nn.Module) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.clone())


def exchange_module(model: torch.nn.Module) -> None:
    """Another one around the very tensors."""
    model.layer = copy.copy(model.layer)


def transpose_in_place(model: torch.nn.Module) -> None:
    model.layer.weight.data = model.layer.weight.data.t()


MOVES: dict[str, Callable[[torch.nn.Module], object]] = {
    "data": replace_data,
    "parameter": replace_parameter,
    "module": exchange_module,
    "layout": transpose_in_place,
    "buffer": lambda model: setattr(model, "table", tensor()),
    "attribute": lambda model: setattr(model.layer, "workspace", tensor()),
    "list": lambda model: setattr(model.layer, "fused", list(map(torch.clone, model.layer.fused))),
    "element": lambda model: model.layer.fused.__setitem__(1, tensor()),
    "mapping": lambda model: model.layer.by_name.__setitem__("scale", tensor()),
    "deep": lambda model: model.layer.by_name["rest"][1].__setitem__(0, tensor()),
    "object": lambda model: setattr(model.layer.quant_method.held, "held", [tensor()]),
    "method": lambda model: setattr(model.layer, "quant_method", Holder(Holder([tensor()]))),
    "number": lambda model: setattr(model.layer, "scale_float", 0.25),
    "global": lambda model: model.compiled.held.__setitem__("table", tensor()),
    "gone": lambda model: delattr(model.layer, "workspace"),
    "none": lambda model: setattr(model.layer, "workspace", None),
    "shorter": lambda model: model.layer.fused.pop(),
}
#: What moves nothing.
STAYS: dict[str, Callable[[torch.nn.Module], object]] = {
    "nothing": lambda model: None,
    "other weights": lambda model: [p.data.normal_() for p in model.parameters()],
    "the same number": lambda model: setattr(model.layer, "scale_float", float("0.5")),
    "something new": lambda model: setattr(model.layer, "calls", 1),
    "the same data": lambda model: setattr(model.layer.weight, "data", model.layer.weight.data),
}


def of(model: torch.nn.Module, module: Any = reads, **more: Any) -> Any:
    return module.Reads(dict(model.named_modules()), **{"ranks_agree": False, **more})


def unnoticed(module: Any = reads, **more: Any) -> list[str]:
    """Moves that nobody notices, and what is taken for one."""
    wrong = []
    for name, move in {**MOVES, **STAYS}.items():
        model = make_model()
        known = of(model, module, **more)
        assert known.moved() is None
        move(model)
        if (known.moved() is not None) != (name in MOVES):
            wrong.append(name)
    return wrong


def test_every_move_is_noticed_and_nothing_else() -> None:
    assert unnoticed() == []
    assert unnoticed(ranks_agree=True) == []


#: As several of vLLM's modules with draft models have it.
KVCache = tuple[torch.Tensor, torch.Tensor]


class Doubling(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # mypy may see no torch
    """What PyTorch compiles ahead of time, as vLLM has it do with each draft model."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2


def test_a_compiled_model_is_no_hindrance() -> None:
    """Beside it lie the globals of its module: those of this one."""
    model = Doubling()
    compiled: Any = torch.compile(model.forward, fullgraph=True, backend="eager")
    model.aot_compiled_fn = compiled.aot_compile(((tensor(),), {}))
    assert KVCache in model.aot_compiled_fn._extra_globals.values()
    assert of(model).moved() is None


def test_what_moved_is_named() -> None:
    model = make_model()
    known = of(model)
    model.layer.by_name["scale"] = tensor()
    assert known.moved() == "Linear layer.by_name[scale]"


def same_place(model: torch.nn.Module, module: Any = reads) -> bool:
    """New memory at the old address, as an allocator may give on some ranks and not on others.

    Whether ranks would part over it.
    """
    memory = bytearray(64)
    model.layer.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(4, 4)
    known = of(model, module), of(model, module, ranks_agree=True)
    model.layer.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(4, 4)
    assert known[0].moved() is None, "the graph of one rank reads the new memory"
    return known[1].moved() is None


def test_ranks_compare_memory_and_not_its_place() -> None:
    assert not same_place(make_model())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), ranks_agree=st.booleans())
def test_any_tensor_anywhere_is_noticed(seed: int, ranks_agree: bool) -> None:
    """A law over random trees of modules, objects, lists and mappings."""
    dice = random.Random(seed)
    places: list[tuple[Any, Any]] = []

    def grow(depth: int) -> Any:
        kind = dice.choice(["tensor", "list", "dict", "object"] if depth else ["tensor"])
        if kind == "tensor":
            return tensor(2)
        below = [grow(depth - 1) for _ in range(dice.randint(1, 3))]
        if kind == "object":
            return Holder(below[0])
        return below if kind == "list" else dict(enumerate(below))

    def note(value: Any) -> None:
        inside: Any = vars(value) if isinstance(value, Holder) else value
        for key in inside if isinstance(inside, dict) else range(len(inside)):
            if isinstance(inside[key], torch.Tensor):
                places.append((inside, key))
            else:
                note(inside[key])

    model = torch.nn.Module()
    model.inner = torch.nn.Module()
    for owner in (model, model.inner):
        owner.tree = {"root": grow(reads.DEPTH - 1)}
        note(owner.tree)
        owner.weight = torch.nn.Parameter(tensor(2))
        places.append((owner._parameters, "weight"))
    known = of(model, ranks_agree=ranks_agree)
    assert len(known) >= len(places)
    assert known.moved() is None
    container, key = dice.choice(places)
    old = container[key]
    if dice.random() < 0.5:
        old.data = old.data.clone()
    else:
        container[key] = type(old)(old.data.clone())
    assert known.moved() is not None


def test_nothing_is_kept_that_somebody_replaced() -> None:
    """The old weights would take the room that the new ones need."""
    model = make_model()
    known = of(model, ranks_agree=True)
    old = model.lm_head.weight
    uses = sys.getrefcount(old)
    weak = torch._C._storage_Use_Count(old.untyped_storage()._cdata)
    del known
    gc.collect()
    assert sys.getrefcount(old) == uses
    assert torch._C._storage_Use_Count(old.untyped_storage()._cdata) == weak


# ---- graphs


def with_head(drafter: Drafter) -> Any:
    """The drafter's model with a head that is a module, as one that is the target's."""
    model = drafter.proposer.model
    head = torch.nn.Linear(*reversed(model.head.shape), bias=False)
    head.weight.data = model.head.data.clone()
    del model._parameters["head"]
    model.lm_head = head
    model.compute_logits = lambda hidden: hidden @ model.lm_head.weight.T
    return model


def spoil(old: torch.Tensor) -> None:
    old.data.fill_(float("nan"))


def negative(value: torch.Tensor) -> torch.Tensor:
    """Other weights, elsewhere; what lay there before is spoilt."""
    new = -value.detach().clone()
    spoil(value)
    return new


def new_head(model: Any) -> None:
    model.lm_head.weight.data = negative(model.lm_head.weight.data)


def new_parameter(model: Any) -> None:
    model.mix = torch.nn.Parameter(negative(model.mix))


def new_module(model: Any) -> None:
    head = torch.nn.Linear(*reversed(model.lm_head.weight.shape), bias=False)
    head.weight.data = negative(model.lm_head.weight.data)
    model.lm_head = head


def new_list(model: Any) -> None:
    model.fused = [negative(model.fused[0])]


def new_object(model: Any) -> None:
    model.kernel = Holder([negative(model.kernel.held[0])])


LOADS: dict[str, Callable[[Any], None]] = {
    "head": new_head,
    "parameter": new_parameter,
    "module": new_module,
    "list": new_list,
    "object": new_object,
}


def loaded(name: str, before: bool) -> tuple[Drafter, Any]:
    """A drafter and its drafts after a load; before: whether the graphs are captured after it."""
    drafter = Drafter()
    model = with_head(drafter)
    model.fused, model.kernel = [torch.randn(model.mix.shape[0])], Holder([torch.ones(1)])
    torch.manual_seed(0)
    model.fused[0].copy_(torch.linspace(-2, 2, model.fused[0].numel()))
    stock = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        last, hidden = stock(*args, **kwargs)
        return (last + model.fused[0]) * model.kernel.held[0], hidden

    model.forward = forward
    if before:
        LOADS[name](model)
        drafter.capture()
    else:
        drafter.capture()
        assert drafter.propose() is not None
        model.kv_cache.zero_()
        LOADS[name](model)
    return drafter, drafter.propose()


def wrong_loads() -> list[str]:
    """Loads behind which drafts are not those of graphs that were captured behind them."""
    return [
        name
        for name in LOADS
        if not _equal(loaded(name, before=True)[1], loaded(name, before=False)[1])
    ]


def _equal(one: Any, other: Any) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def test_drafts_behind_a_load_are_those_of_the_new_weights(log: list[str]) -> None:
    assert wrong_loads() == []
    again = [line for line in log if "capturing them again" in line]
    assert len(again) == len(LOADS)
    assert "INFO Draft graphs: Linear lm_head.weight is not where the graphs read it" in again[0]


def test_loads_have_an_effect() -> None:
    """Else they would prove nothing."""
    old = loaded("head", before=False)[0]
    first = Drafter()
    with_head(first)
    first.capture()
    assert not _equal(first.propose(), old.propose())


def test_the_graphs_are_captured_again_once() -> None:
    drafter, drafts = loaded("parameter", before=False)
    captured = drafter.graphs.captured
    assert drafts is not None
    assert drafter.propose() is not None
    assert drafter.graphs.captured is captured
    assert drafter.keys


def test_later_passes_of_a_batch_are_upstreams_where_something_has_moved() -> None:
    """Between two passes nothing can be captured; the next batch has graphs again."""
    drafter = Drafter()
    drafter.capture()
    assert drafter.later_steps() is not None
    new_parameter(drafter.proposer.model)
    assert drafter.later_steps() is None
    assert drafter.propose() is not None
    assert drafter.later_steps() is not None


def test_if_a_rank_fails_all_withdraw_and_say_so(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Drafter()
    drafter.capture()
    new_parameter(drafter.proposer.model)
    votes: list[bool] = []

    def vote(yes: bool, **_: Any) -> bool:
        votes.append(yes)
        return len(votes) < 3

    monkeypatch.setattr(ranks, "all_ranks_agree", vote)
    assert drafter.propose() is None
    assert drafter.later_steps() is None
    assert drafter.keys == []
    assert len(votes) == 3, "each graph is voted on"
    assert log[-1].startswith("WARNING Draft graphs withdrawn")
    assert "another tensor-parallel rank failed" in log[-1]


def moving_always(log: list[str]) -> bool:
    """Whether graphs are withdrawn where something moves with every batch."""
    drafter = Drafter()
    drafter.capture()
    for _ in range(draft_graphs.MOST_IN_A_ROW):
        new_parameter(drafter.proposer.model)
        assert drafter.propose() is not None
    new_parameter(drafter.proposer.model)
    withdrawn = drafter.propose() is None
    return withdrawn and "moves with every batch" in log[-1]


def test_what_moves_with_every_batch_withdraws_the_graphs(log: list[str]) -> None:
    assert moving_always(log)


def test_some_loads_in_a_row_do_not() -> None:
    drafter = Drafter()
    drafter.capture()
    for _ in range(2 * draft_graphs.MOST_IN_A_ROW):
        new_parameter(drafter.proposer.model)
        assert drafter.propose() is not None
        assert drafter.propose() is not None


def data_parallel() -> bool:
    """Whether a rank that drafts with others leaves them before it reads what has moved."""
    facts = SimpleNamespace(moved=lambda: "a weight")
    graphs: Any = object.__new__(draft_graphs.DraftGraphs)
    graphs.together = draft_graphs.Together()
    attn = object()
    captured = SimpleNamespace(reads=facts, attn_groups=attn)
    graphs.replay = SimpleNamespace(captured=captured)
    graphs._proposer = SimpleNamespace(draft_attn_groups=attn)
    return bool(graphs.vetoes()) and "a weight is not where" in graphs.together.vetoed


def test_data_parallel_ranks_leave_together() -> None:
    assert data_parallel()


def misses(module: Any) -> bool:
    """Whether something that moved is not noticed, or nothing can be looked at."""
    try:
        return unnoticed(module) != [] or same_place(make_model(), module)
    except (StopIteration, KeyError):  # in naming it; in what is no container
        return True


def is_right(log: list[str]) -> bool:
    """Whether all of the above holds."""
    log.clear()
    test_later_passes_of_a_batch_are_upstreams_where_something_has_moved()
    test_the_graphs_are_captured_again_once()
    return moving_always(log) and data_parallel() and wrong_loads() == []


@pytest.mark.parametrize("mutation", READS_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(
    mutation: UnitMutation, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    (file,) = {change[0] for change in mutation.changes}
    if file == "reads.py":
        bug = with_bug(reads, mutation)
        assert misses(bug)
        return
    module = {"capture.py": capture, "draft_graphs.py": draft_graphs}[file]
    bug = with_bug(module, mutation)
    owner = {"capture.py": "Captured", "draft_graphs.py": "DraftGraphs"}[file]
    scope = mutation.changes[0][1]
    if "." in scope:
        method = scope.rpartition(".")[2]
        monkeypatch.setattr(getattr(module, owner), method, vars(getattr(bug, owner))[method])
    else:
        monkeypatch.setattr(draft_graphs, scope, getattr(bug, scope))
    try:
        right = is_right(log)
    except Exception:  # noqa: BLE001 - however it shows
        right = False
    assert not right
