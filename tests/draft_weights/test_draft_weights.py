"""The draft's weights come back where the target's do. Needs vLLM.

The worker's own functions of each release, stock and mended, with doubles of both model runners.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.draft_weights.world import LOST, RIGHT, Draft, Engine, Target
from tests.support.code_edits import edited

# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import draft_weights

pytestmark = pytest.mark.network

both_runners = pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])


@pytest.fixture
def lines() -> Any:
    """What is warned of."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(draft_weights.__name__)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def night(engine: Engine, tags: tuple[str, ...] = ()) -> None:
    """A sleep of level 2 and a wake, in parts where they have tags."""
    engine.call("sleep", 2)
    for each in tags or (None,):
        engine.call("wake_up", each and [each])


@both_runners
@pytest.mark.parametrize("release", each_release("draft-weights"))
def test_every_release_has_the_fault(release: str, v2: bool) -> None:
    engine = Engine(release, mended=False, v2=v2)
    night(engine)
    engine.call("reload_weights")
    assert LOST in engine.draft.values()
    assert float(engine.target.head.weight[0, 0]) == 1.0
    lost = Engine(release, mended=False, v2=v2)
    lost.draft.layer.weight.data.fill_(LOST)
    lost.call("reload_weights")
    assert LOST in lost.draft.values()


@both_runners
@pytest.mark.parametrize("release", each_release("draft-weights"))
def test_it_is_mended(release: str, v2: bool) -> None:
    engine = Engine(release, v2=v2)
    for tags in ((), ("weights", "kv_cache"), ("kv_cache", "weights")):
        night(engine, tags)
        assert engine.draft.values() == RIGHT
        engine.call("reload_weights")
        assert engine.draft.values() == RIGHT
    engine.draft.layer.weight.data.fill_(LOST)
    engine.call("reload_weights")
    assert engine.draft.values() == RIGHT


def test_it_is_back_with_the_weights_and_once() -> None:
    engine = Engine("0.33.0")
    engine.call("sleep", 2)
    engine.call("wake_up", ["kv_cache"])
    assert LOST in engine.draft.values()
    engine.call("wake_up", ["weights"])
    assert engine.draft.values() == RIGHT
    engine.draft.load_weights(Draft.checkpoint(3.0))
    engine.call("wake_up", None)  # nothing is kept any more, so that nothing is written over
    assert engine.draft.values()[:2] == [3.0, 3.0]


def test_it_is_what_it_was_before_the_sleep_and_no_checkpoint() -> None:
    engine = Engine("0.33.0")
    engine.draft.load_weights(Draft.checkpoint(3.0))
    night(engine)
    assert engine.draft.values()[:2] == [3.0, 3.0]


def test_a_sleep_of_level_1_copies_nothing() -> None:
    engine = Engine("0.33.0")
    engine.call("sleep", 1)
    engine.draft.layer.weight.data.fill_(4.0)
    engine.call("wake_up", None)
    assert engine.draft.values()[0] == 4.0


def test_what_the_target_owns_is_the_targets() -> None:
    engine = Engine("0.33.0")
    night(engine)
    assert float(engine.target.embed.weight[0, 0]) == LOST  # until somebody loads it
    engine.loaded = 9.0
    engine.call("reload_weights")
    assert engine.draft.values()[0] == 9.0
    assert float(engine.target.embed.weight[0, 0]) == 1.0
    assert "weight_loader" not in vars(engine.target.embed.weight)


def test_a_checkpoint_that_cannot_be_loaded_leaves_the_draft_as_it_was(lines: list[str]) -> None:
    engine = Engine("0.33.0")
    for error in (OSError("cut off"), FileNotFoundError("no such file")):
        engine.loaded = error
        for _ in range(2):
            engine.call("reload_weights")
            assert engine.draft.values() == RIGHT
            engine.step()
        assert f"{type(error).__name__}: {error}" in lines[-1]
    assert len(lines) == 2  # each reason once


def test_a_target_that_is_loaded_without_the_draft_is_told_once(lines: list[str]) -> None:
    engine = Engine("0.33.0")
    for _ in range(3):
        engine.target.load_weights(Target.checkpoint(4.0))
        assert lines == lines[:1]
        engine.step()
        engine.step()
    (line,) = lines
    assert "those of the draft were not" in line
    assert draft_weights.VARIABLE in line
    assert engine.runner.steps == 6
    assert "execute_model" not in vars(engine.runner)


def test_a_step_of_somebody_else_is_put_back(lines: list[str]) -> None:
    engine, steps = Engine("0.33.0"), list[int]()
    other = functools.partial(steps.append, 1)
    vars(engine.runner)["execute_model"] = other
    engine.target.load_weights(Target.checkpoint(4.0))
    engine.step()
    assert engine.runner.execute_model is other
    assert (len(lines), steps) == (1, [1])


@pytest.mark.parametrize("first", ["target", "draft"])
def test_a_trainer_that_loads_both_is_told_nothing(first: str, lines: list[str]) -> None:
    engine = Engine("0.33.0")
    engine.target.load_weights(Target.checkpoint(4.0))
    engine.draft.load_weights(Draft.checkpoint(4.0))
    if first == "draft":
        engine.step()
        engine.draft.load_weights(Draft.checkpoint(4.0))
        engine.target.load_weights(Target.checkpoint(4.0))
    engine.step()
    assert lines == []
    engine.target.load_weights(Target.checkpoint(5.0))
    engine.step()
    assert len(lines) == 1


@pytest.mark.parametrize("release", each_release("draft-weights"))
def test_weight_transfer_is_noted(release: str, lines: list[str]) -> None:
    class Transfer:
        model = None

        def __getattr__(self, name: str) -> Any:
            kind = type("Info", (), {"update_kind": "dense", "is_checkpoint_format": False})
            return lambda *args, **named: kind()

    engine = Engine(release)
    engine.worker.weight_transfer_engine = Transfer()
    engine.worker._is_checkpoint_format = False
    engine.call("update_weights", {})
    engine.step()
    assert len(lines) == 1
    draft = Engine(release)
    draft.worker.weight_transfer_engine = Transfer()
    draft.worker._is_checkpoint_format = False
    draft.worker._weight_update_is_draft = True
    draft.call("update_weights", {})
    draft.step()
    assert len(lines) == 1


def test_of_a_draft_in_the_targets_checkpoint_the_new_one_is_read() -> None:
    engine = Engine("0.33.0")
    config = engine.runner.speculative_config.draft_model_config
    engine.call("reload_weights", weights_path="new")
    assert config.model == "draft"
    config.model = "target"
    engine.worker.load_model(load_dummy_weights=False)
    engine.call("reload_weights", weights_path="new")
    assert config.model == "new"


def test_an_iterator_has_nothing_for_the_draft(lines: list[str]) -> None:
    engine = Engine("0.33.0")
    engine.loaded = 9.0
    engine.call("reload_weights", weights_iterator=Target.checkpoint(4.0))
    assert engine.draft.values() == RIGHT
    engine.step()
    assert len(lines) == 1


def test_only_what_is_the_drafts_is_copied() -> None:
    engine = Engine("0.33.0")
    engine.call("sleep", 2)
    held = [each.values for each in engine.worker.draft_weights._held]
    assert sorted(values.numel() for values in held) == [2, 3, 4, 9]
    assert all(values.max() != 1.0 for values in held)


def test_draft_graphs_give_their_memory_back_at_level_2_alone() -> None:
    engine, given = Engine("0.33.0"), []
    graphs = type("Graphs", (), {"give_back": lambda self: given.append(1)})()
    engine.runner.drafter.draft_graphs = graphs
    engine.call("sleep", 1)
    assert given == []
    engine.call("sleep", 2)
    assert given == [1]


def test_switched_off_it_is_upstreams(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setenv(draft_weights.VARIABLE, "off")
    engine = Engine("0.33.0")
    night(engine)
    engine.call("reload_weights")
    engine.step()
    assert LOST in engine.draft.values()
    assert lines == []
    assert "load_weights" not in vars(engine.target)
    assert effects()[draft_weights.FEATURE]["state"] == "idle"


def test_the_effect_is_reported() -> None:
    engine = Engine("0.33.0")
    assert effects()[draft_weights.FEATURE]["state"] == "active"
    engine.runner.drafter.model = None
    engine.worker.load_model(load_dummy_weights=False)
    assert effects()[draft_weights.FEATURE]["state"] == "idle"
    engine.runner.drafter.model = engine.draft
    engine.runner.speculative_config = None
    engine.worker.load_model(load_dummy_weights=False)
    assert effects()[draft_weights.FEATURE]["state"] == "idle"


def run(test: Callable[..., None]) -> None:
    """Run a test of this module, on 0.33.0, with what is warned of if it asks for that."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(draft_weights.__name__)
    logger.addHandler(handler)
    arguments = {"release": "0.33.0", "first": "target", "lines": lines}
    asked = inspect.signature(test).parameters
    try:
        test(**{name: value for name, value in arguments.items() if name in asked})
    finally:
        logger.removeHandler(handler)


def mended() -> None:
    test_it_is_mended("0.33.0", v2=False)


#: Scope, the code there, what a mistake would make of it, and the test that notices.
BUGS: list[tuple[str, str, str, Callable[..., None]]] = [
    ("before_sleep", "weights.keep()", "pass", mended),
    ("before_sleep", "level == 2", "True", test_a_sleep_of_level_1_copies_nothing),
    (
        "before_sleep",
        "give_back()",
        "pass",
        test_draft_graphs_give_their_memory_back_at_level_2_alone,
    ),
    ("at_wake", "'weights' in tags", "True", test_it_is_back_with_the_weights_and_once),
    ("at_wake", "tags is None or 'weights' in tags", "tags is None", mended),
    ("reload", "weights_iterator is None", "True", test_an_iterator_has_nothing_for_the_draft),
    ("note_update", "weights.note_update()", "pass", test_weight_transfer_is_noted),
    ("DraftWeights.restore", "self._held = []", "pass", test_it_is_back_with_the_weights_and_once),
    (
        "DraftWeights._own_tensors",
        "tensor.untyped_storage().data_ptr() not in theirs",
        "True",
        test_only_what_is_the_drafts_is_copied,
    ),
    ("tensors_of", "name != 'kv_cache'", "True", test_only_what_is_the_drafts_is_copied),
    (
        "DraftWeights.reload",
        "_put_back(before)",
        "pass",
        test_a_checkpoint_that_cannot_be_loaded_leaves_the_draft_as_it_was,
    ),
    (
        "DraftWeights.reload",
        "self._reasons.add(reason)",
        "pass",
        test_a_checkpoint_that_cannot_be_loaded_leaves_the_draft_as_it_was,
    ),
    (
        "DraftWeights.reload",
        "self._target_loaded = self._draft_loaded = False",
        "pass",
        test_a_checkpoint_that_cannot_be_loaded_leaves_the_draft_as_it_was,
    ),
    (
        "DraftWeights.reload",
        "path is not None and self._of_target",
        "path is not None",
        test_of_a_draft_in_the_targets_checkpoint_the_new_one_is_read,
    ),
    (
        "DraftWeights.reload",
        "config.model, config.revision = path, None",
        "pass",
        test_of_a_draft_in_the_targets_checkpoint_the_new_one_is_read,
    ),
    (
        "DraftWeights._load",
        "_untouched(shared)",
        "_untouched([])",
        test_what_the_target_owns_is_the_targets,
    ),
    (
        "DraftWeights._note_draft",
        "self._draft_loaded = True",
        "pass",
        test_a_trainer_that_loads_both_is_told_nothing,
    ),
    (
        "DraftWeights._judge",
        "self._warned = True",
        "pass",
        test_a_target_that_is_loaded_without_the_draft_is_told_once,
    ),
    (
        "DraftWeights._judge",
        "self._target_loaded = self._draft_loaded = False",
        "self._target_loaded = False",
        test_a_trainer_that_loads_both_is_told_nothing,
    ),
    ("_untouched", "del own[name]", "pass", test_what_the_target_owns_is_the_targets),
    ("tensors_of", "yield from _below(own, name, DEPTH, seen)", "pass", mended),
    (
        "_call_once",
        "delattr(runner, name)",
        "pass",
        test_a_target_that_is_loaded_without_the_draft_is_told_once,
    ),
    (
        "_call_once",
        "setattr(runner, name, before)",
        "pass",
        test_a_step_of_somebody_else_is_put_back,
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug[0]}: {bug[1]} -> {bug[2]}")
def test_each_bug_is_noticed(bug: tuple[str, str, str, Callable[..., None]]) -> None:
    *edit, test = bug
    module = ModuleType(draft_weights.__name__)
    source = edited(inspect.getsource(draft_weights), [edit])
    name = draft_weights.__name__
    with mock.patch.dict(sys.modules, {name: module}):
        exec(compile(source, "draft_weights.py", "exec"), vars(module))
        with (
            mock.patch.object(sys.modules["vllm.v1.worker"], "draft_weights", module),
            pytest.raises((AssertionError, ValueError)),
        ):
            run(test)
