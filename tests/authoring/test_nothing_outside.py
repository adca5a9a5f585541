"""Whatever links lie in a session, and whatever its document says, nothing outside it changes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.authoring import disk
from overlay.authoring.disk import NewFolder, replace_features
from overlay.authoring.session import (
    DOCUMENT,
    Kind,
    Session,
    Waiting,
    begin,
    features_of,
    read,
    revise,
    without,
)
from overlay.authoring.writing import FeatureFolder, FeatureText, check_files, check_folder
from overlay.errors import OverlayError, UsageError
from overlay.package import VLLM, ReleaseRange, id_problem
from overlay.untrusted import UnfitFile

PATH = "vllm/v1/a.py"

#: Every file and folder of a session that a link can take the place of.
PLACES = (
    *("vllm", "vllm/v1", PATH, ".base", ".base/vllm", f".base/{PATH}", DOCUMENT),
    *("our", "our/10-x", "our/10-x/vllm", "our/10-x/vllm/v1", f"our/10-x/{PATH}"),
)

Outside = dict[str, str]


def outside(folder: Path) -> Outside:
    """What lies in a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else "a folder"
        for path in sorted(folder.rglob("*"))
    }


def victim(folder: Path) -> None:
    """A folder whose files have the names of those of a session."""
    for place in PLACES:
        if place.endswith((".py", ".toml")):
            for below in (place, place.partition("/")[2], place.rpartition("/")[2]):
                if below:
                    (folder / below).parent.mkdir(parents=True, exist_ok=True)
                    (folder / below).write_text("theirs\n")


def _edit(folder: Path) -> Session:
    return Session(folder, Kind.EDIT, {"our": ""}, "0.26.0", (folder.parent / "ours",))


def _port(folder: Path) -> Session:
    entry = Waiting("our", "d", "10-x", PATH, "0.26.0", "")
    waiting = (entry, entry._replace(feature="other"))
    features = features_of(waiting)
    return Session(folder, Kind.PORT, features, "0.27.0", (), waiting=waiting)


#: What is done to a session's folder.
ACTS: dict[str, Callable[[Path], object]] = {
    "write": lambda folder: disk.write_below(folder, PATH, b"ours\n"),
    "remove": lambda folder: disk.remove_below(folder, PATH),
    "revise": lambda folder: revise(_edit(folder), {PATH: b"ours\n"}, {PATH: b"ours\n"}),
    "skip": lambda folder: without(_port(folder), "our"),
    "withdraw": lambda folder: disk.withdraw(folder, DOCUMENT, PLACES),
    "vanish": disk.vanish,
}


@settings(max_examples=60)
@given(
    act=st.sampled_from(sorted(ACTS)),
    links=st.dictionaries(st.sampled_from(PLACES), st.sampled_from(("", *PLACES)), max_size=4),
    keep=st.booleans(),
)
def test_links_at_every_level_lead_nowhere(act: str, links: dict[str, str], keep: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, elsewhere = Path(scratch, "session"), Path(scratch, "elsewhere")
        victim(elsewhere)
        for place in PLACES:
            if place.endswith((".py", ".toml")):
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_text("session\n")
        if keep:
            (folder / "notes.txt").write_text("mine")
        for place, to in links.items():
            at = folder / place
            if os.path.lexists(at.parent) and not at.parent.is_symlink():
                with suppress(FileNotFoundError):
                    os.replace(at, Path(scratch, f"aside-{len(os.listdir(scratch))}"))
                at.symlink_to(elsewhere / to)
        before = outside(elsewhere)
        with suppress(OSError, OverlayError):
            ACTS[act](folder)
        assert outside(elsewhere) == before


def test_a_link_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "session").mkdir()
    (tmp_path / "session/vllm").symlink_to(tmp_path / "elsewhere")
    for act in ("write", "remove"):
        with pytest.raises(UnfitFile, match="expected a folder, found a symbolic link"):
            ACTS[act](tmp_path / "session")


IDS = st.sampled_from(
    ["", ".", "..", "/", "/etc/x", "../x", "a/b", "a/../b", "A", "a b", "a\n", "a\0b", "\u202ea"]
) | st.text(max_size=9)


@given(id_=IDS)
def test_an_id_that_is_not_one_lays_nothing_anywhere(id_: str) -> None:
    if id_problem(id_) is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        patches = Path(scratch, "deep/er/patches")
        for new, gone in (([NewFolder(id_, {"feature.toml": b""})], []), ([], [id_])):
            with pytest.raises(UsageError):
                replace_features(patches, new, gone)
        with pytest.raises(UsageError):
            check_files(id_, {"feature.toml": b""})
        text = FeatureText(id_, "t", "w", ReleaseRange.parse("0.20.0..0.21.0", VLLM))
        with pytest.raises(UsageError):
            check_folder(FeatureFolder(text))
        assert os.listdir(scratch) == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\0b", "a\\b"])
def test_a_file_of_a_feature_lies_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        replace_features(tmp_path / "ours", [NewFolder("our", {name: b"x"})])
    with pytest.raises(UsageError):
        check_files("our", {name: b"x"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("id_", ["/tmp/x/our", "../our", "our/..", "", "Our", "a" * 201])
def test_an_id_of_a_session_is_the_id_of_a_feature(tmp_path: Path, id_: str) -> None:
    own = begin(_edit(tmp_path / "s"), {PATH: b"a = 1\n"}, {})
    document = own.folder / DOCUMENT
    for table in ("features", "below"):
        text = document.read_text()
        evil = text.replace("[below]", f'[below]\n"{id_}" = ""')
        if table == "features":
            evil = text.replace('"our" = ""', f'"{id_}" = ""')
        document.write_text(evil)
        with pytest.raises(UsageError, match="found a damaged one"):
            read(own.folder, Kind.EDIT)
        document.write_text(text)
    assert read(own.folder, Kind.EDIT) == own
