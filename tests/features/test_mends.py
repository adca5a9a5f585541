"""Each mend retires once a release passes its upstream test, and not before."""

from __future__ import annotations

import pytest
from packaging.version import Version

from overlay.planning.planner import plan
from overlay.results import State
from overlay.targets.resolution import resolve
from tests.support.shipped_features import LIMIT, MENDS, PROMPTS, feature

pytestmark = pytest.mark.network

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
#: Mend -> a line of 0.33.0, and what a release would have in its place that mends it itself.
MERGED = {
    LIMIT: (
        "            # Update the persistent batch.\n",
        "            self.input_batch.num_tokens_no_spec[req_index] = end_of(req_index)\n",
    ),
    PROMPTS: (
        '        with record_function_or_nullcontext("gpu_model_runner: bookkeep"):\n',
        "        prompt_logprobs = self._get_prompt_logprobs_dict(hidden_states, {})\n",
    ),
}


class Release:
    """The tree of 0.33.0 as a release that mends something itself."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old.encode(), new.encode()

    def read(self, path: str) -> bytes | None:
        data = resolve("0.33.0").read(path)
        if data is not None and path == RUNNER:
            assert data.count(self.old) == 1
            data = data.replace(self.old, self.new + self.old)
        return data


@pytest.mark.parametrize("name", MENDS)
def test_a_mend_retires_once_a_release_has_its_own(name: str) -> None:
    target = Release(*MERGED[name])
    (result,) = plan([feature(name)], target, Version("0.33.0")).features
    assert result.state is State.UPSTREAMED


@pytest.mark.parametrize("name", MENDS)
def test_the_mends_of_others_do_not_retire_it(name: str) -> None:
    for other in (LIMIT, PROMPTS):
        if other != name:
            target = Release(*MERGED[other])
            (result,) = plan([feature(name)], target, Version("0.33.0")).features
            assert result.state is State.PRISTINE
