"""vLLM's own drafts and vllm-ascend's, side by side on the same random batches.

``python -m tests.ascend.twin --cases N``, in the ``ascend`` environment with the sources of a
release of vLLM and of vllm-ascend. Prints a line of JSON: for each shape how many rows had rejected
tokens, and how many drafts differ by position, in these rows and in the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.support import rested_collector

rested_collector.rest()  # before what takes longest to import

import torch

from tests.ascend import npu_double, operators

npu_double.install()

import vllm_ascend.ops  # noqa: F401  (its parts import each other in this order only)
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

from tests.ascend import ascend_side, batches, sabotage, vllm_side
from tests.ascend.ascend_side import Mode
from tests.ascend.mutations import ASCEND_MUTATIONS
from tests.ascend.twin_model import LAYER, LONGEST, Attention, DraftModel
from tests.draft_graphs.recorded_graph import ReplayRefused

SIZES = (2, 5)


@dataclass(frozen=True)
class Shape:
    """One configuration of both sides.

    :ivar switch: what OVERLAY_ASCEND_DRAFT_LENGTHS says.
    :ivar enpu: whether a graph is updated before it is replayed.
    """

    attention: Attention
    mode: Mode
    k: int
    switch: str = "on"
    enpu: bool = False


def shapes(ks: Sequence[int]) -> Iterator[Shape]:
    """All shapes: with the feature, without it, and where it has nothing to do."""
    for attention in ("dense", "mla", "tensor"):
        for mode in ("eager", "piecewise", "full"):
            yield from (Shape(attention, mode, k) for k in ks)
            yield from (Shape(attention, mode, 5, switch) for switch in ("off", "device"))
        yield Shape(attention, "full", 5, enpu=True)


@dataclass
class Result:
    """Drafts that differ, by position.

    :ivar rows: how many rows had rejected tokens, and how many had none.
    """

    shape: Shape
    rows: list[int] = field(default_factory=lambda: [0, 0])
    rejected: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    replays: int = 0
    batches: int = 0
    waits: list[int] = field(default_factory=list)


def make_config(attention: Attention, k: int) -> Any:
    """A configuration with what is read of it."""
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    config.model_config = SimpleNamespace(
        uses_mrope=False,
        max_model_len=LONGEST,
        use_mla=attention == "mla",
        hf_config=None,
        hf_text_config=None,
    )
    config.speculative_config = SimpleNamespace(
        disable_padded_drafter_batch=False,
        method="mtp" if attention == "mla" else "eagle3",
        num_speculative_tokens=k,
        parallel_drafting=False,
        use_eagle=lambda: True,
        use_dspark=lambda: False,
    )
    return config


def run_shape(shape: Shape, cases: int, seed: int, *, to_first: bool = False) -> Result:
    """Draft `cases` batches both ways; `to_first`: up to the first in which drafts differ."""
    config = make_config(shape.attention, shape.k)
    dice = random.Random(f"{seed} {shape}")
    result = Result(shape, rejected=[0] * shape.k, others=[0] * shape.k)
    with set_current_vllm_config(config), torch.inference_mode():
        model = DraftModel(shape.attention)
        config.compilation_config.static_forward_context[LAYER] = model
        theirs = vllm_side.make_proposer(model, config, shape.k)
        own = ascend_side.make_proposer(model, config, shape.k, shape.mode, SIZES, enpu=shape.enpu)
        os.environ["OVERLAY_ASCEND_DRAFT_LENGTHS"] = shape.switch
        npu_double.DEVICE.waits.clear()
        wide = 1 if shape.attention == "mla" else 3
        for case in range(cases):
            uniform = True if shape.attention == "mla" else None
            batch = batches.draw(dice, shape.k, dice.randint(1, SIZES[-1]), wide, uniform=uniform)
            model.cache.fill(case)
            expected = vllm_side.draft(theirs, batch)
            model.cache.fill(case)
            drafts = ascend_side.draft(own, batch)
            compare(result, batch, drafts, expected)
            if to_first and (any(result.rejected) or any(result.others)):
                break
        if shape.mode == "full":
            entries = own._runnable.concrete_aclgraph_entries.values()
            result.replays = sum(entry.aclgraph.replays for entry in entries)
    result.batches, result.waits = cases, [*npu_double.DEVICE.waits]
    return result


def compare(
    result: Result, batch: batches.Batch, drafts: torch.Tensor, expected: torch.Tensor
) -> None:
    """Count what differs."""
    for row in range(len(batch.seen)):
        kept = batch.rejected is None or int(batch.rejected[row]) == 0
        result.rows[kept] += 1
        counts = result.others if kept else result.rejected
        for place in range(batch.within(row)):
            counts[place] += int(drafts[row, place] != expected[row, place])


def run_mutations(cases: int, seed: int, named: str) -> dict[str, str]:
    """What shows each mutation: "twin", or what the graph double says; "nothing" shows none."""
    from vllm_ascend.spec_decode import draft_lengths

    answers: dict[str, str] = {}
    for mutation in (each for each in ASCEND_MUTATIONS if named in each.name):
        attention, mode = mutation.shape
        shape = Shape(attention, mode, 5)  # type: ignore[arg-type]  # from the table
        try:
            with sabotage.put_in(mutation, draft_lengths):
                # Some show in few batches only.
                result = run_shape(shape, 2 * cases, seed, to_first=True)
            shown = any(result.rejected) or any(result.others)
            answers[mutation.name] = "twin" if shown else "nothing"
        except ReplayRefused as refused:
            answers[mutation.name] = str(refused)
        npu_double.DEVICE.drop()
    return answers


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=int, action="append")
    parser.add_argument("--mutations", action="store_true", help="those of mutations.py as well")
    parser.add_argument("--named", help="mutations with this in their names, and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels = operators.register()
    vllm_side.replace_kernels()
    ascend_side.replace_parts()
    results = [
        asdict(run_shape(shape, arguments.cases, arguments.seed))
        for shape in shapes(arguments.k or (1, 3, 5, 10))
        if arguments.named is None
    ]
    mutations = {}
    if arguments.mutations or arguments.named:
        mutations = run_mutations(arguments.cases, arguments.seed, arguments.named or "")
    del kernels
    print("TWIN " + json.dumps({"results": results, "mutations": mutations}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
