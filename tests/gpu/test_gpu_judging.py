"""What the results of the GPU cells come to, and where the cells run; needs no GPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.gpu.gpu_cells import all_cells
from tests.gpu.judging import judge
from tests.gpu.placing import Slots
from tests.gpu.quantised_cells import FORMATS

REASON = "failed on purpose"


def cell(mode: str, *, name: str = "c", accepted: int = 9, **more: Any) -> dict[str, Any]:
    """A cell that equals the oracle, unless told otherwise, and did what it should."""
    graphs = not mode.startswith("off")
    rank = {"replays": {"loop": 5} if graphs else {}, "withdrawn": None}
    return {
        "cell": name,
        "mode": mode,
        "expects": "graphs" if graphs else "none",
        "counts": {"drafts": 10, "accepted": accepted},
        "counts_ok": True,
        "tokens_ok": "2 of 2",
        "steps_ok": "2 of 2",
        "prompt_logprobs_ok": "0 of 0",
        "equals": "oracle",
        "ran": rank,
        "captured": {"keys": {"loop": 3} if graphs else {}},
        "log": [],
    } | more


def verdicts(*results: dict[str, Any]) -> list[tuple[bool, str | None]]:
    judge(list(results))
    return [(one["ok"], one["equals"] if one["ok"] else one["why"]) for one in results]


def test_equal_to_the_oracle() -> None:
    assert verdicts(cell("off"), cell("loop")) == [(True, "oracle"), (True, "oracle")]


def test_without_graphs_and_off_the_oracle_is_not_equal_to_itself() -> None:
    off, loop = cell("off", equals=None), cell("loop", equals=None)
    assert verdicts(off, loop) == [
        (False, "leaves the oracle without graphs"),
        (True, "itself without graphs"),
    ]


def test_a_second_run_without_graphs_is_a_measure_for_the_first() -> None:
    off, again, loop = (cell(mode, equals=None) for mode in ("off", "off again", "loop"))
    second = "a second run without graphs"
    assert verdicts(off, again, loop) == [
        (True, second),
        (True, second),
        (True, "itself without graphs"),
    ]


def test_what_differs_from_run_to_run_measures_nothing() -> None:
    off, loop = cell("off", equals=None), cell("loop", equals=None)
    again = cell("off again", equals=None, accepted=8)
    assert verdicts(off, again, loop) == [
        (False, "differs from run to run without graphs"),
        (False, "differs from run to run without graphs"),
        (False, "the engine without graphs differs from run to run"),
    ]


def test_graphs_that_differ_from_both_measures() -> None:
    found = verdicts(cell("off"), cell("loop", equals=None, accepted=8))
    assert found[1] == (False, "neither the oracle nor the engine without graphs")


def test_another_cell_is_no_measure() -> None:
    found = verdicts(cell("off", name="other"), cell("loop", equals=None))
    assert found[1] == (False, "neither the oracle nor the engine without graphs")


def test_a_verdict_is_taken_back_when_more_is_known() -> None:
    off, loop = cell("off", equals=None), cell("loop", equals=None)
    assert verdicts(off, loop)[1] == (True, "itself without graphs")
    again = cell("off again", equals=None, accepted=8)
    assert verdicts(off, loop, again)[1][0] is False


def test_an_engine_that_failed_is_not_equal() -> None:
    failed = {"cell": "c", "mode": "loop", "expects": "graphs", "log": []}
    assert verdicts(failed | {"equals": None}) == [(False, "the engine failed")]


@pytest.mark.parametrize(
    ("mode", "rank", "why"),
    [
        ("loop", {"replays": {}, "withdrawn": None}, "no graph was replayed"),
        ("loop", {"replays": {"loop": 1}, "withdrawn": "why"}, "withdrawn: ['why']"),
        ("off", {"replays": {"loop": 1}, "withdrawn": None}, "graphs were replayed"),
        ("loop", {}, "nothing is known of the drafter"),
    ],
)
def test_graphs_must_have_done_what_is_expected(mode: str, rank: Any, why: str) -> None:
    [(ok, said)] = verdicts(cell(mode, ran=rank))
    assert not ok
    assert said is not None
    assert said.startswith(why)


def test_prompt_logprobs_are_those_without_graphs() -> None:
    def logprobs(*requests: list[float], right: tuple[bool, ...] = (True, True)) -> Any:
        pairs = zip(requests, right, strict=True)
        return [{"values": values, "right": each} for values, each in pairs]

    def equal(loop: Any, **kind: Any) -> bool:
        off = cell("off", equals=None, prompt_logprobs=logprobs([-1.5, -0.25], [-3.0], **kind))
        return verdicts(off, cell("loop", equals=None, prompt_logprobs=loop))[1][0]

    assert equal(logprobs([-1.5, -0.2505], [-3.0]))
    assert not equal(logprobs([-1.5, -0.26], [-3.0]))
    assert not equal(logprobs([-1.5, -0.25], [float("nan")]))
    assert not equal(logprobs([-1.5], [-3.0]))
    assert equal(logprobs([-1.5, -0.25], [-9.0]), right=(True, False))
    assert not equal(logprobs([-1.6, -0.25], [-9.0]), right=(True, False))


def test_every_graph_was_replayed() -> None:
    captured = {"keys": {"first": 2, "loop": 2}}
    sizes = {"first 1": 3, "first 2": 1, "loop 1": 3, "loop 2": 1}
    ran = {"replays": {"first": 4, "loop": 4}, "withdrawn": None, "sizes": sizes}
    every: dict[str, Any] = {"captured": captured, "ran": ran, "every_size": "uniform"}
    assert verdicts(cell("loop", **every)) == [(True, "oracle")]
    del sizes["first 2"]
    assert verdicts(cell("loop", **every)) == [(False, "captured and never replayed: {'first': 1}")]
    assert verdicts(cell("loop", **every | {"every_size": None})) == [(True, "oracle")]


def test_every_graph_of_mixed_batches_was_replayed() -> None:
    captured = {"keys": {"first": 2, "mixed": 2, "loop": 1}}
    sizes = {"mixed 8 of 128 tokens": 3, "mixed 8 of 256 tokens": 1, "loop 8": 4}
    ran = {"replays": {"mixed": 4, "loop": 4}, "withdrawn": None, "sizes": sizes}
    every: dict[str, Any] = {"captured": captured, "ran": ran, "every_size": "mixed"}
    assert verdicts(cell("loop", **every)) == [(True, "oracle")]
    del sizes["mixed 8 of 256 tokens"]
    assert verdicts(cell("loop", **every)) == [(False, "captured and never replayed: {'mixed': 1}")]
    every["every_size"] = "uniform"
    assert verdicts(cell("loop", **every)) == [(False, "captured and never replayed: {'first': 2}")]


def ranks(*replays: dict[str, int]) -> dict[str, Any]:
    each = [{"replays": one, "withdrawn": None} for one in replays]
    return {**each[0], "ranks": each}


def test_all_ranks_replay_the_same() -> None:
    assert verdicts(cell("loop", ran=ranks({"loop": 2}, {"loop": 2})))[0][0]
    [(ok, why)] = verdicts(cell("loop", ran=ranks({"loop": 2}, {"loop": 1})))
    assert (ok, why) == (False, "the ranks replayed differently: [{'loop': 2}, {'loop': 1}]")


def withdrawn(**more: Any) -> dict[str, Any]:
    """Two ranks whose capture failed on rank 1."""
    reasons = ["loop: another tensor-parallel rank failed", f"loop: RuntimeError: {REASON}"]
    each: list[dict[str, Any]] = [{"replays": {}, "withdrawn": reason} for reason in reasons]
    return (
        cell(
            "loop",
            expects="withdrawn",
            reason=REASON,
            ran={**each[0], "ranks": each},
            captured={"keys": {}, "ranks": [{"keys": {}}, {"keys": {}}]},
            log=[f"WARNING Draft graphs withdrawn: {reason}" for reason in reasons],
        )
        | more
    )


def test_a_failed_capture_leaves_nothing_on_any_rank() -> None:
    assert verdicts(withdrawn()) == [(True, "oracle")]
    kept = {"keys": {}, "ranks": [{"keys": {}}, {"keys": {"first": 1}}]}
    assert verdicts(withdrawn(captured=kept)) == [
        (False, "draft keys are left: [{}, {'first': 1}]")
    ]
    each: list[dict[str, Any]] = [
        {"replays": {}, "withdrawn": None},
        {"replays": {}, "withdrawn": REASON},
    ]
    assert not verdicts(withdrawn(ran={**each[0], "ranks": each}))[0][0]


def test_a_failed_capture_gives_its_reason_once() -> None:
    log = withdrawn()["log"]
    assert verdicts(withdrawn(log=log[:1])) == [(False, "1 warnings on 2 ranks")]
    assert verdicts(withdrawn(log=[log[0], log[0]])) == [
        (False, "not exactly one warning gives the reason")
    ]


@pytest.mark.slow
def test_every_cell_has_a_title_of_its_own_and_the_longest_begin() -> None:
    cells = all_cells("MODELS")
    assert len({cell.title for cell in cells}) == len(cells)
    weights = [cell.weight for cell in cells]
    assert weights == sorted(weights, reverse=True)
    assert {cell.draft_graphs for cell in cells} == {"off", "step", "loop", "auto"}
    # An engine that leaves the oracle has a second run without graphs beside it.
    again = {cell.name for cell in cells if cell.mode == "off again"}
    logprobs = "sampled-and-logprobs"
    assert again == {
        "max-model-len",
        *(logprobs + kind for kind in ("", "-full", "-full_decode_only")),
        *(each + kind for each in FORMATS for kind in ("", "-hid-k5")),
        *(f"fp8-draft-{draft}" for draft in ("eagle3", "eagle3hid", "eagle1")),
        *(f"fp8-cache-{kind}every-size{rows}" for kind, rows in (("", "256"), ("mixed-", ""))),
    }


def test_engines_spread_over_the_gpus() -> None:
    slots = Slots(("4", "7"), jobs=2)
    assert slots.count == 4
    with slots.room(1) as first, slots.room(1) as second, slots.room(2) as both:
        assert sorted(first + second) == ["4", "7"]
        assert sorted(both) == ["4", "7"]
    with pytest.raises(ValueError, match="3 GPUs were asked for"), slots.room(3):
        pass


def test_without_names_the_engine_sees_what_it_sees() -> None:
    with Slots((), jobs=3).room(1) as gpus:
        assert gpus == ()


def test_alone_waits_for_an_empty_gpu_and_goes_before_those_behind() -> None:
    slots = Slots(("0",), jobs=2)
    order: list[str] = []

    def run(name: str, *, alone: bool) -> None:
        with slots.room(1, alone=alone):
            order.append(name)

    with slots.room(1):
        lonely = threading.Thread(target=run, args=("alone",), kwargs={"alone": True})
        lonely.start()
        while not slots._waiting:
            pass
        # There is room for this one, but it came later.
        behind = threading.Thread(target=run, args=("behind",), kwargs={"alone": False})
        behind.start()
        behind.join(0.2)
        assert order == []
    lonely.join(5)
    behind.join(5)
    assert order == ["alone", "behind"]
