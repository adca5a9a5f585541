"""Whatever happens while features are replaced, every reader sees those before or those after."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay._features import folder as features
from overlay._features.sources import SWITCH, entries, feature_documents, fingerprint
from overlay._features.switches import declarations
from overlay.authoring import disk
from overlay.authoring.disk import NewFolder, finish_switch, replace_features
from overlay.errors import OverlayError, UsageError
from tests.support.faults import Dead, FaultyOs, dying, failing, faulty, in_child, killing
from tests.support.patches import hunk, patch_text, write_feature

PATH = "vllm/v1/a.py"
TOPIC = "10-a/0.20.0..0.33.0.patch"

Seen = dict[str, str]


def topic(value: int) -> str:
    return patch_text(PATH, hunk([" a = 1", f"+b = {value}", " c = 3"]))


def documents(id_: str, value: int) -> dict[str, bytes | None]:
    """The files of a feature that says ``value``."""
    toml = (
        f'id = "{id_}"\ntitle = "says {value}"\nwhy = "to test"\nreleases = "0.20.0..0.33.0"\n'
        f"required = {'true' if value % 2 else 'false'}\n"
    )
    return {"feature.toml": toml.encode(), TOPIC: topic(value).encode()}


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Three features: ``first`` will change, ``second`` will go, ``third`` stays."""
    folder = tmp_path / "ours"
    for number, name in enumerate(("first", "second", "third")):
        for path, data in documents(name, number).items():
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data or b"")
    return folder


def change(folder: Path) -> None:
    replace_features(
        folder,
        [NewFolder("first", documents("first", 7)), NewFolder("fourth", documents("fourth", 8))],
        ["second"],
    )


def seen(folder: Path) -> Seen:
    """What every reader of features says is there, each in its own way, and it is the same."""
    loaded = features.load([folder])
    found = {feature.id: feature.title for feature in loaded}
    assert found == {each.id: each.title for each in declarations([folder])}
    required = {
        document.parent.name
        for document in feature_documents(folder)
        if b"required = true" in document.read_bytes()
    }
    assert required == {feature.id for feature in loaded if feature.required}
    return found


BEFORE = {"first": "says 0", "second": "says 1", "third": "says 2"}
AFTER = {"first": "says 7", "fourth": "says 8", "third": "says 2"}


def count(work: Callable[[], None]) -> list[str]:
    with faulty(FaultyOs(), disk) as system:
        work()
    return system.names


def copy(folder: Path, place: Path) -> Path:
    for name in disk.files_below(folder):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((folder / name).read_bytes())
    return place


def test_features_are_replaced_added_and_removed(patches: Path) -> None:
    assert seen(patches) == BEFORE
    change(patches)
    assert seen(patches) == AFTER
    assert sorted(path.name for path in patches.iterdir()) == ["first", "fourth", "third"]
    assert not finish_switch(patches)


def test_what_is_not_named_stays_where_a_folder_is_laid_over(patches: Path) -> None:
    (patches / "first/README.md").write_text("ours")
    replace_features(patches, [NewFolder("first", {TOPIC: None, "files/vllm/x.py": b""}, False)])
    assert disk.files_below(patches / "first") == ["README.md", "feature.toml", "files/vllm/x.py"]


def test_killed_at_every_call_the_features_are_those_before_or_those_after(
    patches: Path, tmp_path: Path
) -> None:
    names = count(lambda: change(copy(patches, tmp_path / "counted")))
    assert {"open", "write", "fsync", "mkdir", "replace"} <= set(names)
    states = []
    for at in range(1, len(names) + 1):
        place = copy(patches, tmp_path / f"at{at}")

        def work(place: Path = place, at: int = at) -> None:
            with faulty(FaultyOs(at, killing), disk):
                change(place)

        assert in_child(work) == -signal.SIGKILL
        states.append(seen(place))
        assert states[-1] in (BEFORE, AFTER), (at, names[at - 1])
        before = fingerprint([str(place)])
        settled = finish_switch(place)
        assert seen(place) == states[-1]
        assert not (place / SWITCH).exists()
        assert settled or fingerprint([str(place)]) == before
        change_again(place)
    # One call decides, and nothing before or behind it.
    assert [state == AFTER for state in states] == sorted(state == AFTER for state in states)
    assert {str(state) for state in states} == {str(BEFORE), str(AFTER)}


def change_again(place: Path) -> None:
    """A later command finds no obstacle, and leaves nothing of the killed one."""
    with faulty(FaultyOs(), disk):  # which does not wait for the disk
        replace_features(place, [NewFolder("third", documents("third", 9))])
    assert seen(place)["third"] == "says 9"
    assert all(not path.name.startswith(".") for path in place.iterdir())


def test_a_refused_call_leaves_the_features_as_they_were(patches: Path, tmp_path: Path) -> None:
    names = count(lambda: change(copy(patches, tmp_path / "counted")))
    ends = max(at for at, name in enumerate(names, 1) if name == "replace")
    for at in range(1, len(names) + 1):
        place = copy(patches, tmp_path / f"at{at}")
        full = FaultyOs(at, failing(errno.ENOSPC))
        with faulty(full, disk), pytest.raises(OSError, match="No space"):
            change(place)
        assert seen(place) == (BEFORE if at <= ends else AFTER), names[at - 1]
        assert all(not path.name.startswith(".") for path in place.iterdir())


def test_where_even_taking_back_is_refused_the_new_ones_are_seen_whole(
    patches: Path, tmp_path: Path
) -> None:
    names = count(lambda: change(copy(patches, tmp_path / "counted")))
    renames = [at for at, name in enumerate(names, 1) if name == "replace"]
    for at in renames[1:]:
        place = copy(patches, tmp_path / f"at{at}")
        refused = FaultyOs(at, failing(errno.EIO), lasting=True)
        with faulty(refused, disk), pytest.raises(OSError, match="error"):
            change(place)
        assert seen(place) == AFTER
        change_again(place)


def test_a_reader_during_a_switch_sees_the_new_features(patches: Path) -> None:
    names = count(lambda: change(copy(patches, patches.parent / "counted")))
    decides = names.index("replace") + 1
    with faulty(FaultyOs(decides + 1, dying, lasting=True), disk), pytest.raises(Dead):
        change(patches)
    assert (patches / SWITCH).is_dir()
    assert seen(patches) == AFTER
    held = entries(patches)
    assert held["first"] == patches / SWITCH / "new/first"
    assert "second" not in held


@pytest.mark.parametrize("what", ["link", "file", "empty"])
def test_a_switch_that_a_stranger_made_is_none(patches: Path, tmp_path: Path, what: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_feature(elsewhere / "new", {}, id="evil")
    (elsewhere / "gone").mkdir()
    if what == "link":
        (patches / SWITCH).symlink_to(elsewhere)
    elif what == "file":
        (patches / SWITCH).write_text("hello")
    else:
        (patches / SWITCH).mkdir()
    assert seen(patches) == BEFORE


def test_only_one_command_writes_at_a_time(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SECONDS", 0.05)
    with (
        disk.only_writer(patches),
        pytest.raises(OverlayError, match="being written by another overlay command"),
    ):
        change(patches)
    assert seen(patches) == BEFORE


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("")
    with pytest.raises((UsageError, FileExistsError)):
        change(tmp_path / "ours")


@pytest.mark.parametrize("named", [".", "../it", "inner/.."])
def test_a_folder_goes_by_whatever_path_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "it/inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "it")
    disk.delete_folder(Path(named))
    assert list(tmp_path.iterdir()) == []
