"""Upstream's `propose` and the draft graphs, side by side on the same random batches.

``python upstream_twin.py --cases N --seed S``, in a vLLM on CPU that has the draft graphs. No
engine runs: the proposer is vLLM's own class over a small random model with paged attention, and
each batch is drafted twice, from the same state: by upstream's code and through the hooks. The
drafts must be equal, the KV caches must be, and through the graphs no null block, no argument
and no tensor of the caller's may have been written. Prints one line of JSON: what was drafted
how, by drafter.

Longer than other modules: one program that runs in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.forward_context import BatchDescriptor
from vllm.platforms import current_platform
from vllm.v1 import overlay_effects
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.draft_graphs.draft_graphs import DraftGraphs
from vllm.v1.spec_decode.draft_graphs.drafter import drafter_of
from vllm.v1.spec_decode.draft_graphs.keys import DraftKeys
from vllm.v1.spec_decode.draft_graphs.policy import Facts

from tests.draft_graphs import graph_safe_attention, twin_sampling
from tests.draft_graphs.recorded_backend import RecordedBackend
from tests.draft_graphs.twin_drafters import (
    AnyGrid,
    drafter_name,
    extra_attributes,
    proposer_class,
    use_dispatched_kernels,
    use_expanding_kernels,
)
from tests.draft_graphs.twin_model import (
    BLOCK,
    BLOCKS,
    HIDDEN,
    LAYER,
    LONGEST,
    VOCAB,
    WIDTH,
    ContextModel,
    Model,
    Shape,
)
from tests.draft_graphs.twin_shapes import SHAPES


class Dispatcher:
    """Upstream's answer is always eager; the draft keys are the module's own."""

    def __init__(self) -> None:
        self.draft_keys = DraftKeys()
        self.add_draft_key, self.withdraw_draft_keys = self.draft_keys.add, self.draft_keys.clear
        self.dispatch_draft = self.draft_keys.dispatch

    def dispatch(self, num_tokens: int, **kwargs: Any) -> tuple[Any, Any]:
        return CUDAGraphMode.NONE, BatchDescriptor(num_tokens)


class Group:
    """The one attention group of the draft."""

    kv_cache_group_id = 0
    layer_names = (LAYER,)
    backend = graph_safe_attention.GraphSafeBackend

    def __init__(self, config: VllmConfig) -> None:
        self.builder = object.__new__(graph_safe_attention.GraphSafeBuilder)
        self.builder.bounded_tokens = config.compilation_config.max_cudagraph_capture_size

    def get_metadata_builder(self) -> Any:
        return self.builder

    def build_metadata_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
        return self.builder.build(0, common_attn_metadata, fast_build=True)


def drawn_lengths(shape: Shape, dice: random.Random, reqs: int) -> list[int]:
    """Query lengths of `reqs` requests; two in three batches are uniform."""
    uniform, full = dice.random() < 0.67, shape.k + 1
    return [full if uniform else dice.choice([full, dice.randint(1, 9)]) for _ in range(reqs)]


def model_of(shape: Shape) -> Any:
    """The model of a drafter with plain attention."""
    return ContextModel(shape) if shape.method == "dflash" else Model(shape)


@dataclass(frozen=True)
class Parts:
    """What another kind of attention needs of its own."""

    model: Callable[[Shape], Any] = model_of
    group: Callable[[VllmConfig], Any] = Group
    lengths: Callable[[Shape, random.Random, int], list[int]] = drawn_lengths
    backend: Callable[[], RecordedBackend] = RecordedBackend
    inspect: Callable[[Any], None] = lambda graphs: None


def make_proposer(shape: Shape, config: VllmConfig, parts: Parts) -> Any:
    """vLLM's proposer with the attributes that drafting reads, and none of its set-up."""
    # Over fifty lines: one table of what the proposer reads, an attribute a line.
    proposer: Any = object.__new__(proposer_class(shape))
    tokens = 256
    model = parts.model(shape)
    config.compilation_config.static_forward_context[LAYER] = model
    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    compilation.max_cudagraph_capture_size = shape.max_capture_tokens
    attributes: dict[str, Any] = {
        "allowed_attn_types": None,
        "arange": torch.arange(tokens + 1, dtype=torch.int32),
        "block_size": BLOCK,
        "constant_draft_positions": False,
        "cudagraph_dispatcher": Dispatcher(),
        "device": torch.device("cpu"),
        "dp_rank": 0,
        "draft_uses_xdrope_dim": 0,
        "draft_attn_groups": [parts.group(config)],
        "draft_model_config": SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["DeepSeekMTPModel"])
        ),
        "dtype": torch.float32,
        "eagle3_use_aux_hidden_state": True,
        "eplb_state": None,
        "hidden_size": HIDDEN,
        "hidden_states": torch.zeros(tokens, HIDDEN),
        "input_ids": torch.zeros(tokens, dtype=torch.int32),
        "inputs_embeds": torch.zeros(tokens, HIDDEN),
        "kv_cache_gid": 0,
        "max_batch_size": shape.max_num_seqs,
        "max_model_len": LONGEST,
        "max_num_tokens": tokens,
        "method": shape.method,
        "model": model,
        "mrope_positions": torch.zeros(3, tokens + 1, dtype=torch.int64),
        "num_speculative_tokens": shape.k,
        "positions": torch.zeros(tokens, dtype=torch.int64),
        "speculative_config": SimpleNamespace(num_speculative_tokens=shape.k),
        "supports_mm_inputs": shape.multimodal,
        "token_arange_np": torch.arange(tokens, dtype=torch.int32).numpy(),
        "use_local_argmax_reduction": False,
        "uses_mrope": shape.mrope,
        "uses_xdrope_dim": 0,
        "vllm_config": config,
        "_draft_attn_layer_names": {LAYER},
        "_enable_probabilistic_draft_probs": bool(shape.sampled),
        "use_fp64_gumbel": False,
        "_last_draft_probs": None,
        "_share_mtp_indices": False,
        "_slot_mapping_buffer": torch.zeros(tokens, dtype=torch.int64),
    }
    vars(proposer).update(attributes | extra_attributes(shape, tokens))
    proposer.model_returns_tuple = lambda: shape.returns_tuple
    return proposer


def make_graphs(shape: Shape, proposer: Any, parts: Parts) -> DraftGraphs:
    """The module's own object, captured with recordings on memory that no request has used."""
    table = SimpleNamespace(get_device_tensor=lambda rows: torch.zeros(rows, WIDTH))
    runner = SimpleNamespace(input_batch=SimpleNamespace(block_table=[table]))
    backend = RecordedBackend(mixed=True) if shape.mixed else parts.backend()
    graphs = DraftGraphs(
        proposer,
        mode=shape.mode,
        backend=backend,
        check=True,
        facts=Facts(
            num_speculative_tokens=shape.k,
            drafter=drafter_of(proposer),
            platform=backend.platform,
            untried=True,
            probabilistic=bool(shape.sampled),
        ),
    )
    before = proposer.model.kv_cache.clone()
    graphs.capture(runner)
    told = graphs.withdrawn or overlay_effects.effects()
    assert graphs.captured is not None, f"nothing was captured: {told}"
    assert torch.equal(proposer.model.kv_cache, before), "the capture wrote the KV cache"
    return graphs


def make_batch(shape: Shape, dice: random.Random, parts: Parts) -> dict[str, Any]:
    """Arguments of `propose` for random requests."""
    # Over fifty lines: draws depend on one another, in one order for every seed.
    reqs = dice.randint(1, shape.max_num_seqs)
    lengths = parts.lengths(shape, dice, reqs)
    free = dice.sample(range(1, BLOCKS), BLOCKS - 1)
    table = torch.zeros(reqs, WIDTH, dtype=torch.int32)
    seq_lens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for row, length in enumerate(lengths):
        # dflash has K+1 queries behind the last token.
        ahead = shape.k + (shape.method == "dflash")
        seen = dice.randint(length, LONGEST - ahead)
        blocks = [free.pop() for _ in range(-(-(seen + ahead) // BLOCK))]
        table[row, : len(blocks)] = torch.tensor(blocks)
        seq_lens.append(seen)
        places = range(seen - length, seen)
        positions += places
        slots += [blocks[place // BLOCK] * BLOCK + place % BLOCK for place in places]
        if not free or len(free) < 2 * WIDTH:
            reqs = row + 1
            break
    lengths, table = lengths[:reqs], table[:reqs]
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
    tokens = int(ends[-1])
    rejected = last = None
    # Ranges end before drafted tokens: a graph could serve one only where nothing was drafted.
    if dice.random() < (0.4 if shape.ranges else 0.8):
        rejected = torch.tensor(
            [dice.randint(0, min(shape.k, length - 1)) for length in lengths], dtype=torch.int32
        )
        last = ends[1:] - 1 - rejected
    places_all = torch.tensor(positions)
    if shape.mrope or shape.target_mrope:
        shift = torch.tensor([[0], [3], [7]])
        # Rows that are padding later hold them still, and no model has seen what lies beyond.
        places_all = (places_all[None] + shift).clamp(max=LONGEST - 1)
    # What a draft model of its own gets is the target's, of any width, and not used.
    width = {"eagle3": 3, "dflash": 3, "draft_model": 5}.get(shape.method, 1) * HIDDEN
    generator = torch.Generator().manual_seed(dice.randrange(1 << 30))
    common = CommonAttentionMetadata(
        query_start_loc=ends,
        query_start_loc_cpu=ends.clone(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(seq_lens, dtype=torch.int32),
        num_reqs=reqs,
        num_actual_tokens=tokens,
        max_query_len=max(lengths),
        max_seq_len=max(seq_lens),
        block_table_tensor=table,
        slot_mapping=torch.tensor(slots),
        causal=True,
    )
    if shape.ranges and dice.random() < 0.5:
        # No image reaches into drafted tokens, which may be rejected.
        ahead = 1 if rejected is None else 1 + shape.k
        common.mm_req_doc_ranges = {
            row: [(dice.randint(0, seen - 1 - ahead), seen - ahead)]
            for row, seen in enumerate(seq_lens)
            if seen > ahead
        }
    return {
        "num_speculative_tokens": dice.randint(1, shape.k) if shape.dynamic_k else shape.k,
        "target_token_ids": torch.randint(0, VOCAB, (tokens,), generator=generator).int(),
        "target_positions": places_all,
        "target_hidden_states": torch.randn(tokens, width, generator=generator),
        "next_token_ids": torch.randint(0, VOCAB, (reqs,), generator=generator).int(),
        "token_indices_to_sample": last,
        "common_attn_metadata": common,
        "sampling_metadata": twin_sampling.metadata(shape, dice, reqs),
        "mm_embed_inputs": ([], torch.zeros(tokens, dtype=torch.bool))
        if shape.multimodal
        else None,
        "num_rejected_tokens_gpu": rejected,
    }


def cloned(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with memory of its own."""
    return {name: copy.deepcopy(value) for name, value in batch.items()}


def tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors of a batch by name."""
    common = vars(batch["common_attn_metadata"])
    inputs = {**batch, **common}
    return {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}


def counted(used: Counter[str], name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock`, with its answers counted."""

    def call(**kwargs: Any) -> Any:
        result = stock(**kwargs)
        used[f"{name} {'used' if result is not None else 'declined'}"] += 1
        return result

    return call


def draft(proposer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Call `propose`, which until 0.23 has K as an attribute only."""
    known = inspect.signature(proposer.propose).parameters
    proposer.num_speculative_tokens = batch["num_speculative_tokens"]
    drafts: torch.Tensor = proposer.propose(
        **{name: value for name, value in batch.items() if name in known}
    )
    return drafts


def run_shape(
    shape: Shape, cases: int, dice: random.Random, parts: Parts | None = None
) -> dict[str, int]:
    """Draft `cases` batches both ways. Raises AssertionError at the first that differs."""
    # Over fifty lines: both sides of a comparison, step by step.
    config = VllmConfig()
    config.model_config = SimpleNamespace(uses_mrope=shape.mrope or shape.target_mrope)
    parts = parts or Parts()
    used: Counter[str] = Counter()
    with (
        set_current_vllm_config(config),
        torch.inference_mode(),
        twin_sampling.noise(shape),
    ):
        proposer = make_proposer(shape, config, parts)
        graphs: Any = make_graphs(shape, proposer, parts)
        parts.inspect(graphs)
        graphs.propose = counted(used, "propose", graphs.propose)
        graphs.later_steps = counted(used, "later_steps", graphs.later_steps)
        sizes = {key.num_reqs for key in proposer.cudagraph_dispatcher.draft_keys}
        cache = proposer.model.kv_cache
        cache.normal_(generator=torch.Generator().manual_seed(1))
        for case in range(cases):
            batch = make_batch(shape, dice, parts)
            reqs = batch["next_token_ids"].shape[0]
            if not twin_sampling.comparable(shape, sizes, reqs):
                continue
            before = cache.clone()
            proposer.draft_graphs = None
            torch.manual_seed(case)
            expected = draft(proposer, cloned(batch))
            theirs = positions_beyond(proposer.model)
            probs = proposer._last_draft_probs
            upstream, _ = cache.clone(), cache.copy_(before)
            proposer.draft_graphs, before_call = graphs, used["propose used"]
            mine = cloned(batch)
            leave_stale_positions(graphs)
            torch.manual_seed(case)
            drafts = draft(proposer, mine)
            where = f"case {case} of {shape}, {reqs} requests"
            beyond = positions_beyond(proposer.model)
            # With rotary positions in three rows upstream's own go beyond the longest.
            assert beyond <= theirs, (
                f"{where}: {beyond} positions beyond the longest, {theirs} of upstream"
            )
            assert torch.equal(drafts, expected), f"{where}: {drafts} is not {expected}"
            own = proposer._last_draft_probs
            twin_sampling.require_equal_probabilities(shape, own, probs, where)
            assert torch.allclose(cache[1:], upstream[1:], atol=1e-4), f"{where}: KV cache"
            if used["propose used"] > before_call:
                assert torch.equal(cache[0], before[0]), f"{where}: the null block was written"
                for name, tensor in tensors(mine).items():
                    assert torch.equal(tensor, tensors(batch)[name]), f"{where}: wrote {name}"
    return dict(used)


def leave_stale_positions(graphs: Any) -> None:
    """Let static positions that the next batch does not stage be near the longest.

    What is counted on from them runs over it.
    """
    positions = graphs.captured.buffers.target_positions
    if positions is not None:
        positions.fill_(LONGEST - 1)


def positions_beyond(model: Any) -> int:
    """How many positions beyond the longest a model was given since this was last asked."""
    given = int(model.beyond)
    model.beyond.zero_()
    return given


@functools.cache  # vLLM looks through all modules for whoever holds a kernel
def use_cpu_kernels() -> None:
    """Let the drafters' kernels run on CPU, as vLLM's worker for CPU does."""
    current_platform.import_kernels()
    register = getattr(current_platform, "register_triton_kernel_overrides", None)
    if register is not None:
        register()
        return
    # Until 0.31 or so the CPU's model runner puts its kernels into the modules.
    from vllm.utils import cpu_triton_utils
    from vllm.v1.spec_decode import utils

    name = "eagle_step_slot_mapping_metadata_kernel"
    setattr(utils, name, AnyGrid(getattr(cpu_triton_utils, f"_{name}_impl")))
    use_expanding_kernels()
    use_dispatched_kernels()


def alone() -> None:
    """Let this process draft without a process group, on one core, with the CPU's kernels."""
    use_cpu_kernels()
    from vllm.v1.spec_decode.draft_graphs import ranks

    ranks.all_ranks_agree = lambda yes, **_: yes  # no process group here
    ranks.even_out_recorded_all_reduces = lambda backend: None
    ranks.writes_log = lambda: False
    torch.set_num_threads(1)


def main() -> None:
    """Run all shapes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a shape as Python prints it")
    arguments = parser.parse_args()
    alone()
    used: dict[str, Counter[str]] = {}
    for number, shape in enumerate(SHAPES):
        if arguments.only not in str(shape):
            continue
        dice = random.Random(arguments.seed * 1000 + number)
        counts = run_shape(shape, arguments.cases, dice)
        used.setdefault(drafter_name(shape), Counter()).update(counts)
    print("TWIN " + json.dumps(used))


if __name__ == "__main__":
    main()
