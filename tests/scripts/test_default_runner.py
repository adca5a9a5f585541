"""README's table compares with the model runner that a release chooses by itself."""

from __future__ import annotations

import pytest
from packaging.version import Version

from overlay._features.vllm_defaults import Runs, models, runs
from scripts.default_runner import ENTRIES, HEAD, Entry, rows
from scripts.render_performance import RESULTS


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.measured} {entry.model}")
def test_the_runner_is_the_default_of_the_release_that_was_measured(entry: Entry) -> None:
    release = Version(entry.measured)
    whole = entry.model.startswith("every model")
    expected = Runs.YES if whole else Runs.SOME
    assert runs(entry.runner, release, {}) is expected
    rule = models(release)
    assert rule is not None
    assert whole or entry.model.split(",")[0] in (
        rule.v1 if entry.runner.value == "v1" else rule.v2
    )


def test_a_row_has_figures_of_its_release_and_a_release_within() -> None:
    table = rows(RESULTS)
    assert {len(row) for row in table} == {len(HEAD)}
    for entry, row in zip(ENTRIES, table, strict=True):
        first, last = (Version(text).release for text in entry.releases)
        assert first <= Version(entry.measured).release[:2] <= last
        assert row[-1].endswith(f"({entry.measured})")
        assert "{" not in row[-1]
