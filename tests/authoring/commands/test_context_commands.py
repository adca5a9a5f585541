"""The context of hunks, as a user meets it: ``import``, ``check``, ``edit ID --context N``."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.planning.planner import plan
from overlay.planning.telling import context_of
from overlay.results import State
from tests.authoring.commands.test_import import SCHEMA
from tests.support.cli import Cli, Result
from tests.support.patches import MemoryTree
from tests.support.releases import know

PATH = "vllm/envs.py"
BASE = b"FIRST: int = 1\nSECOND: int = 2\nKEEP_ALIVE: int = 5\nFOURTH: int = 4\nFIFTH: int = 5\n"
NEAR = BASE.replace(b"FOURTH: int = 4", b"FOURTH: int = 44")
FAR = BASE.replace(b"FIRST: int = 1", b"FIRST: int = 11")
DIFF = b"""\
--- a/vllm/envs.py
+++ b/vllm/envs.py
@@ -1,5 +1,5 @@
 FIRST: int = 1
 SECOND: int = 2
-KEEP_ALIVE: int = 5
+KEEP_ALIVE: int = 75
 FOURTH: int = 4
 FIFTH: int = 5
"""
TEXTS = {"0.20.0": FAR, "0.21.0": BASE, "0.22.0": NEAR}


NAMES = tuple(TEXTS)


class _Release:
    """One release."""

    def __init__(self, name: str) -> None:
        self._text = TEXTS[name]

    def read(self, path: str) -> bytes | None:
        return self._text if path == PATH else None


@pytest.fixture(autouse=True)
def change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A diff, and the releases of its one file."""
    know(monkeypatch, NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: _Release(name))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "keep.diff"
    file.write_bytes(DIFF)
    return file


def imported(cli: Cli, change: Path, *more: str) -> Result:
    return cli("import", change, "--id", "keep", "--patches", "ours", *more)


def test_import_says_how_much_context_it_keeps_and_what_that_is_good_for(
    cli: Cli, change: Path
) -> None:
    result = imported(cli, change)
    assert "0.20.0..0.22.0    lands exactly" in result.out
    line_of_it = next(line for line in result.out.splitlines() if line.startswith("context   "))
    assert line_of_it.startswith(
        "context   0 to 1 lines around a change (--context N keeps more); with 3"
    )
    assert "2 releases fewer would take it" in line_of_it
    answer = imported(cli, change, "--update", "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["import"]["context"] == {"fewest": 0, "most": 1, "more": ["0.20.0", "0.22.0"]}


def test_more_context_is_kept_where_it_is_asked_for(cli: Cli, change: Path) -> None:
    result = imported(cli, change, "--context", "2")
    assert "0.21.0            lands exactly" in result.out
    assert "context   " not in result.out
    assert "Wrote" in result.last


def test_a_drifted_hunk_names_the_command_by_which_it_lands(cli: Cli, change: Path) -> None:
    imported(cli, change, "--context", "2")
    (feature,) = load([Path("ours")])
    tree = MemoryTree({PATH: NEAR})
    (result,) = plan([feature], tree, Version("0.22.0")).features
    (file,) = result.files
    (hunk,) = file.hunks
    assert hunk.state is State.DRIFTED
    assert hunk.reason is not None
    assert str(hunk.reason.next_step).startswith(
        "with no line of context it would land here: `overlay edit keep --context 0"
    )


def test_the_context_of_a_feature_is_changed_and_its_range_grows(cli: Cli, change: Path) -> None:
    imported(cli, change, "--context", "2")
    changed = cli("edit", "keep", "--context", "0", "--patches", "ours")
    assert changed.exit == 0, changed.err
    assert "Wrote 1 patch of" in changed.last
    assert "overlay port keep --releases all --write" in changed.last
    assert cli("edit", "keep", "--context", "0", "--patches", "ours").exit == 1
    ported = cli("port", "keep", "--releases", "all", "--write", "--patches", "ours")
    assert ported.exit == 0, ported.out
    (patch,) = Path("ours/keep").glob("10-*/*.patch")
    assert patch.name == "0.20.0..0.22.0.patch"
    again = cli("edit", "keep", "--context", "1", "--patches", "ours")
    # On the others it would not land: the variant stays as it is.
    assert again.exit == 1
    assert "Nothing was written" in again.last


def context_of_patches() -> list[tuple[int, int]]:
    """How many lines of context the one hunk of each patch has."""
    return [
        context_of(variant.patch.hunks[0])
        for feature in load([Path("ours")])
        for topic in feature.topics
        for variant in topic.variants
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_commit_keeps_the_context_that_is_asked_for(cli: Cli, change: Path, number: int) -> None:
    imported(cli, change, "--context", "2")
    cli("edit", "keep", "--release", "0.21.0", "--patches", "ours")
    file = Path("keep@0.21.0", PATH)
    file.write_bytes(file.read_bytes().replace(b"75", b"76"))
    result = cli("edit", "--commit", "keep@0.21.0", "--context", str(number))
    assert result.exit == 0, result.out + result.err
    assert context_of_patches() == [(number, number)]
    assert not Path("keep@0.21.0").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_a_port_keeps_the_context_that_is_asked_for(cli: Cli, change: Path, number: int) -> None:
    imported(cli, change, "--context", "2")
    words = ("port", "keep", "--releases", "0.20.0", "--context", str(number), "--patches", "ours")
    result = cli(*words, "--write", "--accept", "merged")
    assert result.exit == 0, result.out + result.err
    assert context_of_patches() == [(number, number), (2, 2)]


def test_a_session_of_a_port_keeps_the_context_that_is_asked_for(cli: Cli, change: Path) -> None:
    imported(cli, change, "--context", "2")
    cli("port", "keep", "--releases", "0.20.0", "--patches", "ours")
    refused = cli("port", "--show", "--context", "1")
    assert refused.exit == 2
    assert "--context goes with" in refused.err
    result = cli("port", "--continue", "--context", "1")
    assert result.exit == 0, result.out + result.err
    assert context_of_patches() == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "words", [("--context", "1"), ("keep", "--context", "1", "--release", "0.21.0")]
)
def test_the_context_goes_with_an_id_alone(cli: Cli, change: Path, words: tuple[str, ...]) -> None:
    imported(cli, change)
    refused = cli("edit", *words, "--patches", "ours")
    assert refused.exit == 2
