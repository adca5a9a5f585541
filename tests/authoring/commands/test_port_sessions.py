"""What a port's session survives: other features, other people's ports, releases that are gone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.authoring.composing import compose_file, whole_file
from overlay.authoring.writing import render_patch
from overlay.errors import PackageIndexError
from overlay.planning.planner import plan
from tests.authoring.commands.test_port import files, ours, releases
from tests.support import port_world as world
from tests.support.cli import Cli
from tests.support.patches import write_feature

__all__ = ["ours", "releases"]  # the fixtures

#: A resolution that no merge proposes.
RESOLVED = world.IN_THE_WAY.replace(
    b"        for size in sizes:\n", b"        for size in sizes:\n            self.first(size)\n"
)


def test_an_edit_is_not_lost_where_somebody_else_ported_the_feature(cli: Cli, ours: Path) -> None:
    """That the release is served now does not show that these files were carried out."""
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    shutil.copytree("port-0.24.0", "other")
    Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(RESOLVED)
    Path("other/replay/10-runner", world.PATH).write_bytes(world.PATCHED)
    assert cli("port", "--continue", "other", "--patches", ours).exit in (0, 1)
    before = files(ours)
    refused = cli("port", "--continue", "port-0.24.0", "--patches", ours)
    assert refused.exit == 2
    assert "were changed since" in refused.err
    assert Path("port-0.24.0/replay/10-runner", world.PATH).read_bytes() == RESOLVED
    assert files(ours) == before


def test_the_session_of_another_feature_is_said_and_not_lost(cli: Cli, ours: Path) -> None:
    shutil.copytree(ours / "replay", ours / "other")
    toml = (ours / "other/feature.toml").read_text().replace('"replay"', '"other"')
    (ours / "other/feature.toml").write_text(toml)
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    for option in ("--retire", "--skip"):
        refused = cli("port", option, "other", "--patches", ours)
        assert refused.exit == 2
        assert "other: expected one of replay, for which port-0.24.0 waits" in refused.err
    document = Path("port-0.24.0/session.toml")
    document.write_text(document.read_text().replace('feature = "replay"', 'feature = "other"'))
    before, session = files(ours), files(Path("port-0.24.0"))
    refused = cli("port", "--continue", "--patches", ours)
    assert refused.exit == 2
    assert "other: its patches were changed since" in refused.err
    assert files(ours) == before
    assert files(Path("port-0.24.0")) == session


def test_a_release_that_left_the_index_keeps_the_session(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(RESOLVED)
    before, session = files(ours), files(Path("port-0.24.0"))

    def gone(name: str, **_: object) -> world.Tree:
        if name == "0.24.0":
            raise PackageIndexError("release 0.24.0: it is not on the index")
        return world.Tree(name)

    with monkeypatch.context() as patch:
        patch.setattr("overlay.targets.resolution.resolve", gone)
        refused = cli("port", "--continue", "--patches", ours)
    assert refused.exit == 2
    assert "it is not on the index" in refused.err
    assert files(ours) == before
    assert files(Path("port-0.24.0")) == session
    assert cli("port", "--continue", "--patches", ours).exit in (0, 1)


def test_files_that_are_not_the_sessions_stay(cli: Cli, ours: Path) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(RESOLVED)
    notes = Path("port-0.24.0/replay/notes.md")
    notes.write_text("why\n")
    ended = cli("port", "--continue", "--patches", ours)
    assert "port-0.24.0 holds other files and stays" in ended.last
    assert list(files(Path("port-0.24.0"))) == ["replay/notes.md"]
    assert "found none" in cli("port", "--continue", "--patches", ours).err


@pytest.mark.parametrize("wanted", [RESOLVED, world.IN_THE_WAY], ids=["edited", "retired"])
def test_a_session_that_was_carried_out_and_killed_is_over_with_the_next_continue(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch, wanted: bytes
) -> None:
    cli("port", "replay", "--releases", "0.24.0", "--patches", ours)
    Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(wanted)

    def killed(session: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("overlay.authoring.commands.port_session.finish", killed)
        assert cli("port", "--continue", "--patches", ours).exit == 130
    written = files(ours)
    assert Path("port-0.24.0").exists()
    assert cli("port", "--continue", "--patches", ours).exit in (0, 1)
    assert files(ours) == written
    assert not Path("port-0.24.0").exists()


DATA = "vllm/a.json"
TEXTS = {"0.21.0": b'{\n  "a": 1,\n  "b": true\n}\n', "0.22.0": b'{\n  "a": 7,\n  "b": true\n}\n'}


class DataTree(world.Tree):
    """A release with a data file beside the module."""

    def read(self, path: str) -> bytes | None:
        return TEXTS[self.release] if path == DATA else super().read(path)


@pytest.mark.parametrize("by", ["hand", "resolver"])
def test_a_data_file_is_placed_by_hand(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Nobody reads it as Python: the whole file is its one scope."""
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: DataTree(name))
    base, patches = TEXTS["0.21.0"], tmp_path / "ours"
    hunks = compose_file(DATA, base, base.replace(b": 1", b": 5"))
    patch = render_patch({**world.HEADERS, "Base": "0.21.0"}, DATA, hunks)
    write_feature(patches, {"10-a/0.21.0..0.21.0.patch": patch}, "sizes", "0.21.0..0.21.0")
    cli("port", "sizes", "--releases", "0.22.0", "--patches", patches)
    shown = cli("port", "--show").out
    upstream = shown.partition("upstream  ")[2].partition("yours")[0].split("\n")
    assert [line.strip() for line in upstream if '"a"' in line] == ['-  "a": 1,', '+  "a": 7,']
    place = Path("port-0.22.0/sizes/10-a", DATA)
    wanted = TEXTS["0.22.0"].replace(b"7", b"8")
    if by == "hand":
        place.write_bytes(wanted)
    else:
        program = tmp_path / "resolver.py"
        program.write_text(f"import sys; open(sys.argv[4], 'wb').write({wanted!r})")
        words = ("port", "--resolver", f"{sys.executable} {program}", "--patches", patches)
        result = cli(*words)
        assert "review 1 file" in result.last, result.err
    result = cli("port", "--continue", "--patches", patches)
    assert result.exit == 0, result.err
    (feature,) = load([patches])
    changes = plan([feature], DataTree("0.22.0"), Version("0.22.0")).changes
    assert [(change.path, change.after) for change in changes] == [(DATA, wanted)]


@pytest.mark.parametrize(
    ("after", "words"), [(None, "is removed"), (b"\0x", "2 bytes in its place")]
)
def test_a_file_is_asked_for_where_no_merge_can_lay_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bytes | None, words: str
) -> None:
    """The release has such a file, and nobody says that it has none."""
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: DataTree(name))
    patches, place = tmp_path / "ours", Path("port-0.22.0/sizes/10-a", DATA)
    hunks = [whole_file(TEXTS["0.21.0"], after)]
    patch = render_patch({**world.HEADERS, "Base": "0.21.0"}, DATA, hunks)
    write_feature(patches, {"10-a/0.21.0..0.21.0.patch": patch}, "sizes", "0.21.0..0.21.0")
    cli("port", "sizes", "--releases", "0.22.0", "--patches", patches)
    shown = cli("port", "--show").out
    assert words in shown
    assert "the release" not in shown
    refused = cli("port", "--continue", "--patches", patches)
    assert f"{place}: expected the file as it is to be, found none: put it there" in refused.err
    place.parent.mkdir(parents=True)
    place.write_bytes(b"\0y")
    assert cli("port", "--continue", "--patches", patches).exit == 0
    (feature,) = load([patches])
    changes = plan([feature], DataTree("0.22.0"), Version("0.22.0")).changes
    assert [change.after for change in changes] == [b"\0y"]
