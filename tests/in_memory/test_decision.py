"""What a process decides about the features on disk, and what only a plan can tell it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

import overlay
from overlay import settings
from overlay._features.sources import further_packages, patches_folders
from overlay.in_memory import FeatureDecision
from overlay.in_memory import decision as decisions
from overlay.in_memory.decision import digest, root_of, settled_without_plan
from overlay.on_disk.ledger import Ledger, load
from overlay.results import Reason, State
from overlay.targets import Target
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSE, PROPOSER
from tests.support.patches import write_feature


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vLLM that this Python would import, with one shipped feature applied to it."""
    shipped = tmp_path / "shipped"
    files = {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
    write_feature(shipped, files)
    monkeypatch.setattr("overlay._features.sources.shipped_folder", lambda: shipped)
    for name in [name for name in os.environ if name.startswith("OVERLAY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    place = fake_vllm.site_packages(tmp_path / "site-packages")
    assert overlay.apply(place).exit == 0
    monkeypatch.syspath_prepend(str(place))
    return place


def target(site: Path) -> Target:
    return resolve(str(site))


def ledger(site: Path) -> Ledger:
    loaded = load(site)
    assert loaded is not None
    return loaded


def demo(site: Path) -> FeatureDecision:
    entry = ledger(site).applied[0]
    places = entry.result.places
    assert (PROPOSER, "SpecDecodeBaseProposer.propose") in places
    return FeatureDecision("demo", entry.digest, State.APPLIED, True, places=places)


def test_an_edited_file_is_told_and_nothing_is_active(site: Path) -> None:
    with (site / PROPOSER).open("ab") as file:
        file.write(b"# by hand\n")
    features = decisions.on_disk(target(site), ledger(site))
    why = f"not as overlay apply left it: {PROPOSER}; run `overlay status`"
    assert features == [demo(site)._replace(active=False, why=why)]
    assert features[0].reason == why


def test_a_vllm_that_was_installed_again_has_nothing_on_disk(site: Path) -> None:
    state = site / ".vllm-overlay"
    kept = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    old = ledger(site)
    assert overlay.revert(site).exit == 0
    for path, data in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert decisions.on_disk(target(site), old) == []


def test_what_is_gone_counts_as_replaced_only_where_the_release_is_another_one(site: Path) -> None:
    old = ledger(site)
    (site / PROPOSER).unlink()
    (site / ADDED).unlink()
    for release in (target(site).release, None):
        (feature,) = decisions.on_disk(dataclasses.replace(target(site), release=release), old)
        assert not feature.active
    other = dataclasses.replace(target(site), release=Version("0.27.0"))
    assert decisions.on_disk(other, old) == []


def test_what_needs_no_plan_says_why_it_is_not_on_disk(site: Path) -> None:
    def settled(ledger: Ledger, switches: settings.Switches) -> list[FeatureDecision]:
        folders = patches_folders(switches)
        decisions = settled_without_plan(ledger, "0.26.0", switches, folders)
        assert decisions is not None
        return decisions

    plain, old = settings.read({}), ledger(site)
    upstreamed = old.applied[0]._replace(
        result=old.applied[0].result._replace(state=State.UPSTREAMED, files=())
    )
    changed = old._replace(features=(upstreamed,))
    (decision,) = settled(changed, plain)
    assert decision == FeatureDecision("demo", upstreamed.digest, State.UPSTREAMED, False)
    assert decision.harmless
    assert decision.reason == "not applied on disk"
    reason = Reason("it is in 0.25.0")
    explained = upstreamed._replace(result=upstreamed.result._replace(reason=reason))
    (decision,) = settled(old._replace(features=(explained,)), plain)
    assert decision.reason == str(reason)
    (decision,) = settled(changed, plain._replace(features=frozenset()))
    assert (decision.why, decision.allowed) == ("OVERLAY_FEATURES does not name it", False)


def test_packages_beside_vllm_are_found_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patches").mkdir()
    for name in ("beside_vllm", "loaded_beside", "single_module", "not_there"):
        write_feature(
            tmp_path / "patches", {}, id=name.replace("_", "-"), toml=f'package = "{name}"'
        )
    for name in ("beside_vllm", "loaded_beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit\n")
    (tmp_path / "single_module.py").write_text("")
    loaded = ModuleType("loaded_beside")
    loaded.__file__ = str(tmp_path / "loaded_beside" / "__init__.py")
    monkeypatch.setitem(sys.modules, "loaded_beside", loaded)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    packages = further_packages([tmp_path / "patches"])
    assert {package.name: root_of(package) for package in packages} == {
        "beside_vllm": tmp_path.resolve(),
        "loaded_beside": tmp_path.resolve(),
        "not_there": None,
        "single_module": None,
    }


def test_the_digest_is_of_what_runs_and_of_every_switch() -> None:
    a = FeatureDecision("a", "1", State.APPLIED, True)
    b = FeatureDecision("b", "2", State.PRISTINE, True)

    def of(features: Sequence[FeatureDecision], **variables: str) -> str:
        return digest(features, variables)

    assert of([a, b]) == of([b, a]) == of([b._replace(state=State.APPLIED), a], OVERLAY="disk")
    assert of([a, b._replace(active=False)]) == of([a])
    assert of([a], OVERLAY_A="1", OVERLAY_B="2") == of([a], OVERLAY_B="2", OVERLAY_A="1")
    different = [of([a]), of([b]), of([a, b]), of([a._replace(digest="2")]), of([])]
    different += [of([a], OVERLAY_DEMO="off"), of([a], OVERLAY_DEMO="on")]
    assert len(set(different)) == len(different)
