"""``overlay import --release``: what lands nowhere waits in a session and becomes a feature."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay._features.folder import load
from overlay.authoring.commands.import_onto import own_text
from overlay.authoring.commands.port_session import Key, ask, show
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import replay
from overlay.commands.request import Request
from overlay.planning.planner import plan
from tests.authoring.commands.test_port import files, releases
from tests.authoring.test_importing import diff
from tests.support import port_world as world
from tests.support.cli import Cli

__all__ = ["releases"]  # the fixture

#: Upstream's text between two releases, which nobody here has, and a change of it.
MAIN = world.BASE.replace(
    b"            self.run_graph(size)\n", b"            self.run_all(size, 1)\n"
)
CHANGED = MAIN.replace(b"self.run_all(size, 1)", b"self.run_all(size, 1, replay=True)")
RELEASE = "0.21.0"
TEXT = world.RELEASES[RELEASE]
RESOLVED = TEXT.replace(
    b"self.run_graph(size)\n        self", b"self.run_graph(size, 1)\n        self"
)


@pytest.fixture
def change(tmp_path: Path) -> Path:
    file = tmp_path / "main.diff"
    file.write_bytes(diff(world.PATH, MAIN, CHANGED) + diff("vllm/ours.py", None, b"A = 1\n"))
    return file


def opened(cli: Cli, change: Path, *more: str) -> Path:
    ours = change.parent / "ours"
    result = cli(
        "import", change, "--id", "replay-all", "--patches", ours, "--release", RELEASE, *more
    )
    assert result.exit == 1, result.err
    assert f"in port-{RELEASE}" in result.last
    return ours


def test_what_lands_nowhere_is_placed_by_hand(cli: Cli, change: Path) -> None:
    told = cli("import", change, "--id", "replay-all", "--patches", change.parent / "ours")
    assert told.exit == 2
    assert f"import {change} --id replay-all --release" in told.err
    ours = opened(cli, change)
    assert not ours.exists()
    named = cli("port", "--show", f"port-{RELEASE}", "--patches", ours)  # as it was told to
    shown = cli("port", "--show")
    assert named.exit == 1, named.err
    assert "the change's own text" in shown.out
    assert "0.0.0" not in shown.out
    refused = cli("port", "--continue")
    assert "expected no markers of a conflict" in refused.err
    Path(f"port-{RELEASE}/replay-all/01-runner", world.PATH).write_bytes(RESOLVED)
    ended = cli("port", "--continue")
    assert ended.exit == 0, ended.err
    assert f"Wrote {ours / 'replay-all'} for 0.21.0" in " ".join(ended.out.split())
    assert not Path(f"port-{RELEASE}").exists()
    (feature,) = load([ours])
    changes = plan([feature], world.Tree(RELEASE), feature.releases.first).changes
    assert {each.path: each.after for each in changes} == {
        world.PATH: RESOLVED,
        "vllm/ours.py": b"A = 1\n",
    }
    origin = (ours / "replay-all/origin/01.patch").read_bytes()
    assert origin == change.read_bytes()


@pytest.mark.parametrize("option", ["--abort", "--skip", "--retire"])
def test_a_session_that_is_given_up_writes_nothing(cli: Cli, change: Path, option: str) -> None:
    ours = opened(cli, change)
    words = () if option == "--abort" else ("replay-all",)
    assert cli("port", option, *words).exit == 0
    assert not Path(f"port-{RELEASE}").exists()
    assert not ours.exists()


def test_a_second_session_is_refused_and_the_first_is_whole(cli: Cli, change: Path) -> None:
    opened(cli, change)
    before = files(Path(f"port-{RELEASE}"))
    ours = change.parent / "ours"
    again = cli("import", change, "--id", "other", "--patches", ours, "--release", RELEASE)
    assert again.exit == 2
    assert "found a session" in again.err
    assert files(Path(f"port-{RELEASE}")) == before


def test_what_somebody_wrote_meanwhile_is_not_replaced(cli: Cli, change: Path) -> None:
    ours = opened(cli, change)
    world.write(ours)
    (ours / "replay").rename(ours / "replay-all")
    toml = ours / "replay-all/feature.toml"
    toml.write_text(toml.read_text().replace('"replay"', '"replay-all"'))
    before, session = files(ours), Path(f"port-{RELEASE}")
    (session / "replay-all/01-runner" / world.PATH).write_bytes(RESOLVED)
    refused = cli("port", "--continue")
    assert refused.exit == 2
    assert "--update" in refused.err
    assert files(ours) == before
    assert (session / "replay-all/01-runner" / world.PATH).read_bytes() == RESOLVED


def test_upstreams_side_leaves_the_added_module(cli: Cli, change: Path) -> None:
    ours = opened(cli, change)
    ask(Request(), show(Request(), None), lambda _, __: Key.UPSTREAM)
    (feature,) = load([ours])
    assert not feature.topics
    assert [module.path for module in feature.added] == ["vllm/ours.py"]


def test_what_lands_after_all_is_written_at_once(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "fits.diff"
    file.write_bytes(diff(world.PATH, world.BASE, world.PATCHED))
    result = cli("import", file, "--id", "fits", "--patches", tmp_path / "p", "--release", RELEASE)
    assert result.exit == 0, result.err
    assert (tmp_path / "p/fits/feature.toml").is_file()
    assert not Path(f"port-{RELEASE}").exists()
    has_it = next(name for name, text in world.RELEASES.items() if text == world.MERGED)
    there = cli("import", file, "--id", "has", "--patches", tmp_path / "p", "--release", has_it)
    assert "has it already" in " ".join(there.out.split()) or "has already" in there.out


def test_what_no_merge_can_place_waits_between_markers(cli: Cli, tmp_path: Path) -> None:
    """The hunk's lines are of a text that is no Python where the release has its likest ones."""
    before = TEXT.replace(
        b"        return sizes\n", b"        return (\n            sizes\n        )\n"
    )
    after = before.replace(b"            sizes\n        )", b"            [*sizes]\n        )")
    data = diff(world.PATH, before, after, ids=False).decode().split("@@ -")
    lines = data[1].splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if line.startswith("-"))
    hunk = "".join(
        ["@@ -12,2 +12,2 @@\n", *lines[first : first + 2], *lines[first + 2 : first + 3]]
    )
    file = tmp_path / "half.diff"
    file.write_text(data[0] + hunk)
    ours = tmp_path / "ours"
    result = cli("import", file, "--id", "half", "--patches", ours, "--release", RELEASE)
    assert result.exit == 1, result.err
    place = Path(f"port-{RELEASE}/half/01-runner", world.PATH)
    assert b"[*sizes]" in place.read_bytes()
    assert b"<<<<<<< yours" in place.read_bytes()
    laid = place.read_bytes()
    keys = iter([Key.PLACE, Key.STOP])
    ask(Request(), show(Request(), None), lambda _, __: next(keys))
    assert place.read_bytes() == laid  # no merge knows all of it
    assert "no markers" in cli("port", "--continue").err
    place.write_bytes(TEXT.replace(b"return sizes", b"return [*sizes]"))
    assert cli("port", "--continue").exit == 0
    (feature,) = load([ours])
    (made,) = plan([feature], world.Tree(RELEASE), feature.releases.first).changes
    assert made.after == TEXT.replace(b"return sizes", b"return [*sizes]")


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("patches =", "patchez ="),
        ("[notes]", "[note]"),
        ('origin" = "', 'origin" = 7  # "'),
        (".import", ""),
    ],
)
def test_a_damaged_session_is_told(cli: Cli, change: Path, text: str, instead: str) -> None:
    opened(cli, change)
    document = Path(f"port-{RELEASE}/session.toml")
    if instead:
        document.write_text(document.read_text().replace(text, instead))
    else:
        Path(f"port-{RELEASE}", text).rename("elsewhere")
    for option in ("--show", "--continue"):
        refused = cli("port", option)
        assert refused.exit == 2
        assert "error: " in refused.err
    assert not (change.parent / "ours").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--release", "0.20.0..0.21.0"], "expected one release"),
        (["--release", RELEASE, "--each"], "--each and --release"),
    ],
)
def test_one_feature_and_one_release(cli: Cli, change: Path, words: list[str], why: str) -> None:
    result = cli("import", change, "--id", "x", "--patches", change.parent / "ours", *words)
    assert result.exit == 2
    assert why in result.err


def test_the_own_text_takes_every_hunk() -> None:
    ((file,),) = (each.files for each in read_changes(diff(world.PATH, MAIN, CHANGED), "x.diff"))
    own = own_text(TEXT, file.hunks)
    assert own is not None
    after = replay(own, file.hunks)
    assert after is not None
    assert b"replay=True" in after
