"""The plans of one process: one plan tells all that it can, and tells what planning again would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

import overlay
from overlay._features.folder import Loaded
from overlay._features.model import FILE_SCOPE, AddedFile, Feature, Hunk, WholeFile
from overlay.in_memory import preparation
from overlay.in_memory.preparation import Plans
from overlay.package import VLLM
from overlay.planning import planner
from overlay.results import Notice, Plan, State
from overlay.settings import read
from overlay.targets.installations import resolve_folder
from tests.support import fake_vllm
from tests.support.patches import feature, hunk

PROPOSER = "vllm/v1/spec_decode/proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def change(id_: str, path: str, old: str, new: str, **more: object) -> Feature:
    """A feature that replaces a line."""
    # Keywords of a helper, typed as object.
    return feature((path, [hunk([f"-{old}", f"+{new}"])]), id=id_, **more)  # type: ignore[arg-type]


FITS = change("fits", PROPOSER, "        return self.model(tokens)", "        return 1")
#: By memory: the lines of a file that somebody has edited prove nothing.
UPSTREAMED = replace(
    feature((PROPOSER, [hunk(["-absent", "+present"])]), id="upstreamed"), merged=Version("0.20.0")
)
TOO_NEW = change("too-new", RUNNER, "absent", "present", releases="0.30.0..0.33.0")
DRIFTED = change("drifted", RUNNER, "absent", "present")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of the features of each plan that is made."""
    plans: list[list[str]] = []
    real = planner.plan

    def counting(features: Sequence[Feature], *rest: object) -> Plan:
        plans.append([each.id for each in features])
        # Arguments are passed through as they come.
        return real(features, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "plan", counting)
    return plans


def plans_of(tmp_path: Path, *features: Feature, only: str | None = None) -> Plans:
    """The plans of a process for these features, on a vLLM with a foreign file."""
    site = fake_vllm.site_packages(tmp_path / "site")
    with (site / PROPOSER).open("a") as file:
        file.write("# edited\n")
    with (site / RUNNER).open("a") as file:
        file.write("# edited\n")
    environment = {} if only is None else {"OVERLAY_FEATURES": only}
    plans = Plans(resolve_folder(site, str(site), VLLM), read(environment))
    plans.__dict__["loaded"] = Loaded(features, ())  # as if a folder had held them
    return plans


def test_one_plan_where_the_others_change_nothing(tmp_path: Path, made: list[list[str]]) -> None:
    noted = replace(FITS, notices=(Notice(None, "about fits"),))
    stray = replace(UPSTREAMED, notices=(Notice(None, "about it"),))
    plans = plans_of(tmp_path, noted, stray, TOO_NEW)
    final = plans.of_chosen([noted])
    assert [each.state for each in plans.results().values()] == [
        State.PRISTINE,
        State.UPSTREAMED,
        State.INAPPLICABLE,
    ]
    assert made == [["fits", "upstreamed", "too-new"]]
    assert final == plans._plan([noted])
    assert [notice.path for notice in final.notices] == [None, PROPOSER]


def test_what_needs_attention_is_planned_without(tmp_path: Path, made: list[list[str]]) -> None:
    plans = plans_of(tmp_path, FITS, DRIFTED)
    assert plans.of_asked.changes == ()
    assert [change.path for change in plans.of_chosen([FITS]).changes] == [PROPOSER]
    assert made == [["fits", "drifted"], ["fits"]]


def test_a_second_entry_needs_only_its_own_plan(tmp_path: Path, made: list[list[str]]) -> None:
    second = change("second", RUNNER, "        return size", "        return 2")
    plans = plans_of(tmp_path, FITS, second)
    plans.of_chosen([FITS, second])
    plans.of_chosen([FITS])
    assert made == [["fits", "second"], ["fits"]]


def test_what_is_not_asked_for_is_planned_beside_the_rest(
    tmp_path: Path, made: list[list[str]]
) -> None:
    plans = plans_of(tmp_path, FITS, TOO_NEW, only="fits")
    plans.of_chosen([FITS])
    assert plans.results()["too-new"].state is State.INAPPLICABLE
    assert made == [["fits"], ["fits", "too-new"]]


def test_another_build_of_the_overlay_makes_another_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds may have one version, and plan by other rules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plans = plans_of(tmp_path, FITS)
    first = preparation.prepare(plans).entry.folder
    assert preparation.prepare(plans).entry.folder == first
    monkeypatch.setattr(preparation, "_build", lambda folder: (folder, "another"))
    assert preparation.prepare(plans).entry.folder != first


@pytest.mark.parametrize("installed", [True, False])
def test_builds_of_one_version_differ_by_what_they_are_made_of(
    installed: bool, tmp_path: Path
) -> None:
    module = tmp_path / "overlay/planning/matching.py"
    record = tmp_path / f"vllm_overlay-{overlay.__version__}.dist-info/RECORD"
    for file in (module, record) if installed else (module,):
        file.parent.mkdir(parents=True)
        file.write_text("as it was")
    folder = str(tmp_path / "overlay")
    before = preparation._build(folder)
    assert preparation._build(folder) == before
    (record if installed else module).write_text("another build")
    assert preparation._build(folder) != before
    if not installed:
        module.rename(module.with_name("renamed.py"))
        assert preparation._build(folder)[1] != before[1]


def test_what_only_the_disk_can_hold_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """Data files, removals, and a feature that is made on one of these."""
    data = replace(
        change("data", PROPOSER, "        return self.model(tokens)", "        return 1"),
        added=(AddedFile("vllm/chat.jinja", b"{{ x }}\n"),),
    )
    stacked = change("stacked", PROPOSER, "        return 1", "        return 2")
    runner = fake_vllm.files("0.26.0")[RUNNER] + b"# edited\n"
    removal = Hunk(FILE_SCOPE, (), 1, 1, whole=WholeFile.of(runner, None))
    gone = feature((RUNNER, [removal]), id="gone")
    other = change("other", "vllm/v1/worker/__init__.py", "absent", "present")
    assert other.changes_on_disk_only == ()
    plans = plans_of(tmp_path, data, stacked, gone)
    texts, facts = preparation._planned_entry(plans, frozenset())
    assert not texts
    rows = {row["id"]: row for row in facts["features"]}  # type: ignore[union-attr]
    assert not any(row["active"] for row in rows.values())
    assert {row["state"] for row in rows.values()} == {State.PRISTINE}
    assert "(vllm/chat.jinja), which no import" in rows["data"]["why"]
    assert "apply it on disk" in rows["gone"]["why"]
    assert "made on a feature that is left out" in rows["stacked"]["why"]
    assert all("chat" not in name for row in rows.values() for name in row["modules"])
