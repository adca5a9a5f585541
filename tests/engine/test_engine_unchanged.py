"""The main job on a real engine: a vLLM patched by `overlay apply` drafts exactly as before.

Before, patched (in its default mode and with the mode off) and reverted, the tokens and the
accepted counts of every draft position equal the oracle, and reverted it is byte for byte what it
was.  Each engine run takes 12 to 30 seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from overlay.proof.engine_launch import launch
from overlay.proof.engine_spec import EngineSpec, Request, make_requests
from tests.engine.engine_fixtures import overlay, private_vllm
from tests.engine.private_copy import PrivateCopy, hash_files, orphaned_bytecode, site_packages

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
ADDED = "vllm.v1.spec_decode.draft_graphs"
OFF = {"OVERLAY_DRAFT_GRAPHS": "off"}


def with_prompt_logprobs(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Every third of them asks for prompt logprobs too."""
    return tuple(
        replace(request, prompt_logprobs=None if index % 3 else 1)
        for index, request in enumerate(requests)
    )


#: In the second, chunked prefills, decodes and requests that come and go share steps.
CASES = {
    "eagle3-k3": EngineSpec("", "eagle3", 3, make_requests(6)),
    "eagle3hid-k5": EngineSpec(
        "",
        "eagle3hid",
        5,
        with_prompt_logprobs(make_requests(12, lengths=(2, 70), wave=3, steps_between=3)),
        block_size=32,
        max_num_batched_tokens=64,
    ),
    "eagle1-k3": EngineSpec("", "eagle1", 3, make_requests(6, seed=2)),
}
every_case = pytest.mark.parametrize("case", CASES)
#: Where the patch is not in play, the widest case stands for the others.
one_case_always = pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=() if name == "eagle3hid-k5" else pytest.mark.thorough)
        for name in CASES
    ],
)


@dataclass(frozen=True)
class Reverted:
    """A vLLM that was patched, served with, and reverted."""

    copy: PrivateCopy
    before: dict[str, str]
    while_patched: dict[str, Any]
    after: dict[str, str]


@pytest.fixture(scope="module")
def patched(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCopy]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("patched")):
        overlay("apply", copy.site)
        yield copy


@pytest.fixture(scope="module")
def reverted(
    engine_python: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reverted]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("reverted")):
        before = hash_files(copy.site)
        overlay("apply", copy.site)
        while_patched = serve(copy.python, "eagle3-k3", tiny_models)
        overlay("revert", copy.site)
        yield Reverted(copy, before, while_patched, hash_files(copy.site))


def serve(
    python: Path, case: str, models: Path, env: dict[str, str] | None = None
) -> dict[str, Any]:
    spec = replace(CASES[case], models=str(models))
    return launch(python, spec, env=env)


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


def expect_code_of(result: dict[str, Any], site: Path, *, patched: bool) -> None:
    """What ran came from the files of ``site``, patched or not, and without the overlay."""
    (worker,) = result["workers"]
    file = site / "vllm/v1/spec_decode/llm_base_proposer.py"
    assert worker["propose"]["file"] == str(file)
    assert worker["modules"][PROPOSER]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (ADDED in worker["modules"]) is patched
    assert worker["overlay_imported"] == []


@one_case_always
def test_before(engine_python: Path, tiny_models: Path, case: str) -> None:
    result = serve(engine_python, case, tiny_models)
    expect_the_oracle(result)
    expect_code_of(result, site_packages(engine_python), patched=False)


@every_case
def test_patched(patched: PrivateCopy, tiny_models: Path, case: str) -> None:
    result = serve(patched.python, case, tiny_models)
    expect_the_oracle(result)
    expect_code_of(result, patched.site, patched=True)


def test_patched_and_switched_off(patched: PrivateCopy, tiny_models: Path) -> None:
    result = serve(patched.python, "eagle3hid-k5", tiny_models, OFF)
    expect_the_oracle(result)
    expect_code_of(result, patched.site, patched=True)


@one_case_always
def test_reverted(reverted: Reverted, tiny_models: Path, case: str) -> None:
    result = serve(reverted.copy.python, case, tiny_models)
    expect_the_oracle(result)
    expect_code_of(result, reverted.copy.site, patched=False)


def test_reverted_is_byte_for_byte_what_it_was(reverted: Reverted) -> None:
    assert ADDED in reverted.while_patched["workers"][0]["modules"]
    assert reverted.after == reverted.before
    assert orphaned_bytecode(reverted.copy.site) == []


@pytest.mark.parametrize(
    ("mutation", "case"),
    [("forget_hidden_states", "eagle3hid-k5"), ("stand_still", "eagle3-k3")],
)
def test_a_broken_drafter_is_noticed(
    engine_python: Path, tiny_models: Path, mutation: str, case: str
) -> None:
    spec = replace(
        CASES[case],
        models=str(tiny_models),
        post_load=(f"tests.engine.engine_mutations:{mutation}",),
        packages=(str(Path(__file__).resolve().parents[1]),),
    )
    result = launch(engine_python, spec)
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
