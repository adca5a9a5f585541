"""Requests beside drafts under asynchronous scheduling, up to the end of their context.

The runner's own functions of a release, patched or not, are run on the batch of the installed vLLM;
what the scheduler says is reckoned as it reckons, one step before the outputs are known.
Needs vLLM.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.releases import MOST, RUNNER, WIDTH, K, make_batch, method, torch
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("context-limit")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.context_limit import align_counts
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

BATCH = "vllm/v1/worker/gpu_input_batch.py"


@functools.cache
def runner_text(release: str, features: tuple[str, ...]) -> bytes:
    """The runner of a release with these features."""
    target = resolve(release)
    chosen = [each for each in load([shipped_folder()]) if each.id in features]
    changes = plan(chosen, target, target.release, target.record, Syntax()).changes
    after = {change.path: change.after for change in changes}
    content = after.get(RUNNER) or target.read(RUNNER)
    assert content is not None
    return content


@functools.cache
def functions(release: str, features: tuple[str, ...]) -> dict[str, Any]:
    """What a step runs of the runner and of the batch."""
    runner = runner_text(release, features)
    nodes = [
        method(runner, "GPUModelRunner", name) for name in ("_update_states", "_bookkeeping_sync")
    ]
    batch = releases.text(release, BATCH)
    nodes += [method(batch, "InputBatch", name) for name in BATCH_FUNCTIONS]
    names: dict[str, Any] = {
        "np": np,
        "envs": SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False),
        "CachedRequestState": CachedRequestState,
        "get_pp_group": lambda: SimpleNamespace(is_last_rank=True),
    }
    return releases.compiled(release, nodes, names)


class Seat:
    """A request as the asynchronous scheduler keeps it.

    :ivar accepted: how many drafts of each step are accepted, at most; then none.
    """

    def __init__(self, name: str, prompt: int, accepted: tuple[int, ...], penalty: float) -> None:
        self.name, self.prompt, self.penalty = name, prompt, penalty
        self.accepted = list(accepted)
        self.outputs = self.placeholders = self.computed = self.new = 0
        #: Of the step on its way: its drafts, and how many tokens it gives.
        self.underway: tuple[int, int] | None = None

    def schedule(self) -> None:
        """Plan a step: `new` tokens, of which all but one are drafts, except in the first."""
        asked = K + 1 if self.computed else self.prompt
        self.new = max(min(asked, WIDTH - self.computed - 1), 0)

    @property
    def drafts(self) -> int:
        return self.new - 1 if self.computed else 0

    def advance(self) -> None:
        """Go on as if all drafts were accepted, and learn what became of the step before."""
        drafts = self.drafts
        given = min(self.accepted.pop(0) if self.accepted else 0, drafts) + 1
        self.computed += self.new
        self.placeholders += 1 + drafts
        before, self.underway = self.underway, (drafts, given)
        if before is not None:
            rejected = before[0] + 1 - before[1]
            self.computed -= rejected
            self.placeholders -= rejected + before[1]
            self.outputs += before[1]


class World:
    """A runner and its requests."""

    def __init__(self, release: str, features: tuple[str, ...]) -> None:
        self.functions = functions(release, features)
        self.batch: Any = make_batch()
        self.seats: dict[str, Seat] = {}
        self.valid: list[int] = []
        ignored = mock.MagicMock()
        self.runner: Any = SimpleNamespace(
            input_batch=self.batch,
            requests={},
            max_model_len=WIDTH,
            num_spec_tokens=K,
            use_async_scheduling=True,
            use_async_spec_decode=True,
            speculative_config=SimpleNamespace(use_ngram_gpu=lambda: False),
            prev_num_draft_tokens=SimpleNamespace(np=np.zeros(MOST + 1, dtype=np.int32)),
            discard_request_mask=SimpleNamespace(np=np.zeros(MOST + 1, dtype=bool)),
            routed_experts_initialized=False,
            num_prompt_logprobs={},
            encoder_cache={},
            late_interaction_runner=ignored,
            _on_request_state_removed=ignored,
            _process_encoder_cache_scheduler_output=ignored,
            _zero_block_ids=ignored,
            _may_reorder_batch=lambda scheduled: None,
            _get_valid_sampled_token_count=lambda: self.valid,
            _get_prompt_logprobs_dict=lambda *given: {},
            _align_counts=align_counts,
        )

    def join(self, seat: Seat) -> None:
        """Let a request come with the next step."""
        state = CachedRequestState(
            req_id=seat.name,
            prompt_token_ids=[7] * seat.prompt,
            mm_features=[],
            sampling_params=self._parameters(seat),
            generator=None,
            block_ids=([len(self.seats)],),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        self.seats[seat.name] = self.runner.requests[seat.name] = seat
        self.runner.requests[seat.name] = state
        self.batch.add_request(state)

    def step(self) -> bool:
        """Take a step, if a request has something left to do.

        :raises AssertionError: upstream's, where a row is full.
        """
        for seat in list(self.seats.values()):
            seat.schedule()
        going = [seat for seat in self.seats.values() if seat.new]
        scheduled = self._scheduled(going)
        for name in scheduled.finished_req_ids:
            del self.seats[name]
        if not going:
            return False
        upstream = {name: self.functions[name] for name in BATCH_FUNCTIONS}
        with mock.patch.multiple(InputBatch, **upstream):
            correct = self.functions["_update_states"](self.runner, scheduled)
            if correct is not None:
                correct()
            self.batch.update_async_output_token_ids()
        self._sample(scheduled)
        for seat in going:
            seat.advance()
        self._keep(scheduled)
        return True

    def _sample(self, scheduled: Any) -> None:
        """See what the step is sampled with."""

    def _parameters(self, seat: Seat) -> Any:
        return SamplingParams(temperature=0.0, frequency_penalty=seat.penalty)

    def _keep(self, scheduled: Any) -> None:
        """Note what the step sampled."""
        tokens = torch.full((self.batch.num_reqs, K + 1), -1, dtype=torch.int32)
        self.valid = []
        for row, name in enumerate(self.batch.req_ids):
            underway = self.seats[name].underway
            assert underway is not None
            tokens[row, : underway[1]] = 5
            self.valid.append(underway[1])
        self.batch.prev_sampled_token_ids = tokens[:, :1]
        output = SimpleNamespace(sampled_token_ids=tokens, logprobs_tensors=None)
        self.functions["_bookkeeping_sync"](
            self.runner, scheduled, output, None, torch.zeros(4, 2), 2
        )
        self.batch.set_async_sampled_token_ids(tokens, mock.MagicMock())

    def _scheduled(self, going: list[Seat]) -> Any:
        """What the scheduler says of the step."""
        known = [seat for seat in going if seat.computed]
        cached = SimpleNamespace(
            req_ids=[seat.name for seat in known],
            num_computed_tokens=[seat.computed for seat in known],
            new_block_ids=[None] * len(known),
            num_output_tokens=[seat.outputs + seat.placeholders for seat in known],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
        )
        return SimpleNamespace(
            finished_req_ids={name for name, seat in self.seats.items() if seat not in going},
            free_encoder_mm_hashes=[],
            new_block_ids_to_zero=[],
            kv_cache_block_copies=[],
            num_scheduled_tokens={seat.name: seat.new for seat in going},
            scheduled_cached_reqs=cached,
            scheduled_new_reqs=[],
            scheduled_spec_decode_tokens={
                seat.name: [-1] * seat.drafts for seat in going if seat.drafts
            },
        )


#: What the batch has of a release.
BATCH_FUNCTIONS = ("update_req_spec_token_ids", "update_async_output_token_ids")


def serve(
    release: str, features: tuple[str, ...], seats: list[tuple[int, Seat]]
) -> list[list[tuple[str, int]]]:
    """Serve requests, each from its step on; the counts of the rows behind each step.

    :raises AssertionError: upstream's, where a row is full.
    """
    world, number = World(release, features), 0
    counts: list[list[tuple[str, int]]] = []
    waiting = list(seats)
    while True:
        for at, seat in list(waiting):
            if at <= number:
                world.join(seat)
                waiting.remove((at, seat))
        number += 1
        if not world.step() and not waiting:
            return counts
        batch = world.batch
        counts.append(
            [(name, int(batch.num_tokens_no_spec[row])) for row, name in enumerate(batch.req_ids)]
        )
