"""Two ranks that would not draft alike, or of which one dies; prints what each comes to.

Runs in the environment of a patched vLLM, on CPU: for each scenario two processes over gloo, and
vLLM's own group of two tensor-parallel ranks. Where a case is about data-parallel ranks vLLM is
told that the same group is theirs. Each rank loads its draft model once for each case of `CASES`,
as far as `create_draft_graphs` goes; the other scenarios end with a rank.

``python unequal_ranks.py PORT...``, a port for each of `SCENARIOS`
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

#: Seconds that a rank waits for another one, in the place of the module's own.
PATIENCE = 4.0
#: Seconds for all cases: of two ranks that never end this one must tell.
DEADLINE = 300
#: For each case the variables of each rank; a rank of None never says how it drafts.
Case = tuple[dict[str, str] | None, dict[str, str] | None]
CASES: dict[str, Case] = {
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
DATA_PARALLEL = "data-parallel: "


@contextmanager
def data_parallel_ranks() -> Iterator[None]:
    """Let vLLM take its two tensor-parallel ranks for data-parallel ones."""
    from vllm.distributed import parallel_state

    both = parallel_state.get_tp_group()
    alone = SimpleNamespace(
        world_size=1, rank_in_group=0, ranks=[both.ranks[both.rank_in_group]], cpu_group=None
    )
    with (
        mock.patch.object(parallel_state, "get_dp_group", return_value=both),
        mock.patch.object(parallel_state, "get_tp_group", return_value=alone),
        # Where a module has taken it by name.
        mock.patch("vllm.v1.worker.dp_utils.get_dp_group", return_value=both),
    ):
        yield


def create(variables: dict[str, str], ranks: int) -> str:
    """Load a draft model as far as its graphs go; what the log says of it.

    ranks: data-parallel ranks of the configuration.
    """
    from vllm.v1.spec_decode.draft_graphs import (
        coupling,
        graph_backend,
        hooks,
        policy,
        same_settings,
    )
    from vllm.v1.spec_decode.draft_graphs import ranks as votes

    facts = policy.Facts(num_speculative_tokens=3, no_graphs=variables.get("TEST_NO_GRAPHS"))
    # The same for all ranks, and here without a model.
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=ranks))
    backend = SimpleNamespace()
    digest = variables.get("TEST_DIGEST") or same_settings._digest()
    release = variables.get("TEST_VLLM") or "0.32.0"
    said: list[str] = []
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch("vllm.version.__version__", release),
        mock.patch.object(same_settings, "_digest", return_value=digest),
        mock.patch.object(hooks, "early_facts", return_value=facts),
        mock.patch.object(hooks, "DraftGraphs"),
        mock.patch.object(hooks.adapters, "take_off", return_value=()),
        mock.patch.object(hooks.logger, "info", lambda text, *values: said.append(text % values)),
        mock.patch.object(graph_backend, "default_graph_backend", return_value=backend),
        mock.patch.object(votes, "coupling", return_value=coupling.Coupling()),
    ):
        made = hooks.create_draft_graphs(SimpleNamespace(vllm_config=config))
    return "graphs" if made is not None else "; ".join(said)


def told(rank: int, case: str, work: Callable[[], Any]) -> None:
    """Do `work`, and print what it comes to, and in how many seconds."""
    began, error, result = time.monotonic(), "", None
    try:
        result = work()
    except Exception as caught:  # noqa: BLE001 - what is raised is the outcome
        error = f"{type(caught).__name__}: {caught}"
    outcome: dict[str, Any] = {
        "rank": rank,
        "case": case,
        "error": error,
        "result": result,
        "seconds": time.monotonic() - began,
    }
    # In one piece: the ranks share the pipe.
    os.write(1, f"RANK {json.dumps(outcome)}\n".encode())


def differing(rank: int, cases: dict[str, Case], prefix: str, ranks: int) -> None:
    """All cases, one after the other."""
    for name, both in cases.items():
        variables = both[rank]
        if variables is None:
            # The store must live until the other one has given up.
            told(rank, prefix + name, lambda: time.sleep(1.5 * PATIENCE))
        else:
            told(rank, prefix + name, partial(create, variables, ranks))
    torch.distributed.barrier()


def tensor_parallel(rank: int) -> None:
    """Tensor-parallel ranks that differ."""
    differing(rank, CASES, "", 1)


def data_parallel(rank: int) -> None:
    """Data-parallel ranks that differ; a silent one has a scenario of its own."""
    cases = {name: both for name, both in CASES.items() if None not in both}
    with data_parallel_ranks():
        differing(rank, cases, DATA_PARALLEL, 2)


def unpatched(rank: int) -> None:
    """Rank 1 has no patches: it goes on to vLLM's agreement of its first dummy batch."""
    from vllm.v1.worker.dp_utils import coordinate_batch_across_dp

    parallel: Any = SimpleNamespace(
        data_parallel_size=2, data_parallel_rank=rank, disable_nccl_for_dp_synchronization=True,
        use_ubatching=False, num_ubatches=1, enable_dbo=False,
    )  # fmt: skip
    with data_parallel_ranks():
        if rank == 0:
            told(rank, "unpatched", lambda: create({}, 2))
        else:
            told(rank, "unpatched", lambda: coordinate_batch_across_dp(4, False, parallel, 4))


def _vote(yes: bool) -> bool:
    from vllm.v1.spec_decode.draft_graphs import ranks

    with data_parallel_ranks():
        agreed: bool = ranks.all_ranks_agree(yes, data_parallel=True)
    return agreed


def dies(rank: int) -> None:
    """Rank 1 is killed while both capture; rank 0 comes to the vote on the graph."""
    told(rank, "dies", lambda: _vote(True))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told(rank, "dies at the second graph", lambda: _vote(True))


def fails_in_a_warm_up(rank: int) -> None:
    """Rank 0 fails in the first run of a graph, and rank 1 waits there for its rows."""
    from vllm.distributed.parallel_state import get_tp_group

    if rank == 0:
        told(rank, "warm-up", lambda: _vote(False))
    else:
        rows, group = torch.zeros(4), get_tp_group().device_group
        told(rank, "warm-up", lambda: torch.distributed.all_reduce(rows, group=group))


SCENARIOS: tuple[Callable[[int], None], ...] = (
    tensor_parallel,
    data_parallel,
    unpatched,
    dies,
    fails_in_a_warm_up,
)


def rank_main(scenario: Callable[[int], None], rank: int, port: str) -> None:
    """One rank of one scenario."""
    # Ranks that are killed must not be waited for in shared memory, which those of one name have
    # where the CPU has AVX-512.
    os.environ["VLLM_DIST_IDENT"] = str(rank)
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.v1.spec_decode.draft_graphs import same_settings

    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(
            2, rank, f"tcp://127.0.0.1:{port}", rank, backend="gloo"
        )
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, backend="gloo")
    with mock.patch.object(same_settings, "PATIENCE", PATIENCE):
        scenario(rank)


def fork(scenario: Callable[[int], None], rank: int, port: str) -> int:
    """Start one rank in a process of its own, which ends without taking anything down; its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        rank_main(scenario, rank, port)
        status = 0
    except BaseException:  # noqa: BLE001 - standard error is the only place to tell it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    # Imported once, which takes longer than all cases.
    for module in (
        *("config", "distributed.parallel_state", "v1.worker.dp_utils"),
        "v1.spec_decode.draft_graphs.hooks",
    ):
        importlib.import_module(f"vllm.{module}")
    started = {
        fork(scenario, rank, port): (scenario, rank)
        for scenario, port in zip(SCENARIOS, sys.argv[1:], strict=True)
        for rank in range(2)
    }

    def give_up(*_: Any) -> None:
        for each in started:
            os.kill(each, signal.SIGKILL)

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(DEADLINE)
    bad = []
    while started:
        process, status = os.wait()
        scenario, rank = started.pop(process)
        killed = (scenario, rank) == (dies, 1) and os.WTERMSIG(status) == signal.SIGKILL
        if status != 0 and not killed:
            bad.append(f"{scenario.__name__}, rank {rank}: status {status}")
    sys.exit("\n".join(bad) or 0)
