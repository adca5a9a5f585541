#!/usr/bin/env python3
"""What vLLM's linear-attention kernel touches where a row's count or length is out of range.

    PYTHONPATH=SITE python state_index.py OUT.json [--kernel FILE]

Wants a vLLM's sources, PyTorch and Triton, no weights; `TRITON_INTERPRET=1` runs it on a CPU. The
states lie between two guards, and so does the table of the rows' states; what stands in the table's
guards points into those of the states. Each case is run twice with other values in the places
watched: whatever changes in the outputs was read there. Exit 0: what is in range reads and writes
nothing else. `faults` names the other cases that do.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
import triton.language

PLACES = (
    "vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py",
    "vllm/model_executor/layers/fla/ops/fused_sigmoid_gating.py",
)
#: Tokens a step with three drafts; rows; heads of keys and values, and their sizes.
WIDTH, ROWS, HEADS, VALUE_HEADS, SIZE = 4, 3, 1, 2, 16
BLOCKS, GUARD = ROWS * WIDTH + 1, 4
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
#: Further than any allocation of this process, in blocks of a state.
WILD = 1 << 30


class Case(NamedTuple):
    """One call: each row's count of accepted tokens and its tokens of this step."""

    name: str
    counts: tuple[int, ...]
    lengths: tuple[int, ...] = (WIDTH,) * ROWS


CONTROL = "in range"
CASES = (
    Case(CONTROL, (1, 2, WIDTH)),
    Case("count 0, first row", (0, 2, WIDTH)),
    Case("count 0, another row", (1, 0, WIDTH)),
    Case("count above the width, first row", (WIDTH + 1, 2, 1)),
    Case("count above the width, last row", (1, 2, WIDTH + 1)),
    Case("longer than the width, first row", (1, 2, 1), (WIDTH + 1, WIDTH, WIDTH)),
    Case("longer than the width, last row", (1, 2, 1), (WIDTH, WIDTH, WIDTH + 1)),
)


def kernel_file() -> Path:
    """vLLM's file, without importing vLLM."""
    home = importlib.util.find_spec("vllm")
    assert home is not None
    assert home.origin is not None
    site = Path(home.origin).parents[1]
    return next(site / place for place in PLACES if (site / place).is_file())


def load(file: Path) -> Callable[..., Any]:
    """The function of vLLM's file, which asks vLLM for Triton alone."""
    utilities = ModuleType("vllm.triton_utils")
    vars(utilities).update(tl=triton.language, triton=triton)
    sys.modules.update({"vllm": ModuleType("vllm"), "vllm.triton_utils": utilities})
    spec = importlib.util.spec_from_file_location("fused_sigmoid_gating", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.fused_sigmoid_gating_delta_rule_update
    return function


class Pool:
    """States of all rows between two guards, and the table that says whose is which."""

    def __init__(self, outside: int) -> None:
        torch.manual_seed(0)
        shape = (GUARD + BLOCKS + GUARD, VALUE_HEADS, SIZE, SIZE)
        self.memory = torch.randn(shape, device=DEVICE)
        whole = torch.full((ROWS + 2, WIDTH), outside, dtype=torch.int32, device=DEVICE)
        self.table = whole[1 : ROWS + 1]
        self.table.copy_(torch.arange(1, BLOCKS, dtype=torch.int32).view(ROWS, WIDTH))

    @property
    def states(self) -> torch.Tensor:
        """What vLLM would have allocated."""
        return self.memory[GUARD : GUARD + BLOCKS]


def serve(function: Callable[..., Any], case: Case, pool: Pool) -> torch.Tensor:
    """One step of all rows; the outputs of each."""
    torch.manual_seed(1)
    tokens = sum(case.lengths)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE)

    starts = torch.tensor([0, *case.lengths], dtype=torch.int32).cumsum(0).int().to(DEVICE)
    outputs, _ = function(
        A_log=noise(VALUE_HEADS),
        a=noise(tokens, VALUE_HEADS),
        b=noise(tokens, VALUE_HEADS),
        dt_bias=noise(VALUE_HEADS),
        q=noise(1, tokens, HEADS, SIZE),
        k=noise(1, tokens, HEADS, SIZE),
        v=noise(1, tokens, VALUE_HEADS, SIZE),
        initial_state=pool.states,
        inplace_final_state=True,
        cu_seqlens=starts,
        ssm_state_indices=pool.table,
        num_accepted_tokens=torch.tensor(case.counts, dtype=torch.int32, device=DEVICE),
        use_qk_l2norm_in_kernel=True,
    )
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return outputs.view(tokens, VALUE_HEADS, SIZE)


def blocks_of(row: int) -> range:
    """Where the states of a row lie in the memory."""
    return range(GUARD + 1 + row * WIDTH, GUARD + 1 + (row + 1) * WIDTH)


def strangers(row: int) -> list[int]:
    """All blocks that no call may touch for the sake of this row: the null block's, too."""
    own = blocks_of(row)
    return [block for block in range(GUARD + BLOCKS + GUARD) if block not in own]


def reads(function: Callable[..., Any], case: Case, row: int) -> list[int]:
    """Blocks of the memory that are not the row's, and yet its outputs depend on."""
    begin = sum(case.lengths[:row])
    own = slice(begin, begin + case.lengths[row])

    def outputs(blocks: list[int]) -> torch.Tensor:
        pool = Pool(BLOCKS + 1)
        pool.memory[blocks] += 1
        return serve(function, case, pool)[own].clone()

    plain, others = outputs([]), strangers(row)
    if torch.equal(plain, outputs(others)):
        return []
    return [block - GUARD for block in others if not torch.equal(plain, outputs([block]))]


def writes(function: Callable[..., Any], case: Case, row: int) -> list[int]:
    """Blocks of others that the step of this row alone writes."""
    alone = case._replace(
        lengths=tuple(length if each == row else 0 for each, length in enumerate(case.lengths))
    )
    pool = Pool(BLOCKS + 1)
    before = pool.memory.clone()
    serve(function, alone, pool)
    blocks = (pool.memory != before).flatten(1).any(1).nonzero().flatten().tolist()
    return [block - GUARD for block in blocks if block not in blocks_of(row)]


def judgement(function: Callable[..., Any], case: Case) -> dict[str, Any]:
    """What a case touches beside its own; blocks from 0 to BLOCKS are the states."""
    result: dict[str, Any] = {"case": case.name, "counts": case.counts, "lengths": case.lengths}
    for kind in (reads, writes):
        blocks = {row: kind(function, case, row) for row in range(ROWS)}
        result[kind.__name__] = {row: others for row, others in blocks.items() if others}
    result["outside"] = sorted(
        {
            block
            for others in (*result["reads"].values(), *result["writes"].values())
            for block in others
            if not 0 <= block < BLOCKS
        }
    )
    return result


def ends(name: str, kernel: Path, tool: tuple[str, ...] = ()) -> dict[str, Any]:
    """How a process ends in which the table's neighbours name a block far outside."""
    call = [*tool, sys.executable, __file__, "-", "--kernel", str(kernel), "--wild", name]
    try:
        end = subprocess.run(call, check=False, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return {"case": name, "tool": tool[:1], "exit": None, "last": "240 s were not enough"}
    lines = (end.stdout + end.stderr).strip().splitlines()
    words = [line for line in lines if "Invalid __global__" in line or "ERROR SUMMARY" in line]
    errors = [line for line in lines if "Error" in line]
    last = (errors or lines or [""])[-1][:200]
    return {
        "case": name,
        "tool": tool[:1],
        "exit": end.returncode,
        "last": last,
        "words": words[:4],
    }


def main() -> int:
    """Judge each case, write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--kernel", type=Path, help="the file, of the vLLM to import otherwise")
    parser.add_argument("--only", nargs="*", default=(), help="these cases")
    parser.add_argument("--wild", help="one case, with a table whose neighbours are far outside")
    args = parser.parse_args()
    kernel = args.kernel or kernel_file()
    function = load(kernel)
    if args.wild:
        (case,) = (each for each in CASES if each.name == args.wild)
        serve(function, case, Pool(WILD))
        return 0
    cases = [judgement(function, case) for case in CASES if not args.only or case.name in args.only]
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": torch.cuda.get_device_name(0) if DEVICE == "cuda" else "cpu, interpreted",
        "kernel": hashlib.sha256(kernel.read_bytes()).hexdigest(),
        "rows": ROWS,
        "width": WIDTH,
        "blocks": BLOCKS,
        "cases": cases,
        "faults": [each["case"] for each in cases if each["reads"] or each["writes"]],
    }
    if DEVICE == "cuda":
        result["far outside"] = [ends(case.name, kernel) for case in CASES]
        if sanitizer := shutil.which("compute-sanitizer"):
            tool = (sanitizer, "--tool", "memcheck", "--print-limit", "4")
            result["far outside"] += [ends(case.name, kernel, tool) for case in CASES]
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(cases)} cases; reads or writes of others': {result['faults']}")
    return int(CONTROL in result["faults"])


if __name__ == "__main__":
    raise SystemExit(main())
