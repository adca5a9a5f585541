"""Real engines on CPU whose weights are loaded again or moved, and beside a connector by layers.

What `tests/gpu/reload.py` and `connectors.py` run on a GPU, with the graph double. What an event
gives up is spoilt, so that drafts of whoever still reads it are wrong.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.mutation_types import one
from tests.gpu import connectors, reload, rounds
from tests.gpu.mutation_hooks import MUTATION_VARIABLE

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: Drafters, and what happens to them where the others repeat it.
SHORT = {
    "dflash": ("before", "load_weights", "moved_tensors", "wake", "given_back"),
    "eagle3": ("before", "reload_weights", "moved_parameters", "moved_head", "given_back"),
}
#: Bugs, by what they change: nobody looks for moves; no connector is asked.
UNNOTICED = one("reads.py", "Reads.moved", "addresses != self._addresses", "False") + one(
    "reads.py", "Reads.moved", "all(map(operator.is_, others, ...))", "True"
)
UNASKED = one("connectors.py", "acting_per_layer", "connector is not None", "False")


def changed(plan: dict[str, Any], name: str, changes: tuple[Any, ...]) -> dict[str, Any]:
    """The plan with a bug in the draft graphs' modules."""
    spec = plan["spec"]
    env = {**spec["env"], MUTATION_VARIABLE: json.dumps({"name": name, "changes": changes})}
    pre = ("tests.gpu.mutation_hooks:mutate", *spec["pre"])
    return {**plan, "spec": {**spec, "env": env, "pre": pre}}


@pytest.fixture(scope="module")
def models(
    tiny_models: Path, drafter_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "eagle").symlink_to(tiny_models)
    (folder / "drafters").symlink_to(drafter_models)
    return folder


def launch(plan: dict[str, Any], log: Path, forks: ForkedModules) -> dict[str, Any]:
    return rounds.launch(plan, log, 900, {}, forks=forks)


def plan_of(name: str, models: Path, events: tuple[str, ...]) -> dict[str, Any]:
    spec, draft = reload.engine_of(name, models, double=True)
    spec = replace(spec, requests=spec.requests[:4])
    made = {"spec": dataclasses.asdict(spec), "draft": str(draft), "rounds": events}
    return {**made, "double": True}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.thorough)
        for name in reload.REHEARSED
    ],
)
def test_drafts_behind_each_event_are_those_of_the_oracle(
    name: str, models: Path, forks: ForkedModules, tmp_path: Path
) -> None:
    events = SHORT.get(name) or reload.rounds_of(name, double=True)
    plan = plan_of(name, models, events)
    found = launch(plan, tmp_path / "log", forks)
    assert rounds.why_wrong(found, events, graphs=True) == [], found["log"]
    again = sum("capturing them again" in line for line in found["log"])
    assert again > 0


def test_a_bug_that_notices_nothing_is_seen_in_the_drafts(
    models: Path, forks: ForkedModules, tmp_path: Path
) -> None:
    events = ("before", "moved_parameters")
    plan = changed(plan_of("eagle3", models, events), "nothing is noticed", UNNOTICED)
    found = launch(plan, tmp_path / "log", forks)
    wrong = rounds.why_wrong(found, events, graphs=True)
    assert [why.partition(":")[0] for why in wrong] == ["moved_parameters"], wrong


@pytest.mark.parametrize("asked", [True, False])
def test_a_connector_that_acts_per_layer_stores_and_loads_the_drafts_layer(
    asked: bool, models: Path, forks: ForkedModules, tmp_path: Path
) -> None:
    """Unless it is not asked: then a graph of mixed batches skips the draft's layer."""
    store = tmp_path / "store"
    store.mkdir()
    for phase in ("store", "load") if asked else ("store",):
        spec = connectors.engine_of("eagle3", "nested", models / "eagle", store, double=True)
        plan: dict[str, Any] = {"spec": dataclasses.asdict(spec), "draft": "", "double": True}
        plan["rounds"] = ["before"]
        if not asked:
            plan = changed(plan, "no connector is asked", UNASKED)
        found = launch(plan, tmp_path / f"{phase}.log", forks)
        layers = {path.stem for path in store.rglob("*.safetensors")}
        assert any(".4." in layer for layer in layers) == asked, (layers, found)
        if asked:
            assert rounds.why_wrong(found, ["before"], graphs=False) == []
            cached = 4 * 2 * connectors.BLOCK if phase == "load" else 0
            assert found["rounds"][0]["cached"] == cached
