"""Run the kernel of a steady step in Triton's interpreter, and beside it its PyTorch version.

Prints ``{"cases": how many, "unequal": [[case, tensor], ...]}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

FILE = (
    Path(__file__).resolve().parents[2]
    / "patches/steady-inputs/files/vllm/v1/worker/steady_kernels.py"
)
MAX_REQS, TOKENS = 40, 40 * 8
WRITTEN = ("num_computed", "num_accepted", "query_start_loc", "seq_lens", "positions", "input_ids")


def load() -> Any:
    """The kernels' module, with vLLM's place for Triton."""
    utils: Any = ModuleType("vllm.triton_utils")
    utils.tl, utils.triton = tl, triton
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm.triton_utils"] = utils
    module: Any = ModuleType("steady_kernels")
    # The interpreter reads the kernel's source from the file.
    module.__file__ = str(FILE)
    sys.modules["steady_kernels"] = module
    exec(compile(FILE.read_text(), str(FILE), "exec"), module.__dict__)
    return module


def tensors(k: int, dtype: Any, generator: torch.Generator) -> dict[str, Any]:
    """State and inputs of a step, with a mark in every cell that is not written."""

    counts = torch.randint(1, k + 2, (MAX_REQS,), dtype=torch.int32, generator=generator)

    def random(*shape: int, kind: Any = torch.int32, low: int = 0) -> Any:
        return torch.randint(low, 1000, shape, dtype=kind, generator=generator)

    return {
        "num_computed": random(MAX_REQS),
        "num_accepted": random(MAX_REQS),
        "query_start_loc": random(MAX_REQS + 1),
        "seq_lens": random(MAX_REQS),
        "positions": random(TOKENS, kind=torch.int64),
        "input_ids": random(TOKENS),
        "valid_counts": counts,
        "sampled": random(MAX_REQS, 1),
        # A view of something wider, as a buffer of the largest K would be.
        "drafts": random(MAX_REQS, k + 2, kind=dtype)[:, :k],
    }


def main() -> None:
    """Compare every tensor in every case."""
    kernels = load()
    generator = torch.Generator().manual_seed(3)
    cases, unequal = 0, []
    for k in (1, 2, 3, 5, 7):
        for num_reqs in (1, 2, 31, 32, 33, 40):
            for dtype in (torch.int32, torch.int64):
                given = tensors(k, dtype, generator)
                ours = {name: tensor.clone() for name, tensor in given.items() if name in WRITTEN}
                last = kernels.LastStep(
                    **{name: tensor for name, tensor in given.items() if name not in WRITTEN}
                )
                theirs = kernels.Inputs(**{name: given[name] for name in WRITTEN})
                expected = kernels.advance(theirs, last, num_reqs)
                found = torch.full_like(expected, -9)
                kernels.launch_advance(kernels.Inputs(**ours), last, num_reqs, found)
                ours["draft_ids"], given["draft_ids"] = found, expected
                cases += 1
                unequal += [
                    [f"{k}-{num_reqs}-{dtype}", name]
                    for name, tensor in ours.items()
                    if not torch.equal(tensor, given[name])
                ]
    print(json.dumps({"cases": cases, "unequal": unequal}))


if __name__ == "__main__":
    main()
