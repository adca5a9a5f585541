"""Each release's own managers of the KV cache, on the installed vLLM, and a scheduler's calls.

Needs vLLM.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from overlay.targets.resolution import resolve
from tests.batched_bookkeeping.mutations import Bug
from tests.steady_scheduler.releases import torch, with_bug

# isort: split
from vllm import envs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import held_slots

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
        importlib.import_module("vllm.v1.core.sched.utils")
        groups = sys.modules["vllm.v1.core.single_type_kv_cache_manager"]
        sys.modules["vllm.v1.core.kv_cache_utils"].init_none_hash(sha256)
        register = getattr(groups, "register_all_kvcache_specs", None)  # from 0.24.0 on
        if register is not None:
            register(None)
        return {name: module for name, module in sys.modules.items() if name.startswith(OWN)}


#: Where modules of a release are in the place of those of the installed vLLM.
_IN_PLACE: list[dict[str, ModuleType]] = []


@functools.lru_cache(maxsize=1)
def installed_names(count: int) -> list[str]:
    """The names of what the installed vLLM has of `OWN`.

    :param count: of all modules, since there may be more of these whenever it differs. Looking at
        each of them takes longer than most examples.
    """
    return own_names()


def own_names() -> list[str]:
    """The names below `OWN` of the modules that are there now."""
    return [name for name in sys.modules if name.startswith(OWN)]


@contextmanager
def own_modules(imported: dict[str, ModuleType]) -> Iterator[None]:
    """Have these in the place of what the installed vLLM brings; what is imported inside goes."""
    names = own_names() if _IN_PLACE else installed_names(len(sys.modules))
    before = {name: sys.modules.pop(name) for name in names}
    others = len(sys.modules)
    sys.modules.update(imported)
    _IN_PLACE.append(imported)
    try:
        yield
    finally:
        _IN_PLACE.pop()
        # Whatever came is behind the others.
        for name in list(islice(reversed(sys.modules), len(sys.modules) - others)):
            del sys.modules[name]
        sys.modules.update(before)


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


@contextmanager
def feature(bug: Bug) -> Iterator[None]:
    """The feature's module with a bug."""
    module = with_bug(held_slots.__name__, bug)
    names = {name: getattr(module, name) for name in ("hold_slots", "_appending")}
    with mock.patch.multiple(held_slots, **names):
        yield


# -- what a scheduler does


def scheduler_of(manager: Any) -> Any:
    """What of a scheduler is asked for; its class has rules of its own, so steps are upstream's."""
    return SimpleNamespace(kv_cache_manager=manager, max_model_len=LONGEST)


class Side:
    """A manager with its requests, and a scheduler's calls of it."""

    def __init__(self, release: str, world: World, *, asks: bool) -> None:
        self._release, self._world = release, world
        self.manager = make_manager(release, world)
        self.requests: dict[int, Any] = {}
        if asks:
            # What `type(manager)` is compared with is the release's own.
            held_slots.hold_slots(scheduler_of(self.manager))

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

    def go_on(self, number: int, tokens: int, accepted: int, appended: int, noted: bool) -> Any:
        """Allocate for tokens of a running request, of which some are accepted; add outputs.

        :param noted: whether they are noted for the prefix cache at once; 0.33.0 waits for the
            next allocation.
        """
        request = self.requests.get(number)
        if request is None:
            return None
        tokens = min(tokens, LONGEST - 1 - request.num_computed_tokens)
        if tokens <= 0:
            return None
        answer = self.manager.allocate_slots(request, tokens, num_lookahead_tokens=LOOKAHEAD)
        if answer is None:
            return "no blocks"
        request.num_computed_tokens += min(tokens, accepted)
        room = LONGEST - request.num_tokens
        for token in range(min(appended, room)):
            request.append_output_token_ids(200 + token)
        if noted:
            computed = min(request.num_computed_tokens, request.num_tokens)
            self.manager.cache_blocks(request, computed)
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
