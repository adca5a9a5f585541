"""Mistakes in the feature's modules, each of which a law of this folder must notice."""

from __future__ import annotations

from tests.batched_bookkeeping.mutations import Bug

#: In what answers at once for requests that hold their slots.
HELD_SLOTS: list[Bug] = [
    ("_reason_against", "type(group) is not FullAttentionManager", "False"),
    ("_allocating.held", "min(end + lookahead, longest)", "min(end, longest)"),
    ("_allocating.held", "request.num_computed_tokens + tokens", "tokens"),
    ("_allocating.held", "len(own) * size < needed", "False"),
    ("_allocating.held", "min(end, request.num_tokens)", "0"),
    ("_allocating.held", "noted.get(name, 0) + 1", "noted.get(name, 0) + 2"),
    ("_allocating.held", "noted.get(name, 0) + 1", "len(own) + 1"),
    ("_noting.cache_blocks", "noted.get(name, 0) + 1", "noted.get(name, 0) + 2"),
    ("_noting.cache_blocks", "note(request, num_computed_tokens)", "pass"),
]

#: In what appends the tokens of a step together.
APPENDED_TOKENS: list[Bug] = [
    ("_appending.append_together", old, new)
    for old, new in (
        ("request.num_tokens + number >= longest", "False"),
        ("request.num_tokens + number >= longest", "request.num_tokens + number > longest"),
        ("request.num_output_tokens + number >= request.max_tokens", "False"),
        (
            "request.num_output_tokens + number >= request.max_tokens",
            "request.num_output_tokens + number > request.max_tokens",
        ),
        ("params.eos_token_id in tokens", "False"),
        ("params.eos_token_id in tokens", "params.eos_token_id == tokens[-1]"),
        ("params.stop_token_ids", "False"),
        ("params.repetition_detection is not None", "False"),
        ("params is None", "False"),
        ("request.append_output_token_ids(tokens)", "pass"),
    )
]

#: In what takes steps as one.
STEPS: list[Bug] = [
    ("_Steps._batch", "request.is_prefill_chunk or request.mm_features", "request.mm_features"),
    (
        "_Steps._batch",
        "computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens",
        "False",
    ),
    (
        "_Steps._batch",
        "computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens",
        "computed + 1 - ahead >= request.num_prompt_tokens + request.max_tokens",
    ),
    ("_Steps._batch", "end >= longest", "end > longest"),
    ("_Steps._batch", "end + lookahead", "end"),
    ("_Steps._batch", "noted.get(name, 0) + 1", "noted.get(name, 0) + 2"),
    ("_Steps._batch", "missing > 0", "missing > size"),
    ("_Steps._reason_against", "scheduler._pause_state.name == 'PAUSED_ALL'", "False"),
    (
        "_Steps._reason_against",
        "batch.blocks > self._manager.block_pool.get_num_free_blocks()",
        "False",
    ),
    (
        "_Steps._reason_against",
        "not before.issuperset([request.request_id for request in batch.requests])",
        "False",
    ),
    ("_Steps._alone", "batch.seen >= most", "True"),
    ("_Steps._limited", "kept[name] - batch.seen", "kept[name]"),
    ("_Steps._limited", "sum(batch.numbers)", "0"),
    ("_Steps._add", "names + cached.req_ids", "cached.req_ids + names"),
    ("_Steps._add", "scheduler.num_executed_steps += 1", "pass"),
    ("_Steps._add", "result.total_num_scheduled_tokens += sum(batch.numbers)", "pass"),
    ("_Steps._add", "scheduler.prev_step_scheduled_req_ids.update(names)", "pass"),
    ("_Steps._note", "request.num_computed_tokens += number", "pass"),
    ("_Steps._note", "request.num_in_flight_tokens += number", "pass"),
    ("_Steps._note", "ahead + 1 + len(drafts)", "ahead + len(drafts)"),
    ("_Steps._note", "request.next_decode_eligible_step = step", "pass"),
    ("_Steps._note", "len(request._output_token_ids) + ahead", "len(request._output_token_ids)"),
    ("_Steps._go_on", "final and rest", "False"),
    ("_Steps._go_on", "len(drafts) + 1 - len(tokens) if drafts else 0", "0"),
    ("_Steps._go_on", "self._manager.cache_blocks(request, final)", "pass"),
    ("_Steps._go_on", "accepted.get(key, 0) + 1", "1"),
    ("_Steps._is_plain", "params.repetition_detection is not None", "False"),
    ("_Steps._is_plain", "request.events", "False"),
    ("_Steps._is_plain", "request.prefill_stats is not None", "False"),
    ("_Steps._is_plain", "getattr(request, self._late)", "False"),
    ("_Steps._goes_on", "getattr(request, 'spec_decode_metrics', None) is not None", "False"),
    ("_Steps._goes_on", "gained > 0", "True"),
    (
        "_Steps._goes_on",
        "len(request._all_token_ids) + gained < self._scheduler.max_model_len",
        "len(request._all_token_ids) + gained <= self._scheduler.max_model_len",
    ),
    (
        "_Steps._goes_on",
        "len(request._output_token_ids) + gained < request.max_tokens",
        "len(request._output_token_ids) + gained <= request.max_tokens",
    ),
    ("_Steps._goes_on", "params._eos_token_id not in tokens", "True"),
    ("_Steps._goes_on", "set(stops).isdisjoint(tokens)", "True"),
    ("_Steps._to_note", "request.num_in_flight_tokens - number", "request.num_in_flight_tokens"),
    (
        "_Steps._to_note",
        "noted.get(request.request_id, 0) + 1",
        "noted.get(request.request_id, 0) + 2",
    ),
    ("_Steps._append", "request.num_computed_tokens -= rejected", "pass"),
    ("_Steps._append", "rejected + len(tokens)", "len(tokens)"),
    ("_Steps._append", "request.num_in_flight_tokens -= number", "pass"),
    ("_Steps._append", "(len(request.block_hashes) + 1) * size <= length", "False"),
    ("_Steps._output_of", "output.trace_headers = request.trace_headers", "pass"),
    ("_Steps._output_of", "output.num_nans_in_logits = request.num_nans_in_logits", "pass"),
    ("_Steps._reason_against_output", "output.pooler_output or output.num_nans_in_logits", "False"),
    ("_Steps.make_stats", "own is not None", "False"),
    ("_Steps.make_stats", "_added(drafts, own, 1)", "own"),
    ("_added", "own[place] += number * times", "own[place] += number"),
    ("_added", "setattr(sum_, name, getattr(sum_, name) + value * times)", "pass"),
    ("_Steps._joined", "sorted(first, key=lambda client: first[client])", "list(first)"),
]

#: Those of its mistakes that few loads show, each with the seed of one that does.
RARE: list[tuple[Bug, int]] = [
    (("_Steps._alone", "batch.seen < len(scheduler.running)", "False"), 16),
    (("_Steps._is_plain", "request.structured_output_request is not None", "False"), 19),
    (
        (
            "_Steps._reason_against_part",
            "needed > self._manager.block_pool.get_num_free_blocks()",
            "False",
        ),
        24,
    ),
    (("_Steps._is_plain", "request.status is not self._running", "False"), 30),
]
