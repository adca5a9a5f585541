"""Time the bookkeeping loops of model runner V1 on a CPU, beside the feature batched-bookkeeping.

The loops of a pristine vLLM are taken from its source and run with doubles for their classes; only
numpy is needed. The figures are CPU times of these loops alone: no model runs, no GPU is used, and
nothing about serving follows. That both do the same is shown by `tests/batched_bookkeeping`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import textwrap
import timeit
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FILES = Path(__file__).resolve().parents[1] / "patches/batched-bookkeeping/files"
WIDTH = 8192  # tokens a row of the batch holds
DRAFTS = 3
BATCHES = (1, 8, 16, 32, 64, 256)


def feature() -> Any:
    """Import the feature's module without vLLM, for batches of any size."""
    names = ("vllm.v1.overlay_effects", "vllm.v1.worker.batched_bookkeeping")
    for package in ("vllm", "vllm.v1", "vllm.v1.worker"):
        sys.modules.setdefault(package, ModuleType(package))
    for name in names:
        spec = importlib.util.spec_from_file_location(name, FILES / f"{name.replace('.', '/')}.py")
        if spec is None or spec.loader is None:
            raise ImportError(f"{FILES} has no {name}")
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    module.FEWEST_ROWS = 1
    return module


def method(path: Path, name: str) -> ast.FunctionDef:
    """Return the one function of that name in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    if len(nodes) != 1:
        raise LookupError(f"{path}: expected one function {name}, found {len(nodes)}")
    return nodes[0]


def upstream_append(site: Path) -> Any:
    """Return the loop of `_bookkeeping_sync` over the sampled rows, as a function."""
    path = site / "vllm/v1/worker/gpu_model_runner.py"
    loops = [
        node
        for node in method(path, "_bookkeeping_sync").body
        if isinstance(node, ast.For) and "num_sampled_tokens" in ast.unparse(node.iter)
    ]
    if len(loops) != 1:
        raise LookupError(f"{path}: expected one loop over the sampled rows, found {len(loops)}")
    return compiled(
        "def f(self, num_sampled_tokens, invalid_req_indices_set):\n"
        "    req_ids = self.input_batch.req_ids\n"
        f"{textwrap.indent(ast.unparse(loops[0]), '    ')}\n"
    )


def upstream_list(site: Path) -> Any:
    """Return the statement of `parse_output` that lists the tokens of each row, as a function."""
    path = site / "vllm/v1/sample/rejection_sampler.py"
    lists = [
        node
        for node in method(path, "parse_output").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "outputs"
    ]
    if len(lists) != 1:
        raise LookupError(f"{path}: expected one assignment of outputs, found {len(lists)}")
    body = textwrap.indent(ast.unparse(lists[0]), "    ")
    return compiled(f"def f(output_token_ids_np, valid_mask):\n{body}\n    return outputs\n")


def upstream_note(site: Path) -> Any:
    """Return the loop over `update_req_spec_token_ids`, as a function like the feature's."""
    method_ = method(site / "vllm/v1/worker/gpu_input_batch.py", "update_req_spec_token_ids")
    method_.name = "note"
    return compiled(
        f"from __future__ import annotations\n{ast.unparse(method_)}\n"
        "def f(batch, requests, scheduled):\n"
        "    for request in requests:\n"
        "        note(batch, request, scheduled)\n"
    )


def compiled(source: str) -> Any:
    """Return the function `f` of a source text."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["f"]


def appending(function: Any, rows: int) -> Any:
    """Return a call that appends a placeholder to each row of a batch, and leaves it as it was."""
    import numpy as np  # here: ``--help`` works where it is not installed

    ids = [f"r{row}" for row in range(rows)]
    lengths = np.random.default_rng(rows).integers(1, 4000, rows, dtype=np.int32)
    batch = SimpleNamespace(
        req_ids=ids,
        num_tokens_no_spec=lengths.copy(),
        token_ids_cpu=np.zeros((rows, WIDTH), dtype=np.int32),
        is_token_ids=np.zeros((rows, WIDTH), dtype=bool),
    )
    requests = {name: SimpleNamespace(output_token_ids=[]) for name in ids}
    runner = SimpleNamespace(
        input_batch=batch, requests=requests, max_model_len=WIDTH, use_async_scheduling=True
    )

    def run() -> None:
        batch.num_tokens_no_spec[:] = lengths  # else a row would be full in time
        function(runner, rows, set())

    return run


def noting(function: Any, rows: int) -> Any:
    """Return a call that notes the drafts of each request of a batch."""
    import numpy as np

    ids = [f"r{row}" for row in range(rows)]
    batch = SimpleNamespace(
        req_id_to_index={name: row for row, name in enumerate(ids)},
        num_tokens_no_spec=np.random.default_rng(rows).integers(1, 4000, rows, dtype=np.int32),
        token_ids_cpu=np.zeros((rows, WIDTH), dtype=np.int32),
        is_token_ids=np.zeros((rows, WIDTH), dtype=bool),
        spec_token_ids=[[] for _ in ids],
    )
    requests = [SimpleNamespace(req_id=name, prev_num_draft_len=0) for name in ids]
    drafts = {name: [-1] * DRAFTS for name in ids}
    return lambda: function(batch, requests, drafts)


def listing(function: Any, rows: int) -> Any:
    """Return a call that lists the accepted tokens of each row."""
    import numpy as np

    lengths = np.random.default_rng(rows).integers(1, DRAFTS + 2, rows)
    tokens = np.where(np.arange(DRAFTS + 1) < lengths[:, None], 5, -1).astype(np.int32)
    return lambda: function(tokens, tokens >= 0)


def microseconds(run: Any, rows: int) -> float:
    """Return the least time of a call, of nine repeats."""
    number = max(20, 4000 // rows)
    return round(min(timeit.repeat(run, number=number, repeat=9)) / number * 1e6, 2)


def main(arguments: list[str] | None = None) -> int:
    """Time the loops beside the feature's functions, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file for the figures, JSON")
    parser.add_argument("release", help="the release of that vLLM, such as 0.26.0")
    parser.add_argument("site", type=Path, help="folder that holds a pristine vllm/")
    chosen = parser.parse_args(arguments)
    os.environ.pop("OVERLAY_BATCHED_BOOKKEEPING", None)
    site, module = chosen.site, feature()
    pairs = {
        "drafts of a step (_update_states)": (noting, upstream_note(site), module.note_drafts),
        "placeholders of async scheduling (_bookkeeping_sync)": (
            appending,
            upstream_append(site),
            module.append_placeholders,
        ),
        "lists of accepted tokens (parse_output)": (
            listing,
            upstream_list(site),
            module.accepted_tokens,
        ),
    }
    results: dict[str, Any] = {
        "what": "CPU microseconds a call, least of 9 repeats; no GPU, no serving",
        "vllm": chosen.release,
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "drafts_per_request": DRAFTS,
        "microseconds": {},
    }
    for name, (call, upstream, batched) in pairs.items():
        results["microseconds"][name] = {
            str(rows): {
                "upstream": microseconds(call(upstream, rows), rows),
                "batched": microseconds(call(batched, rows), rows),
            }
            for rows in BATCHES
        }
    chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
