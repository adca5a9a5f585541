"""The figures that the pages give of patches that keep up with vLLM, beside what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.markdown import ROOT

RESULTS = ROOT / "bench/results"
DATE = "2026-11-23"


def measured(name: str) -> Any:
    return json.loads((RESULTS / f"{name}-{DATE}.json").read_text())


def percent(share: float, places: int = 0) -> str:
    return f"{100 * share:.{places}f}"


def page(name: str) -> str:
    """The text of a page, in one line."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def of_real_changes() -> list[str]:
    changes = measured("keeping-up")["real_changes"]
    asked = changes["hunks_refused_by_images"]
    first = asked["where upstream has it"]["up_to_3_releases"]["shown_as_upstreams"]
    merged = asked["before the merge"]["up_to_3_releases"]["placed_for_review"]
    assert {known["known"] for known in changes["recognised"].values()} == {1.0}
    assert changes["before"]["called_upstreamed"] == changes["applied_twice"] == 0
    return [
        f"with {changes['changes']} real changes",
        f"none of {changes['before']['pairs']:,} pairs",
        f"{percent(first)} % are shown as upstream's in the first releases",
        f"up to three releases before it, {percent(merged)} % are merged for review",
    ]


def of_merges() -> list[str]:
    document = measured("merges")
    together = document["together"]
    hunks, refused = together["hunks"], together["hunks_refused_by_images"]
    alone, placed = together["the_same_by_merge_alone"], together["placed"]
    made = refused["outcomes"]
    done = alone["outcomes"]["upstream"]
    rest = made["conflict"] + made["missing"]
    files = sum(fork["file_merges"] for fork in document["forks"].values())
    kept = placed["by_lines"], placed["by_statements"]
    return [
        f"{files} files that both the fork and upstream changed, {hunks['hunks']:,} hunks",
        f"{hunks['outcomes']['exact']:,} of them land exactly",
        f"once in its scope for {refused['hunks']}, ",
        f"{made['merged']} ({percent(refused['placed_for_review'], 1)} %) are merged for review",
        f"{made['upstream']} ({percent(refused['shown_as_upstreams'], 1)} %) are shown",
        f"{rest} ({percent(rest / refused['hunks'], 1)} %) are conflicts or their scope is gone",
        f"in {kept[0]['as_committed']} of the {kept[0]['hunks']} hunks that merge by lines",
        f"in {kept[1]['as_committed']} of the {kept[1]['hunks']} that only merge by statements",
        f"would place {alone['outcomes']['merged']} ({percent(alone['placed_for_review'])} %)",
        f"nothing left to do in {done} ({percent(alone['shown_as_upstreams'])} %)",
    ]


def of_times() -> list[str]:
    port = measured("keeping-up")["seconds"]["port --all of 13 features to 0.33.0"]
    commands = measured("keeping-up-commands")
    return [
        f"import of {commands['import']['hunks']} hunks takes {commands['import']['clock']:.1f} s",
        f"`port --all` of 13 features {port:.1f} s",
        f"`log --matrix` of 13 features on 19 releases {commands['log --matrix']['clock']:.1f} s",
    ]


@pytest.mark.parametrize("figures", [of_real_changes, of_merges, of_times])
def test_the_page_gives_what_was_measured(figures: Any) -> None:
    text = page("keeping-up.md")
    assert [part for part in figures() if part not in text] == []


def test_the_page_on_new_releases_gives_what_was_measured() -> None:
    replay = measured("keeping-up")["replay"]
    outcomes = replay["outcomes"]
    assert replay["hunks"] == sum(outcomes.values())
    text = page("new-release.md")
    assert f"Of the {replay['hunks']} steps" in text
    assert f"{outcomes['exact']} land without a person and {outcomes['conflict']} are" in text
