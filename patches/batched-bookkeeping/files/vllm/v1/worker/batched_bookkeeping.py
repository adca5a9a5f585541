# SPDX-License-Identifier: Apache-2.0
"""Does the bookkeeping of a step for all requests together, with a few numpy operations.

Upstream does it one request at a time. That costs little for few requests, and grows with them.
Here are such loops of the runner and the drafter: what a request that goes on brings into its row,
the rejected drafts of the last step, the input ids under async scheduling, how many drafts each
request has, the placeholders that async scheduling notes for the sampled tokens, the last tokens of
the rows, and the lists of accepted tokens.
What they read and write is the same; a batch of which that is not certain is left to upstream's
loop, before anything was written, or what upstream would have written by then (a row without room).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "batched-bookkeeping"
VARIABLE = "OVERLAY_BATCHED_BOOKKEEPING"

# Fewer rows are left to upstream: numpy's calls cost as much as its loop over eight to sixteen
# (bench/results/cpu-batched-bookkeeping-0.26.0-2026-11-24.json of vllm-overlay).
FEWEST_ROWS = 16
# Requests that go on, and those whose drafts are counted: of each something is done one by one, so
# that it takes more of them.
FEWEST_GOING_ON = 32


def report_effect(runner: Any) -> None:
    """Report the feature's effect in the process of a GPUModelRunner that is being made.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif runner.use_async_scheduling or runner.speculative_config is not None:
        active(FEATURE, f"the bookkeeping of at least {FEWEST_ROWS} requests is done together")
    else:
        idle(FEATURE, "there is neither async scheduling nor speculative decoding")


def _together(runner: Any, requests: int) -> bool:
    """Whether so many requests that go on, or corrections of them, are done together."""
    speculative = runner.speculative_config
    by_ngram = speculative is not None and speculative.use_ngram_gpu()
    return requests >= FEWEST_GOING_ON and not by_ngram and is_on(VARIABLE)


def continue_requests(
    runner: Any, scheduled: Any, corrections: list[Any], last: bool, marked: bool = True
) -> set[str]:
    """Do what the loop of `_update_states` does for each request that goes on in its row.

    runner: GPUModelRunner.
    scheduled: SchedulerOutput.
    corrections: gets (request id, drafts of the step before, CachedRequestState) of each request
        that had drafts under async scheduling, for `correction`.
    last: whether the process has the last stage of a pipeline.
    marked: whether the places of drafts are marked as token ids, as upstream does from 0.21.0 on.

    Returns the ids of the requests for which it was done. For the others nothing was written: all
    of them where there are few, on an earlier stage of a pipeline, and with drafts by ngram on the
    GPU, whose number upstream changes there; else those that are taken up again.

    Raises ValueError, from upstream's own method, if the drafts of a row go beyond its end.
    """
    data = scheduled.scheduled_cached_reqs
    if not last or not _together(runner, len(data.req_ids)):
        return set()
    batch, rows, cut = runner.input_batch, {}, {}
    drafts: list[Sequence[int]] = []
    each = (data.req_ids, data.num_computed_tokens, data.new_block_ids, data.num_output_tokens)
    for name, computed, blocks, outputs in zip(*each, strict=True):
        row = batch.req_id_to_index.get(name)
        if row is None:  # taken up again: those are not in the batch any more
            continue
        state = runner.requests[name]
        # Upstream takes all drafts of the step before for accepted at first.
        expected = state.prev_num_draft_len if runner.use_async_scheduling else 0
        if expected:
            corrections.append((name, expected, state))
        missing = outputs - len(state.output_token_ids)
        if missing < expected:
            cut[row] = outputs
        if missing < 0:
            del state.output_token_ids[outputs:]
        elif expected:
            state.output_token_ids.extend([-1] * min(missing, expected))
        state.num_computed_tokens = computed
        if blocks is not None:
            for own, new in zip(state.block_ids, blocks, strict=False):
                own.extend(new)
            batch.block_table.append_row(blocks, row)
        tokens = scheduled.scheduled_spec_decode_tokens.get(name, ())
        state.prev_num_draft_len = len(tokens)
        batch.spec_token_ids[row][:] = tokens
        drafts.append(tokens)
        rows[row] = state
    _write_rows(runner, rows, cut, corrections)
    if rows and not _write_drafts(batch, rows, drafts, marked):
        count(FEATURE, "steps with drafts beyond a row's end left to upstream")
        for state in rows.values():
            batch.update_req_spec_token_ids(state, scheduled.scheduled_spec_decode_tokens)
    return {state.req_id for state in rows.values()}


def _write_rows(
    runner: Any, rows: Mapping[int, Any], cut: Mapping[int, int], corrections: Sequence[Any]
) -> None:
    """Write what the batch notes of requests that go on.

    rows: row -> CachedRequestState.
    cut: row -> output tokens, of requests that have fewer than was expected.
    corrections: of the requests that had drafts, as of `continue_requests`.
    """
    batch = runner.input_batch
    before = batch.prev_req_id_to_index or {}
    drafted = {before[name]: number for name, number, _ in corrections if name in before}
    computed = [state.num_computed_tokens for state in rows.values()]
    batch.num_computed_tokens_cpu[list(rows)] = computed
    if cut:
        at = list(cut)
        batch.num_tokens_no_spec[at] = batch.num_prompt_tokens[at] + list(cut.values())
    if drafted:
        runner.prev_num_draft_tokens.np[list(drafted)] = list(drafted.values())


def _write_drafts(
    batch: Any, rows: Mapping[int, Any], drafts: Sequence[Sequence[int]], marked: bool
) -> bool:
    """Write the drafts of each row behind its tokens.

    batch: InputBatch.
    rows: row -> CachedRequestState.
    drafts: of each; under async scheduling these are placeholders.

    Returns whether it was done. It is not, and nothing was written, where a row has no room.
    """
    lengths = np.array([len(tokens) for tokens in drafts], dtype=np.intp)
    at = np.fromiter(rows, np.intp, len(rows))
    starts = batch.num_tokens_no_spec[at]
    if int((starts + lengths).max()) > batch.token_ids_cpu.shape[1]:
        return False
    count(FEATURE, "steps whose requests went on together")
    total = int(lengths.sum())
    if not total:
        return True
    # The place of each draft: the start of its row, and the drafts of that row before it.
    firsts = np.repeat(starts - lengths.cumsum() + lengths, lengths)
    places = np.repeat(at, lengths), firsts + np.arange(total)
    batch.token_ids_cpu[places] = np.fromiter(chain.from_iterable(drafts), np.int64, total)
    if marked:
        batch.is_token_ids[places] = True
    return True


def correction(runner: Any, corrections: Sequence[Any]) -> Callable[[], None] | None:
    """The function that takes the rejected drafts of the last step from the computed tokens.

    runner: GPUModelRunner.
    corrections: of each request that had drafts, as of `continue_requests`.

    Returns None, for upstream's own, where there are few, or drafts by ngram on the GPU.
    """
    return partial(_correct, runner, corrections) if _together(runner, len(corrections)) else None


def _correct(runner: Any, corrections: Sequence[Any]) -> None:
    """Take them, once it is known how many tokens of each row were accepted or sampled."""
    valid, batch = runner._get_valid_sampled_token_count(), runner.input_batch
    before = batch.prev_req_id_to_index
    if not valid or not before:
        return
    rows, rejected = [], []
    for name, expected, state in corrections:
        last = before.get(name)
        if last is None:
            continue
        number = expected + 1 - valid[last]
        if not number:
            continue
        state.num_computed_tokens -= number
        row = batch.req_id_to_index.get(name)
        if row is not None:
            rows.append(row)
            rejected.append(number)
    if rows:
        batch.num_computed_tokens_cpu[rows] -= np.array(rejected, dtype=np.int32)
    count(FEATURE, "steps whose rejected drafts were taken off together")


def last_tokens(batch: Any, requests: Mapping[str, Any]) -> list[int] | None:
    """List the last token of each row without its drafts; -1 where it is not on the host.

    batch: InputBatch.
    requests: request -> its CachedRequestState.

    Returns None, for upstream to do it, where there are few rows.
    Raises ValueError as `CachedRequestState.get_token_id` does.
    """
    if batch.num_reqs < FEWEST_ROWS or not is_on(VARIABLE):
        return None
    found = []
    places = (batch.num_tokens_no_spec[: batch.num_reqs] - 1).tolist()
    for name, place in zip(batch.req_ids, places, strict=False):
        state = requests[name]
        behind, tokens = place - state.num_prompt_tokens, state.output_token_ids
        if behind < 0:
            found.append(state.get_token_id(place))
        else:
            found.append(tokens[behind] if behind < len(tokens) else -1)
    count(FEATURE, "steps whose last tokens were listed together")
    return found


def fill_input_ids(
    runner: Any, before: Any, tokens: int, ends: Any, scheduled: Mapping[str, Any], width: int
) -> bool:
    """Fill the input ids with what the last step sampled and drafted, which is on the device.

    runner: GPUModelRunner.
    before: [requests] int array, each request's row in the last step; -1 where it was in none.
    tokens: of the step, of all requests.
    ends: [requests] int array, their cumulated tokens.
    scheduled: request -> its drafts.
    width: drafts that the last step made for each request.

    Returns whether it was done. It is not, and nothing was written, where there are few requests,
    prompts are given as embeddings, or drafts are not on the device.
    """
    if len(before) < FEWEST_ROWS or runner.enable_prompt_embeds or not is_on(VARIABLE):
        return False
    names, drafted = runner.input_batch.req_ids, runner._draft_token_ids
    rows = np.flatnonzero(before >= 0)
    lengths = np.array([len(scheduled.get(names[row], ())) for row in rows.tolist()], dtype=np.intp)
    places = _places(before[rows].astype(np.int64), ends[rows].astype(np.int64), lengths, width)
    if len(places.drafts) and not hasattr(drafted, "flatten"):
        count(FEATURE, "steps whose drafts are not on the device left to upstream")
        return False
    if len(rows) < tokens - len(places.drafts):
        runner.input_ids.copy_to_gpu(tokens)
    if len(rows):
        _fill(runner, places)
    count(FEATURE, "steps whose input ids were filled together")
    return True


class _Places(NamedTuple):
    """Where input ids come from and go to; int64 arrays.

    sampled, rows: [requests] the place of each sampled token, and its row in the last step.
    drafts, origins: [drafts] the place of each draft, and its number among those of the last step.
    """

    sampled: Any
    rows: Any
    drafts: Any
    origins: Any


def _places(rows: Any, ends: Any, lengths: Any, width: int) -> _Places:
    """The places of requests that were in the last step; arguments as of `fill_input_ids`."""
    sampled = ends - 1 - lengths
    # Which of its request's drafts each one is, from 0 on.
    number = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    drafts = np.repeat(sampled + 1, lengths) + number
    return _Places(sampled, rows, drafts, np.repeat(rows * width, lengths) + number)


def _fill(runner: Any, places: _Places) -> None:
    """Copy what the last step sampled and drafted to these places of the input ids."""
    import torch  # here: the other loops need numpy alone

    ids, sampled = runner.input_ids.gpu, runner.input_batch.prev_sampled_token_ids
    number = len(places.rows)
    unchanged = not len(places.drafts) and (places.sampled == places.rows).all()
    if unchanged and int(places.sampled.max()) == number - 1:
        ids[:number].copy_(sampled[:number, 0], non_blocking=True)
        return
    # One upload in the place of four.
    sizes = [len(each) for each in places]
    pinned = runner.input_ids.cpu.is_pinned()
    host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=pinned)
    np.concatenate(places, out=host.numpy())
    to, rows, drafts, origins = host.to(ids.device, non_blocking=True).split(sizes)
    ids.scatter_(0, to, sampled[rows, 0])
    if sizes[2]:
        ids.scatter_(0, drafts, runner._draft_token_ids.to(torch.int32).flatten()[origins])


def count_drafts(
    batch: Any, scheduled: Mapping[str, Any], drafts: Any, decoding: Any, tokens: Any = None
) -> bool:
    """Write how many drafts each request of the step has.

    batch: InputBatch.
    scheduled: request -> its drafts.
    drafts: [requests] int array, written for each request that is in `scheduled`.
    decoding: likewise, written for those of them that decode.
    tokens: [requests] int array, the tokens of the step: a request decodes that has one more than
        drafts. None: one whose prompt is computed does, as upstream has it before 0.25.0.

    Returns whether it was done. It is not, and nothing was written, where few requests have drafts,
    or one is not in the batch, at which upstream raises its error.
    """
    number = len(scheduled)
    if number < FEWEST_GOING_ON or not is_on(VARIABLE):
        return False
    try:
        rows = np.fromiter(map(batch.req_id_to_index.__getitem__, scheduled), np.intp, number)
    except KeyError:
        return False
    lengths = np.fromiter(map(len, scheduled.values()), np.int32, number)
    if tokens is None:
        decodes = batch.num_computed_tokens_cpu[rows] >= batch.num_prompt_tokens[rows]
    else:
        decodes = tokens[rows] == lengths + 1
    drafts[rows] = lengths
    decoding[rows[decodes]] = lengths[decodes]
    count(FEATURE, "steps whose drafts were counted together")
    return True


def append_placeholders(runner: Any, rows: int, invalid: set[int]) -> bool:
    """Append the placeholder -1 to each row of the batch, and to its request's output tokens.

    runner: GPUModelRunner.
    rows: how many rows were sampled, the first ones of the batch.
    invalid: the rows among them that get no token.

    Returns whether it was done. It is not, and nothing was written, where there are few rows or
    one of them is full: upstream's loop raises its error at that row.
    """
    if rows < FEWEST_ROWS or not is_on(VARIABLE):
        return False
    batch, requests = runner.input_batch, runner.requests
    if invalid:
        valid = [row for row in range(rows) if row not in invalid]
        index = np.array(valid, dtype=np.intp)
    else:
        valid = list(range(rows))
        index = np.arange(rows)
    starts = batch.num_tokens_no_spec[index]
    # A row may hold more tokens than the model takes, or fewer after its length was reduced.
    longest = min(runner.max_model_len, batch.token_ids_cpu.shape[1])
    if valid and int(starts.max()) >= longest:
        count(FEATURE, "steps with a full row left to upstream")
        return False
    batch.token_ids_cpu[index, starts] = -1
    batch.is_token_ids[index, starts] = True
    batch.num_tokens_no_spec[index] = starts + 1
    req_ids = batch.req_ids
    for row in valid:
        requests[req_ids[row]].output_token_ids.append(-1)
    count(FEATURE, "steps whose placeholders were written together")
    return True


def accepted_tokens(tokens: Any, valid: Any) -> list[list[int]] | None:
    """List the valid tokens of each row, in their order.

    tokens: [rows, K+1] integers, what the rejection sampler gave.
    valid: [rows, K+1] bool, which of them count.

    Returns None, for upstream to do it, where there are few rows or the valid tokens of a row are
    not its first ones (the vocabulary cuts one out).
    """
    if len(tokens) < FEWEST_ROWS or not is_on(VARIABLE):
        return None
    if (valid[:, 1:] > valid[:, :-1]).any():
        count(FEATURE, "outputs with a gap left to upstream")
        return None
    lengths = valid.sum(axis=1).tolist()
    count(FEATURE, "outputs listed together")
    return [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
