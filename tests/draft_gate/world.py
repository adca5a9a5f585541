"""A step's end as a release's runner has it, from its sampled tokens to the drafts.

The runner's own functions, patched or not; the drafter is a double that notes what it is handed.
Needs vLLM.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
from dataclasses import dataclass
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

from tests.batched_bookkeeping.releases import compiled, method, torch
from tests.context_limit.world import runner_text
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-gate")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker import draft_gate

RUNNER = "GPUModelRunner"
K, LIMIT, VOCABULARY, BLOCKS = 3, 48, 5, 8
METHODS = ("sample_tokens", "propose_draft_token_ids", "_input_fits_in_drafter")


@functools.cache
def functions(release: str, features: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The functions of a release's runner, and the names of a step's state between its halves."""
    text = runner_text(release, features)
    nodes = [method(text, RUNNER, name) for name in METHODS if f"def {name}(" in text.decode()]
    names: dict[str, Any] = {
        name: type(name, (), {})
        for node in nodes
        for name in {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        if not hasattr(builtins, name)
    }
    names |= {
        "torch": torch,
        "record_function_or_nullcontext": lambda _: contextlib.nullcontext(),
        "ModelRunnerOutput": SimpleNamespace,
        "hasattr": hasattr,
    }
    for node in nodes:
        node.decorator_list = []
    state = next(
        [each.id for each in node.targets[0].elts if isinstance(each, ast.Name)]
        for node in ast.walk(nodes[0])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        if ast.unparse(node.value) == "self.execute_model_state"
    )
    return compiled(release, nodes, names), state


@dataclass
class Step:
    """What is to be drafted for.

    :ivar lengths: of each request, with the tokens of the step; :ivar counts: those tokens.
    :ivar drafter: the class of the drafter.
    :ivar verified: whether the step verified drafts.
    """

    lengths: list[int]
    counts: list[int]
    drafter: str = "EagleProposer"
    verified: bool = False

    @property
    def room(self) -> int:
        """How long a request may be that is drafted for."""
        return LIMIT - K - (self.drafter == "DFlashProposer")

    @property
    def fits(self) -> list[bool]:
        return [length <= self.room for length in self.lengths]


class Drafted(SimpleNamespace):
    """What became of a step.

    :ivar handed: what the drafter was handed, by name; None if it was not asked.
    :ivar drafts: of each request; :ivar chances: of each draft, or None.
    """


class Drafter:
    """Notes what it is handed, and drafts 1, 2, 3 for each request."""

    def __init__(self, step: Step) -> None:
        self.method = "dflash" if step.drafter == "DFlashProposer" else "eagle3"
        self.needs_extra_input_slots = step.drafter == "DraftModelProposer"
        self.supports_mm_inputs = False
        self.handed: dict[str, Any] | None = None
        self.step = step

    def prepare_next_token_ids_padded(self, *_: Any) -> Any:
        ones = torch.ones(len(self.step.lengths), dtype=torch.int32)
        return ones, ones

    def prepare_inputs_padded(self, metadata: Any, *_: Any) -> Any:
        made = metadata.replace(max_query_len=max(self.step.counts))
        return made, torch.zeros(2), torch.zeros(len(self.step.lengths))

    def propose(self, **handed: Any) -> Any:
        self.handed = handed
        return torch.arange(1, K + 1).repeat(len(self.step.lengths), 1)

    def take_last_draft_probs(self) -> Any:
        return torch.full((len(self.step.lengths), K, VOCABULARY), 1 / VOCABULARY)


def metadata_of(step: Step) -> Any:
    """vLLM's metadata of a step."""
    starts = torch.tensor([0, *step.counts]).cumsum(0).int()
    rows = len(step.lengths)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(step.lengths, dtype=torch.int32),
        num_reqs=rows,
        num_actual_tokens=sum(step.counts),
        max_query_len=max(step.counts),
        max_seq_len=max(step.lengths),
        block_table_tensor=torch.arange(1, rows * BLOCKS + 1, dtype=torch.int32).view(rows, -1),
        slot_mapping=torch.arange(sum(step.counts)),
    )


def places(step: Step) -> Any:
    """The position of each token."""
    rows = zip(step.lengths, step.counts, strict=True)
    return torch.tensor(
        [place for length, count in rows for place in range(length - count, length)]
    )


def draft(release: str, features: tuple[str, ...], step: Step) -> Drafted:
    """End a step; nothing that the runner keeps is written but the drafts.

    :raises AssertionError: if something is.
    """
    made, state = functions(release, features)
    known, metadata, positions = dict(made), metadata_of(step), places(step)
    drafter: Any = type(step.drafter, (Drafter, made.get(step.drafter, object)), {})(step)
    runner: Any = mock.MagicMock(
        drafter=drafter,
        num_spec_tokens=K,
        effective_drafter_max_model_len=LIMIT,
        max_model_len=4 * LIMIT,
        use_async_scheduling=False,
        routed_experts_initialized=False,
        use_aux_hidden_state_outputs=False,
        device="cpu",
        optimistic_seq_lens_cpu=torch.tensor([*step.lengths, 0, 0], dtype=torch.int32),
        input_batch=mock.MagicMock(num_reqs=len(step.lengths), req_ids=["r"] * len(step.lengths)),
        speculative_config=speculation(step),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, data_parallel_size=1),
        _get_positions=lambda count: positions[:count],
    )
    for name in METHODS:
        if name in known:
            setattr(runner, name, MethodType(known[name], runner))
    runner._sample.return_value.sampled_token_ids = torch.ones(len(step.lengths), 1)
    runner._bookkeeping_sync.return_value = [None] * _kept(release, features)
    runner.draft_gate = draft_gate.DraftGate(runner)
    given = dict.fromkeys(state) | {
        "scheduler_output": mock.MagicMock(total_num_scheduled_tokens=sum(step.counts)),
        "spec_decode_metadata": mock.MagicMock() if step.verified else None,
        "spec_decode_common_attn_metadata": metadata,
        "hidden_states": torch.zeros(sum(step.counts), 2),
    }
    runner.execute_model_state = tuple(given[name] for name in state)
    runner.sample_tokens(None)
    fresh = metadata_of(step)
    assert vars(metadata).keys() == vars(fresh).keys()
    for name, value in vars(fresh).items():
        kept = getattr(metadata, name)
        assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value, name
    assert torch.equal(positions, places(step))
    chances = runner._draft_probs
    return Drafted(
        handed=drafter.handed,
        drafts=runner._draft_token_ids.tolist(),
        chances=chances if isinstance(chances, torch.Tensor) else None,
    )


def speculation(step: Step) -> Any:
    """vLLM's configuration of the drafter."""
    dflash = step.drafter == "DFlashProposer"
    model = step.drafter == "DraftModelProposer"
    return SimpleNamespace(
        method="dflash" if dflash else "draft_model" if model else "eagle3",
        disable_padded_drafter_batch=False,
        use_eagle=lambda: not model,
        use_dflash=lambda: dflash,
        uses_draft_model=lambda: model,
        uses_extract_hidden_states=lambda: False,
        use_ngram_gpu=lambda: False,
        use_gemma4_mtp=lambda: False,
    )


@functools.cache
def _kept(release: str, features: tuple[str, ...]) -> int:
    """How many things the release's bookkeeping gives."""
    node = method(runner_text(release, features), RUNNER, "sample_tokens")
    return next(
        len(each.targets[0].elts)
        for each in ast.walk(node)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Tuple)
        if ast.unparse(each.value).startswith("self._bookkeeping_sync(")
    )
