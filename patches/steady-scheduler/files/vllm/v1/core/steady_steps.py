# SPDX-License-Identifier: Apache-2.0
"""Takes a scheduler's step of decodes as one.

In a steady batch each running request gets its next tokens and nothing else happens to it. Upstream
goes through all that might happen, one request at a time: in `schedule`, in the data that it makes
of the batch, and in `update_from_output`. Here the conditions under which nothing else can happen
are read of each request first. If they hold, the batch is noted in one loop, and upstream's own
function runs without these requests for all that it does beside them; else it runs as it is.

The requests in front of the first that is not steady (a chunk of a prompt, images) are noted so,
and upstream schedules the others and those that wait. Of a step's output each request that goes
on is noted here, and the others, such as one that may stop, are left to upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vllm.v1.overlay_effects import count

FEATURE = "steady-scheduler"

#: Requests from which on a step is noted as one; below that the preparation costs what it saves.
FEWEST = 6

#: The class whose steps are taken; one that is derived from it has rules of its own.
CLASS = "AsyncScheduler"

#: What a step's number of tokens is limited to meanwhile, by the names that releases have.
LIMITS = ("max_num_running_reqs", "max_num_active_reqs")


def take_steps(scheduler: Any) -> str | None:
    """Have a scheduler note steps of decodes as one; returns why not, None where it does.

    Replaces `schedule`, `update_from_output` and `make_stats` of this object. The slots of its
    requests must be those of full attention, as `held_slots` makes sure.
    """
    reason = _reason_against(scheduler)
    if reason is not None:
        count(FEATURE, f"schedulers whose steps are left to upstream: {reason}")
        return reason
    steps = _Steps(scheduler)
    scheduler.schedule = steps.schedule
    scheduler.update_from_output = steps.update_from_output
    scheduler.make_stats = steps.make_stats
    return None


def _reason_against(scheduler: Any) -> str | None:
    """Why all steps of a scheduler are left to upstream."""
    has = {name: getattr(scheduler, name, None) for name in _REASONS}
    for name, reason in _REASONS.items():
        if has[name]:
            return reason
    class_ = type(scheduler)
    if (class_.__module__, class_.__name__) != ("vllm.v1.core.sched.async_scheduler", CLASS):
        return f"{class_.__module__} has rules of its own"
    for name in ("schedule", "update_from_output", "make_stats", "_update_after_schedule"):
        function = getattr(class_, name)
        if not function.__module__.startswith("vllm.v1.core.sched."):
            return f"{function.__module__} has rules of its own"
    if getattr(scheduler, "num_sampled_tokens_per_step", 1) != 1:
        return "a step samples another number of tokens than one"
    if scheduler.parallel_config.pipeline_parallel_size > 1:
        return "pipeline parallelism"
    if getattr(scheduler.vllm_config.model_config, "enable_return_routed_experts", False):
        return _REASONS["enable_return_routed_experts"]
    if _late(scheduler) is None:
        return "requests count otherwise what was under way"
    metrics = getattr(scheduler, "perf_metrics", None)
    if metrics and metrics.is_enabled():
        return "performance metrics of each step"
    return None


#: Attributes of a scheduler that, where they are set, are a reason against noting its steps as one.
_REASONS = {
    "connector": "a KV connector",
    "ec_connector": "a connector of encoder caches",
    "aux_output_connector": "a connector of auxiliary outputs",
    "defer_block_free": "blocks that are freed later",
    "dynamic_sd_lookup": "a number of drafts that depends on the batch",
    "enable_return_routed_experts": "routed experts are returned",
    "return_sampling_mask": "sampling masks are returned",
    "need_mamba_block_aligned_split": "steps that end with a block",
    "is_encoder_decoder": "an encoder and a decoder",
}


def _late(scheduler: Any) -> str | None:
    """The field in which a request counts what was under way when it was preempted, if known."""
    names = ("num_stale_output_tokens", "async_tokens_to_discard", "discard_latest_async_tokens")
    methods = (scheduler.update_from_output, scheduler._update_request_with_output)
    code = {name for method in methods for name in method.__func__.__code__.co_names}
    return next((name for name in names if name in code), None)


def groups_of(manager: Any) -> list[tuple[Any, Any, int]]:
    """Of each group of layers: blocks by request, how many of them are noted, a block's tokens.

    manager: a KVCacheManager; those that are noted are so for the prefix cache.
    """
    return [
        (group.req_to_blocks, group.num_cached_block, group.block_size)
        for group in manager.coordinator.single_type_managers
    ]


class _Batch(NamedTuple):
    """Requests of a step, in the order in which they are running.

    :ivar numbers: tokens that each gets in the step, its drafts among them.
    :ivar asking: places of those that need a block, or have one to note for the prefix cache.
    :ivar blocks: that are allocated for these.
    :ivar seen: running requests that were looked at; those of them that are not in the batch
        get nothing in this step.
    """

    requests: list[Any]
    numbers: list[int]
    asking: list[int]
    blocks: int
    seen: int


class _Steps:
    """The steps of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
        from vllm.v1.request import RequestStatus

        self._scheduler, self._manager = scheduler, scheduler.kv_cache_manager
        self._schedule: Callable[..., Any] = scheduler.schedule
        self._update: Callable[..., Any] = scheduler.update_from_output
        self._make_stats: Callable[..., Any] = scheduler.make_stats
        self._output, self._outputs = EngineCoreOutput, EngineCoreOutputs
        self._running = RequestStatus.RUNNING
        self._caching = self._manager.enable_caching
        self._groups = groups_of(self._manager)
        # What requests of this release have, and what its scheduler keeps.
        names = type(scheduler)._make_cached_request_data.__code__.co_names
        self._remembers = not (scheduler.use_v2_model_runner and "use_v2_model_runner" in names)
        update = type(scheduler)._update_after_schedule.__code__.co_names
        self._staggers = scheduler.use_v2_model_runner and "next_decode_eligible_step" in update
        base: Any = type(scheduler).__mro__[1]
        scheduled = base._update_after_schedule.__code__.co_names
        self._in_flight = "num_in_flight_tokens" in scheduled
        # From 0.33.0 on the cache is told of what is computed and not under way.
        own = vars(type(scheduler)).get("_update_request_with_output")
        notes_itself = own is not None and "cache_blocks" in own.__code__.co_names
        self._notes_without_flight = not notes_itself
        self._late = _late(scheduler) or ""
        self._stats: Any = None

    # -- schedule

    def schedule(self, *given: Any, **named: Any) -> Any:
        """Schedule a step, as upstream's method of this name does."""
        scheduler = self._scheduler
        if len(scheduler.running) < FEWEST:
            return self._schedule(*given, **named)
        batch = self._batch()
        reason = self._reason_against(batch)
        if reason is None and self._alone(batch):
            return self._together(batch, [], given, named)
        reason = reason or self._reason_against_part(batch, given, named)
        if reason is None:
            return self._beside_others(batch, given, named)
        count(FEATURE, f"steps scheduled by upstream: {reason}")
        return self._schedule(*given, **named)

    def _batch(self) -> _Batch:
        """The running requests up to the first that is not steady; nothing is written."""
        scheduler, groups, caching = self._scheduler, self._groups, self._caching
        longest, lookahead = scheduler.max_model_len, scheduler.num_lookahead_tokens
        most = scheduler.scheduler_config.long_prefill_token_threshold or longest
        requests: list[Any] = []
        numbers: list[int] = []
        asking: list[int] = []
        total, seen = 0, 0
        for request in scheduler.running:
            if request.is_prefill_chunk or request.mm_features:
                break
            computed, ahead = request.num_computed_tokens, request.num_output_placeholders
            if ahead > 0 and computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
                # Upstream passes over a request whose last token is under way.
                seen += 1
                continue
            length = len(request._all_token_ids)
            end = length + len(request.spec_token_ids) + ahead
            number = end - computed
            if not 0 < number <= most or end >= longest:
                break
            # Near the longest request that is a block too many: then upstream finds none missing.
            needed = end + lookahead
            # Tokens that may be noted for the prefix cache, as soon as they fill a block.
            final = (end if end < length else length) if caching else 0
            name = request.request_id
            for blocks, noted, size in groups:
                missing = needed - len(blocks.get(name, ())) * size
                if missing > 0:
                    total += -(-missing // size)
                elif not caching or (noted.get(name, 0) + 1) * size > final:
                    continue
                if not asking or asking[-1] != len(requests):
                    asking.append(len(requests))
            requests.append(request)
            numbers.append(number)
            seen += 1
        return _Batch(requests, numbers, asking, total, seen)

    def _reason_against(self, batch: _Batch) -> str | None:
        """Why upstream schedules all of a step."""
        scheduler = self._scheduler
        if len(batch.requests) < FEWEST:
            return "few requests that go on as they were"
        if scheduler._pause_state.name == "PAUSED_ALL":
            return "the scheduler is paused"
        total = sum(batch.numbers)
        slots = self._draft_slots() * len(batch.requests)
        if (
            total > scheduler.max_num_scheduled_tokens
            or total + slots > scheduler.scheduler_config.max_num_batched_tokens
        ):
            return "more tokens than a step may have"
        if batch.blocks > self._manager.block_pool.get_num_free_blocks():
            return "no block is free"
        if self._remembers:
            before = scheduler.prev_step_scheduled_req_ids
            if not before.issuperset([request.request_id for request in batch.requests]):
                return "requests that were not in the step before"
        return None

    def _draft_slots(self) -> int:
        """Further places of a request's drafts in a step, where the release counts them."""
        speculative = self._scheduler.vllm_config.speculative_config
        return getattr(speculative, "max_num_new_slots_for_drafting", 0) if speculative else 0

    def _alone(self, batch: _Batch) -> bool:
        """Whether no other request can come into the step."""
        scheduler = self._scheduler
        if batch.seen < len(scheduler.running):
            return False
        if not (
            scheduler.waiting
            or getattr(scheduler, "skipped_waiting", None)
            or getattr(scheduler, "kv_holding_waiting", None)
        ):
            return True
        most = [getattr(scheduler, name) for name in LIMITS if hasattr(scheduler, name)][-1]
        return bool(batch.seen >= most)

    def _reason_against_part(
        self, batch: _Batch, given: tuple[Any, ...], named: dict[str, Any]
    ) -> str | None:
        """Why upstream schedules all of a step into which other requests may come."""
        scheduler = self._scheduler
        if any(given) or any(named.values()):
            return "prefills are held back"
        if getattr(scheduler, "local_prefill_interval", 1) > 1:
            return "prefills in intervals"
        if scheduler.lora_config:
            return "adapters are counted"
        config = scheduler.scheduler_config
        if self._draft_slots() or scheduler.max_num_scheduled_tokens > (
            config.max_num_batched_tokens
        ):
            return "a step's tokens have two limits"
        if len(batch.requests) <= FEWEST:
            return "few requests that go on as they were"
        # The last of the batch and all behind it are upstream's, and none may be preempted.
        needed = batch.blocks
        for request in scheduler.running[scheduler.running.index(batch.requests[-1]) :]:
            end = len(request._all_token_ids) + len(request.spec_token_ids)
            end += request.num_output_placeholders + scheduler.num_lookahead_tokens
            for blocks, _, size in self._groups:
                needed += max(0, -(-end // size) - len(blocks.get(request.request_id, ())))
        if needed > self._manager.block_pool.get_num_free_blocks():
            return "no block is free"
        return None

    def _beside_others(self, batch: _Batch, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Schedule a batch here, and let upstream schedule what is behind it and what waits.

        Upstream schedules the last request of the batch, too: some of its rules ask whether a
        running request is in the step.
        """
        running: list[Any] = self._scheduler.running
        last = len(batch.requests) - 1
        place = running.index(batch.requests[last])
        asking = [at for at in batch.asking if at < last]
        part = _Batch(batch.requests[:last], batch.numbers[:last], asking, batch.blocks, place)
        return self._together(part, running[place:], given, named)

    def _together(
        self, batch: _Batch, others: list[Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Schedule a batch here, and what else belongs to a step by upstream's method.

        others: running requests that upstream schedules, with those that wait; where there are
            none, upstream schedules nothing.
        """
        scheduler = self._scheduler
        blocks: list[Any] = [None] * len(batch.requests)
        for at in batch.asking:
            answer = self._manager.allocate_slots(
                batch.requests[at],
                batch.numbers[at],
                num_lookahead_tokens=scheduler.num_lookahead_tokens,
            )
            blocks[at] = answer.get_block_ids(allow_none=True)
        if others:
            result = self._limited(batch, others, given, named)
            count(FEATURE, "steps scheduled in part")
        else:
            tokens = scheduler.max_num_scheduled_tokens
            scheduler.max_num_scheduled_tokens = 0
            try:
                result = self._schedule(*given, **named)
            finally:
                scheduler.max_num_scheduled_tokens = tokens
            count(FEATURE, "steps scheduled together")
        self._add(batch, blocks, result)
        return result

    def _limited(
        self, batch: _Batch, others: list[Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Let upstream schedule as if the requests in front of the others were not there."""
        scheduler = self._scheduler
        running, kept = scheduler.running, {}
        for name in LIMITS:
            if hasattr(scheduler, name):
                kept[name] = getattr(scheduler, name)
                setattr(scheduler, name, kept[name] - batch.seen)
        kept["max_num_scheduled_tokens"] = scheduler.max_num_scheduled_tokens
        scheduler.max_num_scheduled_tokens -= sum(batch.numbers)
        scheduler.running = others
        try:
            return self._schedule(*given, **named)
        finally:
            running[batch.seen :] = scheduler.running
            scheduler.running = running
            for name, value in kept.items():
                setattr(scheduler, name, value)

    def _add(self, batch: _Batch, blocks: list[Any], result: Any) -> None:
        """Note a batch in its requests and in the step's output, in front of upstream's."""
        scheduler = self._scheduler
        if getattr(result, "skip_drafts", False) and getattr(scheduler, "can_skip_drafts", False):
            result.skip_drafts = all(
                scheduler._drafts_unused(request, request.num_computed_tokens, number)
                for request, number in zip(batch.requests, batch.numbers, strict=True)
            )
        if not result.total_num_scheduled_tokens and hasattr(scheduler, "num_executed_steps"):
            scheduler.num_executed_steps += 1
        names, computed, outputs, drafts, structured, waits = self._note(batch)
        result.has_structured_output_requests |= structured
        result.pending_structured_output_tokens |= waits
        cached = result.scheduled_cached_reqs
        cached.req_ids = names + cached.req_ids
        cached.new_block_ids = blocks + cached.new_block_ids
        cached.num_computed_tokens = computed + cached.num_computed_tokens
        cached.num_output_tokens = outputs + cached.num_output_tokens
        numbers = dict(zip(names, batch.numbers, strict=True))
        numbers.update(result.num_scheduled_tokens)
        result.num_scheduled_tokens = numbers
        result.total_num_scheduled_tokens += sum(batch.numbers)
        drafts.update(result.scheduled_spec_decode_tokens)
        result.scheduled_spec_decode_tokens = drafts
        if self._remembers:
            scheduler.prev_step_scheduled_req_ids.update(names)

    def _note(
        self, batch: _Batch
    ) -> tuple[list[str], list[int], list[int], dict[str, list[int]], bool, bool]:
        """Note the step in its requests.

        Returns their names, computed and output tokens before it, drafts, whether one has
        structured output, and whether such a one waits for tokens.
        """
        scheduler = self._scheduler
        in_flight, staggers = self._in_flight, self._staggers
        step = 0
        if staggers:
            stagger = getattr(scheduler, "decode_stagger", None) or scheduler.pp_size
            step = scheduler.current_step + stagger
        names: list[str] = []
        before: list[int] = []
        outputs: list[int] = []
        drafted: dict[str, list[int]] = {}
        structured = waits = False
        for request, number in zip(batch.requests, batch.numbers, strict=True):
            name, ahead = request.request_id, request.num_output_placeholders
            names.append(name)
            before.append(request.num_computed_tokens)
            outputs.append(len(request._output_token_ids) + ahead)
            request.num_computed_tokens += number
            if in_flight:
                request.num_in_flight_tokens += number
            if request.structured_output_request is not None:
                structured = True
                waits = waits or ahead > 0
            # Placeholders, given with its last token by asynchronous scheduling; they stay.
            drafts = request.spec_token_ids
            if drafts:
                drafted[name] = drafts
                request.num_output_placeholders = ahead + 1 + len(drafts)
            else:
                request.num_output_placeholders = ahead + 1
            if staggers:
                request.next_decode_eligible_step = step
        return names, before, outputs, drafted, structured, waits

    # -- update_from_output

    def update_from_output(self, scheduled: Any, output: Any) -> Any:
        """Note what a step gave, as upstream's method of this name does."""
        numbers = scheduled.num_scheduled_tokens
        if len(numbers) < FEWEST:
            return self._update(scheduled, output)
        reason = self._reason_against_output(scheduled, output)
        if reason is not None:
            count(FEATURE, f"outputs noted by upstream: {reason}")
            return self._update(scheduled, output)
        made, rest = self._go_on(scheduled, output)
        count(FEATURE, "outputs noted in part" if rest else "outputs noted together")
        scheduled.num_scheduled_tokens = rest
        try:
            result = self._update(scheduled, output)
        finally:
            scheduled.num_scheduled_tokens = numbers
        return self._joined(made, result, numbers) if made else result

    def _reason_against_output(self, scheduled: Any, output: Any) -> str | None:
        """Why upstream notes all that a step gave."""
        scheduler = self._scheduler
        if not output.sampled_token_ids:
            return "nothing was sampled"
        if (
            output.logprobs
            or output.prompt_logprobs_dict
            or getattr(output, "prompt_token_id_logprobs_dict", None)
        ):
            return "log probabilities"
        if output.pooler_output or output.num_nans_in_logits:
            return "poolers, or numbers that are none"
        if output.kv_connector_output:
            return "a KV connector"
        if scheduled.num_invalid_spec_tokens:
            return "drafts that a grammar forbids"
        if getattr(scheduler, "grammar_compile_error_reqs", None) or getattr(
            scheduler, "encoder_cache_mismatch_reqs", None
        ):
            return "requests with errors"
        return None

    def _go_on(self, scheduled: Any, output: Any) -> tuple[dict[int, list[Any]], dict[str, int]]:
        """Note the tokens of each request that goes on.

        Returns the outputs of these by client, and the tokens of the others in the step.
        """
        requests, caching = self._scheduler.requests, self._caching
        sampled, places = output.sampled_token_ids, output.req_id_to_index
        drafted = scheduled.scheduled_spec_decode_tokens
        made: dict[int, list[Any]] = {}
        rest: dict[str, int] = {}
        accepted: dict[tuple[int, int], int] = {}
        watched, self._stats = self._is_watched(), None
        for name, number in scheduled.num_scheduled_tokens.items():
            request = requests.get(name)
            if request is None or not self._is_plain(request):
                rest[name] = number
                continue
            tokens, drafts = sampled[places[name]], drafted.get(name)
            rejected = len(drafts) + 1 - len(tokens) if drafts else 0
            if not self._goes_on(request, tokens, drafts, rejected):
                rest[name] = number
                continue
            final = self._to_note(request, number, len(tokens), rejected) if caching else 0
            if final and rest:
                # Upstream notes and frees blocks in the order of the requests.
                rest[name] = number
                continue
            if drafts and watched:
                self._count_draft(name, len(drafts), len(tokens) - 1)
            elif drafts:
                key = len(drafts), len(tokens) - 1
                accepted[key] = accepted.get(key, 0) + 1
            self._append(request, number, tokens, rejected)
            if final:
                self._manager.cache_blocks(request, final)
            outputs = made.get(request.client_index)
            if outputs is None:
                outputs = made[request.client_index] = []
            outputs.append(self._output_of(request, tokens))
        self._count_drafts(accepted)
        return made, rest

    def _is_plain(self, request: Any) -> bool:
        """Whether a request runs, and has nothing that upstream looks at beside its tokens."""
        params = request.sampling_params
        return not (
            request.status is not self._running
            or params is None
            or params.repetition_detection is not None
            or request.structured_output_request is not None
            or request.mm_features
            or request.events
            or request.prefill_stats is not None
            or getattr(request, self._late)
        )

    def _goes_on(self, request: Any, tokens: list[int], drafts: Any, rejected: int) -> bool:
        """Whether these tokens cannot stop a request, and are what it waits for."""
        params, gained = request.sampling_params, len(tokens)
        if drafts and (rejected < 0 or getattr(request, "spec_decode_metrics", None) is not None):
            return False
        stops = params.stop_token_ids
        return (
            gained > 0
            and request.num_computed_tokens > 0
            and request.num_output_placeholders >= rejected + gained
            and len(request._all_token_ids) + gained < self._scheduler.max_model_len
            and len(request._output_token_ids) + gained < request.max_tokens
            and params._eos_token_id not in tokens
            and (not stops or set(stops).isdisjoint(tokens))
        )

    def _to_note(self, request: Any, number: int, gained: int, rejected: int) -> int:
        """Up to which token the prefix cache notes a request; 0 where no further block is full."""
        if self._notes_without_flight:
            ahead = request.num_in_flight_tokens - number
        else:
            ahead = request.num_output_placeholders - rejected - gained
        final: int = request.num_computed_tokens - rejected - ahead
        for _, noted, size in self._groups:
            if (noted.get(request.request_id, 0) + 1) * size <= final:
                return final
        return 0

    def _append(self, request: Any, number: int, tokens: list[int], rejected: int) -> None:
        """Note a request's tokens of a step, and take off its drafts that were rejected."""
        request.num_computed_tokens -= rejected
        request.num_output_placeholders -= rejected + len(tokens)
        if self._in_flight:
            request.num_in_flight_tokens -= number
        size = self._groups[0][2]
        length = len(request._all_token_ids) + len(tokens)
        if self._caching and (len(request.block_hashes) + 1) * size <= length:
            request.append_output_token_ids(tokens)
        else:
            request._output_token_ids.extend(tokens)
            request._all_token_ids.extend(tokens)

    def _output_of(self, request: Any, tokens: list[int]) -> Any:
        """The output of a request that goes on."""
        output = self._output(request.request_id, tokens)
        if request.stop_reason is not None:
            output.stop_reason = request.stop_reason
        if request.trace_headers is not None:
            output.trace_headers = request.trace_headers
        if request.num_nans_in_logits:
            output.num_nans_in_logits = request.num_nans_in_logits
        return output

    def _count_drafts(self, accepted: dict[tuple[int, int], int]) -> None:
        """Have the step's statistics count drafts.

        accepted: how many requests had so many drafts, of which so many were accepted.
        """
        for (drafts, taken), times in accepted.items():
            before, self._stats = self._stats, None
            self._count_draft("", drafts, taken)
            own, self._stats = self._stats, before
            if own is not None:
                self._stats = _added(self._stats, own, times)

    def _count_draft(self, name: str, drafts: int, taken: int) -> None:
        """Have the step's statistics count the drafts of one request, as upstream does."""
        self._stats = self._scheduler.make_spec_decoding_stats(
            self._stats,
            num_draft_tokens=drafts,
            num_accepted_tokens=taken,
            num_invalid_spec_tokens=None,
            request_id=name,
        )

    def _is_watched(self) -> bool:
        """Whether somebody put a function of their own around the one that counts drafts.

        It is told of each request then, before its tokens are appended, as upstream tells it.
        """
        code = getattr(self._scheduler.make_spec_decoding_stats, "__code__", None)
        return getattr(code, "co_name", "") != "make_spec_decoding_stats"

    def make_stats(self, drafts: Any = None, *given: Any, **named: Any) -> Any:
        """The statistics of a step, with the drafts that are counted here."""
        own, self._stats = self._stats, None
        if own is not None:
            drafts = own if drafts is None else _added(drafts, own, 1)
        return self._make_stats(drafts, *given, **named)

    def _joined(
        self, made: dict[int, list[Any]], result: dict[int, Any], numbers: dict[str, int]
    ) -> dict[int, Any]:
        """The outputs of a step in upstream's order, by client.

        made: those that were made here, of each client in the order of the step.
        result: what upstream made, which ends with the clients that have no outputs.
        numbers: the tokens of the step by request.
        """
        if len(made) == 1 and not any(each.outputs for each in result.values()):
            places: dict[str, int] = {}
            clients = list(made)
        else:
            places = {name: place for place, name in enumerate(numbers)}
            first = {client: places[outputs[0].request_id] for client, outputs in made.items()}
            for client, each in result.items():
                if each.outputs:
                    place = places.get(each.outputs[0].request_id, len(places))
                    first[client] = min(place, first.get(client, len(places)))
            clients = sorted(first, key=lambda client: first[client])
        stats = next((each.scheduler_stats for each in result.values()), None)
        joined: dict[int, Any] = {}
        for client in clients:
            each = result.get(client)
            if each is None:
                each = self._outputs()
            each.scheduler_stats = None
            own = made.get(client)
            if own is not None:
                # The sort is stable: requests of which upstream says an error stay behind.
                each.outputs = (
                    sorted(
                        own + each.outputs,
                        key=lambda output: places.get(output.request_id, len(places)),
                    )
                    if each.outputs
                    else own
                )
            joined[client] = each
        for client, each in result.items():
            each.scheduler_stats = None
            # One that has nothing but the statistics was made for these.
            if client not in joined and (each.outputs or each.finished_requests is not None):
                joined[client] = each
        next(iter(joined.values())).scheduler_stats = stats
        return joined


def _added(sum_: Any, further: Any, times: int) -> Any:
    """Statistics of drafts to which others are added so many times; the first may be None."""
    if sum_ is None:
        sum_, times = further, times - 1
        further = type(further)(
            **{
                name: list(value) if isinstance(value, list) else value
                for name, value in vars(further).items()
            }
        )
    for name, value in vars(further).items():
        if isinstance(value, list):
            own = getattr(sum_, name)
            for place, number in enumerate(value):
                own[place] += number * times
        elif name != "num_spec_tokens":
            setattr(sum_, name, getattr(sum_, name) + value * times)
    return sum_
