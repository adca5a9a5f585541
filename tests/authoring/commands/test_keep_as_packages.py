"""``revert --keep-as`` where another package than vLLM was edited, or several were."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from overlay._features.folder import load
from overlay.errors import PackageIndexError
from overlay.package import package_named
from overlay.targets import resolution
from tests.authoring.commands.test_import import SCHEMA
from tests.commands.test_packages import (
    ASCEND,
    ASCEND_PROPOSER,
    RANGE,
    RELEASE,
    feature_for,
    install,
)
from tests.support import fake_vllm
from tests.support.cli import RUNNER, Cli, digest, edit
from tests.support.releases import Release, serve

RUNNERS = {name: RUNNER.replace("vllm/", f"{name}/", 1) for name in (ASCEND, "transformers")}
PATCHED = {ASCEND: ASCEND_PROPOSER, "transformers": "transformers/v1/spec_decode/proposer.py"}
VERSIONS = {ASCEND: RELEASE, "transformers": "4.55.0"}
RANGES = {ASCEND: RANGE, "transformers": "4.50.0..4.60.0"}


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Releases of every package that need no network, but those whose package is put in here."""
    real, missing = resolution.resolve, set[str]()

    def resolve(name: str | None, **options: object) -> object:
        named = None if name is None else resolution.release_named(name)
        if named is None:
            return real(name, **options)  # type: ignore[arg-type]
        version, package = named
        if package.name in missing:
            raise PackageIndexError(f"{name}: it is not on the index")
        return Release(fake_vllm.files(str(version), package=package.name), str(version))

    monkeypatch.setattr(resolution, "resolve", resolve)
    serve(monkeypatch, ["0.26.0"])
    return missing


@pytest.fixture(params=sorted(RUNNERS))
def other(request: pytest.FixtureRequest, cli: Cli, site: Path) -> str:
    """A package beside vLLM that has a feature at hand: one with known releases, or a team's."""
    name = str(request.param)
    feature_for(cli.shipped, name, RANGES[name], "lengths")
    install(site, name, VERSIONS[name])
    return name


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "ours"


def test_an_edited_patched_file_of_any_package_is_no_dead_end(
    cli: Cli, site: Path, ours: Path, other: str
) -> None:
    pristine = digest(site)
    assert cli("apply", site).exit == 0
    edit(site, PATCHED[other], "# patched", "# patched, and mine")
    edit(site, RUNNERS[other], "(1, 2, 4)", "(1, 2)")
    edited = digest(site)
    refused = cli("revert", site)
    assert refused.exit == 1
    assert "--keep-as" in refused.out
    kept = cli("revert", site, "--keep-as", "mine", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(kept.json)
    assert kept.exit == 0, kept.err
    assert f"kept in {ours / 'mine'}" in kept.json["verdict"]
    assert kept.json["kept"]["release"] == VERSIONS[other]
    assert digest(site) == pristine
    (feature,) = load([ours])
    assert feature.package == package_named(other)
    again = cli("apply", site, "--patches", ours)
    assert again.exit == 0, again.out
    now = digest(site)
    assert [now[path] for path in (PATCHED[other], RUNNERS[other])] == [
        edited[path] for path in (PATCHED[other], RUNNERS[other])
    ]


def test_edits_of_two_packages_become_two_features(
    cli: Cli, site: Path, ours: Path, other: str
) -> None:
    """A feature is for one package: the refusal names the command that makes the other one."""
    pristine = digest(site)
    assert cli("apply", site).exit == 0
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    edit(site, PATCHED[other], "# patched", "# patched, and mine")
    edited = digest(site)
    words = ("revert", site, "--keep-as", "mine", "--patches", ours)
    refused = cli(*words)
    assert refused.exit == 2
    spelt = f"{other.replace('_', '-')}=={'all' if other == ASCEND else VERSIONS[other]}"
    for word in (RUNNER, PATCHED[other]):
        assert word in refused.err
    step = ("new", "OTHER", "--from-edits", "--releases", spelt, "--patches", str(ours), str(site))
    assert refused.commands == (step,)
    assert digest(site) == edited
    assert not ours.exists()
    made = cli("new", "theirs", site, "--from-edits", "--releases", spelt, "--patches", ours)
    assert made.exit == 0, made.out + made.err
    kept = cli(*words)
    assert kept.exit == 0, kept.out + kept.err
    assert f"are kept in {ours / 'theirs'}" in kept.out
    assert digest(site) == pristine
    assert cli("apply", site, "--patches", ours).exit == 0
    now = digest(site)
    assert [now[path] for path in (RUNNER, PATCHED[other])] == [
        edited[path] for path in (RUNNER, PATCHED[other])
    ]


def test_features_that_hold_all_edits_are_left_as_they_are(
    cli: Cli, site: Path, ours: Path, other: str
) -> None:
    pristine = digest(site)
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    edit(site, RUNNERS[other], "(1, 2, 4)", "(1, 3)")
    span = f"{other.replace('_', '-')}=={VERSIONS[other]}"
    for words in (("mine",), ("theirs", "--releases", span)):
        assert cli("new", *words, site, "--from-edits", "--patches", ours).exit == 0
    made = digest(ours)
    kept = cli("revert", site, "--keep-as", "theirs", "--patches", ours)
    assert kept.exit == 0, kept.out + kept.err
    assert f"the edits of vLLM are kept in {ours / 'mine'}" in kept.out
    assert digest(site) == pristine
    assert digest(ours) == made


def test_a_package_that_the_overlay_did_not_patch_does_not_keep_the_other_from_it(
    cli: Cli, site: Path, ours: Path, gone: set[str]
) -> None:
    """vLLM is a build of its own there, whose text no index has."""
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    install(site, ASCEND, RELEASE)
    assert cli("apply", site, "--feature", "lengths").exit == 0
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    gone.add("vllm")
    edit(site, ASCEND_PROPOSER, "# patched", "# patched, and mine")
    own = (site / RUNNER).read_bytes()
    kept = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert kept.exit == 0, kept.out + kept.err
    assert "vLLM was not looked at for edits" in kept.out
    assert (site / RUNNER).read_bytes() == own
    pristine = fake_vllm.files(RELEASE, package=ASCEND)[ASCEND_PROPOSER]
    assert (site / ASCEND_PROPOSER).read_bytes() == pristine


def test_a_patched_package_whose_edits_cannot_be_told_refuses_it(
    cli: Cli, site: Path, ours: Path, gone: set[str]
) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    install(site, ASCEND, RELEASE)
    assert cli("apply", site).exit == 0
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    gone.add("vllm")
    edit(site, ASCEND_PROPOSER, "# patched", "# patched, and mine")
    before = digest(site)
    refused = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert refused.exit == 2
    assert "it is not on the index" in refused.err
    assert digest(site) == before
    assert not ours.exists()


def test_an_id_that_exists_for_another_package_is_refused(cli: Cli, site: Path, ours: Path) -> None:
    feature_for(ours, ASCEND, RANGE, "lengths")
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    before, made = digest(site), digest(ours)
    refused = cli("revert", site, "--keep-as", "lengths", "--patches", ours)
    assert refused.exit == 2
    step = f"`overlay new lengths --from-edits --update --patches {ours} {site}`"
    assert f"{step} first" in refused.err
    assert (digest(site), digest(ours)) == (before, made)


def test_where_nothing_is_edited_each_package_is_named(cli: Cli, site: Path, ours: Path) -> None:
    feature_for(cli.shipped, ASCEND, RANGE, "lengths")
    install(site, ASCEND, RELEASE)
    assert cli("apply", site).exit == 0
    ours.mkdir()
    reverted = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert reverted.exit == 0
    assert "nothing was edited in vLLM and vllm-ascend" in reverted.out
    assert not list(ours.iterdir())
