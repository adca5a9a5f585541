"""Patches folders with what editors, other users and attackers left in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from overlay._features import folder as features
from overlay._features import sources
from overlay.errors import PatchFormatErrors, UsageError
from tests.support.patches import hunk, patch_text, write_feature

PATCH = patch_text("vllm/a.py", hunk([" a", "+b"], "f"))


TOPIC = "01-x/0.20.0..0.33.0.patch"


def errors(*folders: Path) -> list[str]:
    with pytest.raises(PatchFormatErrors) as caught:
        features.load(folders)
    return [str(error) for error in caught.value.errors]


STRAYS = [
    *(".DS_Store", "01-x/x.patch~", "01-x/a..b.patch.orig", "01-x/a..b.patch.rej"),
    *("01-x/.0.20.0..0.33.0.patch.swp", "#notes#", "files/vllm/.#new.py", "Thumbs.db"),
]


@pytest.mark.parametrize("name", STRAYS)
def test_what_an_editor_leaves_is_named_and_ignored(tmp_path: Path, name: str) -> None:
    write_feature(tmp_path, {TOPIC: PATCH, "files/vllm/new.py": ""})
    (clean,) = features.load([tmp_path])
    assert clean.notices == ()
    (tmp_path / "demo" / name).symlink_to("nowhere")  # as the lock of an editor is
    (feature,) = features.load([tmp_path])
    assert [notice.path for notice in feature.notices] == [str(tmp_path / "demo" / name)]
    assert "ignored" in feature.notices[0].text
    assert replace(feature, notices=()) == clean  # its fingerprint too


def test_what_an_editor_leaves_beside_the_features_is_ignored(tmp_path: Path) -> None:
    write_feature(tmp_path, {TOPIC: PATCH})
    (tmp_path / "README.md~").write_text("")
    (tmp_path / ".DS_Store").write_text("")
    (feature,) = features.load([tmp_path])
    assert [notice.path for notice in feature.notices] == [str(tmp_path / "README.md~")]


def test_a_malformed_feature_leaves_the_others(tmp_path: Path) -> None:
    for each in ("a", "b", "c"):
        write_feature(tmp_path, {TOPIC: PATCH}, id=each)
    (tmp_path / "b" / "01-x" / "0.21.0..0.22.0.patch").write_text(PATCH)
    (tmp_path / "c" / "feature.toml").write_text("required = true\nid = 3\n")
    (tmp_path / "stray.txt").write_text("")
    loaded = features.load_all([tmp_path])
    assert [feature.id for feature in loaded.features] == ["a"]
    assert [(m.id, m.required) for m in loaded.malformed] == [
        ("b", False),
        ("c", True),
        ("stray.txt", False),
    ]
    assert "its range overlaps" in str(loaded.malformed[0].errors[0])
    everything = [str(error) for m in loaded.malformed for error in m.errors]
    assert errors(tmp_path) == everything


@pytest.mark.parametrize("place", ["", "demo", "demo/01-x", f"demo/{TOPIC}"])
def test_patches_that_others_can_write_are_named_or_refused(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "team"
    write_feature(folder, {TOPIC: PATCH})
    (folder / place).chmod(0o777)
    (feature,) = features.load([folder])
    (notice,) = feature.notices
    assert f"{folder / place}".rstrip("/") in notice.text
    assert "can be written by others" in notice.text
    loaded = features.load_all([folder], private=True)
    assert loaded.features == ()
    assert "can be written by others" in str(loaded.malformed[0].errors[0])
    (folder / place).chmod(0o755)
    assert features.load_all([folder], private=True).features[0].notices == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_patches_of_somebody_else_are_named_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    write_feature(folder, {TOPIC: PATCH})
    os.chown(folder / "demo" / TOPIC, 12345, 12345)
    assert "belongs to" in features.load([folder])[0].notices[0].text
    assert features.load_all([folder], private=True).features == ()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _large(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(17 * 1024 * 1024)


@pytest.mark.parametrize("harm", [_pipe, _endless, _large])
@pytest.mark.parametrize("name", ["feature.toml", TOPIC, "files/vllm/new.py", "README.md"])
def test_no_file_of_a_patches_folder_hangs_or_fills_the_memory(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    write_feature(tmp_path, {TOPIC: PATCH, "files/vllm/new.py": "", "README.md": ""})
    before = sources.fingerprint([str(tmp_path)])
    place = tmp_path / "demo" / name
    place.unlink()
    harm(place)
    assert sources.fingerprint([str(tmp_path)]) != before
    if name != "README.md" or harm is not _large:
        assert any(str(place) in error for error in errors(tmp_path))


def test_a_folder_of_more_than_features_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST", 20)
    write_feature(tmp_path, {TOPIC: PATCH})
    sources.fingerprint([str(tmp_path)])
    for number in range(20):
        (tmp_path / "demo" / f"{number}.txt").touch()
    with pytest.raises(UsageError, match="more than 20 files in it; name the folder that holds"):
        sources.fingerprint([str(tmp_path)])


def test_folders_as_deep_as_the_system_allows(tmp_path: Path) -> None:
    write_feature(tmp_path, {TOPIC: PATCH})
    place = tmp_path / "demo" / "files"
    place.mkdir()
    here = os.getcwd()
    os.chdir(place)
    try:
        for _ in range(1500):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(here)
    try:
        sources.fingerprint([str(tmp_path)])
        features.load_all([tmp_path])
    finally:
        # Deeper than shutil.rmtree, and so pytest, can follow.
        subprocess.run(["rm", "-rf", str(place)], check=True)
