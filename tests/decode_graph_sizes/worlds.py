"""The feature's modules beside a release's own choice of capture sizes, without a vLLM.

What chooses is the text of `VllmConfig._set_cudagraph_sizes` and of what it calls in the release;
configurations, the platform and the worker are doubles.
"""

from __future__ import annotations

import enum
import functools
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from overlay.targets.resolution import resolve
from tests.support.code_edits import edited

PATCHES = Path(__file__).resolve().parents[2] / "patches"
SIZES = "decode-graph-sizes/files/vllm/v1/decode_graph_sizes.py"
MEMORY = "decode-graph-sizes/files/vllm/v1/worker/decode_graph_memory.py"
WITHDRAWAL = "decode-graph-sizes/files/vllm/v1/worker/decode_graph_withdrawal.py"
CONFIG, COMPILATION = "vllm/config/vllm.py", "vllm/config/compilation.py"


class Mode(enum.Enum):
    """What the functions of a release ask a CUDAGraphMode."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_AND_PIECEWISE = 3

    def separate_routine(self) -> bool:
        return self is Mode.FULL_AND_PIECEWISE


@functools.cache
def text(release: str, path: str) -> str:
    """A file of a release."""
    content = resolve(release).read(path)
    assert content is not None
    return content.decode()


@functools.cache
def function(release: str, path: str, name: str) -> Callable[..., Any]:
    """A method of a release, as a function of its own."""
    match = re.search(
        rf"^    def {name}\(.*?(?=^    (?:def |@)|^\S|\Z)", text(release, path), re.M | re.S
    )
    assert match is not None, f"{release} has no {name} in {path}"
    body = f"from __future__ import annotations\n{textwrap.dedent(match.group())}"
    namespace: dict[str, Any] = {"CUDAGraphMode": Mode, "logger": logging.getLogger("vllm")}
    exec(compile(body, path, "exec", dont_inherit=True), namespace)  # vLLM's own text
    chosen: Callable[..., Any] = namespace[name]
    return chosen


class Platform:
    """The platform of an H100, or of something else."""

    def __init__(self, name: str = "cuda", family: int = 90) -> None:
        self.name, self.family = name, family

    def is_cuda(self) -> bool:
        return self.name == "cuda"

    def is_device_capability_family(self, family: int) -> bool:
        return self.family == family


def configuration(
    drafts: int = 3, requests: int = 256, tokens: int = 8192, **changed: Any
) -> SimpleNamespace:
    """A VllmConfig as far as a choice of sizes reads it; `changed` are attributes of its parts."""
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts,
        uses_dynamic_speculative_decoding=lambda: False,
        use_multi_module_mtp=lambda: False,
    )
    parts: dict[str, Any] = {
        "compilation_config": SimpleNamespace(
            cudagraph_mode=Mode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=None,
            max_cudagraph_capture_size=None,
            compile_sizes=None,
            static_forward_context={},
            pass_config=SimpleNamespace(enable_sp=False),
        ),
        "model_config": SimpleNamespace(
            enforce_eager=False, runner_type="generate", is_multimodal_model=False
        ),
        "parallel_config": SimpleNamespace(
            use_ubatching=False,
            enable_elastic_ep=False,
            tensor_parallel_size=1,
            world_size_across_dp=1,
        ),
        "scheduler_config": SimpleNamespace(max_num_seqs=requests, max_num_batched_tokens=tokens),
    }
    whole = SimpleNamespace(
        **parts,
        speculative_config=speculative if drafts else None,
        num_speculative_tokens=drafts,
        uniform_decode_query_len=1 + drafts,
        diffusion_config=None,
        lora_config=None,
        use_v2_model_runner=True,
        performance_mode="balanced",
    )
    for name, value in changed.items():
        owner = next((each for each in parts.values() if hasattr(each, name)), whole)
        setattr(owner, name, value)
    return whole


def upstream(release: str) -> Callable[[Any], None]:
    """A release's own choice."""
    choose = function(release, CONFIG, "_set_cudagraph_sizes")
    finish = function(release, COMPILATION, "post_init_cudagraph_sizes")

    def _set_cudagraph_sizes(config: Any) -> None:
        config.compilation_config.post_init_cudagraph_sizes = functools.partial(
            finish, config.compilation_config
        )
        choose(config)

    return _set_cudagraph_sizes


@functools.cache
def compiled(path: str, mistakes: tuple[tuple[str, ...], ...]) -> CodeType:
    """A module of the feature's, with mistakes."""
    source = edited((PATCHES / path).read_text(), mistakes, path)
    return compile(source, path, "exec", dont_inherit=True)


@contextmanager
def beside(
    release: str | None = None,
    platform: Platform | None = None,
    edits: Sequence[Sequence[str]] = (),
    memory_edits: Sequence[Sequence[str]] = (),
    withdrawal_edits: Sequence[Sequence[str]] = (),
    folder: Path = PATCHES,
) -> Iterator[SimpleNamespace]:
    """The feature's modules: `sizes`, `memory`, `effects`; `config` is the class of a release.

    edits, memory_edits, withdrawal_edits: mistakes to put into the modules, each (scope, old, new).
    folder: of the vLLM, for what is read as text.
    """
    names = {
        "vllm.v1.overlay_effects": ("shared/files/vllm/v1/overlay_effects.py", ()),
        "vllm.v1.overlay_switches": ("shared/files/vllm/v1/overlay_switches.py", ()),
        "vllm.v1.decode_graph_sizes": (SIZES, edits),
        "vllm.v1.worker.decode_graph_withdrawal": (WITHDRAWAL, withdrawal_edits),
        "vllm.v1.worker.decode_graph_memory": (MEMORY, memory_edits),
    }
    modules: dict[str, Any] = {
        name: ModuleType(name)
        for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.config", "vllm.config.vllm")
    }
    for name in ("vllm.platforms", "vllm.logger", "vllm.envs", "vllm.config.compilation", *names):
        modules[name] = ModuleType(name)
    modules["vllm.platforms"].current_platform = platform or Platform()
    modules["vllm.logger"].init_logger = logging.getLogger
    modules["vllm.envs"].VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = True
    modules["vllm"].envs = modules["vllm.envs"]
    modules["vllm.config.compilation"].CUDAGraphMode = Mode
    modules["vllm"].__file__ = str(folder / "__init__.py")
    choose = upstream(release) if release else None
    own = {"_set_cudagraph_sizes": choose, "try_verify_and_update_config": lambda _: None}
    config = type("VllmConfig", (), own)
    modules["vllm.config.vllm"].VllmConfig = config
    with mock.patch.dict(sys.modules, modules):
        for name, (path, mistakes) in names.items():
            code = compiled(path, tuple(map(tuple, mistakes)))
            exec(code, modules[name].__dict__)  # the feature's own text
        yield SimpleNamespace(
            sizes=modules["vllm.v1.decode_graph_sizes"],
            memory=modules["vllm.v1.worker.decode_graph_memory"],
            withdrawal=modules["vllm.v1.worker.decode_graph_withdrawal"],
            effects=modules["vllm.v1.overlay_effects"].effects,
            envs=modules["vllm.envs"],
            config=config,
        )


def chosen(release: str, config: SimpleNamespace, **given: Any) -> SimpleNamespace:
    """The compilation configuration after a release with the feature has chosen its sizes."""
    with beside(release, **given) as world:
        world.sizes.cover_decodes()
        world.config._set_cudagraph_sizes(config)
    result: SimpleNamespace = config.compilation_config
    return result


def stock(release: str, config: SimpleNamespace) -> SimpleNamespace:
    """The same without the feature."""
    with beside(release) as world:
        world.config._set_cudagraph_sizes(config)
    result: SimpleNamespace = config.compilation_config
    return result


def worker(
    config: SimpleNamespace,
    *,
    weights: int = 3,
    total: int = 80,
    share: float = 0.9,
    cache: int | None = None,
    v2: bool = True,
    width: int = 2048,
) -> SimpleNamespace:
    """The worker of a GPU that has loaded a model like one of 1B, in GiB; `width`: of a layer."""
    model = config.model_config
    model.hf_text_config = SimpleNamespace(intermediate_size=4 * width)
    model.dtype = SimpleNamespace(itemsize=2)
    model.get_hidden_size = lambda: width
    model.get_head_size = lambda: 64
    model.get_num_layers = lambda _: 16
    model.get_num_attention_heads = lambda _: width // 64
    return SimpleNamespace(
        vllm_config=config,
        model_runner=SimpleNamespace(
            capture_model=lambda: 0,
            profile_cudagraph_memory=lambda: 0,
            compilation_config=config.compilation_config,
            model_state=SimpleNamespace(prepare_attn=lambda batch, *_: batch.max_query_len),
        ),
        init_snapshot=SimpleNamespace(free_memory=total << 30),
        requested_memory=int(total * share) << 30,
        cache_config=SimpleNamespace(kv_cache_memory_bytes=cache and cache << 30),
        use_v2_model_runner=v2,
        free=(total - weights) << 30,
    )


class Ranks:
    """PyTorch, and the ranks beside this one, each with the number of sizes that it keeps."""

    def __init__(self, free: int, others: Sequence[int] = ()) -> None:
        self.others, self.votes = others, 0
        torch: Any = ModuleType("torch")
        torch.int32 = None
        torch.cuda = SimpleNamespace(mem_get_info=lambda: (free, free))
        torch.tensor = lambda values, dtype: SimpleNamespace(values=list(values), item=lambda: None)
        torch.distributed = SimpleNamespace(
            ReduceOp=SimpleNamespace(MIN=min), all_reduce=self._all_reduce
        )
        state: Any = ModuleType("vllm.distributed.parallel_state")
        group = SimpleNamespace(world_size=1 + len(others), cpu_group="cpu")
        state.get_world_group = lambda: group
        self.torch, self.state = torch, state

    def _all_reduce(self, tensor: Any, op: Callable[..., int], group: str) -> None:
        assert group == "cpu"
        self.votes += 1
        reduced = op(*tensor.values, *self.others)
        tensor.item = lambda: reduced


@contextmanager
def fitted(
    worker: SimpleNamespace,
    others: Sequence[int] = (),
    reckons: bool = True,
    release: str = "0.33.0",
    choose: Callable[..., None] = lambda world, config: world.config._set_cudagraph_sizes(config),
    **given: Any,
) -> Iterator[SimpleNamespace]:
    """A worker that has fitted its sizes to its memory: `sizes`, `effect`, `votes`, `own`.

    others: how many sizes each other rank keeps; reckons: whether vLLM takes what graphs need off
    the cache's memory; choose: what vLLM does of the configuration.
    """
    ranks = Ranks(worker.free, others)
    utils: Any = ModuleType("vllm.v1.worker.gpu.cudagraph_utils")
    if reckons:
        utils.profile_cudagraph_memory = None
    package: Any = ModuleType("vllm.v1.worker.gpu")
    package.cudagraph_utils = utils
    modules = {
        "torch": ranks.torch,
        "vllm.distributed": ModuleType("vllm.distributed"),
        "vllm.distributed.parallel_state": ranks.state,
        "vllm.v1.worker.gpu": package,
        "vllm.v1.worker.gpu.cudagraph_utils": utils,
    }
    compilation = worker.vllm_config.compilation_config
    with beside(release, **given) as world, mock.patch.dict(sys.modules, modules):
        world.sizes.cover_decodes()
        choose(world, worker.vllm_config)
        chosen = list(compilation.cudagraph_capture_sizes)
        world.memory.fit_sizes(worker)
        yield SimpleNamespace(
            world=world,
            chosen=chosen,
            sizes=compilation.cudagraph_capture_sizes,
            largest=compilation.max_cudagraph_capture_size,
            own=list(getattr(compilation, world.sizes.CHOICE)[0]),
            effect=world.effects()[world.sizes.FEATURE],
            votes=ranks.votes,
        )
