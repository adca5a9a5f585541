"""Bugs of what knows where a graph's reads lie (`test_reads.py`), and of KV connectors."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import UnitMutation, one

_AGAIN = ("draft_graphs.py", "DraftGraphs._with_its_reads")

READS_MUTATIONS = (
    UnitMutation(
        "nobody looks where the reads lie",
        "weights",
        one("reads.py", "Reads.moved", "addresses != self._addresses", "False"),
    ),
    UnitMutation(
        "only parameters and buffers are looked at",
        "weights",
        one("reads.py", "links_of", "list(own)", "()"),
    ),
    UnitMutation(
        "only tensors that are attributes themselves are looked at",
        "weights",
        one("reads.py", "_inside", "isinstance(value, (dict, list, tuple))", "False")
        + one("reads.py", "_inside", 'getattr(value, "__dict__", None)', "None"),
    ),
    UnitMutation(
        "what an alias shows of its class is looked at",
        "weights",
        one("reads.py", "_inside", "isinstance(own, dict)", "own is not None"),
    ),
    UnitMutation(
        "what is shared with the target is not looked at",
        "weights",
        one(
            "capture.py",
            "Captured.read_now",
            "dict(proposer.model.named_modules())",
            "{n: m for n, m in proposer.model.named_modules() if 'head' not in n}",
        ),
    ),
    UnitMutation(
        "a module that was exchanged is not noticed",
        "weights",
        one("reads.py", "Reads.moved", "all(map(operator.is_, others, ...))", "True"),
    ),
    UnitMutation(
        "another layout at the same place is not noticed",
        "weights",
        one("reads.py", "Reads.moved", "strides != self._strides", "False"),
    ),
    UnitMutation(
        "numbers of the host are not compared",
        "weights",
        one("reads.py", "Reads.moved", "numbers != self._number_values", "False"),
    ),
    UnitMutation(
        "tensor-parallel ranks compare addresses alone",
        "weights on ranks",
        one("reads.py", "Reads.moved", "storages != self._storages", "False"),
    ),
    UnitMutation(
        "graphs are captured again, and go on with where the reads lay before",
        "weights",
        one(
            "capture.py",
            "capture_keys",
            "captured.reads = ...",
            "captured.reads = Reads({}, ranks_agree=False)",
        ),
    ),
    UnitMutation(
        "what moves with every batch is captured for ever",
        "weights",
        one(*_AGAIN, "self._captures_in_a_row == MOST_IN_A_ROW", "False"),
    ),
    UnitMutation(
        "later passes do not ask",
        "weights",
        one(
            "draft_graphs.py",
            "DraftGraphs.later_steps",
            "replay.captured.reads.moved()",
            "None",
        ),
    ),
    UnitMutation(
        "data-parallel ranks do not ask",
        "weights on ranks",
        one("draft_graphs.py", "DraftGraphs.vetoes", "self.replay.captured.reads.moved()", "None"),
    ),
)

CONNECTOR_MUTATIONS = (
    UnitMutation(
        "no connector is asked",
        "connectors",
        one("connectors.py", "acting_per_layer", "connector is not None", "False"),
    ),
    UnitMutation(
        "connectors below others are not asked",
        "connectors",
        one("connectors.py", "_acting", "for child in children:\n    ...", "pass"),
    ),
    UnitMutation(
        "only what saves counts",
        "connectors",
        one("connectors.py", "_acting", "METHODS", "METHODS[1:]"),
    ),
    UnitMutation(
        "connectors are known by their names",
        "connectors",
        one("connectors.py", "_does_nothing", "not isinstance(code, CodeType)", "True"),
    ),
    UnitMutation(
        "LMCache is taken at its word",
        "connectors",
        one("connectors.py", "_acting", 'getattr(engine, "use_layerwise", None) is False', "True"),
    ),
)
