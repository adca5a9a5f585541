"""Faults of `scripts/unmended_faults.toml`, on each release's own functions: who has them.

A release that has one no longer fails here, and so does one that begins to.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange
from overlay.targets.resolution import resolve
from overlay.untrusted import parse_toml
from tests.engine.engine_launch import foreign_environment

pytestmark = pytest.mark.network

UNMENDED = Path(__file__).resolve().parents[2] / "scripts/unmended_faults.toml"
SCRIPT = Path(__file__).resolve().parents[1] / "gpu/state_index.py"
PLACES = (
    "vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py",
    "vllm/model_executor/layers/fla/ops/fused_sigmoid_gating.py",
)


def releases_with(words: str) -> list[str]:
    """The releases that are said to have the fault whose symptom has these words."""
    faults = parse_toml(UNMENDED.read_text(encoding="utf-8"))["faults"]
    (fault,) = (each for each in faults if words in each["symptom"])
    span = ReleaseRange.parse(fault["releases"], VLLM)
    return [release for release in KNOWN_RELEASES if Version(release) in span]


def kernel_of(release: str) -> bytes:
    """A release's linear-attention kernel."""
    (text,) = (text for place in PLACES if (text := resolve(release).read(place)))
    return text


@pytest.mark.engine
def test_a_row_of_linear_attention_takes_states_that_are_not_its_own(
    engine_python: Path, tmp_path: Path
) -> None:
    kernels = {release: kernel_of(release) for release in releases_with("linear-attention kernel")}
    assert tuple(kernels) == KNOWN_RELEASES
    assert len(set(kernels.values())) == 1
    kernel, out = tmp_path / "kernel.py", tmp_path / "out.json"
    kernel.write_bytes(kernels[KNOWN_RELEASES[-1]])
    cases = ("in range", "count 0, first row", "longer than the width, last row")
    subprocess.run(
        [engine_python, SCRIPT, out, "--kernel", kernel, "--only", *cases],
        env={**foreign_environment(), "TRITON_INTERPRET": "1"},
        check=True,
    )
    result = json.loads(out.read_text(encoding="utf-8"))
    behind = result["blocks"] + 1
    assert [(each["reads"], each["writes"]) for each in result["cases"]] == [
        ({}, {}),
        ({"0": [behind]}, {}),
        ({}, {"2": [behind]}),
    ]


def ends(release: str) -> bool:
    """Whether a request at the end of its context ends without its min_tokens."""
    (function,) = (
        each
        for each in ast.parse(resolve(release).read("vllm/v1/core/sched/utils.py") or b"").body
        if isinstance(each, ast.FunctionDef) and each.name == "check_stop"
    )
    future = ast.parse("from __future__ import annotations").body
    names: dict[str, Any] = {"RequestStatus": SimpleNamespace(FINISHED_LENGTH_CAPPED="length")}
    exec(compile(ast.Module([*future, function], []), release, "exec"), names)
    asked = SimpleNamespace(min_tokens=9, eos_token_id=1, stop_token_ids=())
    request = SimpleNamespace(
        pooling_params=None,
        sampling_params=asked,
        output_token_ids=[5, 6],
        num_output_tokens=2,
        num_tokens=96,
        max_tokens=60,
    )
    return bool(names["check_stop"](request, 96))


def test_a_request_without_its_min_tokens_never_ends() -> None:
    endless = [release for release in KNOWN_RELEASES if not ends(release)]
    assert endless == releases_with("without its min_tokens")


def test_a_row_that_moves_leaves_its_mask_of_allowed_tokens() -> None:
    stale, shared = [], []
    for release in KNOWN_RELEASES:
        text = (resolve(release).read("vllm/v1/worker/gpu_input_batch.py") or b"").decode()
        condense, swap = (
            re.findall(rf"    def {name}\(.*?(?=\n    def )", text, re.DOTALL)[0]
            for name in ("condense", "swap_states")
        )
        mask = "allowed_token_ids_mask_cpu_tensor"
        assert f"{mask}[empty_index] = (" in condense
        if f"{mask}[last_req_index].fill_(False)" not in condense:
            stale.append(release)
        # Rows of a tensor are views: the second is read when the first has been written over.
        if re.search(rf"{mask}\[i1\],\s+self.{mask}\[i2\],\s+\) = \(", swap):
            shared.append(release)
        else:
            assert f"{mask}[[i1, i2]] = (" in swap
    assert stale == shared == releases_with("allowed_token_ids of another")


def test_tokens_that_the_model_has_not_are_allowed_until_the_model_is_asked() -> None:
    unasked = []
    for release in KNOWN_RELEASES:
        text = (resolve(release).read("vllm/sampling_params.py") or b"").decode()
        (check,) = re.findall(
            r"    def _validate_allowed_token_ids\(.*?(?=\n    def )", text, re.DOTALL
        )
        if "model_config.get_vocab_size()" not in check:
            assert "if tokenizer is not None:" in check
            unasked.append(release)
    assert unasked == releases_with("allowed_token_ids with a token")


def test_a_prefix_is_found_one_block_short_until_hashes_look_ahead() -> None:
    dropping, optional = [], []
    for release in KNOWN_RELEASES:
        scheduler, config, manager = (
            (resolve(release).read(f"vllm/{path}.py") or b"").decode()
            for path in (
                *("v1/core/sched/scheduler", "config/speculative"),
                "v1/core/single_type_kv_cache_manager",
            )
        )
        assert re.search(r"if (use_eagle|drop_eagle_block) and ", manager)
        if "self.num_hash_lookahead_tokens" not in scheduler:
            dropping.append(release)
        if "disable_eagle_block_drop: bool" in config:
            optional.append(release)
    assert dropping == releases_with("found one block shorter")
    assert optional[0] == "0.30.0"


def test_drafts_that_are_none_reach_the_model_until_they_are_clamped() -> None:
    """That the kernel takes one, too: `tests/draft_sampling`."""
    reaching = []
    for release in KNOWN_RELEASES:
        runner, scheduler = (
            (resolve(release).read(f"vllm/v1/{path}.py") or b"").decode()
            for path in ("worker/gpu_model_runner", "core/sched/async_scheduler")
        )
        # Who is in no step keeps its places, and the next step leaves them as they are.
        assert re.search(r"request\.spec_token_ids = .*placeholder", scheduler)
        assert "prev_req_id_to_index.get(req_id, -1)" in runner
        if "self.input_ids.gpu[:num_input_tokens].clamp_(min=0)" not in runner:
            reaching.append(release)
    assert reaching == releases_with("sampled from a draft that is none")


def test_the_rotary_cache_of_an_eagle_draft_is_too_short_until_it_is_widened() -> None:
    short = []
    for release in KNOWN_RELEASES:
        text = (resolve(release).read("vllm/config/speculative.py") or b"").decode()
        if "draft_hf_config.max_position_embeddings = target_max_model_len" not in text:
            short.append(release)
        # V2's speculators ask for the target's context alone.
        folder = "vllm/v1/worker/gpu/spec_decode"
        paths = [f"{folder}/{each}speculator.py" for each in ("", "eagle/", "autoregressive/")]
        texts = [(resolve(release).read(path) or b"").decode() for path in paths]
        assert any("vllm_config.model_config.max_model_len" in each for each in texts)
        assert not any("draft_model_config.max_model_len" in each for each in texts)
    assert short == releases_with("longer than an EAGLE draft's positions")


def test_what_forces_the_end_of_thinking_is_the_same() -> None:
    path = "vllm/v1/sample/thinking_budget_state.py"
    texts = {release: resolve(release).read(path) for release in KNOWN_RELEASES}
    same = [release for release, text in texts.items() if text == texts["0.32.0"]]
    assert same == releases_with("end of the thinking of one request")


def test_a_cpu_has_no_kernel_for_the_argument_of_rejection_sampling() -> None:
    missing = []
    for release in KNOWN_RELEASES:
        caller, kernels = (
            (resolve(release).read(path) or b"").decode()
            for path in ("vllm/v1/sample/rejection_sampler.py", "vllm/utils/cpu_triton_utils.py")
        )
        (kernel,) = re.findall(r"def _sample_recovered_tokens_kernel_impl\((.*?)\)", kernels, re.S)
        if "USE_FP64_GUMBEL=" in caller and "USE_FP64_GUMBEL" not in kernel:
            missing.append(release)
    assert missing == releases_with("USE_FP64_GUMBEL")
