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
    before = asked["before the merge"]
    near, made = before["up_to_3_releases"], before["up_to_3_releases"]["outcomes"]
    conflicts, missing = (made[kind] / near["hunks"] for kind in ("conflict", "missing"))
    assert {known["known"] for known in changes["recognised"].values()} == {1.0}
    assert changes["before"]["called_upstreamed"] == changes["applied_twice"] == 0
    rest = (
        f"conflicts ({percent(conflicts)} %) or their scope is not there yet ({percent(missing)} %)"
    )
    return [
        f"with {changes['changes']} real changes",
        f"none of {changes['before']['pairs']:,} pairs",
        f"{percent(first)} % are shown as upstream's in the first releases",
        f"up to three releases before it, {percent(near['placed_for_review'])} % are merged for",
        f"for review, and the others are {rest}",
        f"{percent(before['all']['placed_for_review'])} % are merged for review",
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
    assert kept[1]["hunks"] - kept[1]["as_committed"] == 1
    owners = [name.partition("-vllm")[0] for name in document["forks"]]
    return [
        f"three public forks ({', '.join(owners[:-1])} and {owners[-1]})",
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
    read, matrix, machine = commands["import"], commands["log --matrix"], commands["machine"]
    size = f"{matrix['features']} features on {matrix['releases']} releases"

    def took(timing: Any) -> str:
        return f"{timing['clock']:.1f} s ({timing['cpu']:.1f} s of a processor)"

    return [
        f"import of {read['hunks']} hunks takes {took(read)}",
        f"`port --all` of 13 features {port:.1f} s",
        f"`log --matrix` of {size} {took(matrix)}",
        f"on {machine['cores']} cores that had other work, a load of {machine['load']}",
    ]


#: How well a release is answered for, by its letter in the figures: the best last.
RANKS = ("M", "c", "h", "3", "PU")


def rank(letter: str) -> int:
    return next(number for number, letters in enumerate(RANKS) if letter in letters)


def of_pulls() -> list[str]:
    document, carried = measured("pulls"), measured("keeping-up-commands")["edits by hand"]
    pulls = document["pulls"]
    assert [entry["pull"] for entry in pulls] == [entry["pull"] for entry in carried]
    assert {entry["edits"] for entry in carried} == {0}
    for pull in pulls:
        letters = list(zip(pull["expected"], pull["today"], strict=True))
        assert len(letters) == len(document["releases"])
        assert all(found == expected or rank(found) > rank(expected) for expected, found in letters)
    hunks = sorted(entry["hunks"] for entry in carried)
    words = {1: "one", 8: "eight", 13: "Thirteen"}
    how = f"{words[hunks[0]]} to {words[hunks[-1]]} hunks each"
    return [
        f"{words[len(pulls)]} pull requests of upstream, {how}, are imported without an edit",
        f"each of {len(document['releases'])} releases is answered for",
    ]


@pytest.mark.parametrize("figures", [of_real_changes, of_merges, of_pulls, of_times])
def test_the_page_gives_what_was_measured(figures: Any) -> None:
    text = page("appendix/keeping-up-figures.md")
    assert [part for part in figures() if part not in text] == []


def test_the_page_on_new_releases_gives_what_was_measured() -> None:
    replay = measured("keeping-up")["replay"]
    outcomes = replay["outcomes"]
    assert replay["hunks"] == sum(outcomes.values())
    text = page("new-release.md")
    assert f"Of the {replay['hunks']} steps" in text
    assert f"{outcomes['exact']} land without a person and {outcomes['conflict']} are" in text
