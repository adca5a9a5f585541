"""The mutations of the address check: what it forgets, a sabotage replaces, and nothing says so."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import Engine, Mutation, one

_KEYWORDS = "keyword argument[hidden_states]"
_METADATA = "attention metadata[...].seq_lens"
_NOT_COMPARED = one(
    "address_check.py",
    "AddressCheck.check",
    "self._compare(graph, name, address, current())",
    "None",
)


def _unread(what: str, old: str, sabotage: str, engine: Engine = "eagle3hid") -> Mutation:
    """A check that does not look at `what`, which all graphs read."""
    return Mutation(
        f"{what} are not checked",
        "hazard 15",
        one("address_check.py", "AddressCheck._read_by_all", old, "()"),
        "sabotage",
        engine=engine,
        sabotage=sabotage,
    )


CHECK_MUTATIONS = (
    Mutation(
        "handed tensors are not checked: an argument is replaced",
        "hazard 15",
        _NOT_COMPARED,
        "sabotage",
        sabotage=_KEYWORDS,
    ),
    Mutation(
        "handed tensors are not checked: a tensor inside metadata is replaced",
        "hazard 15",
        _NOT_COMPARED,
        "sabotage",
        sabotage=_METADATA,
    ),
    Mutation(
        "keyword arguments are not taken down",
        "hazard 15",
        one("passes.py", "Passes._run", 'self.observe("keyword argument", inputs)', "None"),
        "sabotage",
        sabotage=_KEYWORDS,
    ),
    Mutation(
        "keyword arguments are kept, not made again for each check",
        "hazard 15",
        one(
            "address_check.py",
            "_argument",
            "return ...",
            "kept = passes.inputs(tokens).get(name)\nreturn lambda: kept",
        ),
        "sabotage",
        sabotage=_KEYWORDS,
    ),
    Mutation(
        "metadata is not taken down",
        "hazard 15",
        one("passes.py", "Passes._run", 'self.observe("attention metadata", metadata)', "None"),
        "sabotage",
        sabotage=_METADATA,
    ),
    Mutation(
        "the check does not look into metadata objects",
        "hazard 15",
        one("address_check.py", "tensors_in", "dataclasses.is_dataclass(value)", "False"),
        "sabotage",
        sabotage=_METADATA,
    ),
    Mutation(
        "the proposer's tensors are not checked",
        "hazard 15",
        one(
            "address_check.py",
            "AddressCheck._read_by_all",
            "upstream.proposer_buffers(proposer).items()",
            "()",
        ),
        "audit",
        says="wrote KV slots",
        sabotage="proposer._slot_mapping_buffer",
    ),
    _unread("the draft buffers", "self._buffers.tensors().items()", "draft buffer target_hidden"),
    _unread(
        "attention groups",
        "(group, group.get_metadata_builder())",
        "attention group 0 AttentionGroup.kernel_block_table",
        "kernel blocks",
    ),
)
