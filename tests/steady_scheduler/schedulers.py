"""Each release's own asynchronous scheduler on the installed vLLM, with a runner that draws tokens.

What a release's scheduler imports and the installed vLLM lacks (connectors, metrics, options) is an
empty class: none of it is used. Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest

from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm

torch: Any = pytest.importorskip("torch")
pytest.importorskip("vllm")  # in the environment of the engine

put_beside_vllm("steady-scheduler")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
import vllm
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import held_slots

#: The modules that a release brings itself; the others are those of the installed vLLM.
OWN = (
    "vllm.v1.core",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.hisparse",
    "vllm.v1.metrics.stats",
    "vllm.v1.outputs",
    "vllm.v1.spec_decode.metrics",
    "vllm.distributed.kv_events",
)
#: `vllm.v1.engine` is a package whose modules nobody asks for.
ENGINE = "vllm.v1.engine"
SIZE, LONGEST, EOS = 4, 60, 1


def is_own(name: str) -> bool:
    return name == ENGINE or name.startswith(OWN)


class Lacking:
    """What the installed vLLM has no name for."""

    def __init__(self, *given: Any, **named: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def brought(module: str, name: str) -> Any:
    """A name that a release imports from a module; an empty class where there is none."""
    if name == "strip_covered_mm_data":  # of images, whose options differ
        return lambda features, *_given, **_named: features
    for path in (module, f"{module}.{name}"):
        # Nothing else of the installed vLLM is imported for a class that nobody uses.
        if not is_own(path) and path not in sys.modules:
            continue
        try:
            value = importlib.import_module(path)
        except ImportError:
            continue
        if path != module or hasattr(value, name):
            return value if path != module else getattr(value, name)
    return type(name, (Lacking,), {})


class Imports(ast.NodeTransformer):
    """Has each `from module import name` of vLLM ask `brought`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module is None or not node.module.startswith("vllm"):
            return node
        lines = "\n".join(
            f"{each.asname or each.name} = brought({node.module!r}, {each.name!r})"
            for each in node.names
        )
        return ast.If(ast.Constant(True), ast.parse(lines).body, [])


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
        source = self._read(name) if is_own(name) else None
        if source is None:
            return None
        package = source[0].endswith("__init__.py")
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        path, content = self._read(module.__name__) or ("", b"")
        tree = ast.fix_missing_locations(Imports().visit(ast.parse(content)))
        vars(module)["brought"] = brought
        exec(compile(tree, path, "exec"), vars(module))


@functools.cache
def modules(release: str) -> dict[str, ModuleType]:
    """The modules of a release by name."""
    others = {name: module for name, module in sys.modules.items() if not is_own(name)}
    finder = Sources(release)
    with (
        mock.patch.dict(sys.modules, others, clear=True),
        mock.patch.object(sys, "meta_path", [finder, *sys.meta_path]),
    ):
        importlib.import_module("vllm.v1.core.sched.async_scheduler")
        managers = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
        register = getattr(managers, "register_all_kvcache_specs", None)
        if register is not None:
            register(None)
        importlib.import_module("vllm.v1.core.kv_cache_utils").init_none_hash(sha256)
        return {name: module for name, module in sys.modules.items() if is_own(name)}


@contextmanager
def own_modules(release: str) -> Iterator[dict[str, ModuleType]]:
    """Have a release's modules in the place of what the installed vLLM brings."""
    own = modules(release)
    others = {name: module for name, module in sys.modules.items() if not is_own(name)}
    with mock.patch.dict(sys.modules, others | own, clear=True):
        yield own


class Loose(SimpleNamespace):
    """A configuration: what is not set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class World(NamedTuple):
    """How a scheduler is configured.

    :ivar drafts: speculative tokens of a step; 0 for none.
    :ivar second: whether model runner V2 is used.
    :ivar budget: tokens of a step; :ivar scheduled: those that may be scheduled, if fewer.
    """

    drafts: int = 0
    second: bool = True
    caching: bool = True
    blocks: int = 200
    most: int = 12
    budget: int = 64
    policy: str = "fcfs"
    clients: int = 1
    log_stats: bool = True
    events: bool = False
    threshold: int = 0
    metrics: str = "none"
    size: int = SIZE
    longest: int = LONGEST
    scheduled: int | None = None


class Grammar:
    """A manager of structured output that takes what it is given."""

    def should_advance(self, request: Any, **_: Any) -> bool:
        return False

    def accept_tokens(self, request: Any, tokens: list[int]) -> bool:
        return request.structured_output_request is None or tokens[-1] != 7

    def trim_reasoning_for_advance(self, request: Any, tokens: list[int]) -> list[int]:
        return tokens

    def grammar_init(self, request: Any) -> None: ...


def make_config(world: World) -> Any:
    """What a scheduler reads of vLLM's configuration."""
    speculative = None
    if world.drafts:
        speculative = Loose(
            num_speculative_tokens=world.drafts,
            use_eagle=lambda: True,
            use_eagle_block_drop=lambda: True,
            needs_eagle_block_drop=lambda: True,
            uses_draft_model=lambda: False,
            use_ngram_gpu=lambda: False,
            use_gemma4_mtp=lambda: False,
            use_multi_module_mtp=lambda: False,
            use_dflash=lambda: False,
            use_dspark=lambda: False,
            uses_extract_hidden_states=lambda: False,
            max_num_new_slots_for_drafting=0,
        )
    return Loose(
        scheduler_config=Loose(
            max_num_seqs=world.most,
            max_num_batched_tokens=world.budget,
            max_num_scheduled_tokens=world.scheduled or world.budget,
            long_prefill_token_threshold=world.threshold,
            enable_chunked_prefill=True,
            async_scheduling=True,
            policy=world.policy,
            scheduler_reserve_full_isl=False,
            watermark=0.0,
            prefill_schedule_interval=1,
        ),
        cache_config=Loose(
            num_gpu_blocks=world.blocks,
            enable_prefix_caching=world.caching,
            block_size=world.size,
        ),
        parallel_config=Loose(
            pipeline_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        model_config=Loose(
            max_model_len=world.longest, is_encoder_decoder=False, is_diffusion=False
        ),
        kv_events_config=Loose(enable_kv_cache_events=True, publisher="kept")
        if world.events
        else None,
        observability_config=Loose(
            kv_cache_metrics=False, per_request_spec_decode_metrics=world.metrics
        ),
        speculative_config=speculative,
        use_v2_model_runner=world.second,
        num_speculative_tokens=world.drafts,
        num_lookahead_tokens=world.drafts,
        num_prefill_lookahead_tokens=1 if world.drafts else 0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=2 * world.budget,
        max_concurrent_batches=2,
        ec_manager_config=Loose(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Loose(enabled=False),
    )


def make_scheduler(release: str, world: World) -> Any:
    """A release's asynchronous scheduler; to be called within `own_modules`."""
    own = modules(release)
    interface = own["vllm.v1.kv_cache_interface"]
    spec = interface.FullAttentionSpec(
        block_size=world.size, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    config = interface.KVCacheConfig(
        num_blocks=world.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
    )
    module = own["vllm.v1.core.sched.scheduler"]
    envs = SimpleNamespace(
        VLLM_USE_V2_MODEL_RUNNER=world.second, VLLM_PREFIX_CACHE_RETENTION_INTERVAL=None
    )
    kept: list[Any] = []
    publisher = SimpleNamespace(publish=lambda batch: kept.append(batch.events), kept=kept)
    with (
        mock.patch.object(module, "envs", envs, create=True),
        mock.patch.object(module, "EventPublisherFactory") as factory,
        mock.patch.object(vllm.envs, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", None, create=True),
    ):
        factory.create.return_value = publisher
        registry = SimpleNamespace(supports_multimodal_inputs=lambda _: False)
        return own["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(
            make_config(world),
            config,
            Grammar(),
            block_size=world.size,
            hash_block_size=world.size,
            mm_registry=registry,
            include_finished_set=world.clients > 1,
            log_stats=world.log_stats,
        )


def take_over(scheduler: Any) -> None:
    """Have the feature answer a scheduler, as its hook in the constructor does."""
    held_slots.hold_slots(scheduler)


def make_request(release: str, name: str, draw: random.Random, world: World) -> Any:
    """A release's request, of which most are plain."""
    own = modules(release)
    hasher = None
    if world.caching:
        utilities = own["vllm.v1.core.kv_cache_utils"]
        hasher = utilities.get_request_block_hasher(SIZE, sha256)
    odd = draw.random()
    shared = draw.randrange(3)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=draw.choice((1, 5, 12, 30, 60)),
        min_tokens=draw.choice((0, 0, 0, 1)),
        stop_token_ids=[2, 3] if odd < 0.15 else [],
        repetition_detection=RepetitionDetectionParams(2, 1, 2) if 0.15 < odd < 0.2 else None,
    )
    params._eos_token_id = draw.choice((None, EOS))
    request = own["vllm.v1.request"].Request(
        request_id=name,
        prompt_token_ids=[shared * 100 + place for place in range(draw.randint(1, 30))],
        sampling_params=params,
        pooling_params=None,
        client_index=draw.randrange(world.clients),
        arrival_time=float(len(name)),
        priority=draw.randrange(3),
        block_hasher=hasher,
        **({"resumable": True} if 0.2 < odd < 0.25 else {}),
    )
    if 0.25 < odd < 0.3:
        request.trace_headers = {"a": name}
    if 0.3 < odd < 0.35:
        request.num_nans_in_logits = 2
    if 0.35 < odd < 0.4:
        request.structured_output_request = SimpleNamespace()
    return request


class Side:
    """A scheduler with a runner, whose steps are two under way at most."""

    def __init__(self, release: str, world: World, seed: int, *, together: bool) -> None:
        self.release, self.world, self.seed = release, world, seed
        self.scheduler = make_scheduler(release, world)
        self.draw = random.Random(seed)
        if together:
            take_over(self.scheduler)
        self.under_way: list[tuple[Any, set[str]]] = []
        self.steps = self.added = 0

    def add(self, number: int) -> None:
        """Let requests come."""
        for _ in range(number):
            self.added += 1
            request = make_request(self.release, f"r{self.added}", self.draw, self.world)
            self.scheduler.add_request(request)

    def schedule(self) -> Any:
        """Schedule a step."""
        result = self.scheduler.schedule()
        self.steps += 1
        chunks = {
            name
            for name in result.num_scheduled_tokens
            if self.scheduler.requests[name].is_prefill_chunk
        }
        self.under_way.append((result, chunks))
        return plain(result)

    def update(self) -> Any:
        """Give the scheduler what the oldest step under way gave."""
        scheduled, chunks = self.under_way.pop(0)
        names = list(scheduled.num_scheduled_tokens)
        self.draw.shuffle(names)
        sampled: list[list[int]] = []
        for name in names:
            drafts = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            number = 0 if name in chunks else 1 + self.draw.randint(0, drafts)
            sampled.append([self.draw.choice((EOS, 2, *range(3, 40))) for _ in range(number)])
        output = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            prompt_token_id_logprobs_dict={},
            pooler_output=None,
            num_nans_in_logits=None,
            kv_connector_output=None,
            ec_connector_output=None,
            cudagraph_stats=None,
            routed_experts_dict=None,
            routed_experts=None,
            sampling_masks=None,
            aux_output_connector_output=None,
        )
        if self.draw.random() < 0.02:
            output.num_nans_in_logits = {names[0]: 1} if names else {}
        result = self.scheduler.update_from_output(scheduled, output)
        return [(client, plain(each)) for client, each in result.items()]

    def abort(self) -> None:
        """End one of the requests from outside."""
        names = sorted(self.scheduler.requests)
        if names:
            status = modules(self.release)["vllm.v1.request"].RequestStatus.FINISHED_ABORTED
            self.scheduler.finish_requests([self.draw.choice(names)], status)

    def reset(self) -> None:
        """Preempt all, and forget what is cached."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def pause(self) -> None:
        """Change between the states of a pause."""
        states = list(modules(self.release)["vllm.v1.core.sched.interface"].PauseState)
        self.scheduler._pause_state = self.draw.choice([*states, states[0], states[0]])

    def kept(self) -> Any:
        """All that the scheduler and its requests keep."""
        scheduler = self.scheduler
        manager = scheduler.kv_cache_manager
        pool, groups = manager.block_pool, manager.coordinator.single_type_managers
        fields = {
            name: value
            for name, value in vars(scheduler).items()
            if name
            not in (
                *("vllm_config", "kv_cache_config", "kv_cache_manager", "scheduler_config"),
                *("structured_output_manager", "encoder_cache_manager", "parallel_config"),
                *("schedule", "update_from_output", "make_stats", "append_together"),
                *("cache_config", "observability_config", "kv_events_config"),
                *("kv_event_publisher", "perf_metrics"),
            )
        }
        return [
            {name: plain(value) for name, value in fields.items()},
            [
                {name: [each.block_id for each in blocks] for name, blocks in one.items()}
                for one in (group.req_to_blocks for group in groups)
            ],
            [dict(group.num_cached_block) for group in groups],
            [(block.ref_cnt, str(block.block_hash)) for block in pool.blocks],
            [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            plain(scheduler.kv_event_publisher.kept),
            plain(pool.cached_block_hash_to_block._cache),
        ]


#: What is equal to itself alone; most values are one of these.
ATOMS = (type(None), bool, int, float, str, bytes)


def plain(value: Any, depth: int = 0) -> Any:
    """A value of which `==` compares all fields; times are left out."""
    if isinstance(value, ATOMS):
        return value
    if depth > 8:
        return "deep"
    kind = type(value)
    if isinstance(value, dict):
        return [(plain(key, depth), plain(each, depth + 1)) for key, each in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(each, depth + 1)) for each in value)
    if isinstance(value, (list, tuple)) or kind.__name__ in ("deque", "ConstantList"):
        return [each if type(each) in ATOMS else plain(each, depth + 1) for each in value]
    if kind.__name__ == "KVCacheBlock":
        return "block", value.block_id
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dict__", None)
    if names is None:
        names = getattr(value, "__slots__", None)
    if names is None or callable(value):
        return kind.__name__
    if hasattr(value, "value") and hasattr(value, "name"):  # an enumeration
        return value.name
    left_out = ("timestamp", "sampling_params", "_block_hasher", "arrival_time", "interval_start")
    return kind.__name__, [
        (name, plain(getattr(value, name, None), depth + 1))
        for name in names
        if name not in left_out
    ]


#: All that is kept is compared after each of so many calls: it costs more than the calls.
COMPARED = 4


def run(release: str, world: World, seed: int, steps: int = 120) -> list[Any]:
    """Let both sides do the same; raises AssertionError at the first difference.

    Returns the fast side, to ask what it did.
    """
    with own_modules(release):
        sides = [Side(release, world, seed, together=together) for together in (False, True)]
        draw = random.Random(seed + 1)
        for step in range(steps):
            odd = draw.random()
            if step == 0 or odd < 0.12:
                name, given = "add", [draw.randint(1, 3 if step else world.most + 4)]
            elif odd < 0.15:
                name, given = "abort", []
            elif odd < 0.155:
                name, given = "reset", []
            elif odd < 0.175:
                name, given = "pause", []
            else:
                under_way = len(sides[0].under_way)
                more = under_way == 0 or (under_way == 1 and odd < 0.9)
                name = "schedule" if more else "update"
                given = []
            answers = []
            for side in sides:
                try:
                    answers.append(getattr(side, name)(*given))
                except (AssertionError, RuntimeError, ValueError) as error:
                    answers.append(repr(error))
            assert answers[0] == answers[1], (step, name, difference(*answers))
            if isinstance(answers[0], str):  # both died of the same error
                break
            if step % COMPARED == 0 or step == steps - 1:
                kept = [side.kept() for side in sides]
                assert kept[0] == kept[1], (step, name, difference(*kept))
        return sides


def difference(first: Any, second: Any, path: str = "") -> str:
    """Where two plain values differ first."""
    if type(first) is not type(second):
        return f"{path}: {first!r} {second!r}"[:600]
    if isinstance(first, dict):
        for name in first:
            if first[name] != second.get(name):
                return difference(first[name], second.get(name), f"{path}.{name}")
    if isinstance(first, list | tuple):
        if len(first) != len(second):
            return f"{path}: {first!r} | {second!r}"[:900]
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                return difference(one, other, f"{path}[{place}]")
    return f"{path}: {first!r} | {second!r}"[:600]
