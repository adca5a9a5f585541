"""Hooks for ``run_engine.py``: serve loads of the fuzz, and note all that the engine does.

What they are to do is in the variable ``TEST_FUZZ``, as ``asked`` makes it.  An engine that is told
what another one did ends at the first step that differs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from overlay.proof import engine_compat
from tests.engine import engine_facts, mend_hooks, weight_hooks
from tests.fuzz.comparison import same_step
from tests.fuzz.loads import (
    Event,
    Shape,
    asked_otherwise,
    draw_load,
    reduced,
    relied_on,
    shape_of,
)
from tests.support.forks import run_and_exit

VARIABLE = "TEST_FUZZ"
MOST_STEPS = 4000
#: Steps in which nothing is scheduled or said; more than lie between two events.
MOST_IDLE = 50
#: Counts of the watch itself, beside those that features report.
HELD, APPENDED, REPLAYS = "slots held", "tokens appended together", "replays"


def asked(shape: Shape, **load: Any) -> dict[str, str]:
    """The environment variable of one engine.

    :param load: `seeds` of its loads; and, where they are not the default, `requests` in each, as
        of `draw_load`; `provoked`, whether faults of a stock vLLM that a CPU does not show are
        brought about, and requests ask for what it refuses; `without`, the events of the last load
        that are left out; `gpu`, whether the engine is on one; `mutants`, bugs, each with the
        number of the load from which on a fork of the engine has it; `expected`, a file with what
        another engine did, for these.
    """
    return {VARIABLE: json.dumps({"shape": asdict(shape), **load}, default=str)}


def _asked() -> tuple[dict[str, Any], Shape]:
    default = {"requests": 0, "without": (), "gpu": False, "expected": None, "mutants": {}}
    given = {**default, "provoked": False, **json.loads(os.environ[VARIABLE])}
    return given, shape_of(given["shape"])


def prepare() -> None:
    """Before the engine is made: what a CPU lacks."""
    given, shape = _asked()
    if not given["gpu"]:
        from tests.engine.steady_hooks import schedule_asynchronously

        if given["provoked"]:
            mend_hooks.sample_as_a_gpu()

        if shape.asynchronous:
            schedule_asynchronously()
        if shape.graphs:
            from tests.draft_graphs import cpu_engine

            cpu_engine.prepare()
            if importlib.util.find_spec("vllm.v1.spec_decode.draft_graphs"):
                from tests.draft_graphs.recorded_backend import RecordedBackend

                RecordedBackend(mixed=shape.untried).install()


class Watch:
    """Serves loads with an engine, and notes what happens in each step.

    :ivar steps: of the load that is served, by the names of ``comparison.STEPS``.
    :ivar work: what the features did, as far as they do not count it themselves.
    """

    def __init__(self, llm: Any) -> None:
        self.llm, self.engine = llm, llm.llm_engine
        self.steps: list[dict[str, Any]] = []
        self.now: dict[str, Any] = {}
        self.loads = 0
        self.work: Counter[str] = Counter()
        self.core = self.engine.engine_core.engine_core
        # Else it is left to chance in which step a request with a grammar starts.
        self.core.structured_output_manager._use_async_grammar_compilation = False
        self._watch_scheduler(self.core.scheduler)
        engine_compat.watch_drafts(
            lambda name, *step: self._note("verified", [engine_compat.external_id(name), *step])
        )
        runner = self.engine.model_executor.driver_worker.worker.model_runner
        given, shape = _asked()
        self.provoked = given["provoked"]
        # On a GPU graphs do so by themselves, and a reload finds the draft's weights in graphs.
        self.loses_draft = self.provoked and not (given["gpu"] or shape.graphs)
        if self.provoked and not given["gpu"]:
            mend_hooks.overwrite_states(runner)
        self._watch_drafter(runner)
        # Else it is left to chance, on a GPU, when the engine waits for a step.
        _wrap(self.engine.model_executor, "sample_tokens", _never_done)

    def _note(self, kind: str, value: Any) -> None:
        self.now.setdefault(kind, []).append(value)

    def _watch_drafter(self, runner: Any) -> None:
        inner = runner.drafter.propose

        def propose(*args: Any, **named: Any) -> Any:
            # Not afterwards: until 0.29, under synchronous scheduling and in a step that verifies
            # no drafts, upstream counts its later passes into these very rows, and graphs do not.
            # Nobody reads them before the next step sets them.
            batch = runner.input_batch
            self._note("rows", batch.num_computed_tokens_cpu[: batch.num_reqs].tolist())
            drafts = inner(*args, **named)
            self._note("drafts", drafts.tolist() if hasattr(drafts, "tolist") else drafts)
            return drafts

        runner.drafter.propose = propose

    def _watch_scheduler(self, scheduler: Any) -> None:
        _wrap(scheduler, "_preempt_request", lambda _: self._note("preempted", 1))
        _wrap(scheduler, "schedule", lambda output: self._scheduled(scheduler, output))
        manager = scheduler.kv_cache_manager
        _wrap(manager, "allocate_slots", lambda _: self.work.update([HELD]))
        # Upstream asks it each time.
        counted = manager.coordinator
        _wrap(counted, "get_num_blocks_to_allocate", lambda _: self.work.subtract([HELD]))
        if hasattr(scheduler, "append_together"):
            _wrap(scheduler, "append_together", lambda done: self.work.update({APPENDED: done}))

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        name, old = engine_compat.external_id, output.scheduled_cached_reqs
        drafts = output.scheduled_spec_decode_tokens
        pool = scheduler.kv_cache_manager.block_pool
        cached = pool.cached_block_hash_to_block
        noted = {
            "scheduled": [
                [name(each), tokens, len(drafts.get(each, ()))]
                for each, tokens in output.num_scheduled_tokens.items()
            ],
            "computed": [
                *([name(new.req_id), new.num_computed_tokens] for new in output.scheduled_new_reqs),
                *map(list, zip(map(name, old.req_ids), old.num_computed_tokens, strict=True)),
            ],
            "blocks": [
                *([list(group) for group in new.block_ids] for new in output.scheduled_new_reqs),
                *(new and [list(group) for group in new] for new in old.new_block_ids),
            ],
            "ended": sorted(map(name, output.finished_req_ids)),
            "free": pool.get_num_free_blocks(),
            "cached": len(getattr(cached, "_cache", cached)),
        }
        for kind, value in noted.items():
            self._note(kind, value)

    def serve(self, load: list[Event], expected: dict[str, Any] | None) -> dict[str, Any]:
        """Serve one load to its end; its outcome.

        :param expected: that of another engine; the first step that differs ends it.
        """
        self.steps, self.loads = [], self.loads + 1
        answers: dict[str, Any] = {}
        outcome: dict[str, Any] = {"steps": self.steps, "answers": answers, "error": None}
        left, step, idle = list(load), 0, 0
        try:
            while left or self.engine.has_unfinished_requests():
                self.now = {}
                self.steps.append(self.now)
                if not self.engine.has_unfinished_requests():
                    step = max(step, left[0]["at"])
                while left and left[0]["at"] <= step:
                    self._do(left.pop(0))
                if self.engine.has_unfinished_requests():
                    for output in self.engine.step():
                        self._answered(output, answers)
                    # Those that go on may be counted before the others: sums have no order.
                    self.now.get("verified", []).sort()
                if expected and not same_step(expected["steps"], self.steps):
                    raise RuntimeError("the other engine took another step")
                moved = any(self.now.get("scheduled", ())) or "said" in self.now
                idle = 0 if moved else idle + 1
                if idle > MOST_IDLE:
                    raise RuntimeError(f"requests are left, and {idle} steps did nothing")
                if len(self.steps) > MOST_STEPS:
                    raise RuntimeError(f"the load did not end within {MOST_STEPS} steps")
                step += 1
        except Exception as error:  # noqa: BLE001 - whatever ends the engine is the outcome
            outcome["error"] = _described(error)
            self.engine.output_processor.request_states.clear()
        return outcome

    def _do(self, event: Event) -> None:
        """Let an event happen."""
        # A step of the last load may still be on its way, with requests of its own.
        do, name = event["do"], f"{self.loads}.{event.get('id')}"
        if do == "add":
            try:
                asked = asked_otherwise(event) if self.provoked else event["parameters"]
                parameters = _parameters(asked)
                engine_facts.add_request(self.llm, name, event["prompt"], parameters)
            except Exception as error:  # noqa: BLE001 - what a request is refused for is compared
                self._note("refused", [name, type(error).__name__, str(error)[:160]])
        elif do == "abort":
            self.engine.abort_request([name])
        elif do == "reload":
            if self.loses_draft:
                weight_hooks.lose_draft(weight_hooks.worker_of(self.llm).model_runner)
            self.llm.collective_rpc("reload_weights")
        elif do == "metrics":
            self.llm.get_metrics()
        else:
            running = do == "reset running"
            self._note(do, self.llm.reset_prefix_cache(reset_running_requests=running))

    def _answered(self, output: Any, answers: dict[str, Any]) -> None:
        """Note what a request has said, and all of it at its end."""
        texts = sorted(output.outputs, key=lambda each: int(each.index))
        lengths = [[each.index, len(each.token_ids)] for each in texts]
        self._note("said", [output.request_id, lengths])
        if output.finished:
            answers[output.request_id] = {
                "tokens": [list(each.token_ids) for each in texts],
                "text": [each.text for each in texts],
                "finish": [each.finish_reason for each in texts],
                "stop": [each.stop_reason for each in texts],
                "logprobs": [_logprobs(each.logprobs) for each in texts],
                "prompt logprobs": _logprobs(output.prompt_logprobs),
                "cached": output.num_cached_tokens,
            }


def _wrap(owner: Any, name: str, seen: Callable[[Any], None]) -> None:
    """Call ``seen`` with whatever a method of an object returns."""
    inner = getattr(owner, name)

    def watched(*args: Any, **named: Any) -> Any:
        result = inner(*args, **named)
        seen(result)
        return result

    setattr(owner, name, watched)


def _described(error: BaseException) -> str:
    """An error by its type, the first line of its text, and the function that raised it."""
    traceback.print_exception(error)
    where = traceback.extract_tb(error.__traceback__)[-1].name
    return f"{type(error).__name__} in {where}: {error}".partition("\n")[0]


def _never_done(result: Any) -> None:
    """Let the engine take a step for not done until it waits for it."""
    if isinstance(result, Future):
        # mypy forbids to assign to a method.
        setattr(result, "done", lambda: False)  # noqa: B010


def _parameters(given: dict[str, Any]) -> Any:
    """vLLM's sampling parameters; what the release does not have is left out."""
    from vllm import SamplingParams, sampling_params

    asked = dict(given)
    grammar = asked.pop("grammar", None)
    if grammar:
        asked["structured_outputs"] = sampling_params.StructuredOutputsParams(**grammar)
    pattern = asked.pop("repetition_detection", None)
    detection = getattr(sampling_params, "RepetitionDetectionParams", None)
    if pattern and detection:
        asked["repetition_detection"] = detection(**pattern)
    return SamplingParams(**asked)


def _drops_by_placeholders() -> bool:
    """Whether a reset of running requests takes placeholders for steps (0.22 to 0.26)."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    code = AsyncScheduler._update_request_with_output.__code__
    return "async_tokens_to_discard" in code.co_names


def _asks_first() -> bool:
    """Whether min_tokens are asked for before the end of the context is (up to 0.28)."""
    from vllm.v1.core.sched.utils import check_stop

    names = check_stop.__code__.co_names
    return bool(names.index("min_tokens") < names.index("num_tokens"))


def _leaves_masks() -> bool:
    """Whether a row that moves leaves the mask of its allowed tokens behind (up to 0.30)."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    return "fill_" not in InputBatch.condense.__code__.co_names


def _keeps_whole_steps() -> bool:
    """Whether an answer keeps the tokens of a step that come behind a stop string."""
    from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer

    return "bisect_left" not in BaseIncrementalDetokenizer.update.__code__.co_names


def _logprobs(found: Any) -> Any:
    if not found:
        return None
    return [
        at and sorted([token, round(each.logprob, 4), each.rank] for token, each in at.items())
        for at in found
    ]


def run(llm: Any) -> dict[str, Any]:
    """Serve all loads, the later ones with what the earlier ones left in the caches.

    The result: ``outcomes`` of the loads up to the first that failed, ``work`` of the features,
    and of each bug in ``mutants`` the outcomes of the loads that it was there for.
    """
    given, shape = _asked()
    rows: Any = sys.modules.get("vllm.v1.worker.batched_bookkeeping")
    if shape.few_rows and rows is not None:
        rows.FEWEST_ROWS = rows.FEWEST_GOING_ON = 1
    steps: Any = sys.modules.get("vllm.v1.core.steady_steps")
    if shape.few_rows and steps is not None:
        steps.FEWEST = 1
    if shape.graphs and not given["gpu"]:
        from tests.draft_graphs import cpu_engine

        cpu_engine.capture_model(llm)
    watch = Watch(llm)
    outcomes: list[dict[str, Any]] = []
    mutants: dict[str, list[dict[str, Any]]] = {}
    for number in range(len(given["seeds"])):
        for name, load in given["mutants"].items():
            if load == number:
                mutants[name] = _forked(partial(_with_bug, name, watch, number))
        outcomes.append(_outcome(watch, number))
        if outcomes[-1]["error"]:
            break
    result = {"outcomes": outcomes, "work": work(llm, watch), "faults": faults(given, shape)}
    return {**result, "mutants": mutants}


def _outcome(watch: Watch, number: int, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """Serve one of the loads.

    :param expected: the outcome of another engine; the first step that differs ends the load.
    """
    import numpy as np
    import torch

    given, shape = _asked()
    seed, last = given["seeds"][number], number + 1 == len(given["seeds"])
    load = reduced(draw_load(seed, shape, given["requests"]), given["without"] if last else ())
    load = relied_on(
        load,
        shape,
        gpu=given["gpu"],
        stale_frames=_drops_by_placeholders(),
        endless=_asks_first(),
        stale_masks=_leaves_masks(),
        whole_steps=_keeps_whole_steps(),
    )
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    return watch.serve(load, expected)


def _with_bug(name: str, watch: Watch, number: int) -> list[dict[str, Any]]:
    """Serve loads from one on with a bug, up to the first step that another engine did not take."""
    from tests.fuzz.mutants import put_in

    put_in(name)
    told = json.loads(Path(_asked()[0]["expected"]).read_text(encoding="utf-8"))
    outcomes: list[dict[str, Any]] = []
    for load, expected in enumerate(told["outcomes"][number:], number):
        outcomes.append(_outcome(watch, load, expected))
        if outcomes[-1]["error"]:
            break
    return outcomes


def _forked(serve: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a function gives in a fork of this process, whose engine stays as it is.

    :raises RuntimeError: if it gives nothing, or if the engine has threads, which a fork has not.
    """
    # That of tqdm only looks after bars of progress.
    threads = [each for each in threading.enumerate() if type(each).__name__ != "TMonitor"]
    if len(threads) > 1:
        raise RuntimeError(f"an engine with threads cannot be forked: {threads}")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        result, output = Path(folder, "outcomes"), Path(folder, "output")
        sys.stdout.flush()
        process = os.fork()
        if not process:
            work = partial(_write, serve, result)
            run_and_exit(work, output)
        os.waitpid(process, 0)
        if not result.is_file():
            raise RuntimeError(output.read_text(encoding="utf-8", errors="replace"))
        outcomes: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))
    return outcomes


def _write(serve: Callable[[], list[dict[str, Any]]], file: Path) -> None:
    file.write_text(json.dumps(serve()), encoding="utf-8")


def work(llm: Any, watch: Watch) -> dict[str, int]:
    """How often each feature did its part; empty where there are none."""
    effects: Any = sys.modules.get("vllm.v1.overlay_effects")
    if effects is None:
        return {}
    counted = Counter({name: max(count, 0) for name, count in watch.work.items()})
    for each in effects.effects().values():
        counted.update(each.get("counts") or {})
    worker = llm.llm_engine.model_executor.driver_worker.worker
    replayed = engine_compat.draft_graph_facts(worker)["replayed"]
    return {**counted, REPLAYS: sum(replayed.values())}


def faults(given: dict[str, Any], shape: Shape) -> list[str]:
    """What the double's attention saw go wrong."""
    if given["gpu"] or not shape.graphs:
        return []
    from tests.draft_graphs import graph_safe_attention

    return graph_safe_attention.faults()
