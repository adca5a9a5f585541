"""``decide`` in this process: what each switch makes of a vLLM with a feature on disk or not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import overlay
from overlay import settings
from overlay.errors import TargetError, UsageError
from overlay.in_memory import Activation, FeatureDecision, decision, import_hook
from overlay.in_memory.decision import RequiredMissing, decide
from overlay.in_memory.module_cache import StoredModule
from overlay.on_disk.ledger import load
from overlay.package import VLLM, Package, package_named
from overlay.results import State, Way
from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSE, PROPOSER
from tests.support.patches import write_feature

SWITCH = '[[switches]]\nname = "OVERLAY_{}"\nvalues = ["off", "on"]\ndefault = "on"\ntext = "x"\n'
NOT_ON_DISK = "it is not applied on disk, and OVERLAY=disk allows no other way"
FIRST = {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
SECOND = {"10-capture/0.20.0..0.33.0.patch": CAPTURE}


class Nobody:
    """Hears of what the import hook does, and keeps nothing of it."""

    def executed(self, name: str, module: ModuleType, stored: StoredModule) -> None: ...

    def bypassed(self, name: str, text: str) -> None: ...


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shipped features: ``first`` and ``second``."""
    folder = tmp_path / "shipped"
    write_feature(folder, FIRST, id="first", toml=SWITCH.format("FIRST"))
    write_feature(folder, SECOND, id="second")
    monkeypatch.setattr("overlay._features.sources.shipped_folder", lambda: folder)
    return folder


@pytest.fixture
def site(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The vLLM that this Python would import, as it was installed."""
    for name in [name for name in os.environ if name.startswith("OVERLAY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    place = fake_vllm.site_packages(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    yield place
    import_hook.uninstall(sys.meta_path)


def applied(site: Path, *ids: str, package: Package = VLLM) -> list[FeatureDecision]:
    """Features that are applied, as a process tells of them."""
    assert overlay.apply(site, only=ids).exit == 0
    ledger = load(site, package)
    assert ledger is not None
    return [
        FeatureDecision(
            each.result.feature, each.digest, State.APPLIED, True, places=each.result.places
        )
        for each in ledger.applied
    ]


def decided(environment: dict[str, str] | None = None, **variables: str) -> Activation:
    given = {} if environment is None else environment
    return decide(settings.read(variables), Nobody(), given)


def hooked() -> list[str]:
    return sorted(
        name
        for finder in sys.meta_path
        if isinstance(finder, import_hook.PatchFinder)
        for name in finder.modules
    )


def imported(
    site: Path, monkeypatch: pytest.MonkeyPatch, package: str = "vllm", version: str = "0.26.0"
) -> None:
    """Have this process say that it imported a package from a folder."""
    module = ModuleType(package)
    module.__file__ = str(site / package / "__init__.py")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)


# In memory and on disk


def test_what_is_pristine_is_patched_in_memory(site: Path) -> None:
    activation = decided()
    first, second = activation.features
    assert (first.id, first.state, first.active) == ("first", State.PRISTINE, True)
    assert (second.id, second.state, second.active) == ("second", State.PRISTINE, True)
    assert (activation.way, activation.vllm, activation.root) == (
        Way.MEMORY,
        "0.26.0",
        str(site),
    )
    names = {"vllm.v1.spec_decode.demo", "vllm.v1.spec_decode.proposer"}
    assert set(first.modules) == names
    assert second.modules == ("vllm.v1.worker.gpu_model_runner",)
    assert list(activation.modules) == hooked() == sorted({*names, *second.modules})
    assert activation.scopes["vllm.v1.spec_decode.proposer"] == ("SpecDecodeBaseProposer.propose",)
    assert (activation.required, activation.warnings, activation.impossible) == (False, (), None)
    assert activation.packages == ()
    text = json.dumps([sorted([each.id, each.digest] for each in activation.features), {}])
    assert activation.digest == hashlib.sha256(text.encode()).hexdigest()


def test_what_is_on_disk_stays_and_the_rest_goes_in_memory(site: Path) -> None:
    (first,) = applied(site, "first")
    activation = decided()
    assert activation.way is Way.BOTH
    assert activation.features[0] == first
    assert [each.id for each in activation.features] == ["first", "second"]
    assert hooked() == ["vllm.v1.worker.gpu_model_runner"]
    assert activation.warnings == ()


def test_what_is_whole_on_disk_needs_no_plan(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = applied(site, "first", "second")
    monkeypatch.setattr("overlay.in_memory.preparation.prepare", None)
    activation = decided()
    assert list(activation.features) == features
    assert (activation.way, activation.root, hooked()) == (Way.DISK, str(site), [])


def test_another_form_on_disk_runs_and_is_told(site: Path, shipped: Path) -> None:
    (first,) = applied(site, "first")
    (shipped / "first/files" / ADDED).write_text("VALUE = 2\n")
    activation = decided()
    assert activation.features[0] == first
    (warning,) = activation.warnings
    assert warning == (
        "first was applied on disk in another form than the present one, and runs in that; "
        "`overlay apply` writes the present one"
    )
    import_hook.uninstall(sys.meta_path)
    (shipped / "first/feature.toml").write_text("nonsense")
    (warning,) = decided().warnings
    assert warning.startswith("first runs as it was applied on disk; ")
    assert "feature.toml" in warning
    assert hooked() == ["vllm.v1.worker.gpu_model_runner"]


def test_what_does_not_fit_says_why(site: Path, shipped: Path) -> None:
    files = {"10-capture/0.20.0..0.33.0.patch": CAPTURE.replace("(1, 2, 4)", "(1, 2)")}
    write_feature(shipped, files, id="second")
    first, second = decided().features
    assert (first.active, second.active, second.state) == (True, False, State.DRIFTED)
    assert second.why is not None
    assert "gpu_model_runner.py" in second.why


def test_an_edited_file_leaves_everything_out(site: Path) -> None:
    applied(site, "first")
    with (site / PROPOSER).open("a") as file:
        file.write("# by hand\n")
    activation = decided()
    assert (activation.way, hooked()) == (Way.NONE, [])
    assert [(each.id, each.active) for each in activation.features] == [("first", False)]


def test_disk_hooks_nothing_and_asks_for_a_plan_only_of_what_is_required(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = applied(site, "first")
    with pytest.raises(RequiredMissing, match=f"  second is pristine: {NOT_ON_DISK}\nRun"):
        decided(OVERLAY="disk", OVERLAY_REQUIRED="second")
    with pytest.raises(RequiredMissing, match=f"  second is pristine: {NOT_ON_DISK}\nRun"):
        decided(OVERLAY="disk", OVERLAY_REQUIRED="all")
    assert hooked() == []
    monkeypatch.setattr("overlay.in_memory.preparation.prepare", None)
    for required in ("", "first"):
        activation = decided(OVERLAY="disk", OVERLAY_REQUIRED=required)
        assert list(activation.features) == features
        assert (activation.way, activation.required) == (Way.DISK, bool(required))


def test_a_module_that_is_imported_already_keeps_its_feature_out_as_a_whole(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_model_runner", ModuleType("x"))
    first, second = decided().features
    assert (first.active, second.active) == (True, False)
    assert second.why is not None
    assert second.why.startswith(
        "already imported, so it cannot be patched in memory: vllm.v1.worker.gpu_model_runner "
        "(imported by "
    )
    assert second.why.endswith("). Apply on disk instead (`overlay apply`)")
    assert hooked() == ["vllm.v1.spec_decode.demo", "vllm.v1.spec_decode.proposer"]
    with pytest.raises(RequiredMissing, match="second is pristine: already imported"):
        decided(OVERLAY_REQUIRED="first,second")
    assert hooked() == []


# What is required


def test_what_is_required_is_hooked_so(site: Path) -> None:
    for required, modules in (
        ("second", {"vllm.v1.worker.gpu_model_runner"}),
        ("all", {"vllm.v1.worker.gpu_model_runner", "vllm.v1.spec_decode.proposer"}),
    ):
        activation = decided(OVERLAY_REQUIRED=required)
        assert activation.required
        (finder,) = (each for each in sys.meta_path if isinstance(each, import_hook.PatchFinder))
        assert finder._required & {*modules, "vllm.v1.spec_decode.proposer"} == modules
        import_hook.uninstall(sys.meta_path)


def test_a_feature_that_requires_itself_is_required(site: Path, shipped: Path) -> None:
    write_feature(shipped, SECOND, id="second", toml="required = true")
    assert decided().required
    with pytest.raises(RequiredMissing, match="second is pristine"):
        decided(OVERLAY="disk")


def test_an_unknown_feature_cannot_run(site: Path) -> None:
    applied(site, "first", "second")
    with pytest.raises(RequiredMissing) as refusal:
        decided(OVERLAY_REQUIRED="third,first,fourth,all")
    assert str(refusal.value) == (
        "vllm-overlay: what is required (OVERLAY_REQUIRED, or `required` in a feature.toml) cannot "
        "run in this process:\n"
        "  fourth is not active: no such feature is applied or known here\n"
        "  third is not active: no such feature is applied or known here\n"
        "Run `overlay check` for the whole report, or remove the requirement."
    )


HARMLESS = FeatureDecision("a", "1", State.UPSTREAMED, False)
LEFT_OUT = FeatureDecision("b", "2", State.DRIFTED, False, "one\ntwo")
RUNS = FeatureDecision("c", "3", State.PRISTINE, True)


@pytest.mark.parametrize(
    ("required", "features", "missing"),
    [
        ("a", (HARMLESS,), None),
        ("all", (HARMLESS,), None),
        ("all", (HARMLESS, RUNS), None),
        ("all", (), "  no feature is active in this process\n"),
        ("all", (LEFT_OUT._replace(allowed=False),), "  no feature is active in this process\n"),
        ("all", (LEFT_OUT._replace(allowed=False), HARMLESS), "  no feature is active in this"),
        ("all", (LEFT_OUT._replace(allowed=False), RUNS), None),
        ("all", (LEFT_OUT, HARMLESS), "process:\n  b is drifted: one\n    two\nRun"),
        ("b", (LEFT_OUT._replace(allowed=False), RUNS), "  b is drifted: one\n    two\n"),
        ("b", (LEFT_OUT._replace(why=None),), "  b is drifted: not active\n"),
        ("c", (LEFT_OUT, RUNS), None),
    ],
)
def test_what_must_not_be_missing(
    required: str, features: tuple[FeatureDecision, ...], missing: str | None
) -> None:
    activation = Activation(Way.NONE, "0.26.0", "/site", features)
    if missing is None:
        decision._refuse_missing(activation, frozenset({required}))
        return
    with pytest.raises(RequiredMissing) as refusal:
        decision._refuse_missing(activation, frozenset({required}))
    assert missing in str(refusal.value)


# Where nothing can be patched


def test_an_interrupted_apply_is_no_basis(site: Path) -> None:
    (site / ".vllm-overlay").mkdir()
    (site / ".vllm-overlay/journal.json").write_text("{}")
    activation = decided()
    assert activation.impossible is not None
    assert activation.impossible.startswith(f"an apply or revert in {site} is running or was inter")
    assert (activation.way, activation.vllm, activation.root) == (Way.NONE, "0.26.0", str(site))
    assert (activation.features, hooked()) == ((), [])
    assert activation.warnings == (
        f"nothing is patched in memory, and nothing on disk verified: {activation.impossible}",
    )
    with pytest.raises(RequiredMissing, match="  first, second: an apply or revert in "):
        decided(OVERLAY_REQUIRED="second,first")


def test_without_a_vllm_nothing_is_patched(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise TargetError("in an archive")

    monkeypatch.setattr(decision, "running_target", absent)
    activation = decided()
    assert (activation.way, activation.vllm, activation.root) == (Way.NONE, "unknown", "")
    assert activation.impossible == "in an archive"


def test_what_no_feature_accepts_stops_the_process(site: Path, shipped: Path) -> None:
    write_feature(shipped, SECOND, id="second", toml=SWITCH.format("SECOND"))
    with pytest.raises(UsageError, match=r"^vllm-overlay: .*OVERLAY_FIRST"):
        decided(OVERLAY_FIRST="loud")
    with pytest.raises(UsageError, match=r"OVERLAY_FIRST.*\nOVERLAY_SECOND"):
        decided(OVERLAY_FIRST="loud", OVERLAY_SECOND="loud")
    with pytest.raises(UsageError, match="OVERLAY_FEATURES names third"):
        decided(OVERLAY_FEATURES="third")
    unknown, former = decided(OVERLAY_NOTHING="on", OVERLAY_UNTESTED="0").warnings[::-1]
    assert "OVERLAY_NOTHING" in unknown
    assert "OVERLAY_UNTESTED=0 is deprecated" in former


# Beside vLLM


@pytest.fixture
def beside(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that this Python would import, for which there is a feature ``third``."""
    other = tmp_path / "beside"
    fake_vllm.site_packages(other, "0.23.0", distribution="vllm-ascend", package="vllm_ascend")
    files = {"10-propose/0.20.0..0.33.0.patch": PROPOSE.replace("vllm/", "vllm_ascend/")}
    write_feature(shipped, files, id="third", toml='package = "vllm_ascend"')
    monkeypatch.syspath_prepend(str(other))
    return other


def test_a_package_beside_vllm_is_patched_with_it(site: Path, beside: Path) -> None:
    activation = decided()
    assert [each.id for each in activation.features] == ["first", "second", "third"]
    assert activation.features[2].active, activation.features[2].why
    assert activation.packages == (("vllm-ascend", "0.23.0"),)
    module = "vllm_ascend.v1.spec_decode.proposer"
    assert module in hooked()
    assert list(activation.modules) == hooked()
    assert activation.scopes[module] == ("SpecDecodeBaseProposer.propose",)
    assert (activation.vllm, activation.root) == ("0.26.0", str(site))


def test_a_package_beside_vllm_may_be_patched_on_disk(
    site: Path, beside: Path, shipped: Path
) -> None:
    applied(beside, "third", package=package_named("vllm_ascend"))
    assert decided().way is Way.BOTH
    for feature in ("first", "second"):
        shutil.rmtree(shipped / feature)
    write_feature(shipped, SECOND, id="second")
    patch = shipped / "third/10-propose/0.20.0..0.33.0.patch"
    patch.write_text(patch.read_text().replace("# patched", "# patched anew"))
    activation = decided()
    assert (activation.way, activation.packages) == (Way.BOTH, (("vllm-ascend", "0.23.0"),))
    (warning,) = activation.warnings
    assert warning.startswith("third was applied on disk in another form than the present one")


def test_a_package_that_is_not_there_is_passed_over(
    site: Path, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(beside)])
    activation = decided()
    assert [each.id for each in activation.features] == ["first", "second"]
    assert activation.packages == ()


def test_a_vllm_that_does_not_tell_its_version(site: Path, beside: Path) -> None:
    for place, package in ((site, "vllm"), (beside, "vllm_ascend")):
        (info,) = place.glob("*.dist-info")
        shutil.rmtree(info)
        (place / package / "_version.py").unlink()
    activation = decided(OVERLAY_UNTESTED="on")
    assert (activation.vllm, activation.packages) == ("unknown", (("vllm-ascend", "unknown"),))


# Off


def test_off_hooks_nothing_and_turns_off_what_is_on_disk(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = Activation(Way.OFF, "unknown", "", ())
    assert decided(OVERLAY="off") == off
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    assert decided(OVERLAY="off") == off
    imported(site, monkeypatch)
    off = off._replace(vllm="0.26.0")
    environment: dict[str, str] = {}
    assert decided(environment, OVERLAY="off") == off
    applied(site, "first", "second")
    warning = (
        "OVERLAY=off, but patched code is on disk: first, second. Its switches are turned off "
        "for this process: OVERLAY_FIRST=off. No switch turns off second: it stays in effect. "
        "`overlay revert` takes the code away"
    )
    assert decided(environment, OVERLAY="off", OVERLAY_REQUIRED="first") == off._replace(
        root=str(site),
        warnings=(warning,),
        off_summary="off (OVERLAY=off), with patched code on disk (first, second)",
    )
    assert environment == {"OVERLAY_FIRST": "off"}
    assert hooked() == []


def test_off_says_which_half_there_is(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(site, monkeypatch)
    applied(site, "first")
    (warning,) = decided({}, OVERLAY="off").warnings
    assert warning == (
        "OVERLAY=off, but patched code is on disk: first. Its switches are turned off for this "
        "process: OVERLAY_FIRST=off. `overlay revert` takes the code away"
    )
    overlay.revert(site)
    assert decided({}, OVERLAY="off").warnings == ()
    applied(site, "second")
    (warning,) = decided({}, OVERLAY="off").warnings
    assert warning == (
        "OVERLAY=off, but patched code is on disk: second. No switch turns off second: it stays in "
        "effect. `overlay revert` takes the code away"
    )


def test_off_names_a_feature_whose_folder_is_gone(
    site: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(site, monkeypatch)
    applied(site, "first")
    shutil.rmtree(shipped / "first")
    (warning,) = decided({}, OVERLAY="off").warnings
    assert "No switch turns off first: it stays in effect" in warning


def test_off_says_that_a_ledger_cannot_be_read(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(site, monkeypatch)
    applied(site, "first")
    (site / ".vllm-overlay/ledger.json").write_text("nonsense")
    activation = decided({}, OVERLAY="off")
    assert activation.off_summary == "off (OVERLAY=off)"
    (warning,) = activation.warnings
    assert warning.startswith("OVERLAY=off, but patched code may be on disk (")
    assert warning.endswith("); run `overlay status`")
    assert (activation.vllm, activation.root, activation.features) == ("0.26.0", "", ())
