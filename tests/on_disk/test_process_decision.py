"""What ``apply`` decides for the process that starts next, and what it leaves to that process."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st
from packaging.version import Version

import overlay
from overlay import settings
from overlay.on_disk import process_decision as decisions
from overlay.on_disk import receipt
from overlay.on_disk.ledger import Ledger, load
from overlay.on_disk.process_decision import FeatureDecision, Kept, Question
from overlay.package import VLLM
from overlay.results import Reason, State, Way
from overlay.targets.resolution import resolve
from overlay.targets.target import Target
from overlay.untrusted import read_below
from tests.support import fake_vllm, pairs
from tests.support.cli import ADDED, CAPTURE, PROPOSE, PROPOSER
from tests.support.patches import write_feature

SWITCH = """
[[switches]]
name = "OVERLAY_DEMO"
values = ["on", "off"]
default = "on"
text = "Turns the demo off."
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vLLM that this Python would import, with one shipped feature applied to it."""
    shipped = tmp_path / "shipped"
    files = {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
    write_feature(shipped, files, toml=SWITCH)
    monkeypatch.setattr("overlay.features.sources.shipped_folder", lambda: shipped)
    for name in [name for name in os.environ if name.startswith("OVERLAY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(receipt, "_SETTLED", -(10**12))
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


def decided(site: Path, **variables: str) -> Kept | None:
    """The decision that is kept for a process with these variables."""
    switches = settings.read(variables)
    decisions.keep_applied([target(site)], switches)
    return Question(switches, site.resolve()).answer()


def demo(site: Path) -> FeatureDecision:
    return FeatureDecision("demo", ledger(site).applied[0].digest, State.APPLIED, True)


def test_the_decision_names_all_that_a_process_says(site: Path) -> None:
    assert decided(site) == Kept(
        way=Way.DISK,
        vllm="0.26.0",
        root=str(site.resolve()),
        features=(demo(site),),
        warnings=(),
        required=False,
        switches=(("OVERLAY_DEMO", ("on", "off"), "on", "Turns the demo off.", ()),),
    )


@pytest.mark.parametrize("variable", ["OVERLAY_REQUIRED", "OVERLAY_REQUIRED_PRESENT"])
def test_what_is_required_is_required_of_the_decision(site: Path, variable: str) -> None:
    kept = decided(site, **{variable: "demo"})
    assert kept is not None
    assert kept.required
    assert decided(site, **{variable: "other"}) is None
    assert decided(site, **{variable: "all"}) is None


def test_a_feature_that_is_not_on_disk_leaves_it_to_the_process(site: Path, tmp_path: Path) -> None:
    team = tmp_path / "team"
    write_feature(team, {"10-capture/0.20.0..0.33.0.patch": CAPTURE}, id="team-capture")
    assert decided(site, OVERLAY_PATCHES=str(team)) is None
    # Where only what is on disk counts, nothing is missing.
    kept = decided(site, OVERLAY_PATCHES=str(team), OVERLAY="disk")
    assert kept is not None
    assert kept.features == (demo(site),)
    assert decided(site, OVERLAY="off") is None


def test_it_is_kept_only_for_the_vllm_that_this_python_imports(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(site)])
    assert decided(site) is None
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    monkeypatch.chdir(site)
    assert decided(site) is not None
    decisions.keep_applied([], settings.read({}))  # no vLLM among what was patched


def test_a_receipt_that_is_there_is_left_alone(site: Path, tmp_path: Path) -> None:
    assert decided(site) is not None
    (text,) = (tmp_path / "cache" / "receipts").iterdir()
    text.write_bytes(b"whatever")
    question = Question(settings.read({}), site.resolve())
    assert question.is_answered
    assert decided(site) is None
    assert text.read_bytes() == b"whatever"
    text.unlink()
    assert not question.is_answered
    assert decided(site) is not None


def test_an_edited_file_is_told_and_nothing_is_active(site: Path) -> None:
    with (site / PROPOSER).open("ab") as file:
        file.write(b"# by hand\n")
    features, blocked = decisions.from_disk(target(site), ledger(site))
    assert blocked
    why = f"not as overlay apply left it: {PROPOSER}; run `overlay status`"
    assert features == [demo(site)._replace(active=False, why=why)]
    assert features[0].reason == why
    assert decided(site) is None


def test_a_vllm_that_was_installed_again_has_nothing_on_disk(site: Path) -> None:
    state = site / ".vllm-overlay"
    kept = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    old = ledger(site)
    assert overlay.revert(site).exit == 0
    for path, data in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert decisions.from_disk(target(site), old) == ([], False)
    assert decided(site) is None


def test_evidence_wants_a_file_that_says_which_release_it_is(site: Path) -> None:
    question = Question(settings.read({}), site.resolve())
    evidence = question.evidence()
    assert evidence is not None
    assert {os.path.relpath(path, site.resolve()) for path in evidence.files} == {
        "vllm/_version.py",
        "vllm-0.26.0.dist-info/METADATA",
        ".vllm-overlay/ledger.json",
        ".vllm-overlay/journal.json",
    }
    for name in ("vllm/_version.py", "vllm-0.26.0.dist-info/METADATA"):
        (site / name).unlink(missing_ok=True)
    assert question.evidence() is None
    os.mkfifo(site / "vllm" / "_version.py")
    assert question.evidence() is None


def test_what_is_gone_counts_as_replaced_only_where_the_release_is_another_one(site: Path) -> None:
    old = ledger(site)
    (site / PROPOSER).unlink()
    (site / ADDED).unlink()
    assert decisions.from_disk(target(site), old)[1]
    unknown = dataclasses.replace(target(site), release=None)
    assert decisions.from_disk(unknown, old)[1]
    other = dataclasses.replace(target(site), release=Version("0.27.0"))
    assert decisions.from_disk(other, old) == ([], False)


def test_another_root_asks_another_question(site: Path, tmp_path: Path) -> None:
    assert decided(site) is not None
    assert Question(settings.read({}), tmp_path).answer() is None


def test_a_version_that_is_not_known_is_called_so(site: Path) -> None:
    switches = settings.read({})
    decisions.keep_applied([dataclasses.replace(target(site), vllm=None)], switches)
    kept = Question(switches, site.resolve()).answer()
    assert kept is not None
    assert kept.vllm == "unknown"


def test_evidence_is_of_every_package(site: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    metadata = beside / "vllm_ascend-0.26.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    question = Question(settings.read({}), site.resolve())
    question.others = {"vllm_ascend": beside}
    assert question.evidence() is None
    metadata.write_text("Version: 0.26.0\n")
    evidence = question.evidence()
    assert evidence is not None
    ledgers = {site.resolve() / ".vllm-overlay", beside / ".vllm_ascend-overlay"}
    assert {str(folder / "ledger.json") for folder in ledgers} <= set(evidence.files)
    assert str(metadata) in evidence.files


@pytest.mark.parametrize("place", ["below a file", "open to all"])
def test_a_cache_that_cannot_be_written_is_no_error(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    kept = decided(site)
    assert kept is not None
    cache = tmp_path / "other"
    if place == "open to all":
        (cache / "receipts").mkdir(parents=True)
        (cache / "receipts").chmod(0o777)
    else:
        cache.write_text("")
    monkeypatch.setenv("OVERLAY_CACHE", str(cache))
    question = Question(settings.read({}), site.resolve())
    evidence = question.evidence()
    assert evidence is not None
    question.keep(kept, {}, evidence)
    assert question.answer() is None


def test_needless_says_why_each_is_not_on_disk(site: Path) -> None:
    old = ledger(site)
    upstreamed = old.applied[0]._replace(
        result=old.applied[0].result._replace(state=State.UPSTREAMED, files=())
    )
    changed = old._replace(features=(upstreamed,))
    told = FeatureDecision("demo", upstreamed.digest, State.UPSTREAMED, False)
    assert decisions.needless(target(site), changed, settings.read({})) == [told]
    assert told.harmless
    assert told.reason == "not applied on disk"
    reason = Reason("it is in 0.25.0")
    explained = upstreamed._replace(result=upstreamed.result._replace(reason=reason))
    (kept,) = (
        decisions.needless(target(site), old._replace(features=(explained,)), settings.read({}))
        or ()
    )
    assert kept.reason == str(reason)
    names_others = settings.read({})._replace(features=frozenset())
    (other,) = decisions.needless(target(site), changed, names_others) or ()
    assert (other.why, other.asked) == ("OVERLAY_FEATURES does not name it", False)
    unknown = dataclasses.replace(target(site), release=None)
    assert decisions.needless(unknown, changed, settings.read({})) is None


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
    assert decisions.further_roots([tmp_path / "patches"]) == {
        "beside_vllm": tmp_path.resolve(),
        "loaded_beside": tmp_path.resolve(),
    }


DECISIONS = st.builds(
    FeatureDecision,
    st.text(max_size=3),
    st.text(max_size=3),
    st.sampled_from(State),
    st.booleans(),
    st.none() | st.text(max_size=3),
    st.booleans(),
)
ROWS = st.tuples(
    st.text(max_size=2),
    st.lists(st.text(max_size=2), max_size=2).map(tuple),
    st.text(max_size=2),
    st.text(max_size=2),
    st.lists(st.tuples(st.text(max_size=2), st.text(max_size=2)), max_size=2).map(tuple),
)
KEPT = st.builds(
    Kept,
    st.sampled_from([Way.DISK, Way.NONE]),
    st.text(max_size=3),
    st.text(max_size=3),
    st.lists(DECISIONS, max_size=2).map(tuple),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
    st.booleans(),
    st.lists(ROWS, max_size=2).map(tuple),
)


@settings_of_test(max_examples=25)
@given(KEPT)
def test_a_decision_comes_back_from_json_as_it_was(kept: Kept) -> None:
    assert decisions._decoded(json.loads(json.dumps(decisions._encoded(kept)))) == kept


def test_what_is_no_truth_value_is_not_taken_for_one() -> None:
    row = ["demo", "0", "applied", 1, None, "yes"]
    kept = {"way": "disk", "vllm": "1", "root": "/", "features": [row], "warnings": []}
    decoded = decisions._decoded({**kept, "required": 1, "switches": [], "others": []})
    assert (decoded.required, decoded.features[0].active, decoded.features[0].asked) == (False,) * 3


def test_the_digest_is_of_what_runs_and_of_every_switch() -> None:
    a = FeatureDecision("a", "1", State.APPLIED, True)
    b = FeatureDecision("b", "2", State.PRISTINE, True)

    def of(features: Sequence[FeatureDecision], **variables: str) -> str:
        return decisions.digest(features, variables)

    assert of([a, b]) == of([b, a]) == of([b._replace(state=State.APPLIED), a], OVERLAY="disk")
    assert of([a, b._replace(active=False)]) == of([a])
    assert of([a], OVERLAY_A="1", OVERLAY_B="2") == of([a], OVERLAY_B="2", OVERLAY_A="1")
    different = [of([a]), of([b]), of([a, b]), of([a._replace(digest="2")]), of([])]
    different += [of([a], OVERLAY_DEMO="off"), of([a], OVERLAY_DEMO="on")]
    assert len(set(different)) == len(different)


def test_a_decision_is_about_every_package_that_was_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pairs.installed(tmp_path / "site", together=True)
    pair.apply()
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    members = [pair.member(package) for package in (VLLM, pairs.ASCEND)]
    own = [
        Target(
            name=str(member.root),
            vllm="0.26.0",
            release=None,
            root=member.root,
            record=None,
            record_file=None,
            warnings=(),
            reader=functools.partial(read_below, member.root),
            package=member.package,
        )
        for member in members
    ]
    kept: list[tuple[Kept, dict[str, str | None]]] = []

    def keep(_: Question, decision: Kept, inputs: dict[str, str | None], __: object) -> None:
        kept.append((decision, inputs))

    monkeypatch.setattr(Question, "keep", keep)
    switches = settings.read({"OVERLAY": "disk"})
    question = Question(switches, members[0].root)
    decisions._keep_applied(question, receipt.Evidence([], []), own, switches)
    ledgers = [load(member.root, member.package) for member in members]
    assert all(ledgers)
    ((decision, inputs),) = kept
    wanted = [entry.result.feature for each in ledgers if each for entry in each.applied]
    assert [feature.id for feature in decision.features] == wanted
    paths = [
        str(member.root / entry.path)
        for member, each in zip(members, ledgers, strict=True)
        if each
        for entry in each.entries
    ]
    assert sorted(inputs) == sorted(paths)
