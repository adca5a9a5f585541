"""Run real engines in a vLLM on CPU that has the draft graphs, and watch every replay.

``python harness.py PLAN.json --out RESULT.json``. A plan is a list of engines; each engine serves
its requests once per run of its own, and before each run the draft graphs are made and captured
again by the module's own code. See `Plan` and `Run`; what comes back is one `Outcome` a run.

Longer than other modules: one program that runs in a process of its own, from plan to outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import logging
import os
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.draft_graphs.package_copies import (
    INSTALLED,
    PACKAGE,
    belongs,
    changed_hooks,
    load_package,
    loaded_package,
    use_package,
)
from tests.support import rested_collector
from tests.support.code_edits import Edit

#: Small operators on few cores: threads that wait for each other take ten times as long.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class Run:
    """One capture and one service of the requests.

    :ivar mode: `OVERLAY_DRAFT_GRAPHS`.
    :ivar ladder: the sizes to capture instead of the module's own.
    :ivar mutation: edits of the package, to be made before anything else;
        the old text must be there exactly once.
    :ivar sabotage: a name in `sabotage.SABOTAGES`, done after the capture and undone at the end.
    :ivar check: `OVERLAY_DRAFT_GRAPHS_CHECK`.
    :ivar untried: `OVERLAY_DRAFT_GRAPHS_UNTRIED`.
    :ivar mixed: whether that grants graphs of mixed batches.
    :ivar profile_fails: whether no graph can be captured for vLLM's profile of their memory.
    :ivar tunes: whether the draft model reads a value at its first call of each size, as a kernel
        does that tunes itself, or one that is loaded when it is first used.
    :ivar draft_only: whether the target's graphs are those of an earlier run.
    :ivar until_wrong: whether the first wrong draft ends it, with the error `WrongDraft`.
    :ivar until_refused: whether nothing is served once the capture was refused.
    """

    name: str
    mode: str = "auto"
    ladder: tuple[int, ...] | None = None
    mutation: tuple[Edit, ...] = ()
    sabotage: str | None = None
    check: bool = True
    untried: bool = False
    mixed: bool = False
    profile_fails: bool = False
    tunes: bool = False
    draft_only: bool = False
    until_wrong: bool = False
    until_refused: bool = False


@dataclass
class Plan:
    """One engine: an `EngineSpec` as a dictionary, and its runs.

    :ivar kernel_block: tokens in a block of the attention kernel; None for those of the manager.
    :ivar zero_null_block: whether the null block holds zeros at each call, as on a GPU. On CPU
        linear attention leaves states there, which are no numbers to an attention layer.
    """

    spec: dict[str, Any]
    runs: list[Run]
    kernel_block: int | None = None
    zero_null_block: bool = False


@dataclass
class Outcome:
    """What one run showed.

    :ivar error: what was raised while capturing or serving; None if nothing was.
    :ivar tokens_ok: every request's tokens, and prompt logprobs, are the oracle's.
    :ivar accepted: per draft position, how often it was accepted; `expected`: the same by the
        oracle, for the very same verifications.
    :ivar profiled: what the module told vLLM's profile, bytes.
    :ivar group: the KV-cache group of the draft's layers.
    :ivar python_calls: of the draft model inside the entries; `model_calls`: in all.
    :ivar used, declined: calls of the module's entries, by "entry requests".
    :ivar missed: of the declined ones, those that a captured graph could have held.
    :ivar replays: by "role size".
    """

    name: str
    error: str | None = None
    tokens_ok: bool = False
    accepted: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    preemptions: int = 0
    profiled: int = 0
    group: int = 0
    python_calls: int = 0
    model_calls: int = 0
    used: dict[str, int] = field(default_factory=dict)
    declined: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    captured: list[str] = field(default_factory=list)
    replays: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class Log:
    """Keeps what the module says, whatever vLLM does to its loggers when it starts."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        stock = logging.Logger.handle

        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            if belongs(record.name) or Path(record.pathname).parent.name == "draft_graphs":
                self.lines.append(f"{record.levelname} {record.getMessage()}")
            stock(logger, record)

        # mypy forbids to assign to a method.
        setattr(logging.Logger, "handle", handle)  # noqa: B010

    def take(self) -> list[str]:
        """What was said since the last call."""
        lines = list(self.lines)
        self.lines.clear()
        return lines


def set_variables(run: Run) -> None:
    """What the user of the draft graphs would set."""
    os.environ["OVERLAY_DRAFT_GRAPHS"] = run.mode
    os.environ["OVERLAY_DRAFT_GRAPHS_CHECK"] = str(int(run.check))
    os.environ["OVERLAY_DRAFT_GRAPHS_UNTRIED"] = str(int(run.untried))


def ladder_of(run: Run) -> contextlib.AbstractContextManager[Any]:
    """The sizes that the run asks for, where the planner looks them up."""
    if run.ladder is None:
        return contextlib.nullcontext()
    sizes = run.ladder
    return mock.patch(f"{PACKAGE}.keys.ladder", lambda limit: [n for n in sizes if n <= limit])


class Engine:
    """One engine and what it takes to run it again and again.

    Its first run, unless that has a mutation, uses the package as it is installed, and the draft
    graphs that loading the model made; the later ones a copy of it, and graphs made again.
    """

    def __init__(self, plan: Plan) -> None:
        import torch
        import vllm

        # Linear attention has kernels for AMX that take no padded rows: without graphs none come.
        torch.cpu._is_amx_tile_supported = lambda: False

        from tests.draft_graphs import cpu_engine, graph_safe_attention
        from tests.draft_graphs.recorded_backend import RecordedBackend
        from tests.engine import engine_spec

        self.spec = engine_spec.EngineSpec.from_json(json.dumps(plan.spec))
        sizes = [vllm.v1.attention.backend.MultipleOf(1)]
        graph_safe_attention.KERNEL_BLOCK_SIZES[:] = (
            [plan.kernel_block] if plan.kernel_block else sizes
        )
        self.zero_null_block = plan.zero_null_block
        use_package(INSTALLED)
        self.backend = RecordedBackend(mixed=plan.runs[0].mixed)
        self.backend.install()
        self.loaded_for = None if plan.runs[0].mutation else plan.runs[0]
        set_variables(plan.runs[0])
        self.llm = vllm.LLM(**self.spec.llm_arguments())
        self.runner = cpu_engine.runner_of(self.llm)

    def close(self) -> None:
        """Let another engine start in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.runner
        rested_collector.collect()
        cleanup_dist_env_and_memory()

    def abort(self) -> None:
        """Forget all requests, after an error."""
        core = self.llm.llm_engine
        core.abort_request(list(core.output_processor.request_states), internal=True)
        while core.has_unfinished_requests():
            core.step()

    def forget(self) -> None:
        """Let no run see keys and values of the one before, which a mutation may have spoilt."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the last run left blocks that are in use")
        for cache in self.runner.kv_caches:
            cache.zero_()

    def make_graphs(self, run: Run, scratch: Path) -> None:
        """What loading the draft model does for the draft graphs, once more."""
        from tests.draft_graphs.recorded_backend import RecordedBackend

        use_package(load_package(run.mutation, scratch))
        for graph in self.backend.graphs:
            graph.reset()  # of the run before: while it is not collected, every replay looks at it
        self.backend = RecordedBackend(mixed=run.mixed)
        self.backend.install()
        set_variables(run)
        drafter = self.runner.drafter
        keys = importlib.import_module(f"{PACKAGE}.keys")
        drafter.cudagraph_dispatcher.draft_keys = keys.DraftKeys()
        drafter.draft_graphs = sys.modules[f"{PACKAGE}.hooks"].create_draft_graphs(drafter)

    def capture(self, run: Run, outcome: Outcome) -> Any:
        """Profile and capture, as a GPU's worker does; the audit that watches from then on."""
        import torch

        from tests.draft_graphs import cpu_engine
        from tests.draft_graphs.audit import Audit

        # Whatever ran last may have left its slots there.
        drafter = self.runner.drafter
        for name in ("_slot_mapping_buffer", "_context_slot_mapping_buffer"):
            slots = getattr(drafter, name, None)
            if slots is not None:
                slots.copy_(torch.arange(slots.shape[0]) % (16 * int(self.spec.block_size or 16)))
        hooks: Any = sys.modules[f"{PACKAGE}.hooks"]
        stock = hooks.capture_draft_graphs
        audit = Audit(self.runner, self.backend, zero_null_block=self.zero_null_block)

        def capture_draft_graphs(runner: Any) -> None:
            with audit.untouched_by_capture():
                stock(runner)

        with (
            ladder_of(run),
            mock.patch.object(hooks, "capture_draft_graphs", capture_draft_graphs),
        ):
            with audit.untouched_by_capture(), contextlib.ExitStack() as stack:
                if run.profile_fails:
                    refusal = RuntimeError("no memory left")
                    stack.enter_context(
                        mock.patch.object(self.backend, "capture", side_effect=refusal)
                    )
                outcome.profiled = hooks.profile_draft_graphs(self.runner)
            if run.mutation or run.draft_only:
                # The target's part, which takes longest, is what it was.
                hooks.capture_draft_graphs(self.runner)
            else:
                cpu_engine.capture_model(self.llm)
        return audit

    def run(self, run: Run, scratch: Path, log: Log) -> Outcome:
        """Make, capture, serve, compare."""
        from tests.draft_graphs.sabotage import SABOTAGES
        from tests.draft_graphs.self_tuning import tuning

        outcome = Outcome(run.name)
        self.forget()
        if self.loaded_for is not run:
            log.take()
        steps: dict[str, list[Any]] = defaultdict(list)
        CURRENT["steps"] = steps
        began = time.monotonic()
        audit = None
        drafter = self.runner.drafter
        model, undo = drafter.model, []
        try:
            if self.loaded_for is not run:
                self.make_graphs(run, scratch)
            with tuning(model) if run.tunes else contextlib.nullcontext():
                audit = self.capture(run, outcome)
            captured = time.monotonic()
            outcome.seconds["capture"] = round(captured - began, 2)
            if run.sabotage is not None:
                undo.append(SABOTAGES[run.sabotage](drafter))
            audit.watch()
            if not (run.until_refused and any("CaptureRefused" in line for line in log.lines)):
                with changed_hooks(run.mutation):
                    self.serve(outcome, steps, until_wrong=run.until_wrong)
            outcome.seconds["serve"] = round(time.monotonic() - captured, 2)
        except Exception as error:  # noqa: BLE001 - whatever a mutation does is the outcome
            outcome.error = f"{type(error).__name__}: {error}"
            self.abort()
        finally:
            for each in undo:
                each()
            drafter.model = model
        self.loaded_for = None
        if audit is not None:
            outcome.used, outcome.declined = dict(audit.used), dict(audit.declined)
            outcome.python_calls = audit.python_calls
            outcome.model_calls = audit.model_calls
            outcome.missed = dict(audit.missed)
            outcome.replays = dict(audit.replays)
        outcome.group = int(drafter.kv_cache_gid)
        dispatcher = drafter.cudagraph_dispatcher
        outcome.captured = [f"{key.role} {key.num_reqs}" for key in dispatcher.draft_keys]
        outcome.log = log.take()
        return outcome

    def serve(
        self, outcome: Outcome, steps: dict[str, list[Any]], *, until_wrong: bool = False
    ) -> None:
        """Serve the plan's requests; what they should be is the oracle's business.

        :raises WrongDraft: at the first wrong draft, if that is to end it.
        """
        from overlay.proof import oracle
        from tests.draft_graphs.first_wrong_draft import ending_there
        from tests.engine import engine_facts, expected_steps, run_engine
        from tests.engine.tiny_eagle import read_rule

        rule = read_rule(Path(self.spec.models))
        watched = ending_there(self.llm.llm_engine, self.spec.requests, steps, rule)
        before = engine_facts.read_metrics(self.llm).get("preemptions", 0)
        with watched if until_wrong else contextlib.nullcontext():
            outputs, _ = run_engine.serve(self.llm, self.spec.requests, self.spec.models)
        after = engine_facts.read_metrics(self.llm).get("preemptions", 0)
        outcome.preemptions = int(after - before)
        wanted = []
        outcome.tokens_ok = True
        for index, request in enumerate(self.spec.requests):
            prompt = list(request.prompt)
            judged = run_engine.judge(request, outputs[str(index)], steps[str(index)], rule)
            outcome.tokens_ok &= judged["tokens_ok"] is not False
            outcome.tokens_ok &= judged["prompt_logprobs_ok"] is not False
            own = expected_steps.adapted(rule, request.adapter)
            text = prompt + oracle.continuation(own, prompt, request.tokens)
            for step in steps[str(index)]:
                right = oracle.accepted(own, text[: step.known], step.drafted)
                wanted.append(oracle.OracleStep(step.known, step.drafted, right))
        seen = [step for each in steps.values() for step in each]
        outcome.accepted = list(oracle.count_steps(seen, self.spec.k).per_position)
        outcome.expected = list(oracle.count_steps(wanted, self.spec.k).per_position)


#: Where the scheduler's watcher puts what it sees.
CURRENT: dict[str, dict[str, list[Any]]] = {}


def watch_scheduler() -> None:
    """Once per process: note every verification of drafts under the current run."""
    from overlay.proof import engine_compat, oracle

    def seen(request_id: str, *step: int) -> None:
        CURRENT["steps"][engine_compat.external_id(request_id)].append(oracle.OracleStep(*step))

    engine_compat.watch_drafts(seen)


def target_captured_once(runs: list[Run]) -> list[Run]:
    """The runs of an engine; behind the first, the target's graphs are those that it has.

    Not where there are no draft graphs: the dummy passes are upstream's then.
    """
    first, *others = runs
    return [first, *(replace(run, draft_only=run.mode != "off") for run in others)]


def run_plans(plans: list[Plan], scratch: Path) -> list[list[dict[str, Any]]]:
    """All outcomes, engine by engine."""
    from tests.draft_graphs import cpu_engine

    cpu_engine.prepare()
    importlib.import_module("vllm.v1.spec_decode.llm_base_proposer")
    INSTALLED.update(loaded_package())
    watch_scheduler()
    gc.freeze()  # what is imported: the passes behind each engine visit what is new
    log = Log()
    outcomes = []
    for number, plan in enumerate(plans):
        log.take()
        engine = Engine(plan)
        outcomes.append(
            [
                asdict(engine.run(run, scratch / f"{number}-{index}", log))
                for index, run in enumerate(target_captured_once(plan.runs))
            ]
        )
        engine.close()
    return outcomes


def main() -> None:
    """Read the plan, run it, write the outcomes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from overlay.proof import engine_compat
    from overlay.results import ModelRunner
    from tests.engine import engine_facts

    os.environ.update(engine_facts.base_environment(workers=1))
    os.environ.update(engine_compat.runner_environment(ModelRunner.V1))
    os.environ.update(ENVIRONMENT)
    plans = [
        Plan(
            plan["spec"],
            [
                Run(
                    **{
                        **run,
                        "ladder": tuple(run["ladder"]) if run["ladder"] else None,
                        "mutation": tuple(tuple(change) for change in run["mutation"]),
                    }
                )
                for run in plan["runs"]
            ],
            plan["kernel_block"],
            plan["zero_null_block"],
        )
        for plan in json.loads(arguments.plan.read_text(encoding="utf-8"))
    ]
    outcomes = run_plans(plans, arguments.out.with_suffix(".packages"))
    arguments.out.write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
