"""A release's own choosers of graphs, by its text: V1's dispatcher and V2's manager; no vLLM."""

from __future__ import annotations
import __future__

import ast
import functools
import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from tests.decode_graph_sizes.worlds import text

DISPATCHER = "vllm/v1/cudagraph_dispatcher.py"
MANAGER = "vllm/v1/worker/gpu/cudagraph_utils.py"


class Anything:
    """What a module imports and these tests do not use."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *given: Any, **_: Any) -> Any:
        """As a decorator it leaves what it decorates."""
        return given[0] if len(given) == 1 and callable(given[0]) else Anything()

    def __bool__(self) -> bool:
        return False


class Importless(ast.NodeTransformer):
    """Leaves out imports of vLLM, PyTorch and tqdm, whose names are `Anything`."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _without(self, node: ast.ImportFrom | ast.Import) -> ast.AST:
        names = [each.asname or each.name.partition(".")[0] for each in node.names]
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        if (module or "").partition(".")[0] not in ("vllm", "torch", "tqdm"):
            return node
        self.names += names
        return ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return self._without(node)

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return self._without(node)


def run(release: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
    """A module of a release, run with what is given for its imports."""
    importless = Importless()
    tree = importless.visit(ast.parse(text(release, path)))
    names = {each: Anything() for each in importless.names}
    module: dict[str, Any] = {"__name__": __name__, **names, **given}
    flags = __future__.annotations.compiler_flag
    code = compile(ast.fix_missing_locations(tree), path, "exec", flags, dont_inherit=True)
    exec(code, module)  # vLLM's own text
    return module


def definition(release: str, path: str, name: str, given: dict[str, Any]) -> Any:
    """A class of a release by its text alone."""
    nodes = ast.parse(text(release, path)).body
    node = next(each for each in nodes if isinstance(each, ast.ClassDef) and each.name == name)
    names = dict(given)
    code = compile(ast.Module([node], []), path, "exec", dont_inherit=True)
    exec(code, names)  # vLLM's own text
    return names[name]


@functools.cache
def mode_of(release: str) -> Any:
    """A release's CUDAGraphMode."""
    import enum

    return definition(
        release, "vllm/config/compilation.py", "CUDAGraphMode", {"enum": enum, "Enum": enum.Enum}
    )


@functools.cache
def _dispatcher_class(release: str) -> Any:
    import dataclasses
    from typing import NamedTuple

    names = {"NamedTuple": NamedTuple, "dataclass": dataclasses.dataclass}
    batch = definition(release, "vllm/forward_context.py", "BatchDescriptor", names)
    cls: Any = run(
        release,
        DISPATCHER,
        {"CUDAGraphMode": mode_of(release), "BatchDescriptor": batch, "product": itertools.product},
    )["CudagraphDispatcher"]
    return cls


def settings(release: str, sizes: list[int], drafts: int = 3) -> Any:
    """A VllmConfig as far as the choosers read it."""
    mode = mode_of(release)
    compilation = SimpleNamespace(
        cudagraph_mode=mode.FULL_AND_PIECEWISE,
        cudagraph_capture_sizes=list(sizes),
        max_cudagraph_capture_size=sizes[-1],
        compile_sizes=[],
        cudagraph_specialize_lora=False,
        is_attention_compiled_piecewise=lambda: True,
        adjust_cudagraph_sizes_for_spec_decode=lambda *_: None,  # these are multiples already
    )
    return SimpleNamespace(
        compilation_config=compilation,
        num_speculative_tokens=drafts,
        speculative_config=SimpleNamespace(
            num_speculative_tokens=drafts, uses_dynamic_speculative_decoding=lambda: False
        ),
        lora_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=256),
        parallel_config=SimpleNamespace(data_parallel_size=1, tensor_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )


def dispatcher(release: str, config: Any) -> Any:
    """The dispatcher of model runner V1, initialised as its runner does it."""
    made = _dispatcher_class(release)(config)
    made.initialize_cudagraph_keys(
        config.compilation_config.cudagraph_mode, 1 + config.num_speculative_tokens
    )
    return made


@functools.cache
def _manager_class(release: str) -> Any:
    given = {
        "CUDAGraphMode": mode_of(release),
        "product": itertools.product,
        "defaultdict": defaultdict,
        "round_up": lambda number, multiple: -(-number // multiple) * multiple,
        "is_breakable_cudagraph_enabled": lambda: False,
        "get_pp_group": lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True),
        "nn": SimpleNamespace(Module=object),
    }
    return run(release, MANAGER, given)["CudaGraphManager"]


def manager(release: str, config: Any) -> Any:
    """The manager of graphs of model runner V2."""
    mode = config.compilation_config.cudagraph_mode
    return _manager_class(release)(config, "cuda", mode, 1 + config.num_speculative_tokens)
