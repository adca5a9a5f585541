"""``overlay verify`` on model runner V2 on CPU, as a user starts it: right, and with bugs put in.

Triton's interpreter runs the runner's kernels (``double_site``); the command, its processes, and a
vLLM that ``overlay apply`` patched are a user's.  The answer of the tiny models is known, but here
they are a user's own: what counts is stock beside the overlay.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overlay.proof.oracle import FIRST_TOKEN, make_rule
from overlay.proof.shapes import write_tokenizer
from scripts import environment
from tests.draft_graphs.double_environment import double_environment
from tests.engine.private_copy import site_packages
from tests.support.code_edits import edited

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ARGUMENTS = ("--block-size", "32", "--enforce-eager", "--max-model-len", "128")
GREEDY = "vllm.v1.worker.gpu.spec_decode.greedy_verification"
STEADY = "vllm.v1.core.steady_steps"
KERNEL = "_verify_kernel"
#: Of each bug: the module, and the edit.
BUGS = {
    "another token behind the drafts": (
        GREEDY,
        (
            KERNEL,
            "tl.store(sampled_ptr + request * width + accepted, token)",
            "tl.store(sampled_ptr + request * width + accepted, token + 1)",
        ),
    ),
    "drafts behind the first are rejected": (
        GREEDY,
        (KERNEL, "draft == _argmax_of(...)", "(MATCH) & (step < 1)"),
    ),
    "a token is noted wrong": (
        STEADY,
        (
            "_Steps._append",
            "request._output_token_ids.extend(tokens)",
            "tokens[0] += 1\nMATCH",
        ),
    ),
}


@pytest.fixture(scope="module")
def own(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The tiny models with a tokenizer whose words are the tokens, and prompts."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("target", "eagle3hid"):
        shutil.copytree(tiny_models / name, folder / name)
    vocabulary = make_rule().vocab
    write_tokenizer(vocabulary, folder / "target")
    rng, prompts = random.Random(5), folder / "prompts.txt"
    words = [
        [f"w{rng.randrange(FIRST_TOKEN, vocabulary)}" for _ in range(rng.randint(4, 30))]
        for _ in range(6)
    ]
    prompts.write_text("\n".join(map(" ".join, words)), encoding="utf-8")
    models = ("--model", str(folder / "target"), "--draft", str(folder / "eagle3hid"))
    return (*models, "--method", "eagle3", "--prompts", str(prompts), "--tokens", "32")


def verify(
    python: Path, folder: Path, *options: str, mutated: Path | None = None, **variables: str
) -> tuple[int, dict[str, Any], str]:
    """Call the command: its exit status, its JSON, and what it said beside it."""
    folder.mkdir()
    double = double_environment(folder, mutated)
    del double["VLLM_USE_V2_MODEL_RUNNER"]
    interpreted = {"TEST_DOUBLE": "interpreted", "TRITON_INTERPRET": "1"}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "overlay", "verify", "--json", "--python", str(python)),
            *(*options, "--", *ARGUMENTS),
        ],
        cwd=environment.ROOT,
        env={**double, **interpreted, "VLLM_CPU_CI_ENV": "1", **variables},
        text=True,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    return ended.returncode, json.loads(ended.stdout), ended.stderr


def test_what_is_right_passes(patched_python: Path, own: tuple[str, ...], tmp_path: Path) -> None:
    """vLLM chooses V2 by itself; no draft graph is asked for."""
    status, told, said = verify(patched_python, tmp_path / "code", *own)
    assert (status, told["code"]) == (0, "verified"), told
    stock, overlay = told["verify"]["modes"]
    assert (stock["run"]["runner"], overlay["run"]["runner"]) == ("v2", "v2")
    assert stock["run"]["features"] == {}
    assert overlay["outcome"] == "same"
    assert "With greedy-verification and steady-scheduler in use" in told["verdict"]
    assert stock["run"]["accepted"] == overlay["run"]["accepted"]
    started = [line for line in said.splitlines() if line.endswith(": started")]
    assert started == [f"engine {name}: started" for name in ("configuration", "stock", "overlay")]


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(name, marks=() if place == 1 else pytest.mark.thorough)
        for place, name in enumerate(BUGS)
    ],
)
def test_a_bug_is_found(
    patched_python: Path, own: tuple[str, ...], tmp_path: Path, bug: str
) -> None:
    module, edit = BUGS[bug]
    source = site_packages(patched_python) / f"{module.replace('.', '/')}.py"
    mutated = tmp_path / "mutated"
    mutated.mkdir()
    text = edited(source.read_text(encoding="utf-8"), [edit], module)
    (mutated / f"{module}.py").write_text(text, encoding="utf-8")
    status, told, said = verify(
        patched_python, tmp_path / "code", *own, mutated=mutated, VLLM_USE_V2_MODEL_RUNNER="1"
    )
    assert (status, told["code"]) == (1, "drafts-differ"), told
    rounding = told["verify"]["modes"][1]["rounding"]
    if bug == "drafts behind the first are rejected":
        assert rounding["partings"] == []
        assert rounding["fewer"] > 10 > rounding["more"]
    else:
        assert rounding["partings"]
    assert "rounding is no reason" in told["verdict"]
    assert "engine again stock: started" in said


@pytest.mark.thorough
def test_where_every_feature_is_off_nothing_was_compared(
    patched_python: Path, own: tuple[str, ...], tmp_path: Path
) -> None:
    status, told, _ = verify(
        patched_python,
        tmp_path / "code",
        *own,
        OVERLAY_GREEDY_VERIFICATION="off",
        OVERLAY_STEADY_SCHEDULER="off",
        VLLM_USE_V2_MODEL_RUNNER="1",
    )
    assert (status, told["code"]) == (1, "not-verified"), told
    assert "greedy-verification: OVERLAY_GREEDY_VERIFICATION=off" in told["verdict"]
