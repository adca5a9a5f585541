"""While serving, the module copies nothing to or from the host, and waits for no value.

All that lies on the device is put on PyTorch's `meta` device, whose tensors have no values to be
read and cannot be copied elsewhere; what lies on the host stays there. So whatever would cross
between them raises, or is an operator with tensors on both. Needs vLLM, and runs no engine.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.drafters import SHAPE, Drafter
from tests.draft_graphs.twin_model import HIDDEN
from tests.gpu.operator_watch import OperatorWatch

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.v1.spec_decode.draft_graphs import staging, upstream

pytestmark = pytest.mark.usefixtures("one_rank")

#: Of vLLM's metadata and of the buffers, what is on the host on a GPU, too.
ON_HOST = ("query_start_loc_cpu", "seq_lens_cpu_upper_bound", "seq_lens_bound")


def to_device(value: Any) -> Any:
    """The tensors of a value, on the device."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, dict):
        return {key: to_device(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        moved = {name: to_device(each) for name, each in fields.items() if name not in ON_HOST}
        return replace(value, **moved)
    return value


class OnDevice:
    """A drafter whose captured graphs do nothing and whose tensors lie on the device."""

    def __init__(self, mode: str) -> None:
        self.drafter = Drafter(replace(SHAPE, mode=mode))
        self.drafter.capture()
        captured = self.drafter.graphs.captured
        captured.graphs = dict.fromkeys(captured.graphs, SimpleNamespace(replay=lambda: None))
        for owner in (self.drafter.proposer, captured.buffers):
            for name, value in vars(owner).items():
                if isinstance(value, (torch.Tensor, dict)) and name not in ON_HOST:
                    setattr(owner, name, to_device(value))
        # The graphs read those that are on the device now.
        captured._proposer_buffers = upstream.proposer_buffers(self.drafter.proposer)
        self.operators: Counter[str] = Counter()
        self.host: Counter[str] = Counter()

    def watched(self, entry: Any, arguments: dict[str, Any]) -> Any:
        moved = {name: to_device(value) for name, value in arguments.items()}
        with OperatorWatch(self.operators, self.host):
            return entry(**moved)

    def propose(self, reqs: int, **changes: Any) -> Any:
        arguments = {**self.drafter.batch(reqs), **changes}
        return self.watched(self.drafter.graphs.propose, arguments)

    def later_steps(self, rejected: Any) -> Any:
        batch = self.drafter.batch(3)
        shared = ("common_attn_metadata", "sampling_metadata")
        arguments = {
            "draft_token_ids": torch.tensor([1, 2, 3]),
            "positions": torch.tensor([4, 5, 6]),
            "hidden_states": torch.zeros(3, HIDDEN),
            "num_rejected_tokens_gpu": rejected,
            **{name: batch[name] for name in shared},
        }
        return self.watched(self.drafter.graphs.later_steps, arguments)


@pytest.mark.parametrize("mode", ["loop", "step"])
def test_nothing_crosses_between_host_and_device(mode: str) -> None:
    device = OnDevice(mode)
    for reqs in (1, 2, 3, 4):
        ends = torch.arange(1, reqs + 1, dtype=torch.int32) * (SHAPE.k + 1) - 1
        for changes in (
            {},
            {
                "num_rejected_tokens_gpu": torch.zeros(reqs, dtype=torch.int32),
                "token_indices_to_sample": ends,
            },
        ):
            assert device.propose(reqs, **changes).shape == (reqs, SHAPE.k)
    for rejected in (None, torch.zeros(3, dtype=torch.int32)):
        assert device.later_steps(rejected).shape == (3, SHAPE.k)
    assert device.operators["aten._foreach_copy_.default"] == 2 * 8 + 2
    assert not device.host


def test_a_copy_through_the_host_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = staging._cut
    monkeypatch.setattr(staging, "_cut", lambda tensor, length: stock(tensor, length).cpu())
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        OnDevice("loop").propose(2)


def test_a_copy_from_the_host_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device = OnDevice("loop")
    device.propose(2)
    (first,) = device.drafter.graphs.replay.first_staging.values()
    first.rows.no_rejected = torch.zeros(2, dtype=torch.int32)
    assert not device.host
    device.propose(2, num_rejected_tokens_gpu=None)
    assert device.host


@pytest.mark.parametrize("inference", [True, False])
def test_a_value_that_is_read_is_seen(inference: bool) -> None:
    for read in (lambda tensor: tensor.item(), int, bool):
        host: Counter[str] = Counter()
        with torch.inference_mode(inference):
            value = torch.ones(1)
            with OperatorWatch(Counter(), host):
                read(value)
        assert host
