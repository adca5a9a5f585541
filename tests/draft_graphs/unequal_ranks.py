"""Two tensor-parallel ranks that would not draft alike; prints what each comes to, case by case.

Runs in the environment of a patched vLLM, on CPU: two processes over gloo, and vLLM's own group of
two tensor-parallel ranks. Each loads its draft model once for each case of `CASES`, as far as
`create_draft_graphs` goes.

``python unequal_ranks.py PORT``
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.spawn import start_processes

#: Seconds that a rank waits for another one's settings, in the place of the module's own.
PATIENCE = 6.0
#: For each case the variables of each rank; a rank of None never says how it drafts.
CASES: dict[str, tuple[dict[str, str] | None, dict[str, str] | None]] = {
    "equal": ({}, {}),
    "default and the same value": ({}, {"OVERLAY_DRAFT_GRAPHS": "auto"}),
    "former spelling": (
        {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"},
        {"OVERLAY_DRAFT_GRAPHS_CHECK": "on"},
    ),
    "one is off": ({}, {"OVERLAY_DRAFT_GRAPHS": "off"}),
    "another grant": ({}, {"OVERLAY_DRAFT_GRAPHS_UNTRIED": "on"}),
    "another mode": ({"OVERLAY_DRAFT_GRAPHS": "step"}, {"OVERLAY_DRAFT_GRAPHS": "loop"}),
    "another device": ({}, {"TEST_NO_GRAPHS": "it has no graphs"}),
    "another vLLM": ({}, {"TEST_VLLM": "0.31.0"}),
    "other patches": ({}, {"TEST_DIGEST": "0123456789ab"}),
    # The last one: the rank that is silent here does not count this model.
    "one is silent": ({}, None),
}


def create(variables: dict[str, str]) -> None:
    """Load a draft model as far as its graphs go."""
    from vllm.v1.spec_decode.draft_graphs import graph_backend, hooks, policy, same_settings

    facts = policy.Facts(num_speculative_tokens=3, no_graphs=variables.get("TEST_NO_GRAPHS"))
    # The same for all ranks, and here without a model.
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=1))
    backend = SimpleNamespace()
    digest = variables.get("TEST_DIGEST") or same_settings._digest()
    release = variables.get("TEST_VLLM") or "0.32.0"
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch("vllm.version.__version__", release),
        mock.patch.object(same_settings, "_digest", return_value=digest),
        mock.patch.object(same_settings, "PATIENCE", PATIENCE),
        mock.patch.object(hooks, "early_facts", return_value=facts),
        mock.patch.object(hooks, "DraftGraphs"),
        mock.patch.object(hooks.adapters, "take_off", return_value=()),
        mock.patch.object(graph_backend, "default_graph_backend", return_value=backend),
    ):
        hooks.create_draft_graphs(SimpleNamespace(vllm_config=config))


def rank_main(rank: int, port: str) -> None:
    """One rank: all cases, one after the other."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(
            2, rank, f"tcp://127.0.0.1:{port}", rank, backend="gloo"
        )
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, backend="gloo")
    for name, both in CASES.items():
        variables = both[rank]
        began, error = time.monotonic(), ""
        if variables is None:
            time.sleep(2 * PATIENCE)  # the store must live until the other one has given up
        else:
            try:
                create(variables)
            except Exception as caught:  # noqa: BLE001 - what is raised is the outcome
                error = f"{type(caught).__name__}: {caught}"
        seconds = time.monotonic() - began
        result: dict[str, Any] = {"rank": rank, "case": name, "error": error, "seconds": seconds}
        # In one piece: the ranks share the pipe.
        os.write(1, f"RANK {json.dumps(result)}\n".encode())
    torch.distributed.barrier()


if __name__ == "__main__":
    # Imported once, which takes longer than all cases.
    for module in ("config", "distributed.parallel_state", "v1.spec_decode.draft_graphs.hooks"):
        importlib.import_module(f"vllm.{module}")
    # Where mypy sees PyTorch, this call has no types.
    start_processes(rank_main, (sys.argv[1],), nprocs=2, start_method="fork")  # type: ignore[no-untyped-call, unused-ignore]
