"""Tensors that somebody replaces after the capture, the old ones being kept alive elsewhere.

A graph goes on reading the old ones, on a GPU as here; only the module's address check can see it.
What the model holds is looked at without it: see `test_reads.py`. Each sabotage takes the proposer
and returns what undoes it.
"""

from __future__ import annotations

import gc
import re
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
    return proposer.draft_graphs.captured.buffers


def _metadata(proposer: Any) -> Undo:
    """As a builder that keeps its metadata objects and gives them other tensors.

    Here only the address check keeps them. If it does not, there is none to be changed.
    """
    from tests.draft_graphs import graph_safe_attention

    captured = _buffers(proposer).seq_lens.untyped_storage().data_ptr()
    tables = [
        (each, each.seq_lens)
        for each in gc.get_objects()
        if type(each) is graph_safe_attention.GraphSafeMetadata
        and each.seq_lens.untyped_storage().data_ptr() == captured
    ]
    for metadata, old in tables:
        metadata.seq_lens = old.clone()

    def undo() -> None:
        for metadata, old in tables:
            metadata.seq_lens = old

    return undo


def _keyword_argument(proposer: Any) -> Undo:
    """As a proposer that hands a copy of its hidden states to the model."""
    stock = proposer.build_model_inputs_first_pass

    def build(*args: Any, **kwargs: Any) -> Any:
        arguments, *rest = stock(*args, **kwargs)
        return ({**arguments, "hidden_states": arguments["hidden_states"].clone()}, *rest)

    proposer.build_model_inputs_first_pass = build

    def undo() -> None:
        del proposer.build_model_inputs_first_pass

    return undo


def _offsets(proposer: Any) -> Undo:
    offsets = _buffers(proposer).query_start_loc
    length = max(offsets)
    old: torch.Tensor = offsets[length]
    offsets[length] = old.clone()

    def undo() -> None:
        offsets[length] = old

    return undo


#: By what the address check must name; "..." is for anything.
SABOTAGES: dict[str, Sabotage] = {
    "proposer.input_ids": _attribute(_proposer, "input_ids"),
    "proposer.positions": _attribute(_proposer, "positions"),
    "proposer.hidden_states": _attribute(_proposer, "hidden_states"),
    "proposer._slot_mapping_buffer": _attribute(_proposer, "_slot_mapping_buffer"),
    "draft buffer seq_lens": _attribute(_buffers, "seq_lens"),
    "draft buffer target_hidden": _attribute(_buffers, "target_hidden"),
    "draft buffer query_start_loc": _offsets,
    "attention group 0 AttentionGroup.kernel_block_table": _attribute(
        lambda proposer: proposer.draft_attn_groups[0], "kernel_block_table"
    ),
    "keyword argument[hidden_states]": _keyword_argument,
    "attention metadata[...].seq_lens": _metadata,
}


def is_named(name: str, error: str | None) -> bool:
    """Whether the address check has stopped the run, and named what the sabotage replaced."""
    error = error or ""
    named = re.search(".*".join(map(re.escape, name.split("..."))) + r".* was captured at", error)
    return error.startswith("AddressError") and named is not None


def engine_of(name: str) -> str:
    """The engine in which there is such a tensor: only smaller blocks of the kernel need a table
    of their own."""
    return "kernel blocks" if "kernel_block_table" in name else "eagle3hid"
