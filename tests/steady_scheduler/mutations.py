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
    ("_Steps._alone", "batch.seen >= most", "True"),
    ("_Steps._add", "result.total_num_scheduled_tokens += sum(batch.numbers)", "pass"),
]
