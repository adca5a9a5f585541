"""Mistakes in the feature's module, each of which a law of this folder must notice.

Each file of tests has a table; `each_bug_of` and `assert_noticed` of `releases` try its rows.
"""

from __future__ import annotations

#: Scope, the code there, what a mistake would make of it; as `tests.support.code_edits` has them.
Bug = tuple[str, str, str]

#: In what writes a step's placeholders and lists its accepted tokens.
BOOKKEEPING: list[Bug] = [
    ("append_placeholders", "row not in invalid", "True"),
    ("append_placeholders", "list(range(rows))", "list(range(rows - 1))"),
    ("append_placeholders", "np.arange(rows)", "np.arange(1, rows + 1)"),
    ("append_placeholders", "int(starts.max()) >= longest", "int(starts.max()) > longest"),
    ("append_placeholders", "int(starts.max()) >= longest", "int(starts[0]) >= longest"),
    ("append_placeholders", "int(starts.max()) >= longest", "False"),
    (
        "append_placeholders",
        "min(runner.max_model_len, batch.token_ids_cpu.shape[1])",
        "runner.max_model_len",
    ),
    (
        "append_placeholders",
        "min(runner.max_model_len, batch.token_ids_cpu.shape[1])",
        "batch.token_ids_cpu.shape[1]",
    ),
    ("append_placeholders", "batch.token_ids_cpu[index, starts] = -1", "pass"),
    (
        "append_placeholders",
        "batch.token_ids_cpu[index, starts] = -1",
        "batch.token_ids_cpu[index, starts] = 0",
    ),
    ("append_placeholders", "batch.is_token_ids[index, starts] = True", "pass"),
    ("append_placeholders", "batch.num_tokens_no_spec[index] = starts + 1", "pass"),
    ("append_placeholders", "starts + 1", "starts + 2"),
    ("append_placeholders", "requests[req_ids[row]].output_token_ids.append(-1)", "pass"),
    ("append_placeholders", "req_ids[row]", "req_ids[0]"),
    ("accepted_tokens", "(valid[:, 1:] > valid[:, :-1]).any()", "False"),
    (
        "accepted_tokens",
        "(valid[:, 1:] > valid[:, :-1]).any()",
        "(valid[0, 1:] > valid[0, :-1]).any()",
    ),
    ("accepted_tokens", "row[:length]", "row"),
    ("accepted_tokens", "tokens.tolist()", "tokens"),
]

#: In what fills the input ids of a step.
INPUT_IDS: list[Bug] = [
    ("fill_input_ids", "runner.enable_prompt_embeds", "False"),
    ("fill_input_ids", "before >= 0", "before >= -1"),
    ("fill_input_ids", "before >= 0", "before > 0"),
    ("fill_input_ids", "scheduled.get(names[row], ())", "scheduled.get(names[0], ())"),
    ("fill_input_ids", "len(rows) < tokens - len(places.drafts)", "False"),
    ("fill_input_ids", "len(rows) < tokens - len(places.drafts)", "len(rows) < tokens"),
    ("fill_input_ids", "not hasattr(drafted, 'flatten')", "False"),
    ("_places", "ends - 1 - lengths", "ends - 1"),
    ("_places", "ends - 1 - lengths", "ends - lengths"),
    ("_places", "lengths.cumsum() - lengths", "lengths.cumsum()"),
    ("_places", "sampled + 1", "sampled"),
    ("_places", "rows * width", "rows"),
    ("_places", "np.repeat(rows * width, lengths) + number", "np.repeat(rows * width, lengths)"),
    ("_fill", "(places.sampled == places.rows).all()", "True"),
    ("_fill", "sampled[rows, 0]", "sampled[to, 0]"),
    ("_fill", "ids.scatter_(0, to, sampled[rows, 0])", "pass"),
    ("_fill", "sizes[2]", "False"),
]

#: In what counts the drafts of a step.
DRAFT_COUNTS: list[Bug] = [
    (
        "count_drafts",
        "map(batch.req_id_to_index.__getitem__, scheduled)",
        "map(lambda name: batch.req_id_to_index.get(name, 0), scheduled)",
    ),
    ("count_drafts", "map(batch.req_id_to_index.__getitem__, scheduled)", "range(number)"),
    ("count_drafts", "scheduled.values()", "sorted(scheduled.values())"),
    ("count_drafts", "tokens is None", "True"),
    ("count_drafts", "tokens is None", "False"),
    (
        "count_drafts",
        "batch.num_computed_tokens_cpu[rows] >= batch.num_prompt_tokens[rows]",
        "batch.num_computed_tokens_cpu[rows] > batch.num_prompt_tokens[rows]",
    ),
    ("count_drafts", "batch.num_computed_tokens_cpu[rows]", "(MATCH + lengths)"),
    ("count_drafts", "batch.num_prompt_tokens[rows]", "batch.num_prompt_tokens[:number]"),
    ("count_drafts", "tokens[rows] == lengths + 1", "tokens[rows] >= lengths + 1"),
    ("count_drafts", "tokens[rows] == lengths + 1", "tokens[rows] <= lengths + 1"),
    ("count_drafts", "tokens[rows] == lengths + 1", "tokens[rows] == lengths"),
    ("count_drafts", "tokens[rows]", "tokens[:number]"),
    ("count_drafts", "drafts[rows] = lengths", "pass"),
    ("count_drafts", "drafts[rows] = lengths", "drafts[:number] = lengths"),
    ("count_drafts", "drafts[rows] = lengths", "drafts[rows[decodes]] = lengths[decodes]"),
    ("count_drafts", "decoding[rows[decodes]] = lengths[decodes]", "pass"),
    ("count_drafts", "decoding[rows[decodes]] = lengths[decodes]", "decoding[rows] = lengths"),
    (
        "count_drafts",
        "decoding[rows[decodes]] = lengths[decodes]",
        "decoding[rows] = lengths * decodes",
    ),
]

#: In what lists the last tokens of the rows.
LAST_TOKENS: list[Bug] = [
    ("last_tokens", "batch.num_tokens_no_spec[:batch.num_reqs] - 1", "MATCH + 1"),
    ("last_tokens", "place - state.num_prompt_tokens", "place"),
    ("last_tokens", "behind < 0", "False"),
    ("last_tokens", "tokens[behind]", "tokens[-1]"),
    ("last_tokens", "behind < len(tokens)", "behind < len(tokens) - 1"),
    ("last_tokens", "state.get_token_id(place)", "-1"),
]

#: In what continues requests and takes off their rejected drafts.
REQUESTS: list[Bug] = [
    ("continue_requests", "not last", "False"),
    ("_together", "speculative.use_ngram_gpu()", "False"),
    ("continue_requests", "row is None", "False"),
    ("continue_requests", "runner.use_async_scheduling", "True"),
    ("continue_requests", "corrections.append((name, expected, state))", "pass"),
    ("continue_requests", "missing < expected", "missing <= expected"),
    ("continue_requests", "missing < expected", "missing < 0"),
    ("continue_requests", "cut[row] = outputs", "pass"),
    ("continue_requests", "del state.output_token_ids[outputs:]", "pass"),
    ("continue_requests", "min(missing, expected)", "expected"),
    ("continue_requests", "min(missing, expected)", "missing"),
    ("continue_requests", "state.num_computed_tokens = computed", "pass"),
    ("continue_requests", "own.extend(new)", "pass"),
    ("continue_requests", "batch.block_table.append_row(blocks, row)", "pass"),
    ("continue_requests", "scheduled.scheduled_spec_decode_tokens.get(name, ())", "()"),
    ("continue_requests", "state.prev_num_draft_len = len(tokens)", "pass"),
    ("continue_requests", "batch.spec_token_ids[row][:] = tokens", "pass"),
    (
        "continue_requests",
        "batch.spec_token_ids[row][:] = tokens",
        "batch.spec_token_ids[row] = tokens",
    ),
    (
        "continue_requests",
        "batch.spec_token_ids[row][:] = tokens",
        "batch.spec_token_ids[row] += tokens",
    ),
    ("_write_rows", "batch.num_computed_tokens_cpu[list(rows)] = computed", "pass"),
    ("_write_rows", "batch.num_prompt_tokens[at] + list(cut.values())", "list(cut.values())"),
    ("_write_rows", "list(drafted.values())", "1"),
    ("_write_rows", "batch.prev_req_id_to_index or {}", "batch.req_id_to_index"),
    ("_write_rows", "batch.prev_req_id_to_index or {}", "{}"),
    ("_write_drafts", "np.fromiter(rows, np.intp, len(rows))", "np.arange(len(rows))"),
    ("continue_requests", "{state.req_id for state in rows.values()}", "set()"),
    ("_write_drafts", "starts - lengths.cumsum() + lengths", "starts"),
    ("_write_drafts", "starts - lengths.cumsum() + lengths", "starts - lengths.cumsum()"),
    ("_write_drafts", "np.arange(total)", "0"),
    ("_write_drafts", "np.repeat(at, lengths)", "np.repeat(at[::-1], lengths)"),
    ("_write_drafts", "batch.is_token_ids[places] = True", "pass"),
    ("_write_drafts", "marked", "True"),
    ("_write_drafts", "int((starts + lengths).max()) > batch.token_ids_cpu.shape[1]", "False"),
    (
        "_write_drafts",
        "batch.token_ids_cpu[places] = np.fromiter(chain.from_iterable(drafts), np.int64, total)",
        "pass",
    ),
    ("_correct", "last is None", "False"),
    ("_correct", "expected + 1 - valid[last]", "expected - valid[last]"),
    ("_correct", "expected + 1 - valid[last]", "expected + 1 - valid[0]"),
    ("_correct", "state.num_computed_tokens -= number", "pass"),
    ("_correct", "batch.req_id_to_index.get(name)", "last"),
    ("_correct", "rejected.append(number)", "rejected.append(1)"),
]
