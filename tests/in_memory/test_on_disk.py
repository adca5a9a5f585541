"""What a process does that finds features applied on disk: it plans only what is left over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.in_memory.boxes import FEATURE, PATCHED, PROPOSER, Box
from tests.support.patches import hunk, patch_text

PLANNING = {
    "overlay.in_memory.module_cache",
    "overlay._features.folder",
    "overlay.planning.matching",
    "overlay._features.model",
    "overlay.planning.planner",
}
CHILD = f"""
import logging; logging.basicConfig(level=logging.DEBUG)
import sys
from pathlib import Path
import overlay._features.sources
overlay._features.sources.shipped_folder = lambda: Path(sys.argv[1])
from overlay.plugin import register
register()
print(sorted({PLANNING!r} & set(sys.modules)))
"""


def loads(box: Box, **changes: str) -> tuple[set[str], str]:
    """What of ``PLANNING`` a process of its own imports, and what it says."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(box.empty)],
        env=box.environment | changes,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.replace("'", '"'))), done.stderr


@pytest.fixture
def applied(box: Box) -> Box:
    """A box whose only feature is on disk, and that never had a cache of modules."""
    box.overlay("apply", str(box.site))
    assert not (box.cache / "modules").exists()
    return box


def another(box: Box, name: str, more: str = "", releases: str = "0.25.0..0.26.0") -> Path:
    """Add a feature beside demo that adds the module ``vllm.<name>``."""
    folder = box.patches / name
    (folder / "files/vllm").mkdir(parents=True)
    (folder / f"files/vllm/{name}.py").write_text(f"MARK = {name!r}\n")
    text = FEATURE.replace("demo", name).replace("0.25.0..0.26.0", releases)
    (folder / "feature.toml").write_text(text + more)
    return folder


UPSTREAMED = f"""
[[upstreamed]]
path = "{PROPOSER}"
scope = "SpecDecodeBaseProposer"
contains = "def _first"
"""


SWITCH = """
[[switches]]
name = "OVERLAY_DEMO"
values = ["off", "on"]
default = "on"
text = "whether it runs"
"""


def test_ranks_compare_the_values_of_the_switches_of_what_is_on_disk(applied: Box) -> None:
    document = applied.patches / "demo/feature.toml"
    document.write_text(document.read_text() + SWITCH)
    applied.overlay("apply", str(applied.site))
    logs = [applied.run("import vllm; register()", OVERLAY_DEMO=value) for value in ("on", "off")]
    digests = {log.partition("patch set ")[2][:12] for log in logs}
    assert len(digests) == 2
    done = applied.attempt("import vllm; register()", OVERLAY_DEMO="loud")
    assert done.returncode != 0
    assert "OVERLAY_DEMO='loud': expected one of off, on" in done.stderr


def test_what_a_former_overlay_kept_of_its_decisions_is_left_alone(applied: Box) -> None:
    receipt = applied.cache / "receipts" / f"{'a' * 64}.json"
    receipt.parent.mkdir(parents=True)
    receipt.write_text("{}")
    assert "has the patches demo (disk)" in loads(applied)[1]
    assert [file.read_text() for file in receipt.parent.iterdir()] == ["{}"]
    applied.overlay("cache", "clean")
    assert not receipt.exists()


def test_what_is_on_disk_is_verified_and_nothing_else(applied: Box) -> None:
    imported, said = loads(applied)
    assert "has the patches demo (disk)" in said
    assert imported == set()
    assert not (applied.cache / "modules").exists()


@pytest.mark.parametrize(
    ("state", "more", "releases"),
    [
        ("upstreamed", UPSTREAMED, "0.25.0..0.26.0"),
        ("inapplicable", "", "0.27.0..0.28.0"),
    ],
)
def test_what_the_release_does_not_need_is_not_planned_either(
    box: Box, state: str, more: str, releases: str
) -> None:
    another(box, "other", more, releases)
    box.overlay("apply", str(box.site))
    imported, said = loads(box, OVERLAY_REQUIRED="all")
    assert f"DEBUG:vllm.overlay:vllm-overlay: other is {state} here" in said
    assert "has the patches demo (disk)" in said
    assert imported == set()
    assert not (box.cache / "modules").exists()


def test_what_the_release_has_by_its_files_is_looked_at_each_time(box: Box) -> None:
    """Such a file is not ours, so no ledger tells whether it is still the same."""
    runner = "vllm/v1/worker/gpu_model_runner.py"
    lines = ["-        return size - 1", "+        return size"]
    folder = box.patches / "other/10-first"
    folder.mkdir(parents=True)
    (folder.parent / "feature.toml").write_text(FEATURE.replace("demo", "other"))
    text = patch_text(runner, hunk(lines, "GPUModelRunner._capture"))
    (folder / "0.25.0..0.26.0.patch").write_text(text)
    box.overlay("apply", str(box.site))
    assert "other is upstreamed here" in loads(box)[1]
    file = box.site / runner
    file.write_text(file.read_text().replace("return size\n", "return size - 1\n"))
    assert "has the patches demo, other (disk and memory)" in loads(box)[1]


def test_every_way_to_the_patches_leads_to_the_same_features(applied: Box) -> None:
    link = applied.patches.with_name("link")
    link.symlink_to(applied.patches)
    twice = f"{applied.patches}:{link}"
    assert loads(applied, OVERLAY_PATCHES=twice)[0] == set()
    moved = applied.patches.rename(applied.patches.with_name("moved"))
    assert loads(applied, OVERLAY_PATCHES=str(moved))[0] == set()


def test_a_feature_that_is_not_on_disk_is_patched_in_memory(applied: Box) -> None:
    another(applied, "second")
    log = applied.run(PATCHED + "from vllm.second import MARK; assert MARK == 'second'")
    assert "has the patches demo, second (disk and memory)" in log


def test_a_feature_that_apply_left_out_is_patched_in_memory(box: Box) -> None:
    another(box, "second")
    box.overlay("apply", "--feature", "demo", str(box.site))
    log = box.run(PATCHED + "from vllm.second import MARK; assert MARK == 'second'")
    assert "has the patches demo, second (disk and memory)" in log


def test_another_form_than_the_one_on_disk_is_told(applied: Box) -> None:
    file = applied.patches / "demo/files/vllm/v1/spec_decode/added.py"
    file.write_text(file.read_text() + "# another form\n")
    imported, said = loads(applied)
    assert imported >= PLANNING
    assert "demo was applied on disk in another form than the present one" in said
    assert "has the patches demo (disk)" in said


def test_a_folder_that_says_the_same_in_other_words_is_read_again(applied: Box) -> None:
    patch = applied.patches / "demo/10-first/0.25.0..0.26.0.patch"
    patch.write_text(patch.read_text().replace("A test", "The same in other words"))
    imported, said = loads(applied)
    assert imported >= PLANNING
    assert "another form" not in said


@pytest.mark.parametrize("left", [".mypy_cache/x", "10-first/__pycache__/x", ".ruff_cache/x"])
def test_what_tools_leave_behind_says_nothing(applied: Box, left: str) -> None:
    file = applied.patches / "demo" / left
    file.parent.mkdir(parents=True)
    file.write_text("left behind")
    assert loads(applied)[0] == set()


def without_sources(ledger: dict[str, object]) -> None:
    for feature in ledger["features"]:  # type: ignore[attr-defined]  # parsed JSON, typed as object
        del feature["source"]


@pytest.mark.parametrize(
    "change",
    [
        without_sources,
        lambda ledger: ledger.update(overlay="0.0.1"),
        lambda ledger: ledger.update(release="0.25.0"),
    ],
    ids=["sources", "overlay", "release"],
)
def test_a_ledger_that_does_not_answer_for_the_features_is_no_answer(
    applied: Box, change: Callable[[dict[str, object]], object]
) -> None:
    path = applied.site / ".vllm-overlay/ledger.json"
    ledger = json.loads(path.read_text())
    change(ledger)
    path.write_text(json.dumps(ledger))
    imported, said = loads(applied)
    assert imported >= PLANNING
    assert "has the patches demo (disk)" in said


def stray_file(box: Box) -> None:
    (box.patches / "stray.txt").write_text("?")


def malformed(box: Box) -> None:
    (box.patches / "demo/stray.txt").write_text("?")


def twice(box: Box) -> None:
    again = box.patches.with_name("again")
    shutil.copytree(box.patches, again)
    box.environment["OVERLAY_PATCHES"] += f":{again}"


def no_folder(box: Box) -> None:
    box.environment["OVERLAY_PATCHES"] += ":/nowhere/at/all"


def unknown(box: Box) -> None:
    box.environment["OVERLAY_FEATURES"] = "demo,dmeo"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (no_folder, "expected a folder of features at /nowhere/at/all"),
        (unknown, "OVERLAY_FEATURES names dmeo"),
    ],
)
def test_what_is_wrong_with_the_settings_still_stops_the_process(
    applied: Box, change: Callable[[Box], None], expected: str
) -> None:
    change(applied)
    done = applied.attempt("register()")
    assert done.returncode != 0
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (stray_file, "expected only folders of features here"),
        (malformed, "expected feature.toml, README.md"),
        (twice, "the feature demo is already defined by"),
    ],
)
def test_what_is_wrong_with_one_feature_is_told_and_stops_nothing(
    applied: Box, change: Callable[[Box], None], expected: str
) -> None:
    change(applied)
    assert expected in applied.run(PATCHED)


def test_a_refusal_tells_everything_that_stands_in_the_way(box: Box) -> None:
    (box.patches / "demo/20-second").mkdir()
    runner = "vllm/v1/worker/gpu_model_runner.py"
    capture = hunk(
        ["-        return size + 7", "+        return size + 8"], "GPUModelRunner._capture"
    )
    gone = hunk(["-        return size", "+        return size + 9"], "GPUModelRunner._gone")
    patch = patch_text(runner, capture, gone)
    (box.patches / "demo/20-second/0.25.0..0.26.0.patch").write_text(patch)
    file = box.site / PROPOSER
    file.write_text(file.read_text().replace("return self.model(tokens)", "return 'drifted'"))
    done = box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    lines = [line.strip() for line in done.stderr.splitlines()]
    for place in (
        f"{PROPOSER}, SpecDecodeBaseProposer._first: ",
        f"{runner}, GPUModelRunner._capture: ",
        f"{runner}, GPUModelRunner._gone: ",
    ):
        assert len([line for line in lines if place in line and "demo is left" not in line]) == 1
