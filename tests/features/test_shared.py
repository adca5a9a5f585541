"""``patches/shared/``: modules that several features of a folder name, each kept once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay._features import folder as features
from overlay._features import sources
from overlay._features.model import Feature
from overlay._features.sources import shipped_folder
from overlay._features.switches import declarations
from overlay.errors import PatchFormatErrors
from overlay.planning import advice
from tests.support.patches import hunk, patch_text, write_feature

PATH, OTHER = "vllm/v1/both.py", "vllm/v1/other.py"
PATCH = patch_text("vllm/a.py", hunk([" a", "+b"], "f"))
TOPIC = "01-x/0.20.0..0.33.0.patch"


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Two features that share a module, one that shares another, and one that shares none."""
    for path, text in ((PATH, "BOTH = 1\n"), (OTHER, "OTHER = 1\n")):
        place = tmp_path / "shared/files" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    for id_, named in (("first", PATH), ("second", PATH), ("third", OTHER)):
        own = {f"files/vllm/v1/{id_}.py": f"ID = {id_!r}\n"}
        write_feature(tmp_path, own, id=id_, toml=f'shared = ["{named}"]')
    write_feature(tmp_path, {"files/vllm/v1/alone.py": "ALONE = 1\n"}, id="alone")
    return tmp_path


def read(folder: Path) -> dict[str, Feature]:
    return {feature.id: feature for feature in features.load([folder])}


def malformed(folder: Path) -> dict[str, list[str]]:
    loaded = features.load_all([folder])
    return {each.id: list(map(str, each.errors)) for each in loaded.malformed}


def test_a_shared_module_is_added_as_if_it_lay_in_the_features_own_files(
    patches: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = read(patches)["first"]
    apart = tmp_path_factory.mktemp("apart")
    files = {f"files/{PATH}": "BOTH = 1\n", "files/vllm/v1/first.py": "ID = 'first'\n"}
    write_feature(apart, files, id="first")
    own = read(apart)["first"]
    assert [module.path for module in shared.added] == [PATH, "vllm/v1/first.py"]
    assert (shared.added, shared.digest) == (own.added, own.digest)
    assert (shared.shared, own.shared) == ((PATH,), ())
    assert shared.shared_modules() == {PATH: b"BOTH = 1\n"}


def test_a_feature_of_shared_modules_alone_is_one(patches: Path) -> None:
    write_feature(patches, {}, id="only", toml=f'shared = ["{OTHER}", "{PATH}"]')
    assert [module.path for module in read(patches)["only"].added] == [PATH, OTHER]


def test_a_changed_byte_changes_each_feature_that_names_the_module_and_no_other(
    patches: Path,
) -> None:
    before = read(patches)
    (patches / "shared/files" / PATH).write_text("BOTH = 2\n")
    after = read(patches)
    changed = {id_ for id_, each in after.items() if each.digest != before[id_].digest}
    noticed = {id_ for id_, each in after.items() if each.source != before[id_].source}
    assert changed == noticed == {"first", "second"}


def test_a_quick_look_at_a_feature_is_the_one_that_reading_it_takes(patches: Path) -> None:
    for id_, feature in read(patches).items():
        assert feature.source == sources.source_of(patches / id_, patches)
    alone = read(patches)["alone"].source
    assert alone == sources.fingerprint([str(patches / "alone")])


def test_the_shipped_features_name_every_shipped_shared_module() -> None:
    shipped = features.load([shipped_folder()])
    files = shipped_folder() / "shared/files"
    there = {path.relative_to(files).as_posix() for path in files.rglob("*.py")}
    named = [path for feature in shipped for path in feature.shared]
    assert {path for path in named if named.count(path) > 1} == there
    own = [module.path for each in shipped for module in each.added if module.path not in named]
    assert len(own) == len({*own}), "a module that two features add belongs into shared/"


def test_messages_name_the_place_of_a_shared_module(patches: Path) -> None:
    first = read(patches)["first"]
    assert advice.module_file(first, PATH) == f"{patches}/shared/files/{PATH}"
    assert advice.module_file(first, "vllm/v1/first.py").endswith("first/files/vllm/v1/first.py")


def test_a_feature_reports_its_effect_by_a_shared_module_too(patches: Path) -> None:
    effects = patches / "shared/files" / sources.EFFECTS_PATH
    effects.write_text("")
    write_feature(patches, {}, id="told", toml=f'shared = ["{sources.EFFECTS_PATH}"]')
    write_feature(patches, {}, id="word", toml=f'shared = "{sources.EFFECTS_PATH}"')
    reports = {each.id: each.reports for each in declarations([patches])}
    assert {id_ for id_, told in reports.items() if told} == {"told"}


def test_what_brings_features_in_leaves_the_shared_folder_where_it_is(patches: Path) -> None:
    """A feature is read from the switch of a killed command, and its shared modules beside it."""
    switch = patches / sources.SWITCH
    for part in ("new", "gone", "old"):
        (switch / part).mkdir(parents=True)
    os.rename(patches / "first", switch / "new/first")
    assert read(patches)["first"].shared_modules() == {PATH: b"BOTH = 1\n"}


# What is malformed


def test_the_shared_folder_is_not_a_feature(patches: Path) -> None:
    (patches / "shared/README.md").write_text("words")
    (patches / "shared/.DS_Store").write_text("")
    (patches / "shared/__pycache__").mkdir()
    assert sources.is_shared(patches / "shared")
    assert malformed(patches) == {}
    assert sorted(read(patches)) == ["alone", "first", "second", "third"]


def test_a_feature_that_is_called_shared_is_told_that_it_cannot_be(patches: Path) -> None:
    write_feature(patches, {TOPIC: PATCH}, id="shared", toml="required = true")
    found = malformed(patches)
    assert list(found) == ["shared"]
    assert len(found["shared"]) == 2
    assert f"{patches}/shared/01-x: expected only files/" in found["shared"][0]
    assert all("another id" in error for error in found["shared"])
    assert [each.id for each in features.load_all([patches]).malformed if each.required]


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_only_a_folder_holds_shared_modules(patches: Path, kind: str) -> None:
    os.rename(patches / "shared", patches.parent / f"{patches.name}-elsewhere")
    if kind == "a file":
        (patches / "shared").write_text("")
    else:
        (patches / "shared").symlink_to(patches.parent / f"{patches.name}-elsewhere")
    found = malformed(patches)
    assert sorted(found) == ["first", "second", "shared", "third"]
    assert ("found none" if kind == "a file" else "symbolic link") in found["first"][0]
    assert [feature.id for feature in features.load_all([patches]).features] == ["alone"]


def _link(place: Path) -> None:
    os.rename(place, place.parent / "elsewhere")
    place.symlink_to(place.parent / "elsewhere")


def _in_place(place: Path, make: Callable[[Path], None]) -> None:
    place.unlink()
    make(place)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda files: (files / PATH).unlink(), "found none"),
    "a link": (lambda files: _link(files / PATH), "found a symbolic link"),
    "a link above": (lambda files: _link(files / "vllm"), "found a symbolic link"),
    "a link to files": (_link, "found a symbolic link"),
    "a pipe": (lambda files: _in_place(files / PATH, os.mkfifo), "a pipe"),
    "a folder": (lambda files: _in_place(files / PATH, Path.mkdir), "a folder"),
    "too large": (lambda files: os.truncate(files / PATH, 1 << 25), "at most"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_module_that_cannot_be_read_leaves_out_those_that_name_it(
    patches: Path, harm: str
) -> None:
    make, word = HARMS[harm]
    line = (patches / "first/feature.toml").read_text().split("\n").index(f'shared = ["{PATH}"]')
    make(patches / "shared/files")
    found = malformed(patches)
    assert {"first", "second"} <= set(found) <= {"first", "second", "third", "shared"}
    (error,) = found["first"]
    assert error.startswith(f"{patches}/first/feature.toml:{line + 1}: shared: expected a module")
    assert word in error
    assert error.endswith("lay it there, or take it out of the list")
    assert "alone" in {feature.id for feature in features.load_all([patches]).features}


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ('"vllm/v1/both.py"', "expected a list"),
        ("[1]", "expected a list"),
        ('["vllm/v1/both.py", "vllm/v1/both.py"]', "named twice"),
        ('["../first/files/vllm/v1/first.py"]', "'..' in it"),
        ('["vllm/../../../first/files/vllm/v1/first.py"]', "'..' in it"),
        ('["/etc/passwd"]', "not relative"),
        ('["vllm_ascend/a.py"]', "outside vllm/"),
        ('["vllm/v1/both.txt"]', "not a Python module"),
        ('["vllm/v1/.both.py"]', "would not be read"),
        ('["vllm/__pycache__/both.py"]', "would not be read"),
        ('["vllm/v1/first.py"]', "in the feature's own files/"),
        ('["vllm\\u002fv1/both.py"]', "written with escapes"),
    ],
)
def test_a_list_that_names_no_shared_module(patches: Path, value: str, word: str) -> None:
    for path in ("vllm/v1/.both.py", "vllm/__pycache__/both.py", "vllm/v1/first.py"):
        place = patches / "shared/files" / path
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    (patches / "first/feature.toml").unlink()
    own = {"files/vllm/v1/first.py": ""}
    write_feature(patches, own, id="first", toml=f"shared = {value}")
    found = malformed(patches)
    assert list(found) == ["first"]
    assert len(found["first"]) == 1
    assert word in found["first"][0]
    assert "feature.toml:6:" in found["first"][0]
    sources.source_of(patches / "first", patches)  # looks nowhere else, and does not fail


def test_no_topic_patches_a_shared_module(patches: Path) -> None:
    patch = patch_text(PATH, hunk([" a", "+b"], "f"))
    write_feature(patches, {TOPIC: patch}, id="third", toml=f'shared = ["{PATH}"]')
    with pytest.raises(PatchFormatErrors, match="which the feature adds"):
        features.load([patches])
