"""Of the releases that the whole run leaves to ``--thorough``, none has a patch of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.covering import NAMES, PATCHES, chosen, each_release

FEATURES = sorted(
    folder.name
    for folder in PATCHES.iterdir()
    if (folder / "feature.toml").is_file() and not folder.name.startswith("ascend")
)


def served(patch: Path) -> set[str]:
    first, last = patch.stem.split("..")
    return set(NAMES[NAMES.index(first) : NAMES.index(last) + 1])


@pytest.mark.parametrize("feature", FEATURES)
def test_each_patch_of_a_feature_is_tried(feature: str) -> None:
    for patch in (PATCHES / feature).glob("*/*.patch"):
        assert served(patch) & chosen(feature), patch


def test_the_oldest_and_the_newest_are_always_tried() -> None:
    assert {NAMES[0], NAMES[-1]} <= chosen()


def test_each_release_is_a_parameter_and_some_are_marked() -> None:
    parameters = each_release("draft-graphs")
    assert tuple(each.id for each in parameters) == NAMES
    always = {each.id for each in parameters if not each.marks}
    assert always == chosen("draft-graphs")
    assert always < set(NAMES)
