"""The main job on a real engine: a vLLM patched by `overlay apply` drafts exactly as before.

Before, patched (in its default mode and with the mode off) and reverted, the tokens and the
accepted counts of every draft position equal the oracle, and reverted it is byte for byte what it
was. Patched, it takes steady steps, verifies greedily and does its bookkeeping together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_fixtures import overlay, private_vllm
from tests.engine.engine_spec import (
    ASYNCHRONOUS,
    QUICKEST,
    EngineSpec,
    Request,
    make_requests,
)
from tests.engine.forked_engines import launch_forked
from tests.engine.private_copy import PrivateCopy, hash_files, orphaned_bytecode, site_packages

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
PROPOSER_FILE = "vllm/v1/spec_decode/llm_base_proposer.py"
ADDED = "vllm.v1.spec_decode.draft_graphs"
OFF = {"OVERLAY_DRAFT_GRAPHS": "off"}


def with_prompt_logprobs(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Every third of them asks for prompt logprobs too."""
    return tuple(
        replace(request, prompt_logprobs=None if index % 3 else 1)
        for index, request in enumerate(requests)
    )


#: The last keeps bfloat16; in the second, chunked prefills, decodes and requests that come and go
#: share steps.
CASES = {
    "eagle3-k3": EngineSpec("", "eagle3", 3, make_requests(6), engine=QUICKEST),
    "eagle3hid-k5": EngineSpec(
        "",
        "eagle3hid",
        5,
        with_prompt_logprobs(make_requests(12, lengths=(2, 70), wave=3, steps_between=3)),
        block_size=32,
        max_num_batched_tokens=64,
        engine=QUICKEST,
    ),
    "eagle1-k3": EngineSpec("", "eagle1", 3, make_requests(6, seed=2)),
}
every_case = pytest.mark.parametrize("case", CASES)
#: Where the patch is not in play, the widest case does for the others.
WIDEST = "eagle3hid-k5"
one_case_always = pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name == WIDEST else pytest.mark.thorough) for name in CASES],
)
#: Drafters broken on purpose, and the case that shows it; a few of its requests do.
BROKEN = {"forget_hidden_states": WIDEST, "stand_still": "eagle3-k3"}
FEW = 3
SWITCHED_OFF = "switched off"
#: An engine whose steps are steady, by the switch of the features that it shows.  Off, vLLM's own
#: code runs, as it does where the patch is reverted.
STEADY = {
    switch: replace(
        ASYNCHRONOUS,
        env={
            **ASYNCHRONOUS.env,
            "OVERLAY_STEADY_INPUTS": switch,
            "OVERLAY_GREEDY_VERIFICATION": switch,
            "OVERLAY_BATCHED_BOOKKEEPING": switch,
            "OVERLAY_STEADY_SCHEDULER": switch,
        },
    )
    for switch in ("on", "off")
}

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Life:
    """A vLLM that was patched, served with, reverted, and served with again.

    :ivar before, after: hashes of its files before the patch and after the revert.
    :ivar patched, reverted: what its engines gave, by case, and by what breaks a drafter.
    """

    copy: PrivateCopy
    before: dict[str, str]
    patched: Results
    after: dict[str, str]
    reverted: Results


def serve(python: Path, models: Path, specs: Mapping[str, EngineSpec]) -> Results:
    """Run an engine for each spec, on these models; the results by the same names."""
    given = [replace(spec, models=str(models)) for spec in specs.values()]
    return dict(zip(specs, launch_forked(python, given), strict=True))


def cases_without_patch(config: pytest.Config) -> dict[str, EngineSpec]:
    """The cases of `one_case_always` that run, and the broken drafters."""
    names = CASES if config.getoption("--thorough") else (WIDEST,)
    broken = {
        mutation: replace(
            CASES[case],
            post_load=(f"tests.engine.engine_mutations:{mutation}",),
            requests=CASES[case].requests[:FEW],
        )
        for mutation, case in BROKEN.items()
    }
    return {name: CASES[name] for name in names} | broken


@pytest.fixture(scope="module")
def unpatched(engine_python: Path, tiny_models: Path) -> Results:
    return serve(engine_python, tiny_models, CASES)


@pytest.fixture(scope="module")
def life(
    engine_python: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Life]:
    specs = CASES | {SWITCHED_OFF: replace(CASES[WIDEST], env=OFF), "on": STEADY["on"]}
    if pytestconfig.getoption("--thorough"):
        specs |= STEADY
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("life")):
        before = hash_files(copy.site)
        overlay("apply", copy.site)
        patched = serve(copy.python, tiny_models, specs)
        expect_what_is_on_disk(patched, copy.site)
        overlay("revert", copy.site)
        after = hash_files(copy.site)
        reverted = serve(copy.python, tiny_models, cases_without_patch(pytestconfig))
        yield Life(copy, before, patched, after, reverted)


def expect_the_oracle(result: dict[str, Any]) -> None:
    """Every token, every step's accepted count, and the engine's own metrics."""
    for index, request in enumerate(result["requests"]):
        assert request["tokens_ok"], f"request {index} said {request['tokens']}"
        assert request["steps_ok"], f"request {index} accepted {request['steps']}"
        assert request["prompt_logprobs_ok"] is not False
        assert request["finish"] == "length"
    assert result["counts"] == result["oracle"]
    assert result["ok"]
    assert result["preemptions"] == 0


def proposer_hash(site: Path) -> str:
    """The sha256 of the file that drafts."""
    return hashlib.sha256((site / PROPOSER_FILE).read_bytes()).hexdigest()


def expect_what_is_on_disk(results: Results, site: Path) -> None:
    """All engines ran the file that is there now."""
    for result in results.values():
        (worker,) = result["workers"]
        assert worker["modules"][PROPOSER]["sha256"] == proposer_hash(site)


def expect_code_of(result: dict[str, Any], site: Path, *, patched: bool) -> None:
    """What ran came from the files of ``site``, without the overlay.

    :param patched: whether it was patched; by now it is not.
    """
    (worker,) = result["workers"]
    assert worker["propose"]["file"] == str(site / PROPOSER_FILE)
    assert (worker["modules"][PROPOSER]["sha256"] == proposer_hash(site)) is not patched
    assert (ADDED in worker["modules"]) is patched
    assert worker["overlay_imported"] == []


@pytest.mark.thorough  # a reverted vLLM, which has the same files byte for byte, shows the same
@every_case
def test_before(unpatched: Results, engine_python: Path, case: str) -> None:
    expect_the_oracle(unpatched[case])
    expect_code_of(unpatched[case], site_packages(engine_python), patched=False)


@every_case
def test_patched(life: Life, case: str) -> None:
    expect_the_oracle(life.patched[case])
    expect_code_of(life.patched[case], life.copy.site, patched=True)


def test_patched_and_switched_off(life: Life) -> None:
    expect_the_oracle(life.patched[SWITCHED_OFF])
    expect_code_of(life.patched[SWITCHED_OFF], life.copy.site, patched=True)


@one_case_always
def test_reverted(life: Life, case: str) -> None:
    expect_the_oracle(life.reverted[case])
    expect_code_of(life.reverted[case], life.copy.site, patched=False)


def test_reverted_is_byte_for_byte_what_it_was(life: Life) -> None:
    assert life.after == life.before
    assert orphaned_bytecode(life.copy.site) == []


@pytest.mark.parametrize("mutation", BROKEN)
def test_a_broken_drafter_is_noticed(life: Life, mutation: str) -> None:
    result = life.reverted[mutation]
    # Drafts cannot change what the target says, only how many of them are accepted.
    assert all(request["tokens_ok"] for request in result["requests"])
    assert not result["ok"]
    assert result["counts"]["accepted"] < result["oracle"]["accepted"]


@pytest.mark.parametrize("draft", ["eagle3", "eagle3hid"])
def test_drafts_read_a_tensor_that_no_norm_writes(tiny_models: Path, draft: str) -> None:
    """From before layer 0 vLLM hands over a tensor that norms which work in place add to."""
    config = json.loads((tiny_models / draft / "config.json").read_text(encoding="utf-8"))
    for layers in (config, config["eagle_config"]):
        assert min(layers["eagle_aux_hidden_state_layer_ids"]) > 0


@pytest.fixture(params=["on", pytest.param("off", marks=pytest.mark.thorough)])
def steady(request: pytest.FixtureRequest, life: Life) -> tuple[str, dict[str, Any]]:
    """The features' switch, and what an engine of steady steps gave with it."""
    return request.param, life.patched[request.param]


def test_steady_drafts_are_those_of_the_oracle(steady: tuple[str, dict[str, Any]]) -> None:
    assert steady[1]["ok"]


def test_many_steps_are_steady_where_it_is_on(steady: tuple[str, dict[str, Any]]) -> None:
    switch, result = steady
    counts = result["hooks"]["steady_hooks:steps"]
    if switch == "off":
        assert "steady" not in counts
    else:
        assert counts["all"] / 3 < counts["steady"] < counts["all"]


def test_drafts_are_verified_greedily_where_it_is_on(steady: tuple[str, dict[str, Any]]) -> None:
    switch, result = steady
    counts = result["hooks"]["steady_hooks:steps"]
    way, other = "verified greedily", "verified upstream's way"
    if switch == "off":
        way, other = other, way
    assert counts[way] > counts["all"] / 3
    assert other not in counts


def test_the_bookkeeping_is_done_together_where_it_is_on(
    steady: tuple[str, dict[str, Any]],
) -> None:
    switch, result = steady
    told = result["hooks"]["steady_hooks:bookkeeping"]
    if switch == "off":
        assert told["state"] == "idle"
        assert not told["counts"]
    else:
        assert told["state"] == "active"
        steps = result["hooks"]["steady_hooks:steps"]["all"]
        assert told["counts"]["steps whose placeholders were written together"] > steps / 3
        assert told["counts"]["outputs listed together"] > steps / 3
        assert told["counts"]["steps whose requests went on together"] > steps / 3
        assert told["counts"]["steps whose rejected drafts were taken off together"] > steps / 3
        assert told["counts"]["steps whose last tokens were listed together"] > steps / 3
        assert told["counts"]["steps whose drafts were counted together"] > 3
        # Those of steady steps are copied as they are; the others are filled here.
        assert told["counts"]["steps whose input ids were filled together"] > 3


def test_steps_are_taken_as_one_where_it_is_on(steady: tuple[str, dict[str, Any]]) -> None:
    switch, result = steady
    report = result["hooks"]["steady_hooks:scheduling"]
    if switch == "off":
        assert report["state"] == "idle"
        way = "schedulers that allocate upstream's way: OVERLAY_STEADY_SCHEDULER=off"
        assert report["counts"] == {way: 1}
    else:
        assert report["state"] == "active"
        counts = report["counts"]
        assert counts["schedulers that ask which requests hold their slots"] == 1
        steps = result["hooks"]["steady_hooks:steps"]["all"]
        names = ("steps scheduled together", "steps scheduled in part")
        assert sum(counts.get(name, 0) for name in names) > steps / 3
        names = ("outputs noted together", "outputs noted in part")
        assert sum(counts.get(name, 0) for name in names) > steps / 3
