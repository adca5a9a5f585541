"""The bugs of comparing ranks, and of drafting beside micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from tests.draft_graphs.mutation_types import one
from tests.support.code_edits import Edit


@dataclass(frozen=True)
class SettingsMutation:
    """One bug in `same_settings.py` that `test_same_settings.py` must catch.

    :ivar changes: as in `mutation_types.Mutation`.
    """

    name: str
    changes: tuple[Edit, ...]


FILE = "same_settings.py"
SETTINGS_MUTATIONS = (
    SettingsMutation(
        "a rank reads only what it has said itself",
        one(
            FILE,
            "require_equal_settings",
            "_read(store, number, peers)",
            "_read(store, number, [own])",
        ),
    ),
    SettingsMutation(
        "ranks that say nothing are passed over",
        one(FILE, "require_equal_settings", "if silent:\n    ...", "pass"),
    ),
    SettingsMutation(
        "ranks that differ go on",
        one(FILE, "require_equal_settings", "if _differ(by_rank, groups):\n    ...", "pass"),
    ),
    SettingsMutation(
        "what was said of an earlier draft model is read again",
        one(FILE, "require_equal_settings", "int(store.add(...)) - 1", "0"),
    ),
    SettingsMutation(
        "only tensor-parallel ranks compare",
        one(FILE, "_groups", "map(int, get_dp_group().ranks) if data_parallel else [own]", "[own]"),
    ),
    SettingsMutation(
        "a data-parallel rank of another device stops the others",
        one(FILE, "_differ", "name != _DECIDED", "True"),
    ),
    SettingsMutation(
        "the mode is left out of the comparison",
        one(
            FILE,
            "differences",
            "if not unequal:\n    ...",
            "unequal = [name for name in unequal if name != MODE_VARIABLE]\nMATCH",
        ),
    ),
)

#: What shows that the features which let vLLM start are needed (`test_micro_batches.py`), and that
#: no graph is captured inside a micro-batch (`test_lifecycle.py`): name, and what shows it.
MICRO_BATCH_MUTATIONS = (
    ("a dummy run hands the drafter the slot mappings of its micro-batches (two ranks)", "error"),
    ("outputs of micro-batches are joined as if each were one tensor (two ranks)", "error"),
    ("outputs of micro-batches are joined in another order", "outputs"),
    ("the second micro-batch gets the attention metadata of the first", "outputs"),
    ("graphs are captured while a micro-batch is running", "use"),
)
