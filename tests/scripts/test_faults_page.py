"""The page of faults is what the features say."""

from __future__ import annotations

from scripts import render_faults


def test_the_page_is_what_the_features_and_the_table_say() -> None:
    assert render_faults.PAGE.read_text(encoding="utf-8") == render_faults.render()
