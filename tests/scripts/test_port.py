"""The port script: what lands, what is widened, what is left for a human, and the numbers."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from overlay.features.folder import load
from overlay.features.patch_file import parse_patch
from overlay.features.sources import shipped_folder
from overlay.package import ReleaseRange
from tests.support import fake_vllm

PROPOSER = "vllm/v1/spec_decode/proposer.py"
HEADERS = "Description: Count\nOrigin: vllm-overlay\nLast-Update: 2026-11-20\n\n"
DIFF = f"--- a/{PROPOSER}\n+++ b/{PROPOSER}\n"
LOAD = """\
@@ -12,2 +12,3 @@ SpecDecodeBaseProposer.load_model
         self.model = target.draft()
+        self.loaded = True

"""
PROPOSE = """\
@@ -15,2 +16,3 @@ SpecDecodeBaseProposer.propose
         drafts = [self._first(tokens)]
+        self.proposed = len(drafts)
         for step in range(self.num_tokens - 1):
"""


def _port() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "port.py"
    spec = importlib.util.spec_from_file_location("port", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["port"] = module
    spec.loader.exec_module(module)
    return module


port = _port()


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """A feature of two topics, for 0.25.0 and 0.26.0."""
    folder = tmp_path / "patches" / "count"
    for name, hunk in (("10-load", LOAD), ("20-propose", PROPOSE)):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.25.0..0.26.0.patch").write_text(HEADERS + DIFF + hunk)
    (folder / "feature.toml").write_text(
        'id = "count"\ntitle = "Count"\nwhy = "To count."\n'
        'upstream = "https://example.invalid/1"\nreleases = "0.25.0..0.26.0"\n'
    )
    return tmp_path / "patches"


def check(patches: Path, target: Path, *options: str) -> Result:
    arguments = ["check", str(target), "--patches", str(patches), *options]
    return CliRunner().invoke(port.main, [*arguments, "--out", str(patches.parent / "out")])


def release(folder: Path, version: str, replace: tuple[bytes, bytes] | None = None) -> Path:
    content = fake_vllm.files(version)[PROPOSER]
    if replace is not None:
        assert replace[0] in content
        content = content.replace(*replace)
    return fake_vllm.site_packages(folder / version, version, {PROPOSER: content})


def ranges(patches: Path) -> dict[str, list[str]]:
    load([patches])  # what the script leaves is well formed
    return {
        topic.name: sorted(path.name for path in topic.glob("*.patch"))
        for topic in sorted((patches / "count").iterdir())
        if topic.is_dir()
    }


def test_what_lands_is_only_said(patches: Path, tmp_path: Path) -> None:
    result = check(patches, release(tmp_path, "0.27.0"))
    assert result.exit_code == 0, result.output
    assert "count/10-load: 0.25.0..0.26.0.patch lands" in result.output
    assert ranges(patches) == {
        "10-load": ["0.25.0..0.26.0.patch"],
        "20-propose": ["0.25.0..0.26.0.patch"],
    }


def test_what_lands_is_widened(patches: Path, tmp_path: Path) -> None:
    result = check(patches, release(tmp_path, "0.27.0"), "--write")
    assert result.exit_code == 0, result.output
    assert ranges(patches) == {
        "10-load": ["0.25.0..0.27.0.patch"],
        "20-propose": ["0.25.0..0.27.0.patch"],
    }
    (feature,) = load([patches])
    assert feature.releases == ReleaseRange.parse("0.25.0..0.27.0")


def test_an_older_variant_is_copied_over_the_one_between(patches: Path, tmp_path: Path) -> None:
    topic = patches / "count" / "20-propose"
    (topic / "0.26.0..0.26.0.patch").write_text(
        HEADERS + DIFF + PROPOSE.replace("range(", "range(1, ")
    )
    (topic / "0.25.0..0.26.0.patch").rename(topic / "0.25.0..0.25.1.patch")
    result = check(patches, release(tmp_path, "0.27.0"), "--write")
    assert result.exit_code == 0, result.output
    assert ranges(patches)["20-propose"] == [
        "0.25.0..0.25.1.patch",
        "0.26.0..0.26.0.patch",
        "0.27.0..0.27.0.patch",
    ]
    assert (topic / "0.27.0..0.27.0.patch").read_text() == HEADERS + DIFF + PROPOSE


def test_what_does_not_land_is_written_down_for_a_human(patches: Path, tmp_path: Path) -> None:
    changed = (b"for step in range(self.num_tokens - 1):", b"for step in range(1, self.k):")
    result = check(patches, release(tmp_path, "0.27.0", changed), "--write")
    assert result.exit_code == 1
    file = patches.parent / "out" / "count.20-propose.txt"
    assert str(file) in result.output
    text = file.read_text()
    assert "drifted: the hunk in SpecDecodeBaseProposer.propose" in text
    assert "for step in range(1, self.k):" in text  # the release's own line, beside the hunk
    assert "+        self.proposed = len(drafts)" in text
    assert ranges(patches) == {
        "10-load": ["0.25.0..0.26.0.patch"],
        "20-propose": ["0.25.0..0.26.0.patch"],
    }


def test_a_variant_written_by_hand_makes_the_feature_whole(patches: Path, tmp_path: Path) -> None:
    changed = (b"for step in range(self.num_tokens - 1):", b"for step in range(1, self.k):")
    (patches / "count" / "20-propose" / "0.27.0..0.27.0.patch").write_text(
        HEADERS + DIFF + PROPOSE.replace("range(self.num_tokens - 1)", "range(1, self.k)")
    )
    result = check(patches, release(tmp_path, "0.27.0", changed), "--write")
    assert result.exit_code == 0, result.output
    assert ranges(patches) == {
        "10-load": ["0.25.0..0.27.0.patch"],
        "20-propose": ["0.25.0..0.26.0.patch", "0.27.0..0.27.0.patch"],
    }


def test_a_file_that_is_gone_is_said(patches: Path, tmp_path: Path) -> None:
    target = fake_vllm.site_packages(tmp_path / "t", "0.27.0", {PROPOSER: None})
    result = check(patches, target)
    assert result.exit_code == 1
    text = (patches.parent / "out" / "count.10-load.txt").read_text()
    assert text.count(f"expected the file {PROPOSER}, found none") == 1


def test_an_unknown_feature_is_a_usage_error(patches: Path, tmp_path: Path) -> None:
    result = check(patches, release(tmp_path, "0.27.0"), "--feature", "nonesuch")
    assert result.exit_code == 2
    assert "no feature nonesuch" in result.output


def _shipped_patches() -> list[Path]:
    return sorted(shipped_folder().glob("*/*/*.patch"))


@pytest.mark.parametrize("path", _shipped_patches(), ids=lambda path: path.parent.name)
def test_counts_that_are_right_stay(path: Path) -> None:
    assert port.recount(path.read_text()) == path.read_text()


@pytest.mark.parametrize("path", _shipped_patches(), ids=lambda path: path.parent.name)
def test_counts_that_are_wrong_are_put_right(path: Path) -> None:
    right = path.read_text()
    wrong = "\n".join(
        f"@@ -7,{random.randrange(99)} +7,{random.randrange(99)} @@" + line.split("@@")[2]
        if line.startswith("@@ ")
        else line
        for line in right.split("\n")
    )
    hunks = parse_patch(port.recount(wrong), "x.patch").hunks
    assert [(h.scope, h.lines) for h in hunks] == [
        (h.scope, h.lines) for h in parse_patch(right, "x.patch").hunks
    ]


@pytest.mark.network
@pytest.mark.parametrize("path", _shipped_patches(), ids=lambda path: path.parent.name)
def test_the_shipped_numbers_are_those_of_the_first_release(path: Path) -> None:
    from overlay.targets.resolution import resolve

    first = ReleaseRange.parse(path.name[: -len(".patch")]).first
    tree = resolve(str(first))
    feature, topic = path.parent.parent, path.parent
    landing = port.land(path, port.series_before(feature, topic, first, tree))
    assert landing.lands
    assert (
        port.renumber(path.read_text(), landing.patch, landing.tried.result.hunks)
        == path.read_text()
    )
