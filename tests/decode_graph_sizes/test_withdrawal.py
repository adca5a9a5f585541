"""A capture that fails is withdrawn on all ranks, and what cannot be withdrawn is said."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from overlay.package import KNOWN_RELEASES
from tests.decode_graph_sizes import graph_choosers
from tests.decode_graph_sizes.worlds import beside

pytestmark = pytest.mark.network

RELEASES = [str(release) for release in KNOWN_RELEASES]
OWN = [1, 2, 4, 8, 16, 64, 256, 512]
SIZES = [*OWN, 544, 768, 1024]

Mistakes = Sequence[Sequence[str]]


class Wrapper:
    """Stands for a class that keeps graphs."""

    cleared = 0

    @classmethod
    def clear_all_graphs(cls) -> None:
        cls.cleared += 1


class World:
    """A worker whose runner captures, PyTorch, and the ranks beside this one.

    :param failures: what its captures raise, one after the other; ``None``: nothing.
    :param others: of each other rank, whether it failed; ``late``: whether one never comes.
    """

    def __init__(
        self,
        parts: dict[str, Any],
        config: Any,
        failures: Sequence[Exception | None],
        others: Sequence[bool] = (),
        *,
        late: bool = False,
        dead: bool = False,
    ) -> None:
        self.failures, self.others, self.late, self.dead = list(failures), others, late, dead
        self.captured: list[list[int]] = []
        self.emptied = self.collected = 0
        self.config = config
        drafter = SimpleNamespace(**{k: v for k, v in parts.items() if k == "draft"})
        own = {k: v for k, v in parts.items() if k != "draft"}
        # Functions of its class, as vLLM's are.
        captures = {"capture_model": self.capture, "profile_cudagraph_memory": self.profile}
        self.runner = type("Runner", (SimpleNamespace,), captures)(**own, drafter=drafter)
        self.worker = SimpleNamespace(vllm_config=config, model_runner=self.runner)

    def profile(self) -> int:
        """What model runner V1 does, V2 by its capture_model."""
        return self.capture() + 1

    def capture(self, **_: Any) -> int:
        self.captured.append(list(self.config.compilation_config.cudagraph_capture_sizes))
        failure = self.failures.pop(0)
        if failure is not None:
            raise failure
        return 7

    def collect(self) -> None:
        self.collected += 1

    def modules(self) -> dict[str, Any]:
        torch: Any = ModuleType("torch")

        def synchronize() -> None:
            if self.dead:
                raise RuntimeError("an illegal memory access")

        def monitored_barrier(group: str, timeout: Any) -> None:
            assert group == "cpu"
            assert timeout.total_seconds() <= 300
            if self.late:
                raise RuntimeError("rank 1 did not come")

        def all_reduce(number: Any, op: str, group: str) -> None:
            assert (op, group) == ("min", "cpu")
            number[0] = min(number[0], *(int(not failed) for failed in self.others))

        class Number(list[int]):
            def item(self) -> int:
                return self[0]

        def empty_cache() -> None:
            assert self.collected == 1, "what is not collected yet keeps its memory"
            self.emptied += 1

        torch.int32 = None
        torch.tensor = lambda values, dtype: Number(values)
        torch.cuda = SimpleNamespace(synchronize=synchronize, empty_cache=empty_cache)
        torch.distributed = SimpleNamespace(
            monitored_barrier=monitored_barrier,
            all_reduce=all_reduce,
            ReduceOp=SimpleNamespace(MIN="min"),
        )
        state: Any = ModuleType("vllm.distributed.parallel_state")
        group = SimpleNamespace(world_size=1 + len(self.others), cpu_group="cpu")
        state.get_world_group = lambda: group
        graphs: Any = ModuleType("vllm.compilation.cuda_graph")
        graphs.CUDAGraphWrapper = type("Wrapper", (Wrapper,), {"cleared": 0})
        self.wrapper = graphs.CUDAGraphWrapper
        return {
            "torch": torch,
            "vllm.distributed": ModuleType("vllm.distributed"),
            "vllm.distributed.parallel_state": state,
            "vllm.compilation": ModuleType("vllm.compilation"),
            "vllm.compilation.cuda_graph": graphs,
        }


@contextmanager
def guarded(world: World, mistakes: Mistakes = ()) -> Iterator[SimpleNamespace]:
    """The feature's modules beside a worker whose capture is guarded.

    Nothing is collected: in a process of tests a pass over all objects takes most of a second.
    """
    with beside(withdrawal_edits=mistakes) as own, mock.patch.dict(sys.modules, world.modules()):
        own.withdrawal.gc = SimpleNamespace(collect=world.collect)
        own.withdrawal.guard_capture(world.worker, tuple(OWN))
        yield own


def parts_of(release: str, sizes: list[int]) -> tuple[dict[str, Any], Any]:
    """What chooses graphs in a release, and the configuration that it was made of."""
    config = graph_choosers.settings(release, sizes)
    draft = graph_choosers.settings(release, sizes)
    draft.compilation_config.cudagraph_mode = graph_choosers.mode_of(release).PIECEWISE
    parts = {
        "cudagraph_dispatcher": graph_choosers.dispatcher(release, config),
        "cudagraph_manager": graph_choosers.manager(release, config),
        "draft": graph_choosers.dispatcher(release, draft),
    }
    return parts, config


def known(part: Any) -> Any:
    """The graphs that a chooser knows."""
    if hasattr(part, "cudagraph_keys"):
        return dict(part.cudagraph_keys), part._bs_to_padded_graph_size
    return part._candidates, part._capture_descs, part.graphs


def expect_withdrawn(release: str, mistakes: Mistakes = ()) -> None:
    """After a failure each chooser of a release is as one that was made of vLLM's own sizes."""
    parts, config = parts_of(release, SIZES)
    stock, own = parts_of(release, OWN)
    assert [known(part) for part in parts.values()] != [known(part) for part in stock.values()]
    parts["cudagraph_manager"].graphs["half"] = "captured"
    parts["cudagraph_manager"]._graphs_captured = True
    world = World(parts, config, [RuntimeError("CUDA out of memory.\nTried"), None])
    with guarded(world, mistakes) as modules:
        assert world.runner.capture_model() == 7
        effect = modules.effects()[modules.sizes.FEATURE]
    assert world.captured == [SIZES, OWN]
    assert [known(part) for part in parts.values()] == [known(part) for part in stock.values()]
    assert parts["cudagraph_manager"]._graphs_captured is False
    for each in (config, parts["draft"].vllm_config):
        compilation = each.compilation_config
        assert compilation.cudagraph_capture_sizes == own.compilation_config.cudagraph_capture_sizes
        assert compilation.max_cudagraph_capture_size == 512
    assert (world.wrapper.cleared, world.collected, world.emptied) == (1, 1, 1)
    assert effect["state"] == "idle"
    assert effect["text"] == (
        "vLLM's own sizes, up to 512 tokens, since capturing further ones failed: "
        "RuntimeError: CUDA out of memory."
    )


def expect_reckoned(mistakes: Mistakes = ()) -> None:
    """On V1 a capture that only reckons is withdrawn; V2 reckons by what captures.

    Two guards there, one within the other, would have ranks wait once too often.
    """
    world = World(*parts_of("0.33.0", SIZES), [RuntimeError("CUDA out of memory"), None, None])
    with guarded(world, mistakes):
        assert world.runner.profile_cudagraph_memory() == 8
        assert world.runner.capture_model() == 7
    assert world.captured == [SIZES, OWN, OWN]
    world = World(*parts_of("0.33.0", SIZES), [None])
    world.worker.use_v2_model_runner = True
    with guarded(world, mistakes):
        assert "profile_cudagraph_memory" not in vars(world.runner)
        assert "capture_model" in vars(world.runner)


def test_a_capture_that_reckons_is_withdrawn_on_v1() -> None:
    expect_reckoned()


@pytest.mark.parametrize("release", RELEASES)
def test_a_capture_that_fails_is_withdrawn(release: str) -> None:
    expect_withdrawn(release)


def made(failures: Sequence[Exception | None], *given: Any, **named: Any) -> World:
    parts, config = parts_of("0.33.0", SIZES)
    return World(parts, config, failures, *given, **named)


def expect_as_it_was(mistakes: Mistakes = ()) -> None:
    for others in ((), (False, False)):
        world = made([None, None], others)
        with guarded(world, mistakes):
            assert world.runner.capture_model(profile_only=True) == 7
            assert world.runner.capture_model() == 7
        assert world.captured == [SIZES, SIZES]
        assert world.emptied == 0


def test_a_capture_that_succeeds_stays() -> None:
    expect_as_it_was()


def expect_all_ranks(mistakes: Mistakes = ()) -> None:
    for own, others in ((None, (False, True)), (ValueError("x"), (False,))):
        world = made([own, None], others)
        with guarded(world, mistakes) as modules:
            assert world.runner.capture_model() == 7
            effect = modules.effects()[modules.sizes.FEATURE]
        assert world.captured == [SIZES, OWN]
        assert effect["text"].endswith("on another rank" if own is None else "ValueError: x")


def test_what_fails_on_one_rank_is_withdrawn_on_all() -> None:
    expect_all_ranks()


def expect_said(caplog: pytest.LogCaptureFixture, mistakes: Mistakes = ()) -> None:
    encoder = made([ValueError("x")])
    encoder.config.compilation_config.cudagraph_mm_encoder = True
    for world, reason in (
        (made([ValueError("x")], (False,), late=True), "not all ranks came to the end"),
        (made([ValueError("x")], dead=True), "the GPU answers no more (an illegal memory access)"),
        (encoder, "the encoder's graphs are captured once"),
    ):
        caplog.clear()
        with (
            guarded(world, mistakes),
            caplog.at_level(logging.ERROR),
            pytest.raises(ValueError, match="x"),
        ):
            world.runner.capture_model()
        assert world.captured == [SIZES]
        assert "up to 1024 tokens failed, and cannot be withdrawn" in caplog.text
        assert reason in caplog.text
        assert "OVERLAY_DECODE_GRAPH_SIZES=off" in caplog.text


def test_what_cannot_be_withdrawn_is_said(caplog: pytest.LogCaptureFixture) -> None:
    expect_said(caplog)


def expect_raised(mistakes: Mistakes = ()) -> None:
    """vLLM's own sizes fail as they do without the feature."""
    for earlier in (0, 1):  # V2 captures once to profile
        world = made([ValueError("x"), *[None] * earlier, ValueError("y")])
        with guarded(world, mistakes):
            for _ in range(earlier):
                world.runner.capture_model()
            with pytest.raises(ValueError, match="y"):
                world.runner.capture_model()
        assert world.captured == [SIZES, *[OWN] * (1 + earlier)]


def test_a_second_failure_is_vllms() -> None:
    expect_raised()


def expect_all(caplog: pytest.LogCaptureFixture, mistakes: Mistakes) -> None:
    """All laws of this module."""
    for release in ("0.20.0", "0.33.0"):
        expect_withdrawn(release, mistakes)
    expect_as_it_was(mistakes)
    expect_reckoned(mistakes)
    expect_all_ranks(mistakes)
    expect_raised(mistakes)
    expect_said(caplog, mistakes)


#: Mistakes in the module, each of which one of the laws above notices.
MISTAKES = [
    ("guard_capture.guarded.capture", "vars(runner).update(upstream)", "pass"),
    ("guard_capture.guarded.capture", "withdraw(worker, own)", "pass"),
    ("guard_capture.guarded.capture", "_report(text, own)", "pass"),
    ("guard_capture.guarded.capture", "int(failure is None)", "1"),
    ("_captures", "both[1:]", "both"),
    ("_captures", "getattr(worker, 'use_v2_model_runner', False)", "True"),
    ("_reason_against", "torch.cuda.synchronize()", "pass"),
    (
        "_reason_against",
        "getattr(worker.vllm_config.compilation_config, 'cudagraph_mm_encoder', False)",
        "False",
    ),
    ("_reason_against", "group.world_size > 1", "False"),
    ("agreed", "group.world_size == 1", "True"),
    ("agreed", "int(smallest.item())", "number"),
    ("withdraw", "size <= own[-1]", "True"),
    ("withdraw", "each.max_cudagraph_capture_size = sizes[-1]", "pass"),
    ("withdraw", "wrapper.clear_all_graphs()", "pass"),
    ("withdraw", "keys.clear()", "pass"),
    ("withdraw", "part.graphs.clear()", "pass"),
    ("withdraw", "part._graphs_captured = False", "pass"),
    ("withdraw", "part._init_candidates()", "pass"),
    ("withdraw", "type(part._candidates)()", "part._candidates"),
    ("withdraw", "gc.collect()", "pass"),
    ("withdraw", "torch.cuda.empty_cache()", "pass"),
    ("withdraw", "getattr(runner, name, None)", "None"),
    ("_report", "failure.partition('\\n')[0]", "failure"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each[0]}: {each[1]}, {each[2]}")
def test_a_mistake_is_noticed(mistake: Sequence[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Exception):  # noqa: B017  (an assertion, or what the mistake raises)
        expect_all(caplog, [mistake])
