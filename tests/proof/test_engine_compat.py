"""What is asked inside an engine, with doubles of vLLM's objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overlay.proof import verify_engine
from overlay.proof.engine_compat import BenchExtension, runner_version
from overlay.proof.oracle import EngineRequest
from overlay.results import ModelRunner

V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"


def runner_of(*modules: str) -> Any:
    """An object whose class is derived from classes of those modules, the last being the base."""
    cls: type = object
    for module in reversed(modules):
        cls = type("Runner", (cls,), {"__module__": module})
    return cls()


@pytest.mark.parametrize(
    ("modules", "version"),
    [
        ((V1,), ModelRunner.V1),
        ((V2,), ModelRunner.V2),
        # vLLM's own for CPUs, whose module has another name.
        (("vllm.v1.worker.cpu.model_runner", V2), ModelRunner.V2),
        (("vllm.v1.worker.cpu_model_runner", V1), ModelRunner.V1),
        (("elsewhere",), None),
    ],
)
def test_a_runner_of_another_platform_is_the_one_that_it_is_derived_from(
    modules: tuple[str, ...], version: ModelRunner | None
) -> None:
    runner = runner_of(*modules)
    assert runner_version(runner) is version
    extension = BenchExtension()
    extension.model_runner = runner
    assert extension.bench_describe()["runner"] == modules[-1]


def report(state: str | None, **counts: int) -> dict[str, Any]:
    return {"state": state, "text": str(state), "counts": counts}


def test_reports_of_several_processes_are_one() -> None:
    """Active anywhere is active, of each count the largest is taken, from before on."""
    before = [{"a": report("idle", steps=2)}, {"a": report("idle")}, {}]
    after = [
        {"a": report("idle", steps=5, others=0), "b": report("idle")},
        {"a": report("active", steps=4), "c": report("active")},
        {"c": report("idle")},
    ]
    merged = verify_engine.merged(before, after)
    assert merged["a"] == {"state": "active", "text": "active", "counts": {"steps": 4}}
    assert (merged["b"]["state"], merged["c"]["state"]) == ("idle", "active")


def test_features_that_are_there_and_say_nothing_are_named() -> None:
    at_hand = {
        "silent": (("json.decoder",), False),
        "absent": (("json.nowhere", "nowhere.at.all"), False),
        "mend": (("json.decoder",), True),
    }
    reports = verify_engine.with_silent({"mend": report("active")}, at_hand)
    assert list(reports) == ["mend", "silent"]
    assert (reports["silent"]["state"], reports["mend"]["state"]) == (None, "active")
    assert reports["mend"]["mends"]


@pytest.mark.parametrize(("allowed", "most"), [(20, 20), (-1, 20), (5, 5), (0, 1)])
def test_an_engine_is_asked_for_both_tokens_where_answers_part(
    monkeypatch: pytest.MonkeyPatch, allowed: int, most: int
) -> None:
    monkeypatch.setattr(verify_engine, "_sampling", lambda **options: options)
    asked: list[tuple[Any, Any]] = []

    class Engine:
        vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_logprobs=allowed))

        def add_request(self, name: str, prompt: Any, options: Any) -> None:
            asked.append((prompt["prompt_token_ids"], options["logprobs"]))
            self.waiting = [*getattr(self, "waiting", []), name]

        def has_unfinished_requests(self) -> bool:
            return bool(getattr(self, "waiting", []))

        def step(self) -> list[Any]:
            likeliest = {7: SimpleNamespace(logprob=-0.5), 8: SimpleNamespace(logprob=-0.625)}
            output = SimpleNamespace(logprobs=[likeliest])
            name = f"{self.waiting.pop(0)}-suffix"
            return [SimpleNamespace(finished=True, request_id=name, outputs=[output])]

    requests = [EngineRequest((1, 2)), EngineRequest((3,))]
    answers = [[[5, 7, 9], [7]], [[5, 8, 9], [7]], [[5, 7, 9], [4]]]
    opinions = verify_engine.opinions(Engine(), requests, answers)
    assert asked == [([1, 2, 5], most), ([3], most)]
    assert opinions == [[-0.5, -0.625], [-0.5, None]]
