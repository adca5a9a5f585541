"""Tensors that somebody replaces after the capture, the old ones being kept alive elsewhere.

A graph goes on reading the old ones, on a GPU as here; only the module's address check can see
it. Each sabotage takes the proposer and returns what undoes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Undo = Callable[[], None]
Sabotage = Callable[[Any], Undo]


def _attribute(find: Callable[[Any], Any], name: str) -> Sabotage:
    """Replace an attribute of what `find` finds by an equal tensor elsewhere."""

    def do(proposer: Any) -> Undo:
        owner = find(proposer)
        old = getattr(owner, name)
        setattr(owner, name, old.clone())
        return lambda: setattr(owner, name, old)

    return do


def _proposer(proposer: Any) -> Any:
    return proposer


def _buffers(proposer: Any) -> Any:
    return proposer.draft_graphs._captured.buffers


def _parameter(proposer: Any) -> Undo:
    """As reloading weights does it: new data under the old parameter."""
    # Packing for the CPU leaves some without memory.
    parameter = next(each for each in proposer.model.parameters() if each.numel())
    old = parameter.data
    parameter.data = old.clone()

    def undo() -> None:
        parameter.data = old

    return undo


def _kv_cache(proposer: Any) -> Undo:
    context = proposer.vllm_config.compilation_config.static_forward_context
    layer = context[proposer.draft_attn_groups[0].layer_names[0]]
    old = layer.kv_cache
    layer.kv_cache = old.clone()

    def undo() -> None:
        layer.kv_cache = old

    return undo


def _offsets(proposer: Any) -> Undo:
    offsets = _buffers(proposer).query_start_loc
    length = max(offsets)
    old: torch.Tensor = offsets[length]
    offsets[length] = old.clone()

    def undo() -> None:
        offsets[length] = old

    return undo


#: By what the address check must name.
SABOTAGES: dict[str, Sabotage] = {
    "proposer.input_ids": _attribute(_proposer, "input_ids"),
    "proposer.positions": _attribute(_proposer, "positions"),
    "proposer.hidden_states": _attribute(_proposer, "hidden_states"),
    "proposer._slot_mapping_buffer": _attribute(_proposer, "_slot_mapping_buffer"),
    "draft buffer seq_lens": _attribute(_buffers, "seq_lens"),
    "draft buffer target_hidden": _attribute(_buffers, "target_hidden"),
    "draft buffer query_start_loc": _offsets,
    "parameter": _parameter,
    "KV cache of": _kv_cache,
}
