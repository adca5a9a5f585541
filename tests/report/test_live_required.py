"""``status --live --require``: 0 only where every process with a model uses the feature."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay._processes import Effect, EffectRecord, ProcessRecord
from overlay._processes.live import LiveProcess
from overlay.commands.live import not_active, running
from overlay.report.codes import Code
from overlay.results import Way

#: What processes do, by the states of the features ``a`` and ``b``; ``None``: its code is absent.
STATES = st.sampled_from([*Effect, None])
PROCESSES = st.lists(st.tuples(st.booleans(), STATES, STATES), max_size=4)


def process(pid: int, with_model: bool, **states: Effect | None) -> LiveProcess:
    effects = tuple(
        EffectRecord(name, state, "why") for name, state in states.items() if state is not None
    )
    record = ProcessRecord(
        pid=pid,
        started="1",
        host="h",
        role="worker",
        rank=0 if with_model else None,
        vllm="0.32.0",
        root="/site",
        way=Way.DISK,
        digest="d",
        summary="x",
        effects=effects,
    )
    return LiveProcess(pid, "vllm serve", 1, record, None)


@given(PROCESSES)
def test_a_required_feature_lacks_unless_each_process_with_a_model_uses_it(
    said: list[tuple[bool, Effect | None, Effect | None]],
) -> None:
    processes = [process(pid, model, a=a, b=b) for pid, (model, a, b) in enumerate(said)]
    lacking = not_active(processes, ("a",))
    of_models = [a for model, a, _ in said if model]
    good = bool(of_models) and all(a in (Effect.ACTIVE, Effect.PATCHED) for a in of_models)
    assert (not lacking) == good
    assert (running(processes, lacking).code is Code.REQUIRED_MISSING) == (not good)
    assert running(processes, lacking).code.exit == (0 if good else 1)


@given(PROCESSES)
def test_all_requires_each_feature_that_is_there_but_situational_ones(
    said: list[tuple[bool, Effect | None, Effect | None]],
) -> None:
    processes = [process(pid, model, a=a, b=b) for pid, (model, a, b) in enumerate(said)]
    there = any(model and a is not None for model, a, _ in said)
    alone = not_active(processes, ("all",), {"b"})
    if there:
        assert alone == not_active(processes, ("a",))
    else:
        assert [each.feature for each in alone] == ["all"]


def test_the_answer_says_which_process_and_why() -> None:
    processes = [process(7, True, a=Effect.ACTIVE), process(8, True, a=Effect.PENDING)]
    (lacking,) = not_active(processes, ("a",))
    assert lacking == ("a", 8, "pending: why")
    (none,) = not_active([], ("a",))
    assert none.pid is None
    assert "no process of vLLM has loaded a model" in none.why
