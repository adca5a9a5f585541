"""A scheduler that asks which requests hold their slots allocates what upstream allocates.

Each release's own managers of the KV cache run on the installed vLLM, twice: one is asked as the
patched scheduler asks, the other as upstream does. All that they keep is compared after each call.
Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.releases import shipped, torch
from tests.support.beside_vllm import PATCHES
from tests.support.code_edits import edited

# isort: split
from vllm import envs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import held_slots

pytestmark = pytest.mark.network

FILE = PATCHES / "batched-bookkeeping/files/vllm/v1/core/held_slots.py"
ASKS = "schedulers that ask which requests hold their slots"
#: The packages that a release brings itself; the others are those of the installed vLLM.
OWN = (
    "vllm.v1.core",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.hisparse",
)
SIZE, LONGEST, LOOKAHEAD = 8, 60, 3


# -- the managers of a release


class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that a release brings itself."""

    def __init__(self, release: str) -> None:
        self._target = resolve(release)

    def _read(self, name: str) -> tuple[str, bytes] | None:
        base = name.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py"):
            content = self._target.read(path)
            if content is not None:
                return path, content
        return None

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        found = self._read(name) if name.startswith(OWN) else None
        if found is None:
            return None
        package = found[0].endswith("__init__.py")
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        path, content = self._read(module.__name__) or ("", b"")
        exec(compile(content, path, "exec"), vars(module))


@functools.cache
def modules(release: str) -> dict[str, ModuleType]:
    """What a release brings itself, imported."""
    with own_modules({}), mock.patch.object(sys, "meta_path", [Sources(release), *sys.meta_path]):
        importlib.import_module("vllm.v1.core.kv_cache_manager")
        importlib.import_module("vllm.v1.request")
        groups = sys.modules["vllm.v1.core.single_type_kv_cache_manager"]
        sys.modules["vllm.v1.core.kv_cache_utils"].init_none_hash(sha256)
        register = getattr(groups, "register_all_kvcache_specs", None)  # from 0.24.0 on
        if register is not None:
            register(None)
        return {name: module for name, module in sys.modules.items() if name.startswith(OWN)}


@contextmanager
def own_modules(imported: dict[str, ModuleType]) -> Iterator[None]:
    """Have these in the place of what the installed vLLM brings."""
    others = {name: module for name, module in sys.modules.items() if not name.startswith(OWN)}
    with mock.patch.dict(sys.modules, others | imported, clear=True):
        yield


def given_by(release: str, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that a release's `KVCacheManager` has."""
    module = modules(release)["vllm.v1.core.kv_cache_manager"]
    code = module.KVCacheManager.__init__.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: value for name, value in arguments.items() if name in names}


class World(NamedTuple):
    """How the cache is configured.

    :ivar groups: of layers, by name: `full` attention, one with a `window`, and full attention in
        `wide` and in `wider` blocks, of which parts are hashed.
    """

    groups: tuple[str, ...]
    caching: bool
    blocks: int
    eagle: bool = True


def make_manager(release: str, world: World) -> Any:
    """A release's `KVCacheManager`."""
    found = modules(release)
    interface = found["vllm.v1.kv_cache_interface"]
    full, window = interface.FullAttentionSpec, interface.SlidingWindowSpec
    common = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    known = {
        "full": full(**common, block_size=SIZE),
        "wide": full(**common, block_size=2 * SIZE),
        "wider": full(**common, block_size=3 * SIZE),
        "window": window(**common, block_size=SIZE, sliding_window=SIZE),
    }
    specs = [known[name] for name in world.groups]
    config = interface.KVCacheConfig(
        num_blocks=world.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            interface.KVCacheGroupSpec([f"layer {number}"], spec)
            for number, spec in enumerate(specs)
        ],
    )
    arguments = given_by(
        release,
        max_num_batched_tokens=64,
        max_in_flight_tokens=64,
        scheduler_block_size=6 * SIZE if "wide" in world.groups else SIZE,
        hash_block_size=SIZE,
        use_eagle=world.eagle,
    )
    module = found["vllm.v1.core.kv_cache_manager"]
    # Which 0.23.0 reads, and the installed vLLM does not have.
    with mock.patch.object(envs, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", None, create=True):
        return module.KVCacheManager(config, LONGEST, enable_caching=world.caching, **arguments)


def make_request(release: str, number: int, length: int, world: World) -> Any:
    """A release's request with a prompt of its own, or that of every second one."""
    found = modules(release)
    utilities = found["vllm.v1.core.kv_cache_utils"]
    hasher = None
    if world.caching:
        hasher = utilities.get_request_block_hasher(SIZE, sha256)
    return found["vllm.v1.request"].Request(
        request_id=f"r{number}",
        prompt_token_ids=[number % 2 * 100 + place for place in range(length)],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=64),
        pooling_params=None,
        block_hasher=hasher,
    )


# -- what a scheduler does


class Side:
    """A manager with its requests, and a scheduler's calls of it."""

    def __init__(self, release: str, world: World, *, asks: bool) -> None:
        self._release, self._world = release, world
        self.manager = make_manager(release, world)
        self.requests: dict[int, Any] = {}
        self._held = held_slots.watch_slots(self.manager, second=False) if asks else None

    def allocate(self, request: Any, tokens: int) -> Any:
        """Allocate as the scheduler does, patched or pristine."""
        answer = None if self._held is None else self._held(request, tokens, LOOKAHEAD)
        if answer is not None:
            return answer
        return self.manager.allocate_slots(request, tokens, num_lookahead_tokens=LOOKAHEAD)

    def admit(self, number: int, length: int, first: int) -> Any:
        """Begin with the first tokens of a prompt, as the scheduler does with one that waits."""
        if number in self.requests:
            return None
        request = make_request(self._release, number, length, self._world)
        blocks, computed, *_ = self.manager.get_computed_blocks(request)
        first = max(min(length, first), computed + 1)
        answer = self.manager.allocate_slots(
            request, first - computed, computed, blocks, num_lookahead_tokens=LOOKAHEAD
        )
        if answer is None:
            self.manager.free(request)
            return None
        statuses = modules(self._release)["vllm.v1.request"].RequestStatus
        request.status, request.num_computed_tokens = statuses.RUNNING, first
        self.requests[number] = request
        return answer.get_block_ids()

    def go_on(self, number: int, tokens: int, accepted: int, appended: int) -> Any:
        """Allocate for tokens of a running request, of which some are accepted; add outputs."""
        request = self.requests.get(number)
        if request is None:
            return None
        tokens = min(tokens, LONGEST - 1 - request.num_computed_tokens)
        if tokens <= 0:
            return None
        answer = self.allocate(request, tokens)
        if answer is None:
            return "no blocks"
        request.num_computed_tokens += min(tokens, accepted)
        room = LONGEST - request.num_tokens
        for token in range(min(appended, room)):
            request.append_output_token_ids(200 + token)
        return answer.get_block_ids(), answer is self.manager.empty_kv_cache_blocks

    def end(self, number: int) -> None:
        """Free a request, as where it ends or is preempted."""
        request = self.requests.pop(number, None)
        if request is not None:
            self.manager.free(request)

    def kept(self) -> Any:
        """All that the manager and the requests keep."""
        pool, groups = self.manager.block_pool, self.manager.coordinator.single_type_managers
        return [
            [ids_by_name(group.req_to_blocks) for group in groups],
            [dict(group.num_cached_block) for group in groups],
            [(block.ref_cnt, str(block.block_hash)) for block in pool.blocks],
            [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        ]


def ids_by_name(blocks: dict[str, list[Any]]) -> dict[str, list[int]]:
    """The blocks of each request by their ids."""
    return {name: [block.block_id for block in held] for name, held in blocks.items()}


# -- laws

Call = tuple[str, tuple[int, ...]]


FULL = ("full",)
NUMBERS = st.integers(0, 2)
#: A request, its tokens, how many of them are accepted, and how many outputs are added.
STEPS = st.one_of(
    st.tuples(NUMBERS, st.integers(1, 4), st.integers(0, 4), st.integers(0, 4)),
    NUMBERS.map(lambda number: (number, 1, 1, 1)),
)
#: What a scheduler does, and how often in a row.
CALLS: st.SearchStrategy[tuple[Call, int]] = st.one_of(
    st.tuples(
        st.tuples(st.just("admit"), st.tuples(NUMBERS, st.integers(1, 20), st.integers(1, 20))),
        st.just(1),
    ),
    st.tuples(st.tuples(st.just("go_on"), STEPS), st.integers(1, 8)),
    st.tuples(st.tuples(st.just("end"), st.tuples(NUMBERS)), st.just(1)),
)
WORLDS = st.builds(
    World,
    st.sampled_from((FULL, FULL, ("window",), ("full", "window"), ("wide", "wider"))),
    st.booleans(),
    st.sampled_from((8, 14, 40)),
    st.booleans(),
)
SOME_CALLS = st.lists(CALLS, min_size=3, max_size=20).map(
    lambda calls: [
        *[("admit", (number, length, 4)) for number, length in ((0, 5), (1, 15))],
        *[call for call, times in calls for _ in range(times)],
    ]
)


def check(release: str, world: World, calls: list[Call], asked: list[str] | None = None) -> int:
    """Both sides answer and keep the same; how often one was asked of a running request.

    :param asked: gets the request of each call that comes to upstream's allocation.
    """
    number = 0
    with own_modules(modules(release)):
        asking, upstream = (Side(release, world, asks=asks) for asks in (True, False))
        allocate = asking.manager.allocate_slots

        def noted(request: Any, *given: Any, **named: Any) -> Any:
            if asked is not None and request.status.name == "RUNNING":
                asked.append(request.request_id)
            return allocate(request, *given, **named)

        asking.manager.allocate_slots = noted
        for name, arguments in calls:
            answers = [getattr(side, name)(*arguments) for side in (asking, upstream)]
            assert answers[0] == answers[1]
            assert asking.kept() == upstream.kept()
            number += name == "go_on" and answers[0] is not None
    return number


@contextmanager
def feature(bug: tuple[str, str, str]) -> Iterator[None]:
    """The feature's module with a bug."""
    module: Any = ModuleType(held_slots.__name__)
    exec(compile(edited(FILE.read_text(), [bug]), FILE, "exec"), vars(module))
    with mock.patch.object(held_slots, "watch_slots", module.watch_slots):
        yield


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shipped.VARIABLE, raising=False)


@pytest.mark.parametrize("release", [str(release) for release in KNOWN_RELEASES])
@settings(max_examples=20, deadline=None)
@given(world=WORLDS, calls=SOME_CALLS)
def test_what_is_allocated_is_what_upstream_allocates(
    release: str, world: World, calls: list[Call]
) -> None:
    check(release, world, calls)


@pytest.mark.parametrize("release", [str(release) for release in KNOWN_RELEASES])
def test_a_request_that_holds_its_slots_does_not_come_to_upstream(release: str) -> None:
    """Sixteen tokens behind a prompt of five, in blocks of eight, with three tokens' lookahead."""
    asked: list[str] = []
    one: list[Call] = [("go_on", (0, 1, 1, 1))]
    world = World(FULL, caching=True, blocks=40)
    number = check(release, world, [("admit", (0, 5, 5)), *one * 16], asked)
    assert (number, len(asked)) == (16, 4)  # two new blocks, and two that are full


@pytest.mark.parametrize("release", [str(release) for release in KNOWN_RELEASES])
def test_the_scheduler_asks_of_running_requests_before_it_allocates(release: str) -> None:
    path = "vllm/v1/core/sched/scheduler.py"
    tree = releases.method(releases.sources(release)[path][True], "Scheduler", "schedule")
    loops = [
        [ast.unparse(statement) for statement in node.body[:3]]
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and "self.held_slots" in ast.unparse(node.body[0])
    ]
    given = "request, num_new_tokens, {}self.num_lookahead_tokens"
    named = given.format("num_lookahead_tokens=")
    assert loops == [
        [
            f"new_blocks = self.held_slots({given.format('')})",
            "if new_blocks is not None:\n    break",
            f"new_blocks = self.kv_cache_manager.allocate_slots({named})",
        ]
    ]


def reasons(world: World, *, second: bool = False) -> list[str]:
    """What is counted where a scheduler of 0.33.0 is made."""
    with own_modules(modules("0.33.0")), mock.patch.object(held_slots, "count") as count:
        asked = held_slots.watch_slots(make_manager("0.33.0", world), second)
        if [call.args[1] for call in count.call_args_list] != [ASKS]:
            assert asked(None, 1, 2) is None
    return [call.args[1] for call in count.call_args_list]


def test_who_allocates_upstreams_way_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    way = "schedulers that allocate upstream's way: "
    assert reasons(World(FULL, caching=True, blocks=8)) == [ASKS]
    assert reasons(World(FULL, caching=True, blocks=8), second=True) == [f"{way}model runner V2"]
    rules = "SlidingWindowManager has rules of its own"
    assert reasons(World(("full", "window"), caching=True, blocks=8)) == [way + rules]
    parts = World(("wide", "wider"), caching=True, blocks=8)
    assert reasons(parts) == [f"{way}blocks are hashed in parts"]
    monkeypatch.setenv(shipped.VARIABLE, "off")
    assert reasons(World(FULL, caching=True, blocks=8)) == [f"{way}{shipped.VARIABLE}=off"]
    monkeypatch.setenv(shipped.VARIABLE, "perhaps")
    with pytest.raises(ValueError, match="perhaps"):
        reasons(World(FULL, caching=True, blocks=8))


#: Mistakes: scope, the code there, what a mistake would make of it.
MUTATIONS = [
    ("_reason_against", "type(group) is not FullAttentionManager", "False"),
    ("_asking.ask", "min(end + lookahead, longest)", "min(end, longest)"),
    ("_asking.ask", "request.num_computed_tokens + tokens", "tokens"),
    ("_asking.ask", "len(held) * size < needed", "False"),
    ("_asking.ask", "min(end, request.num_tokens)", "0"),
    ("_asking.ask", "noted.get(name, 0) + 1", "noted.get(name, 0) + 2"),
    ("_asking.ask", "noted.get(name, 0) + 1", "len(held) + 1"),
]


@pytest.mark.parametrize("bug", MUTATIONS, ids=lambda bug: f"{bug[1]} -> {bug[2]}")
def test_each_mistake_is_noticed(bug: tuple[str, str, str]) -> None:
    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(world=WORLDS, calls=SOME_CALLS, release=st.sampled_from(("0.20.0", "0.33.0")))
    @seed(1)
    def law(world: World, calls: list[Call], release: str) -> None:
        check(release, world, calls)

    with feature(bug), pytest.raises(AssertionError):
        law()
