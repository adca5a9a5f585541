"""Each mend retires once a release passes its upstream test, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.package import KNOWN_RELEASES
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from overlay.targets.resolution import resolve
from tests.support.shipped_features import (
    DBO,
    EAGER,
    GATE,
    LEAST,
    LIMIT,
    PROMPTS,
    RETIRED,
    SAMPLING,
    WEIGHTS,
    feature,
)

pytestmark = pytest.mark.network

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
RUNNER_V2 = "vllm/v1/worker/gpu/model_runner.py"
RELOADED = "        self.reload_draft_weights()\n"
#: Mend -> by file, a line of 0.33.0, and what a release would have before it that mends it itself.
MERGED = {
    LIMIT: {
        RUNNER: (
            "            # Update the persistent batch.\n",
            "            self.input_batch.num_tokens_no_spec[req_index] = end_of(req_index)\n",
        )
    },
    PROMPTS: {
        RUNNER: (
            '        with record_function_or_nullcontext("gpu_model_runner: bookkeep"):\n',
            "        prompt_logprobs = self._get_prompt_logprobs_dict(hidden_states, {})\n",
        )
    },
    WEIGHTS: {
        RUNNER: ("        self.reset_mm_cache()\n\n    def _get_prompt", RELOADED),
        RUNNER_V2: ("        self.reset_mm_cache()\n\n    @functools.cached_property\n", RELOADED),
    },
    SAMPLING: {
        "vllm/v1/sample/logits_processor/__init__.py": (
            "        return LogitsProcessors(\n            [MinTokensLogitsProcessor",
            "        others = [LogitBiasLogitsProcessor(None, device, is_pin_memory)]\n",
        )
    },
    GATE: {
        RUNNER: (
            "        # DFlash queries one extra token",
            "        fits = self.optimistic_seq_lens_cpu < self.effective_drafter_max_model_len\n",
        )
    },
    EAGER: {
        RUNNER_V2: (
            "            # After set_attn, so the speculator can size its cudagraph mode\n",
            "            if self.speculative_config.enforce_eager: cudagraph_mode = 0\n",
        )
    },
    LEAST: {
        "vllm/v1/sample/logits_processor/builtin.py": (
            "            # Check for any requests that have attained their min tokens.\n",
            "            # A placeholder is no token.\n",
        )
    },
    DBO: {
        "vllm/v1/spec_decode/llm_base_proposer.py": (
            "        only_one_forward_pass = is_graph_capturing or self.parallel_drafting\n",
            "        slot_mappings = slot_mappings if isinstance(slot_mappings, list) else 0\n",
        ),
        RUNNER: (
            "            extra_attn_metadata_args = {}\n",
            "            cache_key = (kv_cache_spec, type(builder), ubid)\n",
        ),
        "vllm/v1/worker/gpu_ubatch_wrapper.py": (
            "    if sorted_results and isinstance(sorted_results[0], tuple):\n",
            "    joined = isinstance(sorted_results[0], (list, tuple))\n",
        ),
        "vllm/v1/worker/ubatch_utils.py": (
            "        # Make sure we don't modify the seq_lens tensors\n",
            "        kept.seq_lens.copy_(seq_lens)\n",
        ),
    },
}


class Release:
    """The tree of 0.33.0 as a release that mends something itself."""

    def __init__(self, merged: dict[str, tuple[str, str]]) -> None:
        self.merged = merged

    def read(self, path: str) -> bytes | None:
        data = resolve("0.33.0").read(path)
        if data is not None and path in self.merged:
            old, new = (text.encode() for text in self.merged[path])
            assert data.count(old) == 1
            data = data.replace(old, new + old)
        return data


@pytest.mark.parametrize("name", MERGED)
def test_a_mend_retires_once_a_release_has_its_own(name: str) -> None:
    target = Release(MERGED[name])
    (result,) = plan([feature(name)], target, Version("0.33.0")).features
    assert result.state is State.UPSTREAMED


@pytest.mark.parametrize("name", MERGED)
def test_port_retires_it_there_without_a_hand(name: str) -> None:
    trees = {"0.33.0": Release({}), "0.34.0": Release(MERGED[name])}
    texts = ReleaseTexts(tuple(trees), lambda release: trees.get(release) or resolve(release))
    port = Porter(texts).port(feature(name), "0.34.0")
    assert port.outcome is Outcome.UPSTREAM
    assert port.evidence


@pytest.mark.parametrize("name", RETIRED)
def test_port_retired_those_whose_release_is_there(name: str) -> None:
    # As it was before anybody had noted the release.
    unsaid = replace(feature(name), merged=None)
    last = RETIRED[name]
    newer = KNOWN_RELEASES[KNOWN_RELEASES.index(last) + 1]
    porter = Porter(ReleaseTexts((last, newer), resolve))
    assert porter.port(unsaid, newer).outcome is Outcome.UPSTREAM
    # Its test says so, and nothing else does.
    untested = porter.port(replace(unsaid, upstream_tests=()), newer)
    assert untested.outcome is not Outcome.UPSTREAM


@pytest.mark.parametrize("name", MERGED)
def test_the_mends_of_others_do_not_retire_it(name: str) -> None:
    for other, merged in MERGED.items():
        if other != name:
            target = Release(merged)
            (result,) = plan([feature(name)], target, Version("0.33.0")).features
            assert result.state is State.PRISTINE


@pytest.mark.parametrize("path", [RUNNER, RUNNER_V2])
def test_draft_weights_stays_for_the_runner_that_upstream_leaves(path: str) -> None:
    target = Release({path: MERGED[WEIGHTS][path]})
    (result,) = plan([feature(WEIGHTS)], target, Version("0.33.0")).features
    assert result.state is State.PRISTINE
