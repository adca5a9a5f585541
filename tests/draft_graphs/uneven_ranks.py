"""Two ranks that have recorded different numbers of all-reduces; prints what each has in the end.

Runs in the environment of a patched vLLM, on CPU: vLLM's custom all-reduce, which only GPUs have,
is a double that counts.

``python uneven_ranks.py PORT RECORDED_0 RECORDED_1``
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.spawn import start_processes


class CustomAllReduce:
    """What the module under test uses of vLLM's."""

    disabled = False
    _ptr = 0

    def __init__(self, recorded: int) -> None:
        self.recorded = recorded
        self.rank_data = torch.zeros(1024, dtype=torch.uint8)

    def all_reduce(self, tensor: torch.Tensor, *, registered: bool) -> None:
        """Record one more, as a capture does."""
        assert registered
        assert tensor.nbytes % 16 == 0, "vLLM's kernel wants multiples of 16 bytes"
        assert tensor.untyped_storage().data_ptr() == self.rank_data.data_ptr()
        self.recorded += 1


class Backend:
    """Captures by calling."""

    def __init__(self) -> None:
        self.captures = 0

    def new_pool(self) -> object:
        """A pool."""
        return None

    def capture(self, function: Callable[[], None], pool: object) -> None:
        """Capture."""
        self.captures += 1
        function()


def rank_main(rank: int, port: str, recorded: list[int]) -> None:
    """One rank."""
    from vllm.distributed import parallel_state
    from vllm.v1.spec_decode.draft_graphs import ranks

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(recorded)
    )
    custom, backend = CustomAllReduce(recorded[rank]), Backend()
    group = SimpleNamespace(
        world_size=len(recorded),
        cpu_group=torch.distributed.group.WORLD,
        device_communicator=SimpleNamespace(ca_comm=custom),
    )

    def ipc_meta(pointer: int) -> Any:
        return [], [0] * custom.recorded

    with (
        mock.patch.object(parallel_state, "get_tp_group", return_value=group),
        mock.patch("vllm._custom_ops.get_graph_buffer_ipc_meta", ipc_meta),
    ):
        ranks.even_out_recorded_all_reduces(backend)
    result = {"rank": rank, "recorded": custom.recorded, "captures": backend.captures}
    # In one piece: the ranks share the pipe.
    os.write(1, f"RANK {json.dumps(result)}\n".encode())


if __name__ == "__main__":
    counts = [int(count) for count in sys.argv[2:]]
    # Imported once, which takes longer than what the ranks do.
    for module in ("distributed.parallel_state", "v1.spec_decode.draft_graphs.ranks"):
        importlib.import_module(f"vllm.{module}")
    # Where mypy sees PyTorch, this call has no types.
    start_processes(  # type: ignore[no-untyped-call, unused-ignore]
        rank_main, (sys.argv[1], counts), nprocs=len(counts), start_method="fork"
    )
