"""Bugs that need an engine of their own kind, which `test_engine_graphs.py` has, or none at all."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import Mutation, UnitMutation, one

#: By `engine`, which is the name of the scenario that shows the bug.
SCENARIO_MUTATIONS = (
    Mutation(
        "a layer of the draft keeps the target's adapter",
        "LoRA",
        one("hooks.py", "create_draft_graphs", "adapters.take_off(...)", "()"),
        "error",
        says="does not broadcast",
        engine="LoRA",
    ),
    Mutation(
        "the blocks are those of KV-cache group 0",
        "groups",
        one(
            "replay.py",
            "Replay.propose",
            "block_table=cad.block_table_tensor",
            "block_table=self.captured.runner.input_batch.block_table[0].get_device_tensor(reqs)",
        )
        + one(
            "capture.py", "Captured.__init__", "self.blocks = ...", "MATCH\nself.runner = runner"
        ),
        "audit",
        says="wrote KV slots of others",
        engine="another KV-cache group",
    ),
)

#: Shown by `test_builders.py`.
BUILDER_MUTATIONS = (
    UnitMutation(
        "no builders are made for captures beside a target in PIECEWISE",
        "PIECEWISE",
        one("upstream.py", "make_builders_of_full_graphs", "...", "return None"),
    ),
    UnitMutation(
        "captures beside a target in PIECEWISE go on with its own builders",
        "PIECEWISE",
        one("capture.py", "Captured.capture", "self.builders", "None"),
    ),
)
