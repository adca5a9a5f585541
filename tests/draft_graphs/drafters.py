"""One drafter's proposer and draft graphs without an engine, and what the log says of them.

It is the proposer of `upstream_twin.py`, with recordings for graphs. Needs vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-graphs")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.spec_decode.draft_graphs import (
    draft_graphs,
    hooks,
    policy,
    ranks,
    replay,
    same_settings,
)

from tests.draft_graphs import upstream_twin as twin
from tests.draft_graphs.recorded_backend import RecordedBackend
from tests.draft_graphs.twin_model import HIDDEN, WIDTH, Shape

SHAPE = Shape(k=3, mode="auto", max_num_seqs=6, max_capture_tokens=16)
#: Requests of its graphs, by role.
FIRST, LATER = [1, 2, 4], [1, 2, 4, 6]


class Drafter:
    """A proposer and its draft graphs, not captured yet."""

    def __init__(self, shape: Any = SHAPE, **facts: Any) -> None:
        """:param facts: of the policy."""
        self.shape = shape
        config = VllmConfig()
        config.model_config = SimpleNamespace(uses_mrope=False)
        self.proposer = twin.make_proposer(shape, config, twin.Parts())
        self.backend = RecordedBackend(mixed=shape.mixed)
        table = SimpleNamespace(get_device_tensor=lambda rows: torch.zeros(rows, WIDTH))
        self.runner = SimpleNamespace(input_batch=SimpleNamespace(block_table=[table]))
        self.graphs: Any = draft_graphs.DraftGraphs(
            self.proposer,
            mode=shape.mode,
            backend=self.backend,
            check=False,
            facts=policy.Facts(num_speculative_tokens=shape.k, **facts),
        )

    def capture(self) -> None:
        self.graphs.capture(self.runner)

    @property
    def keys(self) -> list[str]:
        captured = self.proposer.cudagraph_dispatcher.draft_keys
        return [f"{key.role} {key.num_reqs}" for key in captured]

    def batch(self, reqs: int = 3) -> dict[str, Any]:
        """A uniform batch that a graph holds; smaller if the KV cache is."""
        # Short rows of a table.
        lengths: Callable[..., list[int]] = lambda shape, dice, _: [shape.k + 1] * reqs  # noqa: E731
        dice = mock.Mock(wraps=random.Random(0))
        dice.randint.side_effect = [reqs, *[8] * reqs, *[0] * reqs]
        dice.random.return_value = 0.0
        return twin.make_batch(self.shape, dice, replace(twin.Parts(), lengths=lengths))

    def propose(self, **changes: Any) -> Any:
        return self.graphs.propose(**{**self.batch(), **changes})

    def later_steps(self, **changes: Any) -> Any:
        """:param changes: of the arguments; ``requests`` is how many there are, else three."""
        reqs = changes.pop("requests", 3)
        batch = self.batch(reqs)
        arguments = {
            "draft_token_ids": torch.arange(1, reqs + 1),
            "positions": torch.arange(4, reqs + 4),
            "hidden_states": torch.zeros(reqs, HIDDEN),
            "num_rejected_tokens_gpu": None,
        }
        shared = ("common_attn_metadata", "sampling_metadata")
        return self.graphs.later_steps(
            **{**arguments, **{name: batch[name] for name in shared}, **changes}
        )


@contextmanager
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process, one rank, which writes the log."""
    twin.use_cpu_kernels()
    monkeypatch.setattr(ranks, "all_ranks_agree", lambda yes, **_: yes)
    monkeypatch.setattr(ranks, "even_out_recorded_all_reduces", lambda backend: None)
    monkeypatch.setattr(ranks, "writes_log", lambda: True)
    monkeypatch.setattr(ranks, "differences", lambda plan: [])
    monkeypatch.setattr(same_settings, "require_equal_settings", lambda mine, **_: None)
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        yield


def listen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the module will have said, with its level."""
    lines: list[str] = []

    def say(level: str) -> Callable[..., None]:
        return lambda text, *values, **_: lines.append(f"{level} {text % values}")

    for module in (hooks, draft_graphs, replay):
        monkeypatch.setattr(module.logger, "info", say("INFO"))
        monkeypatch.setattr(module.logger, "warning", say("WARNING"))
    return lines
