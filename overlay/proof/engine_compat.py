"""What engines are compared as, and what they touch inside vLLM, 0.20.0 to 0.33.0, in one place.

An engine's own process has this module, and none of those that judge and report; nothing here runs
before vLLM may be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from overlay.results import ModelRunner


class GraphMode(str, Enum):
    """What is compared: on model runner V1 ways of drafting, by ``OVERLAY_DRAFT_GRAPHS``."""

    OFF = "off"
    STEP = "step"
    LOOP = "loop"
    #: For configurations whose drafts come from one pass, so that steps and loops are the same.
    WHOLE = "auto"
    #: The release's own files, with which the overlay is compared on any model runner.
    STOCK = "stock"
    #: All features, as an engine gets them by itself.
    OVERLAY = "overlay"

    @property
    def measure(self) -> bool:
        """Whether the others are compared with it."""
        return self in (GraphMode.OFF, GraphMode.STOCK)

    @property
    def has_graphs(self) -> bool:
        """Whether it is draft graphs that it is about."""
        return self in (GraphMode.STEP, GraphMode.LOOP, GraphMode.WHOLE)

    @property
    def shown(self) -> str:
        """The name of the mode for people."""
        return "whole" if self is GraphMode.WHOLE else self.value


#: The feature that gives the drafter its graphs, and the package that it adds to vLLM.
DRAFT_GRAPHS = "draft-graphs"
DRAFT_GRAPHS_PACKAGE = "vllm.v1.spec_decode.draft_graphs"
#: The module by which all features report; the release's own files have none.
EFFECTS = "vllm.v1.overlay_effects"


def runner_environment(runner: ModelRunner | None) -> dict[str, str]:
    """The environment variables that choose the model runner."""
    if runner is None:
        return {}
    return {"VLLM_USE_V2_MODEL_RUNNER": {ModelRunner.V1: "0", ModelRunner.V2: "1"}[runner]}


def watch_drafts(on_step: Callable[[str, int, int, int], None]) -> None:
    """Call ``on_step(request id, known tokens, drafted, accepted)`` when drafts are verified.

    Known tokens are those of the request, prompt included, before the step.  Must be called
    before the engine is made, in the process that holds its scheduler.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    stock = Scheduler.make_spec_decoding_stats

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafted, request_id = kwargs["num_draft_tokens"], kwargs["request_id"]
        if drafted:
            length = self.requests[request_id].num_tokens
            on_step(request_id, length, drafted, kwargs["num_accepted_tokens"])
        return stock(self, *args, **kwargs)

    Scheduler.make_spec_decoding_stats = watched


def external_id(request_id: str) -> str:
    """The id that ``add_request`` was given: vLLM may have appended a suffix behind a dash."""
    return request_id.partition("-")[0]


def drafter_of(runner: Any) -> Any:
    """The model runner's drafter: ``drafter`` in V1, ``speculator`` in V2, or ``None``."""
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def reports() -> dict[str, dict[str, Any]]:
    """What each feature reports in this process; none in the release's own files."""
    if importlib.util.find_spec(EFFECTS) is None:
        return {}
    effects: dict[str, dict[str, Any]] = importlib.import_module(EFFECTS).effects()
    return effects


def active_features() -> list[str]:
    """The features that are active in this process."""
    return sorted(name for name, report in reports().items() if report["state"] == "active")


def reports_of(_worker: Any) -> dict[str, dict[str, Any]]:
    """The same on one rank.  Called in the worker's own process."""
    return reports()


def draft_graph_facts(worker: Any) -> dict[str, Any]:
    """What draft-graphs is and has counted on one rank.  Called in the worker's own process.

    ``runner``: ``v1``, ``v2`` or null; ``state`` and ``text``: what the feature reports;
    ``captured``: graphs by role; ``replayed``: replays by role; ``left``: its other counts by text.
    """
    runner = worker.model_runner
    report = reports().get(DRAFT_GRAPHS) or {"state": None, "text": "", "counts": {}}
    replays: dict[tuple[str, Any], tuple[str, Any]] = {}
    if importlib.util.find_spec(DRAFT_GRAPHS_PACKAGE) is not None:
        replays = importlib.import_module(f"{DRAFT_GRAPHS_PACKAGE}.figures").REPLAYS
    replayed: Counter[str] = Counter()
    for (role, _), (name, _) in replays.items():
        replayed[role] += report["counts"].get(name, 0)
    own = {name for name, _ in replays.values()}
    dispatcher = getattr(drafter_of(runner), "cudagraph_dispatcher", None)
    return {
        "rank": int(worker.rank),
        "runner": None if (version := runner_version(runner)) is None else version.value,
        "state": report["state"],
        "text": report["text"],
        "captured": dict(Counter(key.role for key in getattr(dispatcher, "draft_keys", ()))),
        "replayed": {role: count for role, count in replayed.items() if count},
        "left": {text: count for text, count in report["counts"].items() if text not in own},
    }


#: The modules of the model runners, from which those of other platforms are derived.
_RUNNERS = {
    "vllm.v1.worker.gpu.model_runner": ModelRunner.V2,
    "vllm.v1.worker.gpu_model_runner": ModelRunner.V1,
}


def runner_module(runner: Any) -> str:
    """The module of vLLM's that makes an object V1 or V2, or of the object's own class."""
    modules = [cls.__module__ for cls in type(runner).__mro__]
    return next((module for module in modules if module in _RUNNERS), modules[0])


def runner_version(runner: Any) -> ModelRunner | None:
    """Which model runner an object is; ``None`` for any other."""
    return _RUNNERS.get(runner_module(runner))


class BenchExtension:
    """What ``step_time`` asks vLLM's workers, in whichever process they run.

    vLLM mixes it into its worker class (``worker_extension_cls``), so that
    ``LLM.collective_rpc`` reaches its methods by name.
    """

    model_runner: Any

    def bench_describe(self) -> dict[str, Any]:
        """The runner's module; ``draft_graphs``, where the drafter has any: mode, keys by role."""
        drafter = drafter_of(self.model_runner)
        description: dict[str, Any] = {"runner": runner_module(self.model_runner)}
        graphs = getattr(drafter, "draft_graphs", None)
        if graphs is not None:
            roles = [key.role for key in drafter.cudagraph_dispatcher.draft_keys]
            description["draft_graphs"] = {
                "mode": graphs.mode,
                "keys": dict(Counter(roles)),
                "withdrawn": graphs.withdrawn,
            }
        return description

    def bench_features(self) -> list[str]:
        """The features that are active in this process."""
        return active_features()
