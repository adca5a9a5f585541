"""Run vLLM's kernel for adapters of embeddings in Triton's interpreter, as a later draft pass does.

The metadata is that of a target's batch of `--tokens` tokens, the rows are the `--rows` of a draft
pass, one after the other if there are several. Prints ``{"written": rows of the output that
changed}`` for each, those beyond its end included: input and output are the beginnings of larger
tensors, and what lies behind the input is known.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

import torch
import triton
import triton.language as tl

RANK, HIDDEN, ADAPTERS = 16, 64, 2


def put_triton_into_vllm() -> None:
    """Let vLLM's kernels be Triton's own where there is no device that runs them."""
    utils: Any = importlib.import_module("vllm.triton_utils")
    utils.tl, utils.triton, utils.HAS_TRITON = tl, triton, True


def main() -> None:
    """Run the kernel once for each number of rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    put_triton_into_vllm()
    operators = importlib.import_module("vllm.lora.ops.triton_ops.lora_expand_op")
    metadata = importlib.import_module("vllm.lora.ops.triton_ops.lora_kernel_metadata")
    target = metadata.LoRAKernelMeta.make(ADAPTERS, 64, torch.device("cpu"))
    # Every token of the target's batch has the first adapter.
    target.prepare_tensors(torch.zeros(arguments.tokens, dtype=torch.int32))
    for rows in arguments.rows:
        memory = torch.zeros(64, HIDDEN, dtype=torch.bfloat16)
        operators._lora_expand(
            torch.ones(1, 64, RANK)[:, :rows],
            [torch.ones(ADAPTERS, 1, HIDDEN, RANK, dtype=torch.bfloat16)],
            memory[:rows],
            *target.meta_args(rows, False),
            offset_start=0,
            add_inputs=True,
        )
        written = memory.ne(0).any(dim=1).nonzero().flatten().tolist()
        print(json.dumps({"written": written}))


if __name__ == "__main__":
    main()
