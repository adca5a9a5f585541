"""Mutations on a GPU: they fit the module, and are judged as meant."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.added_modules import require_fit
from tests.draft_graphs.mutation_table import MUTATIONS
from tests.draft_graphs.mutations import GPU_ONLY
from tests.gpu import gpu_mutations, mutation_hooks, verify_mutations
from tests.gpu.acceptance import RAISED
from tests.gpu.mutation_engines import engines, planned
from tests.gpu.mutation_hooks import MUTATION_VARIABLE
from tests.gpu.mutation_judging import judge_mutations
from tests.gpu.mutation_plan import ALSO, GPU_MUTATIONS, ONLY, GpuMutation

HERE = Path(__file__).parents[1]


# ---- the plan


@pytest.mark.parametrize("mutation", GPU_MUTATIONS, ids=lambda each: each.name)
def test_mutation_fits_the_module(mutation: GpuMutation) -> None:
    require_fit(mutation.changes)


@pytest.mark.parametrize("double", [False, True])
def test_controls_begin_first_and_every_title_is_used_once(double: bool) -> None:
    plan = list(planned("models", double=double))
    titles = Counter(cell.title for cell, _ in plan)
    assert set(titles.values()) == {1}
    controls = [(cell.name, cell.mode) for cell, mutation in plan if mutation is None]
    assert all(mutation is None for _, mutation in plan[: len(controls)])
    for cell, mutation in plan[len(controls) :]:
        assert mutation is not None
        assert (cell.name.partition("~")[0], cell.mode) in controls


def test_every_mutation_runs_and_is_in_its_engine_before_all_else() -> None:
    plan = list(planned("models", double=False))
    assert {mutation for _, mutation in plan} == {None, *GPU_MUTATIONS}
    for cell, mutation in plan:
        if mutation is None:
            assert MUTATION_VARIABLE not in cell.spec.env
            continue
        assert cell.spec.pre[0] == "tests.gpu.mutation_hooks:mutate"
        assert cell.spec.post_load[0] == "tests.gpu.mutation_hooks:check_mutated"
        asked = json.loads(cell.spec.env[MUTATION_VARIABLE])
        assert asked["changes"] == [list(each) for each in mutation.changes]


def test_names_are_used_once_and_most_must_be_caught() -> None:
    assert len({each.slug for each in GPU_MUTATIONS}) == len(GPU_MUTATIONS)
    # Those that need not be are told in docs/appendix/mutations.md, with the reason.
    assert len([each for each in ONLY if not each.must]) == 2
    assert len([each for each in ALSO if not each.must]) == 4


def test_engines_compile_nothing_and_the_plan_is_small() -> None:
    for spec in engines("models").values():
        assert dict(spec.compilation or {})["mode"] == 0
        assert len(spec.requests) <= 24
    assert len(list(planned("models", double=False))) <= 56


def test_prompts_whose_logprobs_are_asked_for_lie_in_graphs() -> None:
    made = engines("models")
    decode, full = made["prompts-decode"], made["prompts-full"]
    assert all(each.prompt_logprobs for each in (*decode.requests, *full.requests))
    assert {len(each.prompt) for each in decode.requests} == {decode.k + 1}
    begin = Counter(each.arrival for each in full.requests)
    longest = max(len(each.prompt) for each in full.requests)
    for beginning in begin.values():
        tokens = beginning * longest + (full.max_num_seqs - beginning) * (full.k + 1)
        assert tokens <= 2 * full.max_num_seqs * (full.k + 1)


def test_what_is_chosen_has_its_control() -> None:
    everything = list(planned("models", double=False))
    chosen = gpu_mutations.chosen(everything, "one-step-too-few")
    assert [cell.title for cell, _ in chosen] == [
        "hid-k5-step",
        "hid-k5~one-step-too-few-is-replayed-step",
    ]


def test_every_row_that_only_a_gpu_shows_names_its_mutations() -> None:
    rows = "\n".join(each.bug for each in GPU_ONLY.values())
    for mutation in ONLY:
        assert f'"{mutation.name}"' in rows, mutation.name


# ---- judging

BUG = GpuMutation(
    "a bug",
    (("replay.py", "Replay", "a", "b"),),
    ("e loop",),
    ("acceptance", "error"),
    True,
    "KeyError",
)
RUNS = mutation_hooks.executed_line("replay.py", "a bug")


def result(name: str = "e", **more: Any) -> dict[str, Any]:
    made = {
        "cell": name,
        "mode": "loop",
        "expects": "graphs",
        "equals": "oracle",
        "tokens_ok": "8 of 8",
        "steps_ok": "8 of 8",
        "prompt_logprobs_ok": "0 of 0",
        "counts": {"accepted": 7},
        "counts_ok": True,
        "captured": {"keys": {"loop": 1}},
        "ran": {"replays": {"loop": 3}, "withdrawn": None},
        "hooks": {},
        "log": [],
    }
    return {**made, **more}


def mutated(**more: Any) -> dict[str, Any]:
    return result("e~a-bug", **{"log": [RUNS], **more})


def failed(raised: str, *log: str) -> dict[str, Any]:
    made = mutated(log=[RUNS, *log], failed="1: ...", raised=raised)
    return {name: made[name] for name in made if name not in ("counts", "equals", "ran")}


def judged(
    one: dict[str, Any], mutation: GpuMutation = BUG, **control: Any
) -> tuple[bool, bool, str]:
    """Whether it was caught, whether it is not a failure, and what is shown."""
    results = [result(**control), one]
    judge_mutations(results, {"e~a-bug": mutation})
    return one["caught"], one["ok"], one["shown"]


NOT_CAUGHT = "not caught: expected acceptance or error, found "
WRONG = {"equals": None, "steps_ok": "6 of 8"}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (mutated(**WRONG), (True, True, "caught: acceptance")),
        (failed("KeyError: 3"), (True, True, "caught: error")),
        (
            mutated(),
            (False, False, f"{NOT_CAUGHT}nothing"),
        ),
        (failed("") | {"raised": None, "failed": "-9: text"}, (False, False, f"{NOT_CAUGHT}-9")),
        (
            failed("ValueError: Free memory"),
            (
                False,
                False,
                "not caught: expected acceptance or error, found ValueError: Free memory",
            ),
        ),
        (
            mutated(equals=None, prompt_logprobs_ok="1 of 2"),
            (False, False, f"{NOT_CAUGHT}prompt logprobs"),
        ),
    ],
)
def test_a_mutation_is_caught_by_an_expected_sign_alone(one: Any, expected: Any) -> None:
    assert judged(one) == expected


def test_an_engine_that_hangs_is_a_sign_where_it_is_expected() -> None:
    hangs = failed("") | {"raised": None, "failed": "not done after 240 s: text"}
    bug = GpuMutation(BUG.name, BUG.changes, BUG.engines, ("error",), True, "not done after")
    assert judged(hangs, bug) == (True, True, "caught: error")
    assert not judged(hangs)[0]


def test_what_need_not_be_caught_is_told_and_is_no_failure() -> None:
    bug = GpuMutation(BUG.name, BUG.changes, BUG.engines, ("memory",))
    assert judged(mutated(), bug) == (
        False,
        True,
        "not caught: expected memory, found nothing (it need not be)",
    )


@pytest.mark.parametrize(
    ("sign", "one"),
    [
        ("prompt logprobs", mutated(equals=None, prompt_logprobs_ok="1 of 2")),
        ("address check", failed("vllm.v1.spec_decode.addresses.AddressError: loop: it lies")),
        (
            "withdrawn",
            mutated(log=[RUNS, "WARNING Draft graphs withdrawn, as upstream: KeyError: CUDA"]),
        ),
        ("memory", mutated(hooks={"mutation_hooks:pool_bytes": {"bytes": 9}})),
        ("late reader", mutated(hooks={"mutation_hooks:late_reads": {"read": 3, "changed": 1}})),
        (
            "host",
            mutated(
                hooks={"mutation_hooks:operators": {"serving": {}, "captured": 0, "host": {"x": 1}}}
            ),
        ),
    ],
)
def test_every_other_sign(sign: Any, one: dict[str, Any]) -> None:
    bug = GpuMutation(BUG.name, BUG.changes, BUG.engines, (sign,), True, "KeyError")
    hooks = {"mutation_hooks:pool_bytes": {"bytes": 8}}
    assert judged(one, bug, hooks=hooks) == (True, True, f"caught: {sign}")
    assert not judged(mutated(), bug, hooks=hooks)[0]


def test_as_much_memory_as_the_control_is_no_sign() -> None:
    bug = GpuMutation(BUG.name, BUG.changes, BUG.engines, ("memory",), True)
    pool = {"hooks": {"mutation_hooks:pool_bytes": {"bytes": 8}}}
    assert not judged(mutated(**pool), bug, **pool)[0]


@pytest.mark.parametrize(
    ("one", "control", "says"),
    [
        (mutated(**WRONG, log=[]), {}, "not executed: mutated replay.py"),
        (mutated(**WRONG), WRONG, "its control is wrong: neither the oracle"),
        (mutated(**WRONG), {"equals": "a second run"}, "its control is wrong: neither"),
        (
            mutated(**WRONG),
            {"hooks": {"mutation_hooks:pool_bytes": None}},
            "its control is wrong: no memory",
        ),
        (
            mutated(**WRONG),
            {"hooks": {"mutation_hooks:late_reads": {"read": 3, "changed": 1}}},
            "its control is wrong: of 3 results",
        ),
        (
            mutated(**WRONG),
            {"hooks": {"mutation_hooks:late_reads": {"read": 0, "changed": 0}}},
            "its control is wrong: of 0 results",
        ),
        (
            mutated(**WRONG),
            {"hooks": {"mutation_hooks:operators": {"serving": {}, "captured": 1, "host": {}}}},
            "its control is wrong: no operator",
        ),
        (
            mutated(**WRONG),
            {
                "hooks": {
                    "mutation_hooks:operators": {
                        "serving": {"x": 1},
                        "captured": 1,
                        "host": {"copy": 1},
                    }
                }
            },
            "its control is wrong: copied to or from the host",
        ),
    ],
)
def test_where_nothing_is_known_it_is_a_failure(
    one: dict[str, Any], control: dict[str, Any], says: str
) -> None:
    caught, ok, shown = judged(one, **control)
    assert not caught
    assert not ok
    assert shown.startswith(f"nothing is known: {says}")


def test_without_its_control_nothing_is_known_yet_and_judging_again_says_more() -> None:
    one = mutated(**WRONG)
    judge_mutations([one], {"e~a-bug": BUG})
    assert (one["ok"], one["shown"]) == (False, "nothing is known: its control has not run yet")
    assert judged(one) == (True, True, "caught: acceptance")


def test_the_summary_says_what_was_not_caught() -> None:
    results = [result(), mutated(**WRONG), {**mutated(), "cell": "e~b"}]
    judge_mutations(results, {"e~a-bug": BUG, "e~b": BUG})
    assert gpu_mutations.summary(results) == [
        "not caught: expected acceptance or error, found nothing: a bug [e~b]",
        "1 of 2 mutated cells were caught, 1 of the 2 that must be; 1 of 1 controls are right",
    ]


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("[rank0]: KeyError: DraftKey(...)", "KeyError: DraftKey(...)"),
        ("torch.AcceleratorError: CUDA error: x", "torch.AcceleratorError: CUDA error: x"),
        ("AssertionError", "AssertionError"),
        ("INFO ValueError: logged", None),
        ("    raise ValueError(x)", None),
    ],
)
def test_what_ended_an_engine_is_found_in_its_log(line: str, raised: str | None) -> None:
    found = RAISED.match(line)
    assert (found and found[1]) == raised


# ---- overlay verify


@pytest.mark.parametrize(
    ("bug", "status", "told", "right"),
    [
        (True, 1, {"code": "drafts-differ"}, True),
        (True, 1, {"code": "not-verified"}, False),
        (True, 0, {"code": "verified"}, False),
        (True, 1, {"error": "it raised"}, False),
        (True, None, {"error": "it did not end"}, False),
        (False, 0, {"code": "verified"}, True),
        (False, 1, {"code": "drafts-differ"}, False),
    ],
)
def test_only_other_drafts_show_a_bug_to_verify(
    bug: bool, status: int | None, told: dict[str, Any], right: bool
) -> None:
    assert verify_mutations.is_right(status, told, bug=bug) is right


@pytest.mark.slow
def test_a_command_that_does_not_end_is_told() -> None:
    status, told = verify_mutations.run_command([], {}, 0.001)
    assert status is None
    assert "did not end" in told["error"]


def test_the_bugs_for_verify_are_in_the_table() -> None:
    names = {mutation.name for mutation in MUTATIONS}
    assert set(verify_mutations.SAMPLE) <= names
