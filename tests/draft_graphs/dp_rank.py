"""Run engines of several data-parallel ranks in a vLLM with draft graphs, a process a rank.

``python dp_rank.py PLAN.json``. A plan is a list of `Engines`. vLLM is imported once; for each of
them the ranks are forked from this process, with vLLM's own variables (``VLLM_DP_SIZE`` and so on)
telling each which it is. The ranks step in lockstep, as vLLM's offline data parallelism does: a
rank without requests runs dummy batches, and whatever the target's experts exchange goes over gloo.
Everything that `audit.py` watches is watched, and dummy batches besides. See `DpRun`; what comes
back is one `DpOutcome` a run, written after each, so that a rank which hangs later has told what it
saw.

Longer than other modules: one program that runs in processes of its own, from plan to outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import importlib
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.draft_graphs import harness
from tests.draft_graphs.package_copies import INSTALLED, PACKAGE, loaded_package
from tests.support.code_edits import Edit

#: The sizes that are captured: the least of several requests, and the largest.
SIZES = (2, 8)
#: The step at which a rank is killed: some have drafted in graphs by then, and more would.
LAST_STEP = 12


@dataclass(frozen=True)
class DpRun:
    """One capture and one service of requests, on all ranks.

    :ivar modes: `OVERLAY_DRAFT_GRAPHS` by rank.
    :ivar requests: those of each rank, as `engine_spec.Request` has them.
    :ivar mutation: as in `harness.Run`. mutated: the ranks that have it.
    :ivar fails: the ranks on which the capture fails, after ``captures`` graphs that it made, those
        for vLLM's profile of their memory included.
    :ivar reaches: whether a layer of the draft model exchanges its rows with the other ranks.
    :ivar without: the ranks whose device has no graphs.
    :ivar killed: the ranks that are killed while they serve, at their step `LAST_STEP`.
    :ivar unforeseen: the ranks that find, in the tenth batch whose passes all run in graphs, that
        these do not hold it.
    :ivar declining: the ranks that have, for every other batch, no graphs behind a first pass of
        upstream's.
    """

    name: str
    modes: tuple[str, ...]
    requests: tuple[tuple[dict[str, Any], ...], ...]
    mutation: tuple[Edit, ...] = ()
    mutated: tuple[int, ...] = ()
    fails: tuple[int, ...] = ()
    captures: int = 0
    reaches: bool = False
    unforeseen: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()
    declining: tuple[int, ...] = ()


@dataclass(frozen=True)
class Engines:
    """One engine a rank, and what they do together.

    :ivar spec: an `engine_spec.EngineSpec` as a dictionary.
    :ivar folder: where rank N writes ``out-N.json`` and ``log-N``.
    :ivar port: where the ranks meet.
    :ivar seconds: after which all ranks are killed.
    """

    spec: dict[str, Any]
    runs: tuple[DpRun, ...]
    folder: str
    port: int
    seconds: float


@dataclass
class DpOutcome(harness.Outcome):
    """What one run showed on one rank.

    :ivar dummy_batches: batches that the rank ran only because others had work.
    :ivar dummy_replays: draft graphs that were replayed inside them.
    :ivar dummy_writes: the layers whose KV cache one of them wrote.
    :ivar agreements: how often the drafter asked the other ranks for their token counts.
    :ivar steps: engine steps by what the rank was doing (dummy, working, nothing).
    :ivar trail: for each engine step the draft graphs that were replayed and how often the drafter
        asked the other ranks, such as "first 4, loop 4; asked 0".
    :ivar last_began: when the last engine step began, on the monotonic clock.
    :ivar last_seconds: from then until the run ended, in its error or at its end.
    :ivar trace: of the error and of what it arose from: PyTorch's own message about a collective
        that failed may hide why.
    """

    dummy_batches: int = 0
    dummy_replays: int = 0
    dummy_writes: list[str] = field(default_factory=list)
    agreements: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    trail: list[str] = field(default_factory=list)
    trace: str = ""
    last_began: float = 0.0
    last_seconds: float = 0.0


class DpEngine(harness.Engine):
    """One rank's engine.

    Unlike its base it captures in the same way whether a run has a mutation or not: what the target
    captures is a matter of all ranks. It captures for the first run, and where a rank is without
    draft graphs, whose dummy passes write through the slots that were left last.
    """

    rank = 0
    trace = ""
    target_captured = False

    def abort(self) -> None:
        """Keep where it was; to abort requests, the other ranks would have to join in."""
        self.trace = traceback.format_exc()

    def capture(self, run: harness.Run, outcome: harness.Outcome) -> Any:
        run_without = self.dp_run.without or "off" in self.dp_run.modes
        captured = self.target_captured and not run_without
        self.target_captured = True
        return super().capture(replace(run, mutation=(), draft_only=captured), outcome)

    def make_graphs(self, run: harness.Run, scratch: Path) -> None:
        from tests.draft_graphs import dp_collectives

        with (
            no_capture(self.rank in self.dp_run.fails, self.dp_run.captures),
            no_graphs(self.rank in self.dp_run.without),
            known_patches(self.dp_run.modes[0]),
        ):
            super().make_graphs(run, scratch)
        upstream: Any = sys.modules[f"{PACKAGE}.upstream"]
        upstream.token_counts = dp_collectives.on_the_host(upstream.token_counts)

    def run_rank(self, dp_run: DpRun, scratch: Path, log: harness.Log) -> DpOutcome:
        """One run on this rank."""
        from tests.engine import engine_spec, run_engine

        self.dp_run = dp_run
        mine = tuple(
            engine_spec.Request(**{**each, "prompt": tuple(each["prompt"])})
            for each in dp_run.requests[self.rank]
        )
        horizon = max(int(each["arrival"]) for rank in dp_run.requests for each in rank)
        self.spec = replace(self.spec, requests=mine)
        run = harness.Run(
            dp_run.name,
            dp_run.modes[self.rank],
            ladder=SIZES,
            mutation=dp_run.mutation if self.rank in dp_run.mutated else (),
            check=False,
        )
        own = DpOutcome(dp_run.name)

        last_step = LAST_STEP if self.rank in dp_run.killed else None

        def serve(llm: Any, requests: Any, models: str) -> Any:
            with (
                unforeseen_batch(self.rank in dp_run.unforeseen),
                declined_batches(self.rank in dp_run.declining),
                watched_replays(own) as replayed,
            ):
                return lockstep(llm, requests, horizon, own, replayed, last_step)

        with (
            mock.patch.object(run_engine, "serve", serve),
            exchanging_layer(self.runner.drafter.model, dp_run.reaches),
            watched_drafter(self, own),
            watched_dummies(self, own),
        ):
            outcome = self.run(run, scratch, log)
        waited = time.monotonic() - own.last_began
        return replace(own, trace=self.trace, **{**vars(outcome), "last_seconds": waited})


@contextlib.contextmanager
def no_capture(fails: bool, captures: int) -> Iterator[None]:
    """Let backends that are made inside refuse to capture if `fails`, after so many graphs."""
    if not fails:
        yield
        return
    from tests.draft_graphs import recorded_backend

    backend = recorded_backend.RecordedBackend
    stock = backend.capture

    def capture(self: Any, *args: Any) -> Any:
        if len(self.graphs) >= captures:
            raise RuntimeError("this rank cannot capture")
        return stock(self, *args)

    install = backend.install

    def installed(self: Any) -> None:
        self.capture = functools.partial(capture, self)
        install(self)

    with mock.patch.object(backend, "install", installed):
        yield


@contextlib.contextmanager
def no_graphs(wanted: bool) -> Iterator[None]:
    """Let this rank's device have no graphs, if `wanted`."""
    from tests.draft_graphs.recorded_backend import RecordedBackend

    why = "this device has no graphs" if wanted else None
    with mock.patch.object(RecordedBackend, "no_graphs", return_value=why):
        yield


@contextlib.contextmanager
def known_patches(mode: str) -> Iterator[None]:
    """Let ranks say that they have the same patches and `mode`, although one has a bug or another.

    The ranks would stop for it when they load their drafts; what comes later is what is asked.
    """
    from tests.draft_graphs.package_copies import use_package as stock

    def use_package(modules: Any) -> None:
        stock(modules)
        same_settings = modules[f"{PACKAGE}.same_settings"]
        same_settings._digest = lambda: "of this test"
        settings = same_settings.settings
        same_settings.settings = lambda _, *given, **more: settings(mode, *given, **more)

    with mock.patch.object(harness, "use_package", use_package):
        yield


@contextlib.contextmanager
def exchanging_layer(model: Any, wanted: bool) -> Iterator[None]:
    """Let an MLP of the draft model get its rows by way of all ranks, if `wanted`."""
    if not wanted:
        yield
        return
    from tests.draft_graphs.dp_collectives import Exchanging

    name, mlp = next(pair for pair in model.named_modules() if pair[0].endswith(".mlp"))
    parent = model.get_submodule(name.rpartition(".")[0])
    parent.mlp = Exchanging(mlp)
    try:
        yield
    finally:
        parent.mlp = mlp


@contextlib.contextmanager
def unforeseen_batch(wanted: bool) -> Iterator[None]:
    """Let the replay find once that no graph holds a batch, if `wanted`."""
    if not wanted:
        yield
        return
    replay: Any = sys.modules[f"{PACKAGE}.replay"]
    stock, batches = replay.Replay._mismatch, itertools.count(1)

    def mismatch(self: Any, k: int, cad: Any, *hidden_states: Any) -> Any:
        # They are there where all passes run in graphs.
        if hidden_states and next(batches) == 10:
            return "this test says so"
        return stock(self, k, cad, *hidden_states)

    with mock.patch.object(replay.Replay, "_mismatch", mismatch):
        yield


@contextlib.contextmanager
def declined_batches(wanted: bool) -> Iterator[None]:
    """Let the replay have no graphs for the later passes of every other batch, if `wanted`."""
    if not wanted:
        yield
        return
    replay: Any = sys.modules[f"{PACKAGE}.replay"]
    stock, batches = replay.Replay.later_requests, itertools.count(1)

    def later_requests(self: Any, *args: Any) -> Any:
        return None if next(batches) % 2 else stock(self, *args)

    with mock.patch.object(replay.Replay, "later_requests", later_requests):
        yield


@contextlib.contextmanager
def watched_replays(outcome: DpOutcome) -> Iterator[list[str]]:
    """A list to which the key of each replay is added, by role and size."""
    replay: Any = sys.modules[f"{PACKAGE}.replay"]
    stock, replayed = replay.Replay.run, []

    def run(self: Any, key: Any) -> None:
        replayed.append(f"{key.role} {key.num_reqs}")
        stock(self, key)

    with mock.patch.object(replay.Replay, "run", run):
        yield replayed


@contextlib.contextmanager
def watched_drafter(engine: DpEngine, outcome: DpOutcome) -> Iterator[None]:
    """Count how often the drafter's passes ask other ranks."""
    from vllm.v1.spec_decode import llm_base_proposer

    stock = llm_base_proposer.coordinate_batch_across_dp

    def coordinate(*args: Any, **kwargs: Any) -> Any:
        outcome.agreements += 1
        return stock(*args, **kwargs)

    with mock.patch.object(llm_base_proposer, "coordinate_batch_across_dp", coordinate):
        yield


@contextlib.contextmanager
def watched_dummies(engine: DpEngine, outcome: DpOutcome) -> Iterator[None]:
    """Look at the KV caches of all layers, and at the replays, around every dummy batch."""
    core = engine.llm.llm_engine.engine_core
    stock = core.execute_dummy_batch
    context = engine.runner.compilation_config.static_forward_context
    caches = {name: layer.kv_cache for name, layer in context.items() if hasattr(layer, "kv_cache")}

    def execute_dummy_batch() -> None:
        before = {name: cache.clone() for name, cache in caches.items()}
        replays = sum(graph.replays for graph in engine.backend.graphs)
        stock()
        outcome.dummy_batches += 1
        outcome.dummy_replays += sum(graph.replays for graph in engine.backend.graphs) - replays
        for name, cache in caches.items():
            if not same_bits(cache, before[name]) and name not in outcome.dummy_writes:
                outcome.dummy_writes.append(name)

    core.execute_dummy_batch = execute_dummy_batch
    try:
        yield
    finally:
        del core.execute_dummy_batch


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors of 16-bit or 32-bit floats are the same, bit by bit."""
    import torch

    bits = torch.int16 if a.element_size() == 2 else torch.int32
    return bool(torch.equal(a.view(bits), b.view(bits)))


def lockstep(
    llm: Any,
    requests: Any,
    horizon: int,
    outcome: DpOutcome,
    replayed: list[str],
    last_step: int | None,
) -> tuple[dict[str, Any], int]:
    """`run_engine.serve` for one of several ranks: every rank makes every step.

    :param horizon: the last step at which any rank still gets a request.
    :param replayed: the replays of draft graphs so far.
    :param last_step: the step at which this rank is killed.
    """
    from vllm import SamplingParams

    from overlay.proof import engine_compat
    from tests.engine import engine_facts

    waiting = sorted(enumerate(requests), key=lambda pair: int(pair[1].arrival))
    done: dict[str, Any] = {}
    step = 0
    engine = llm.llm_engine
    while True:
        outcome.last_began = time.monotonic()
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)
        while waiting and waiting[0][1].arrival <= step:
            index, request = waiting.pop(0)
            parameters = SamplingParams(
                temperature=request.temperature,
                max_tokens=request.tokens,
                ignore_eos=True,
                detokenize=False,
            )
            engine_facts.add_request(llm, str(index), list(request.prompt), parameters)
        own = engine.output_processor.has_unfinished_requests()
        anybody = engine.has_unfinished_requests()  # asks all ranks
        doing = "working" if own else "dummy" if anybody else "nothing"
        outcome.steps[doing] = outcome.steps.get(doing, 0) + 1
        if anybody:
            asked = outcome.agreements
            replayed.clear()
            for output in engine.step():
                if output.finished:
                    done[engine_compat.external_id(output.request_id)] = output
            outcome.trail.append(f"{', '.join(replayed)}; asked {outcome.agreements - asked}")
        elif step >= horizon:
            return done, step
        step += 1


def main() -> None:
    """Read the plan, import vLLM, fork the ranks of each of its engines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path)
    plan = json.loads(parser.parse_args().plan.read_text(encoding="utf-8"))
    from overlay.proof import engine_compat
    from overlay.results import ModelRunner
    from tests.engine import engine_facts

    os.environ.update(engine_facts.base_environment(workers=1))
    os.environ.update(engine_compat.runner_environment(ModelRunner.V1))
    os.environ.update(harness.ENVIRONMENT)
    from tests.draft_graphs import cpu_engine, dp_collectives

    cpu_engine.prepare()
    dp_collectives.install()
    for module in ("spec_decode.llm_base_proposer", "worker.cpu_worker", "worker.cpu_model_runner"):
        importlib.import_module(f"vllm.v1.{module}")
    importlib.import_module("vllm.entrypoints.llm")
    INSTALLED.update(loaded_package())
    harness.watch_scheduler()
    for each in plan:
        runs = tuple(read_run(run) for run in each["runs"])
        serve_ranks(Engines(**{**each, "runs": runs}))


def serve_ranks(engines: Engines) -> None:
    """Fork the ranks, and wait until all have ended, or kill them after the limit."""
    deadline = time.monotonic() + engines.seconds
    ranks = len(engines.runs[0].modes)
    running = {fork_rank(engines, rank, ranks) for rank in range(ranks)}
    while running:
        if time.monotonic() > deadline:
            for process in running:
                os.kill(process, signal.SIGUSR1)  # says where it is
            time.sleep(1)
            for process in running:
                os.kill(process, signal.SIGKILL)
        for process in list(running):
            if os.waitpid(process, os.WNOHANG)[0]:
                running.remove(process)
        time.sleep(0.05)


def fork_rank(engines: Engines, rank: int, ranks: int) -> int:
    """Start one rank in a process of its own, whose output goes to its log; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    # The other ranks may be gone, or wait for this one: nothing is taken down in order.
    status = 1
    try:
        with Path(engines.folder, f"log-{rank}").open("wb") as log:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log.fileno(), stream.fileno())
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        os.environ.update(
            VLLM_DP_SIZE=str(ranks),
            VLLM_DP_RANK=str(rank),
            VLLM_DP_RANK_LOCAL=str(rank),
            VLLM_DP_MASTER_IP="127.0.0.1",
            VLLM_DP_MASTER_PORT=str(engines.port),
        )
        run_one_rank(engines, rank)
        status = 0
    except BaseException:  # noqa: BLE001 - the log is the only place to tell it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_one_rank(engines: Engines, rank: int) -> None:
    """Run everything on one rank, and write what was seen after every run."""
    log = harness.Log()
    out = Path(engines.folder, f"out-{rank}.json")
    # The first graphs are made when the model is loaded; no run uses them.
    runs = engines.runs
    first = harness.Run("loading", runs[0].modes[rank], mutation=runs[0].mutation)
    engine = DpEngine(harness.Plan(engines.spec, [first]))
    engine.loaded_for, engine.rank = None, rank
    outcomes: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        outcome = engine.run_rank(run, out.with_suffix(f".package-{number}"), log)
        outcomes.append(asdict(outcome))
        out.write_text(json.dumps(outcomes), encoding="utf-8")
        if outcome.error is not None:
            break


def read_run(run: dict[str, Any]) -> DpRun:
    """A run from its JSON."""
    return DpRun(
        name=run["name"],
        modes=tuple(run["modes"]),
        requests=tuple(tuple(each) for each in run["requests"]),
        mutation=tuple(tuple(change) for change in run["mutation"]),
        mutated=tuple(run["mutated"]),
        fails=tuple(run["fails"]),
        captures=run["captures"],
        reaches=run["reaches"],
        unforeseen=tuple(run["unforeseen"]),
        declining=tuple(run["declining"]),
        without=tuple(run["without"]),
        killed=tuple(run["killed"]),
    )


if __name__ == "__main__":
    main()
