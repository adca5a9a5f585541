"""The bugs of the table of platforms and backends that `test_capabilities.py` must catch."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import UnitMutation, one

CAPABILITY_MUTATIONS = (
    UnitMutation(
        "a builder of another class is taken for the backend's own",
        "capabilities",
        one("capabilities.py", "backend_row", "builder == row.builder", "True"),
    ),
    UnitMutation(
        "a backend of another class is taken for vLLM's",
        "capabilities",
        one("capabilities.py", "backend_row", "backend in row.classes", "True"),
    ),
    UnitMutation(
        "FLASHINFER's native kernels are taken for TRTLLM-gen",
        "capabilities",
        one("capabilities.py", "backend_row", "kernel == row.kernel", "True"),
    ),
    UnitMutation(
        "what no GPU has shown is granted without the switch",
        "capabilities",
        one("attention.py", "refusals", "not untried", "False"),
    ),
    UnitMutation(
        "the switch grants what was read and refused",
        "capabilities",
        one("attention.py", "refusals", "shown == 'refused'", "shown == 'refused' and not untried"),
    ),
    UnitMutation(
        "a platform that no graph has run on counts as CUDA",
        "capabilities",
        one("attention.py", "evidence", "return ...", "return row.evidence"),
    ),
    UnitMutation(
        "what is captured untried is not told",
        "capabilities",
        one(
            "attention.py",
            "untried_grants",
            "each.row is not None and (shown := evidence(platform, each.row)) != 'gpu'",
            "False",
        ),
    ),
)
