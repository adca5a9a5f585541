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

PATCHES = Path(__file__).resolve().parents[1] / "patches"
WIDTH = 8192  # tokens a row of the batch holds
DRAFTS, PROMPT, OUTPUT = 3, 512, 128  # tokens of a request
BATCHES = (1, 8, 16, 32, 64, 256)


def feature() -> Any:
    """Import the feature's module without vLLM, for batches of any size."""
    names = {
        "vllm.v1.overlay_effects": PATCHES / "shared/files/vllm/v1/overlay_effects.py",
        "vllm.v1.worker.batched_bookkeeping": PATCHES
        / "batched-bookkeeping/files/vllm/v1/worker/batched_bookkeeping.py",
    }
    for package in ("vllm", "vllm.v1", "vllm.v1.worker"):
        sys.modules.setdefault(package, ModuleType(package))
    for name, file in names.items():
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a module")
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    module.FEWEST_ROWS = module.FEWEST_GOING_ON = 1
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


def upstream_loop(path: Path, name: str, over: str, head: str) -> Any:
    """Return the loop of a function over what ``over`` says, as a function.

    :param head: the lines before it, from ``def f`` on.
    """
    loops = [
        node
        for node in ast.walk(method(path, name))
        if isinstance(node, ast.For) and ast.unparse(node.iter) == over
    ]
    if len(loops) != 1:
        raise LookupError(f"{path}: expected one loop over {over}, found {len(loops)}")
    return compiled(f"{head}{textwrap.indent(ast.unparse(loops[0]), '    ')}\n")


def upstream_continue(site: Path) -> Any:
    """Return the loop of `_update_states` over the requests that go on."""
    return upstream_loop(
        site / "vllm/v1/worker/gpu_model_runner.py",
        "_update_states",
        "enumerate(req_data.req_ids)",
        "def f(self, scheduler_output, deferred_spec_decode_corrections, is_last_rank):\n"
        "    req_data = scheduler_output.scheduled_cached_reqs\n"
        "    scheduled_spec_tokens = scheduler_output.scheduled_spec_decode_tokens\n"
        "    is_ngram_gpu, original_num_spec_per_req, reqs_to_add = False, {}, []\n",
    )


def upstream_correct(site: Path) -> Any:
    """Return the loop that takes rejected drafts off."""
    over = "deferred_spec_decode_corrections"
    return upstream_loop(
        site / "vllm/v1/worker/gpu_model_runner.py",
        "correct_spec_decode_token_counts",
        over,
        f"def f(batch, {over}, valid_sampled_token_count, prev_req_id_to_index):\n"
        "    from types import SimpleNamespace\n"
        "    self, is_ngram_gpu = SimpleNamespace(input_batch=batch), False\n",
    )


def upstream_last(site: Path) -> Any:
    """Return the loop of the drafter that looks the last tokens up."""
    return upstream_loop(
        site / "vllm/v1/spec_decode/llm_base_proposer.py",
        "prepare_next_token_ids_padded",
        "range(num_reqs)",
        "def f(self, gpu_input_batch, requests):\n    num_reqs = gpu_input_batch.num_reqs\n",
    )


def upstream_count(site: Path) -> Any:
    """Return the loop of `_prepare_inputs` that counts the drafts of each request."""
    return upstream_loop(
        site / "vllm/v1/worker/gpu_model_runner.py",
        "_prepare_inputs",
        "scheduler_output.scheduled_spec_decode_tokens.items()",
        "def f(self, scheduler_output, num_draft_tokens, num_decode_draft_tokens,"
        " num_scheduled_tokens):\n",
    )


def compiled(source: str) -> Any:
    """Return the function `f` of a source text."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["f"]


def appending(function: Any, rows: int, _: Path) -> Any:
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


class Batch(SimpleNamespace):
    """A double of a batch with so many rows, and upstream's method of one request's drafts."""

    @classmethod
    def of(cls, rows: int, site: Path) -> Batch:
        """Make one whose rows have some tokens."""
        import numpy as np

        ids = [f"r{row}" for row in range(rows)]
        note = method(site / "vllm/v1/worker/gpu_input_batch.py", "update_req_spec_token_ids")
        note.name = "f"
        made = cls(
            num_reqs=rows,
            req_ids=ids,
            req_id_to_index={name: row for row, name in enumerate(ids)},
            prev_req_id_to_index={name: row for row, name in enumerate(ids)},
            num_prompt_tokens=np.full(rows, PROMPT, dtype=np.int32),
            num_tokens_no_spec=np.full(rows, PROMPT + OUTPUT, dtype=np.int32),
            num_computed_tokens_cpu=np.full(rows, PROMPT + OUTPUT, dtype=np.int32),
            token_ids_cpu=np.zeros((rows, WIDTH), dtype=np.int32),
            is_token_ids=np.zeros((rows, WIDTH), dtype=bool),
            spec_token_ids=[[] for _ in ids],
        )
        noted = compiled(f"from __future__ import annotations\n{ast.unparse(note)}\n")
        made.update_req_spec_token_ids = noted.__get__(made)
        return made

    def requests(self, site: Path) -> dict[str, Any]:
        """The requests of its rows, with upstream's look-up of a token."""
        look_up = method(site / "vllm/v1/worker/gpu_input_batch.py", "get_token_id")
        look_up.name = "f"
        kind: Any = type("Request", (SimpleNamespace,), {})
        kind.get_token_id = compiled(f"from __future__ import annotations\n{ast.unparse(look_up)}")
        return {
            name: kind(
                req_id=name,
                prev_num_draft_len=DRAFTS,
                num_prompt_tokens=PROMPT,
                prompt_token_ids=[1] * PROMPT,
                output_token_ids=[-1] * OUTPUT,
                num_computed_tokens=PROMPT + OUTPUT,
                block_ids=([],),
            )
            for name in self.req_ids
        }


def continuing(function: Any, rows: int, site: Path) -> Any:
    """Return a call that does what a step brings to each request that goes on."""
    import numpy as np

    batch = Batch.of(rows, site)
    data = SimpleNamespace(
        req_ids=batch.req_ids,
        num_computed_tokens=[PROMPT + OUTPUT] * rows,
        new_block_ids=[None] * rows,
        num_output_tokens=[OUTPUT] * rows,
        resumed_req_ids=set(),
    )
    drafts = {name: [-1] * DRAFTS for name in batch.req_ids}
    scheduled = SimpleNamespace(scheduled_cached_reqs=data, scheduled_spec_decode_tokens=drafts)
    runner = SimpleNamespace(
        input_batch=batch,
        requests=batch.requests(site),
        use_async_scheduling=True,
        speculative_config=None,
        prev_num_draft_tokens=SimpleNamespace(np=np.zeros(rows, dtype=np.int32)),
    )
    return lambda: function(runner, scheduled, [], True)


def correcting(function: Any, rows: int, site: Path) -> Any:
    """Return a call that takes rejected drafts off, of half of the requests."""
    batch = Batch.of(rows, site)
    requests = batch.requests(site)
    corrections = [(name, DRAFTS, requests[name]) for name in batch.req_ids]
    valid = [1 + row % (DRAFTS + 1) for row in range(rows)]

    def run() -> None:
        batch.num_computed_tokens_cpu[:] = PROMPT  # else they would become negative in time
        function(batch, corrections, valid, batch.prev_req_id_to_index)

    return run


def looking_up(function: Any, rows: int, site: Path) -> Any:
    """Return a call that looks up the last token of each row."""
    import numpy as np

    batch = Batch.of(rows, site)
    requests, buffer = batch.requests(site), np.zeros(rows, dtype=np.int32)
    drafter = SimpleNamespace(backup_next_token_ids=SimpleNamespace(np=buffer))
    return lambda: function(drafter, batch, requests)


def counting(function: Any, rows: int, site: Path) -> Any:
    """Return a call that counts the drafts of requests that decode."""
    import numpy as np

    runner = SimpleNamespace(input_batch=Batch.of(rows, site))
    drafts = {name: [-1] * DRAFTS for name in runner.input_batch.req_ids}
    scheduled = SimpleNamespace(scheduled_spec_decode_tokens=drafts)
    counts, decoding = np.zeros(rows, dtype=np.int32), np.full(rows, -1, dtype=np.int32)
    tokens = np.full(rows, DRAFTS + 1, dtype=np.int32)
    return lambda: function(runner, scheduled, counts, decoding, tokens)


def count_drafts(module: Any) -> Any:
    """Return the feature's function with the arguments of upstream's loop."""

    def write(runner: Any, scheduled: Any, *arrays: Any) -> None:
        module.count_drafts(runner.input_batch, scheduled.scheduled_spec_decode_tokens, *arrays)

    return write


def correct(module: Any) -> Any:
    """Return the feature's function with the arguments of upstream's loop."""

    def take_off(batch: Any, corrections: Any, valid: Any, _: Any) -> None:
        runner = SimpleNamespace(
            input_batch=batch,
            speculative_config=None,
            _get_valid_sampled_token_count=lambda: valid,
        )
        module.correction(runner, corrections)()

    return take_off


def last_tokens(module: Any) -> Any:
    """Return the feature's function with the arguments of upstream's loop."""

    def fill(drafter: Any, batch: Any, requests: Any) -> None:
        drafter.backup_next_token_ids.np[: batch.num_reqs] = module.last_tokens(batch, requests)

    return fill


def listing(function: Any, rows: int, _: Path) -> Any:
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
        "requests that go on (_update_states)": (
            continuing,
            upstream_continue(site),
            module.continue_requests,
        ),
        "rejected drafts (_update_states)": (
            correcting,
            upstream_correct(site),
            correct(module),
        ),
        "drafts of each request (_prepare_inputs)": (
            counting,
            upstream_count(site),
            count_drafts(module),
        ),
        "last tokens (prepare_next_token_ids_padded)": (
            looking_up,
            upstream_last(site),
            last_tokens(module),
        ),
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
                "upstream": microseconds(call(upstream, rows, site), rows),
                "batched": microseconds(call(batched, rows, site), rows),
            }
            for rows in BATCHES
        }
    chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
