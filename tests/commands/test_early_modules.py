"""Only what the plugin will do is promised: modules that are imported before it are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay._features.vllm_defaults import early_among, early_modules
from overlay.authoring.commands.edit_report import AuthoredFile, AuthoredHunks, NewReport
from overlay.authoring.commands.import_report import ImportReport
from overlay.authoring.landing import Summary
from overlay.authoring.triage import FileFate
from overlay.package import KNOWN_RELEASES, ReleaseRange, module_name
from overlay.report.codes import Code, Verdict
from overlay.results import Fate
from scripts.vllm_import_graph import Tree, unpacked
from tests.support import fake_vllm
from tests.support.cli import PROPOSE, Cli
from tests.support.patches import hunk, patch_text, write_feature

ENVS = "vllm/envs.py"
SAYS = "vLLM imports vllm.envs before it loads plugins; apply it on disk"
EDIT = patch_text(ENVS, hunk(["-TIMEOUT = 5", "+TIMEOUT = 75"]))


@pytest.fixture
def installed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM with the plugin beside it, which knows of a feature for an early module."""
    site = fake_vllm.site_packages(tmp_path / "site", "0.26.0", {ENVS: b"TIMEOUT = 5\n"})
    (site / "vllm_overlay-0.1.0.dist-info").mkdir()
    write_feature(cli.team, {"10-envs/0.20.0..0.33.0.patch": EDIT}, id="patient")
    monkeypatch.setenv("OVERLAY_PATCHES", str(cli.team))
    return site


def test_what_cannot_be_patched_in_memory_is_not_promised(cli: Cli, installed: Path) -> None:
    for command in ("check", "status"):
        answer = cli(command, installed)
        assert answer.exit == 0
        assert f"in memory: patient is left out: {SAYS}" in answer.out
        (target,) = cli(command, installed, "--json").json["targets"]
        assert target["not_in_memory"] == [{"feature": "patient", "reason": SAYS}]
        assert "patient" not in target.get("in_memory", [])
    assert target["in_memory"] == ["demo", "team-capture"]
    assert "in memory: demo and team-capture" in cli("apply", "--feature", "patient", installed).out
    for command in ("check", "status", "apply"):
        assert SAYS not in cli(command, installed).out  # it is on disk


def test_several_targets_share_what_is_said(cli: Cli, installed: Path, tmp_path: Path) -> None:
    other = fake_vllm.site_packages(tmp_path / "other", "0.25.0", {ENVS: b"TIMEOUT = 5\n"})
    said = cli("check", installed, other).out
    assert said.count(f"patient cannot be patched in memory: {SAYS}") == 1


def test_every_patched_file_counts(cli: Cli, installed: Path) -> None:
    """A feature goes in as a whole or not at all."""
    files = {"10-envs/0.20.0..0.33.0.patch": EDIT, "20-propose/0.20.0..0.33.0.patch": PROPOSE}
    write_feature(cli.team, files, id="patient")
    (target,) = cli("check", "--feature", "patient", installed, "--json").json["targets"]
    assert target["not_in_memory"] == [{"feature": "patient", "reason": SAYS}]


def edited(path: str) -> NewReport:
    file = AuthoredFile(path, Fate.EDITED, (AuthoredHunks("<module>", 1),), (), None)
    verdict = Verdict(Code.MADE, "Wrote it.")
    span = "0.20.0..0.33.0"
    return NewReport(verdict, "mine", "0.26.0", (file,), releases=span, target="site")


def imported(path: str) -> ImportReport:
    file = FileFate(path, Fate.EDITED, "0.26.0", hunks=1)
    verdict = Verdict(Code.IMPORTED, "Wrote it.")
    span = ReleaseRange(Version("0.20.0"), Version("0.33.0"))
    summary = Summary("mine", "A change", 1, (file,), releases=span)
    return ImportReport(verdict, summary, Path("ours/mine"))


@pytest.mark.parametrize("report", [edited, imported])
def test_who_makes_such_a_feature_is_told(
    report: Callable[[str], NewReport | ImportReport],
) -> None:
    def said(path: str) -> str:
        return "\n".join(map(str, report(path).lines()))

    assert f"note: it cannot be patched in memory: {SAYS}" in said(ENVS)
    assert "in memory" not in said("vllm/v1/worker/gpu_model_runner.py")
    assert "in memory" not in said("vllm_ascend/envs.py")


def test_a_release_that_is_not_known_is_taken_for_the_newest() -> None:
    newest = Version(KNOWN_RELEASES[-1])
    assert early_modules(Version("0.99.0")) == early_modules(None) == early_modules(newest)
    assert "vllm.envs" in early_modules(newest)
    assert early_among([ENVS, "vllm/config/__init__.py", "other/envs.py"], newest) == (
        "vllm.config",
        "vllm.envs",
    )


@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_no_shipped_feature_patches_an_early_module(release: str) -> None:
    patched = {
        module_name(variant.patch.path)
        for feature in load([shipped_folder()])
        for topic in feature.topics
        for variant in topic.variants
        if Version(release) in variant.releases
    }
    assert patched
    assert not patched & early_modules(Version(release))


#: The first and the last release; each of the others takes as long.
EDGES = (KNOWN_RELEASES[0], KNOWN_RELEASES[-1])


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    "release",
    [
        each if each in EDGES else pytest.param(each, marks=pytest.mark.thorough)
        for each in KNOWN_RELEASES
    ],
)
def test_the_table_is_what_the_sources_import(release: str, tmp_path: Path) -> None:
    assert Tree(unpacked(release, tmp_path)).early() == early_modules(Version(release))
