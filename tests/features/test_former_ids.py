"""Ids of what was a feature once: dbo-drafts, dbo-eagle3 and dbo-lengths are parts of dbo.

What commands answer to such a target and to such options is recorded (``states/former-ids``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import overlay
from overlay import settings
from overlay._features.folder import load
from overlay._processes import Effect, EffectRecord, of_features
from overlay.errors import PatchFormatErrors
from overlay.in_memory.effects import EffectWatch
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, decode, encode
from overlay.results import FeatureResult, FileResult, State
from tests.support.fake_vllm import site_packages
from tests.support.patches import write_feature

FORMER = ("dbo-drafts", "dbo-eagle3", "dbo-lengths")


def test_each_is_a_part_of_a_feature_that_is_shipped() -> None:
    assert set(settings.FORMER_IDS) == set(FORMER)
    assert {*settings.FORMER_IDS.values()} <= {feature.id for feature in overlay.features()}


@pytest.mark.parametrize("former", FORMER)
def test_the_variables_take_it_and_say_what_it_means(former: str) -> None:
    variables = ("OVERLAY_FEATURES", "OVERLAY_REQUIRED", "OVERLAY_REQUIRED_PRESENT")
    switches = settings.read(dict.fromkeys(variables, f"{former}, draft-graphs"))
    assert switches.features == switches.required == switches.present == {"dbo", "draft-graphs"}
    assert switches.warnings == tuple(
        f"{variable}: {former} is a part of dbo now, all of which is meant"
        for variable in variables
    )


def test_the_functions_take_it_and_warn(tmp_path: Path) -> None:
    site_packages(tmp_path / "site", "0.15.0")
    with pytest.warns(FutureWarning, match="dbo-lengths is a part of dbo now") as noted:
        report = overlay.check(tmp_path / "site", only=["dbo-lengths", "dbo-drafts"])
    assert len(noted) == 2
    assert [result.feature for result in report.targets[0].features] == ["dbo"]


def test_nobody_else_can_have_it(tmp_path: Path) -> None:
    write_feature(tmp_path, {"files/vllm/v1/new.py": "A = 1\n"}, id="dbo-lengths")
    with pytest.raises(PatchFormatErrors, match="id: dbo-lengths means dbo now"):
        load([tmp_path])


def ledger(*features: LedgerFeature) -> Ledger:
    entry = Entry("vllm/v1/drafts.py", "1" * 64, "2" * 64, 0o644, 1)
    return Ledger("0.1.0", "0.26.0", features, (entry,), (), None)


def applied(name: str, *paths: str, state: State = State.APPLIED) -> LedgerFeature:
    files = tuple(FileResult(path, state, None) for path in paths)
    return LedgerFeature(f"of {name}", "shipped", FeatureResult(name, state, files))


def test_a_ledger_of_three_has_one_with_the_files_of_all() -> None:
    both = "vllm/v1/overlay_effects.py"
    parts = [applied(name, both, f"vllm/v1/{name[4:]}.py") for name in FORMER]
    parts.insert(1, applied("demo"))
    whole, demo = decode(encode(ledger(*parts)), "ledger.json").features
    assert demo == applied("demo")
    assert whole.result.feature == "dbo"
    assert whole.result.state is State.APPLIED
    names = [file.path for file in whole.result.files]
    assert names == [both, "vllm/v1/drafts.py", "vllm/v1/eagle3.py", "vllm/v1/lengths.py"]
    assert whole.digest == "of dbo-drafts of dbo-eagle3 of dbo-lengths"


def test_what_was_applied_in_part_is_applied_in_another_form() -> None:
    upstream = applied("dbo-drafts", state=State.UPSTREAMED)
    (whole,) = decode(encode(ledger(upstream, applied("dbo-lengths"))), "ledger.json").features
    assert whole.result.state is State.APPLIED
    (alone,) = decode(encode(ledger(applied("dbo-lengths"))), "ledger.json").features
    assert (alone.result.feature, alone.digest) == ("dbo", "of dbo-lengths")


def test_a_feature_is_active_where_one_of_its_parts_is() -> None:
    """Its modules report under these ids, in a vLLM that any version of the overlay patched."""
    active = EffectRecord("dbo-lengths", Effect.ACTIVE, "graphs read the lengths")
    idle = EffectRecord("dbo-eagle3", Effect.IDLE, "one tensor")
    other = EffectRecord("demo", Effect.IDLE, "why")
    assert of_features([idle, other, active]) == (
        EffectRecord(
            "dbo", Effect.ACTIVE, "graphs read the lengths; but not all of it: one tensor"
        ),
        other,
    )
    off = EffectRecord("dbo-drafts", Effect.IDLE, "off")
    assert of_features([idle, off]) == (EffectRecord("dbo", Effect.IDLE, "one tensor; off"),)


class Serving:
    """A process that has the code of dbo and of demo; the part of it that is asked here."""

    def features(self) -> tuple[str, ...]:
        return ("dbo", "demo")

    def requires(self, feature: str) -> bool:
        return feature == "dbo"

    def declared(self) -> dict[str, Any]:
        return {}


class Module:
    """What patched code has reported: ``vllm.v1.overlay_effects`` as far as it is read."""

    def effects(self) -> dict[str, dict[str, object]]:
        return {
            "demo": {"state": None, "text": "", "counts": {}},
            "dbo-drafts": {"state": "idle", "text": "no drafts", "counts": {}},
            "dbo-lengths": {"state": "active", "text": "lengths", "counts": {}},
            "other": {"state": "idle", "text": "why", "counts": {}},
        }


def test_a_process_says_of_the_feature_what_its_parts_report() -> None:
    watch = EffectWatch(Serving())  # type: ignore[arg-type]  # it publishes nothing here
    watch._module = Module()  # type: ignore[assignment]  # no module is imported
    told = [(each.feature, each.state, each.text) for each in watch.effects()]
    assert told == [
        ("dbo", Effect.ACTIVE, "lengths; but not all of it: no drafts"),
        ("demo", Effect.PATCHED, "it does not report what it does"),
        ("other", Effect.IDLE, "why"),
    ]
