"""What ``--base`` takes: a checkout, one file, a release; and a build whose text no release has."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.authoring import following
from overlay.planning.planner import plan
from overlay.results import State
from tests.authoring.commands.test_port import no_such_release, releases
from tests.authoring.test_importing import diff
from tests.support import port_world as world
from tests.support.cli import Cli
from tests.support.patches import MemoryTree

__all__ = ["releases"]  # the fixture

NIGHTLY = world.BASE + b"\n\ndef warm(sizes):\n    return [size * 3 for size in sizes]\n"
CHANGED = NIGHTLY.replace(b"size * 3", b"size * 4")


@pytest.fixture
def nightly(tmp_path: Path) -> Path:
    """A checkout whose text no release has, and a change of it beside it."""
    file = tmp_path / "co" / world.PATH
    file.parent.mkdir(parents=True)
    file.write_bytes(NIGHTLY)
    (tmp_path / "co/vllm/_version.py").write_text("__version__ = version = '0.22.1.dev3+gabc'\n")
    (tmp_path / "c.diff").write_bytes(diff(world.PATH, NIGHTLY, CHANGED, ids=False))
    return tmp_path / "co"


def call(cli: Cli, nightly: Path, base: object, *more: str) -> object:
    place = nightly.parent
    words = ("import", place / "c.diff", "--id", "c", "--patches", place / "p")
    return cli(*words, "--base", base, *more)


@pytest.mark.parametrize("single", [False, True])
def test_a_build_between_releases_is_carried(cli: Cli, nightly: Path, single: bool) -> None:
    result = call(cli, nightly, nightly / world.PATH if single else nightly)
    assert result.exit == 0, result.err
    assert "no release has the text that it was made on" in result.out
    (feature,) = load([nightly.parent / "p"])
    assert feature.releases.first == feature.releases.last
    assert str(feature.releases.first).endswith(".post1")
    build = plan([feature], MemoryTree({world.PATH: NIGHTLY}), Version("0.99.0.dev1"))
    assert [each.after for each in build.changes] == [CHANGED]
    assert build.features[0].untested
    for release, text in world.RELEASES.items():
        (there,) = plan([feature], MemoryTree({world.PATH: text}), Version(release)).features
        assert there.state is not State.APPLIED
    # What it was made on is kept, so that it is carried from there.
    ported = cli("port", "c", world.NAMES[1], "--patches", nightly.parent / "p")
    assert ported.exit in (0, 1), ported.err
    assert "there is none" not in ported.err


def test_a_checkout_of_git_alone_serves_a_change_with_tests(
    cli: Cli, nightly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `_version.py` names its release there, and the change's own tests are in none."""
    (nightly / "vllm/_version.py").unlink()
    change = nightly.parent / "c.diff"
    test = diff("tests/v1/test_warm.py", b"assert 3\n", b"assert 4\n", ids=False)
    change.write_bytes(test + change.read_bytes())

    (nightly / "tests/v1").mkdir(parents=True)
    (nightly / "tests/v1/test_warm.py").write_bytes(b"assert 3\n")
    usual = world.Tree.read

    def read(tree: world.Tree, path: str) -> bytes | None:
        assert path.startswith("vllm/"), path  # a release in the cache refuses it
        return usual(tree, path)

    monkeypatch.setattr(world.Tree, "read", read)
    result = call(cli, nightly, nightly)
    assert result.exit == 0, result.err
    assert "no release has the text that it was made on" in result.out


def test_a_function_that_only_a_build_has_is_shown_for_review(
    cli: Cli, nightly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of no release: other files are searched for it, and not the build as a release."""
    other = world.PATH.replace("/", "/more_", 1)

    def tree(name: str, **_: object) -> MemoryTree:
        return MemoryTree(
            dict.fromkeys((world.PATH, other), no_such_release(name).read(world.PATH))
        )

    monkeypatch.setattr("overlay.targets.resolution.resolve", tree)
    monkeypatch.setattr(following, "_candidates", lambda *_, **__: iter([other]))
    text = (nightly / world.PATH).read_bytes()
    own = text + b"\n\ndef only_there(size):\n    half = size // 2\n    return half + 1\n"
    (nightly / world.PATH).write_bytes(own)
    change = diff(world.PATH, own, own.replace(b"half + 1", b"half + 2"), ids=False)
    (nightly.parent / "c.diff").write_bytes(change)
    result = call(cli, nightly, nightly)
    assert result.exit == 0, result.err
    ported = cli("port", "c", world.NAMES[1], "--patches", nightly.parent / "p")
    assert ported.exit == 1, ported.err
    assert "missing  vllm/" in ported.out


def test_a_release_is_a_base(cli: Cli, tmp_path: Path) -> None:
    name = world.NAMES[1]
    text = world.RELEASES[name]
    data = diff(world.PATH, text, text.replace(b"value + 1", b"value + 2"), ids=False)
    (tmp_path / "c.diff").write_bytes(data)
    words = ("import", tmp_path / "c.diff", "--id", "c", "--patches", tmp_path / "p")
    result = cli(*words, "--base", name)
    assert result.exit == 0, result.err
    assert f"made on {name}\n" in result.out, "whoever names it knows it"
    assert "--base" not in result.out
    result = cli("import", tmp_path / "c.diff", "--id", "d", "--patches", tmp_path / "p")
    assert f"made on {world.NAMES[-1]}, by its lines\n" in result.out, "others have them too"


@pytest.mark.parametrize(
    ("ids", "text"),
    [(True, "--base was not needed: each edited"), (False, "--base RELEASE would do: each edited")],
)
def test_a_needless_base_is_told_once(cli: Cli, nightly: Path, ids: bool, text: str) -> None:
    (nightly / world.PATH).write_bytes(world.BASE)
    after = world.BASE.replace(b"value + 1", b"value + 2")
    change = diff(world.PATH, world.BASE, after, ids=ids)
    (nightly.parent / "c.diff").write_bytes(change)
    assert call(cli, nightly, nightly).out.count(text) == 1
    result = call(cli, nightly, nightly, "--update", "--json")
    assert [each[: len(text)] for each in result.json["import"]["warnings"]] == [text]


@pytest.mark.parametrize("base", ["nowhere", "0.0.1..0.0.2", "./c.dif"])
def test_what_is_no_base_is_told(cli: Cli, nightly: Path, base: str) -> None:
    result = call(cli, nightly, base)
    assert result.exit == 2
    assert f"--base {base.removeprefix('./')}: expected a checkout" in result.err
