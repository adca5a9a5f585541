"""What a process asks of its patches folders: what a ledger covers, what must not be missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import overlay
from overlay import settings
from overlay._features.folder import load_all
from overlay._features.sources import patches_folders, required_features, source_of
from overlay.errors import Absent
from overlay.in_memory.decision import root_of, running_target, settled_without_plan
from overlay.on_disk.ledger import Ledger, LedgerFeature
from overlay.package import package_named
from overlay.results import FeatureResult, FileResult, State
from tests.support.patches import write_feature

RELEASE = "0.26.0"
PLAIN = settings.read({})


def recorded(
    folder: Path, state: State = State.APPLIED, files: tuple[FileResult, ...] = ()
) -> LedgerFeature:
    """A feature's folder as a ledger has it."""
    result = FeatureResult(folder.name, state, files)
    return LedgerFeature("d" * 64, str(folder), result, source_of(folder, folder.parent))


def ledger(*features: LedgerFeature, version: str = overlay.__version__) -> Ledger:
    return Ledger(version, RELEASE, features, (), (), None)


def needless(
    ledger: Ledger, release: str | None, switches: settings.Switches, folders: list[Path]
) -> tuple[str, ...] | None:
    """The ids of the features that are not on disk and need not be."""
    decisions = settled_without_plan(ledger, release, switches, folders)
    return None if decisions is None else tuple(each.id for each in decisions)


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """A folder of three features for vLLM, and one for another package."""
    folder = tmp_path / "patches"
    for name in ("applied", "retired", "elsewhere"):
        write_feature(folder, {}, id=name)
    write_feature(folder, {}, id="ascend", toml='package = "vllm_ascend"')
    return folder


def of_all(patches: Path) -> tuple[LedgerFeature, ...]:
    return (
        recorded(patches / "applied"),
        recorded(patches / "retired", State.UPSTREAMED),
        recorded(patches / "elsewhere", State.INAPPLICABLE),
    )


def test_what_is_neither_applied_nor_wanted_is_told(patches: Path) -> None:
    features = of_all(patches)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) == ("elsewhere", "retired")


def test_only_a_plan_knows_of_another_release_or_overlay(patches: Path) -> None:
    features = of_all(patches)
    assert needless(ledger(*features), "0.27.0", PLAIN, [patches]) is None
    assert needless(ledger(*features), None, PLAIN, [patches]) is None
    assert needless(ledger(*features, version="0.0.1"), RELEASE, PLAIN, [patches]) is None


CHANGES: dict[str, Callable[[Path], object]] = {
    "another text": lambda folder: (folder / "retired/feature.toml").write_text("x"),
    "another feature": lambda folder: write_feature(folder, {}, id="new"),
    "a feature of which no package is known": lambda folder: (folder / "new").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_a_plan_knows_of_what_changed(patches: Path, change: str) -> None:
    features = of_all(patches)
    CHANGES[change](patches)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) is None


def test_only_a_plan_knows_of_what_could_apply_now(patches: Path) -> None:
    applied, retired, elsewhere = of_all(patches)
    file = FileResult("vllm/a.py", State.UPSTREAMED, None, ())
    for state in set(State) - {State.APPLIED, State.UPSTREAMED, State.INAPPLICABLE}:
        other = recorded(patches / "retired", state)
        assert needless(ledger(applied, other, elsewhere), RELEASE, PLAIN, [patches]) is None
    by_files = recorded(patches / "retired", State.UPSTREAMED, (file,))
    assert needless(ledger(applied, by_files, elsewhere), RELEASE, PLAIN, [patches]) is None
    assert needless(ledger(applied, retired, elsewhere), RELEASE, PLAIN, [patches]) is not None


def test_a_feature_found_twice_is_for_a_plan_and_a_folder_named_twice_is_one(
    patches: Path, tmp_path: Path
) -> None:
    features = of_all(patches)
    link = tmp_path / "link"
    link.symlink_to(patches)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches, link, patches]) is not None
    again = tmp_path / "again"
    write_feature(again, {}, id="retired")
    assert needless(ledger(*features), RELEASE, PLAIN, [patches, again]) is None
    further = tmp_path / "further"
    write_feature(further, {}, id="other-ascend", toml='package = "vllm_ascend"')
    assert needless(ledger(*features), RELEASE, PLAIN, [patches, link, further]) is not None
    write_feature(further, {}, id="zz")
    assert needless(ledger(*features), RELEASE, PLAIN, [patches, link, further]) is None


def test_what_is_no_feature_is_not_looked_for_in_the_ledger(patches: Path) -> None:
    features = of_all(patches)
    for name in ("README.md", "__init__.py", "notes.toml~", ".DS_Store"):
        (patches / name).write_text("")
    (patches / "__pycache__").mkdir()
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) == ("elsewhere", "retired")


def test_a_plan_is_for_the_features_whose_shared_modules_changed(patches: Path) -> None:
    for name in ("a.py", "b.py"):
        module = patches / "shared/files/vllm" / name
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("A = 1\n")
    (patches / "shared/README.md").write_text("words")
    write_feature(patches, {}, id="applied", toml='shared = ["vllm/a.py"]')
    features = of_all(patches)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) == ("elsewhere", "retired")
    (patches / "shared/files/vllm/b.py").write_text("A = 2\n")  # which none of them names
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) is not None
    (patches / "shared/files/vllm/a.py").write_text("A = 2\n")
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) is None


def test_a_shared_folder_with_more_in_it_is_for_a_plan(patches: Path) -> None:
    features = of_all(patches)
    (patches / "shared/files").mkdir(parents=True)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) is not None
    write_feature(patches, {}, id="shared")
    assert needless(ledger(*features), RELEASE, PLAIN, [patches]) is None


def test_a_folder_that_is_not_there_is_for_a_plan(patches: Path, tmp_path: Path) -> None:
    features = of_all(patches)
    assert needless(ledger(*features), RELEASE, PLAIN, [patches, tmp_path / "none"]) is None


@pytest.mark.parametrize(
    ("named", "known"),
    [("applied", True), ("applied,ascend", True), ("none", False), ("applied,gone", False)],
)
def test_a_feature_that_is_asked_for_has_to_be_there(
    patches: Path, tmp_path: Path, named: str, known: bool
) -> None:
    gone = recorded(write_feature(tmp_path / "gone", {}, id="gone"))
    asked = settings.read({"OVERLAY_FEATURES": named})
    answer = needless(ledger(*of_all(patches), gone), RELEASE, asked, [patches])
    assert (answer is not None) is known


# What must not be missing


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shipped"
    write_feature(folder, {}, id="plain")
    monkeypatch.setattr("overlay._features.sources.shipped_folder", lambda: folder)
    return folder


def test_the_shipped_folder_comes_first(shipped: Path, patches: Path) -> None:
    switches = settings.read({"OVERLAY_PATCHES": str(patches)})
    assert patches_folders(switches) == [shipped, patches]


def test_features_that_say_so_are_required(shipped: Path, tmp_path: Path) -> None:
    team, other = tmp_path / "team", tmp_path / "other"
    switches = settings.read({"OVERLAY_PATCHES": f"{team}:{other}"})
    write_feature(team, {}, id="apart", toml="required = false")
    assert required_features(switches) == frozenset()
    write_feature(team, {}, id="whole", toml="required = true")
    write_feature(team, {}, id="zoo", toml='"required" = true')
    assert required_features(switches) == {"whole", "zoo"}
    write_feature(other, {}, id="broken", toml="required = true\nno toml")
    write_feature(shipped, {}, id="own", toml="\trequired = true")
    assert required_features(switches) == {"whole", "zoo", "broken", "own"}
    write_feature(other, {}, id="quoted", toml='note = """\nrequired = true\n"""\nunknown = 1')
    write_feature(other, {}, id="inside", toml="[fault]\nrequired = true")
    assert required_features(switches) == {"whole", "zoo", "broken", "own"}
    loaded = load_all([team, other, shipped])
    assert {each.id for each in loaded.malformed} >= {"broken", "quoted", "inside"}
    required = {each.id for each in loaded.features if each.required}
    required |= {each.id for each in loaded.malformed if each.required}
    assert required_features(switches) == required
    for variable in ("OVERLAY_REQUIRED", "OVERLAY_REQUIRED_PRESENT"):
        more = switches._replace(present=settings.read({variable: "plain,all"}).present)
        assert required_features(more) == {"whole", "zoo", "broken", "own", "plain", "all"}


def test_the_word_alone_requires_nothing_and_is_not_parsed(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_feature(shipped, {}, id="word", toml='# required = true\nreason = "required"')
    (shipped / "folder").mkdir()
    (shipped / "unreadable/feature.toml").mkdir(parents=True)
    (shipped.parent / "feature.toml").write_text("required = true\n")
    (shipped / "folder/feature.toml").symlink_to(shipped.parent / "feature.toml")

    def never(data: bytes) -> None:
        raise AssertionError(data)

    monkeypatch.setattr("overlay._features.sources.parse_toml", never)
    assert required_features(PLAIN) == frozenset()
    write_feature(shipped, {}, id="zz", toml="required = true")
    with pytest.raises(AssertionError, match="required = true"):
        required_features(PLAIN)


# The packages of a process


BESIDE = package_named("beside_vllm")


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package that this process imported; it would import another one now."""
    for name in ("first", "second"):
        (tmp_path / name / BESIDE.name).mkdir(parents=True)
        (tmp_path / name / BESIDE.initial).write_text("raise SystemExit\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "second"), *sys.path])
    module = ModuleType(BESIDE.name)
    module.__file__ = str(tmp_path / "first" / BESIDE.initial)
    monkeypatch.setitem(sys.modules, BESIDE.name, module)
    return tmp_path / "first"


def test_the_package_that_runs_is_the_one_that_was_imported(first: Path) -> None:
    module = sys.modules[BESIDE.name]
    target = running_target(BESIDE)
    assert (target.root, target.name, target.package) == (first, str(first), BESIDE)
    assert target.vllm is None
    module.__version__ = "1.2"  # type: ignore[attr-defined]  # as packages have
    assert running_target(BESIDE).vllm == "1.2"
    assert root_of(BESIDE) == first


def test_an_editable_installation_tells_the_version_as_it_does_for_commands(first: Path) -> None:
    sys.modules[BESIDE.name].__version__ = "dev"  # type: ignore[attr-defined]  # as packages have
    info = first.parent / "second" / "beside_vllm-3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: beside_vllm\nVersion: 3.0\n")
    origin = {"url": first.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert running_target(BESIDE).vllm == "3.0"


@pytest.mark.parametrize("file", [None, "/nowhere/beside_vllm/__init__.py"])
def test_what_was_not_imported_from_a_file_is_what_would_be_imported(
    first: Path, file: str | None
) -> None:
    sys.modules[BESIDE.name].__file__ = file
    assert running_target(BESIDE).root == first.parent / "second"
    del sys.modules[BESIDE.name]
    assert running_target(BESIDE).root == root_of(BESIDE) == first.parent / "second"
    with pytest.raises(Absent):
        running_target(package_named("not_there"))
