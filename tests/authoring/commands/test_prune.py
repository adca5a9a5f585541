"""``overlay prune``, as a user calls it: proposals, one transaction, nothing without --write."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import jsonschema
import pytest

from overlay._features.folder import load
from overlay.authoring import disk
from tests.authoring.commands.test_import import SCHEMA
from tests.authoring.test_pruning import NAMES, TYPICAL, Tree
from tests.support.cli import Cli, digest
from tests.support.faults import FaultyOs, faulty, in_child, killing
from tests.support.releases import serve

WORDS = ("prune", "--releases", "0.22.0", "--patches")


@pytest.fixture
def ours(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of patches over small releases."""
    serve(monkeypatch, NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(TYPICAL, name))
    shutil.rmtree(cli.shipped / "demo")
    TYPICAL.write(tmp_path / "ours")
    return tmp_path / "ours"


def test_nothing_is_written_unless_it_is_asked_for(cli: Cli, ours: Path) -> None:
    before = digest(ours)
    result = cli(*WORDS, ours)
    assert result.exit == 0
    assert 'note merged = "0.24.0"' in result.out
    assert "evidence: no release from 0.22.0 on uses them" in result.out
    assert result.last == (
        "Nothing was written: 3 proposals, which "
        f"`overlay prune --write --releases 0.22.0 --patches {ours}` carries out."
    )
    assert digest(ours) == before
    assert "`overlay prune` will write from 0.4.0 on" in result.err
    looked = cli(*WORDS, ours, "--dry-run")
    assert (looked.out, "warning: " in looked.err) == (result.out, False)
    assert cli(*WORDS, ours, "--dry-run", "--write").exit == 2
    answer = cli(*WORDS, ours, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["code"] == "can-be-pruned"


def test_it_is_carried_out_once(cli: Cli, ours: Path) -> None:
    (ours / "f0/README.md").write_text("ours\n")
    done = cli(*WORDS, ours, "--write", "--json")
    assert (done.exit, done.json["code"]) == (0, "pruned")
    (feature,) = load([ours])
    assert str(feature.releases) == "0.22.0..0.23.0"
    assert (ours / "f0/README.md").read_text() == "ours\n"
    before = digest(ours)
    again = cli(*WORDS, ours, "--write")
    assert (again.exit, again.last) == (0, f"Nothing to prune in {ours}.")
    assert digest(ours) == before


def contents(folder: Path) -> str:
    """What every reader of the folder sees."""
    return str([(feature.id, feature.digest) for feature in load([folder])])


def test_killed_at_every_call_it_is_as_before_or_as_after(
    cli: Cli, ours: Path, tmp_path: Path
) -> None:
    before = contents(ours)
    counted = shutil.copytree(ours, tmp_path / "counted")
    with faulty(FaultyOs(), disk) as system:
        assert cli(*WORDS, counted, "--write").exit == 0
    after, calls = contents(counted), len(system.names)
    assert (before != after, calls > 5) == (True, True)
    seen = []
    for at in range(1, calls + 1):
        place = shutil.copytree(ours, tmp_path / f"at{at}")

        def work(place: Path = place, at: int = at) -> None:
            with faulty(FaultyOs(at, killing), disk):
                cli(*WORDS, place, "--write")

        assert in_child(work) == -signal.SIGKILL
        seen.append(contents(place))
        assert seen[-1] in (before, after)
        assert cli(*WORDS, place, "--write").exit == 0
        assert contents(place) == after
    assert {before, after} == set(seen)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--releases", "0.99.0"), "expected a release up to 0.25.0"),
        (("--releases", "newest"), "--releases newest: expected"),
    ],
)
def test_usage(cli: Cli, ours: Path, words: tuple[str, ...], said: str) -> None:
    result = cli("prune", *words, "--patches", ours)
    assert (result.exit, said in result.err) == (2, True)


def test_a_folder_must_be_named(cli: Cli) -> None:
    result = cli("prune")
    assert (result.exit, "--patches DIR" in result.err) == (2, True)


def test_a_folder_that_was_changed_meanwhile_is_not_written(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overlay.authoring.pruning import Pruner

    real = Pruner.propose

    def propose(self: Pruner, *served: object) -> object:
        made = real(self, *served)  # type: ignore[arg-type]  # whatever is passed
        toml = ours / "f0/feature.toml"
        toml.write_text(toml.read_text().replace('why = "w"', 'why = "another"'))
        return made

    monkeypatch.setattr(Pruner, "propose", propose)
    result = cli(*WORDS, ours, "--write")
    assert (result.exit, "it was changed meanwhile" in result.err) == (2, True)
    assert "merged" not in (ours / "f0/feature.toml").read_text()
