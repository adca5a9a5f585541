"""A feature carried to releases: in part upstream, stacked, moved, warned of; what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature, PortedWay
from overlay.authoring.composing import compose
from overlay.authoring.porting import FeaturePort
from overlay.authoring.variants import with_merged, with_ports, with_releases
from overlay.authoring.writing import check_files, render_patch
from overlay.errors import UsageError
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from tests.planning.test_upstream import MINE, THREE, TOOK_TWO
from tests.support import port_world as world

PATH = world.PATH
TOML = b"""\
# Kept: what a person wrote.
id = "change"
title = "A change"
why = "To test."
releases = "0.21.0..0.21.0"  # closed
needs = ["nothing"]
"""


def files(base: bytes, *steps: bytes) -> dict[str, bytes]:
    """A feature with a topic for each step, made on 0.21.0."""
    made = {"feature.toml": TOML, "README.md": b"Kept, too.\n"}
    for number, after in enumerate(steps, 1):
        headers = {**world.HEADERS, "Base": "0.21.0", "Bug": "https://example.invalid/1"}
        text = render_patch(headers, PATH, compose(base, after))
        made[f"{number}0-step/0.21.0..0.21.0.patch"] = text.encode()
        base = after
    return made


def port(made: Mapping[str, bytes], texts: Mapping[str, bytes], release: str) -> FeaturePort:
    return world.porter(texts).port(check_files("change", made), release)


def after_port(
    made: Mapping[str, bytes], texts: Mapping[str, bytes], release: str
) -> tuple[dict[str, bytes], Feature]:
    ported = port(made, texts, release)
    assert not ported.conflicts
    names = tuple(texts)
    written = with_ports(ported.feature, made, [ported], names, "2026-11-22")
    return written, check_files("change", written)


def test_what_upstream_left_becomes_a_variant_of_its_own() -> None:
    texts = {"0.21.0": THREE, "0.22.0": TOOK_TWO}
    made = files(THREE, MINE)
    assert port(made, texts, "0.22.0").outcome is Outcome.PARTLY
    _, feature = after_port(made, texts, "0.22.0")
    first, second = feature.topics[0].variants
    assert (len(first.patch.hunks), len(second.patch.hunks)) == (3, 1)
    result = plan([feature], world.Tree("0.22.0", texts), Version("0.22.0"))
    assert result.features[0].state is State.PRISTINE
    assert result.changes[0].after is not None
    assert result.changes[0].after.count(b"compute") == 3


def test_a_topic_that_upstream_has_whole_is_retired_there_and_the_others_apply() -> None:
    half = MINE.replace(b"    second_2 = compute(2)\n    third_2 = 3\n", b"    second_2 = 2\n")
    texts = {"0.21.0": THREE, "0.22.0": half}
    written, feature = after_port(files(THREE, half, MINE), texts, "0.22.0")
    first, second = feature.topics
    assert first.variants[-1].patch.ported is PortedWay.UPSTREAM
    assert not second.variants[-1].patch.retired
    result = plan([feature], world.Tree("0.22.0", texts), Version("0.22.0")).features[0]
    assert result.state is State.PRISTINE
    assert result.reason is not None
    assert "upstream has 10-step" in result.reason.text
    assert port(written, texts, "0.22.0").covered


def test_all_hunks_there_is_upstream_and_nothing_is_written() -> None:
    texts = {"0.21.0": THREE, "0.22.0": MINE}
    made = files(THREE, MINE)
    written, _ = after_port(made, texts, "0.22.0")
    assert port(made, texts, "0.22.0").outcome is Outcome.UPSTREAM
    assert written == made


def test_a_topic_on_top_of_another_is_carried_on_top_of_it() -> None:
    second = world.PATCHED.replace(b"self.prepare_replay(size)", b"self.prepare_twice(size)")
    _, feature = after_port(files(world.BASE, world.PATCHED, second), world.RELEASES, "0.22.0")
    result = plan([feature], world.Tree("0.22.0"), Version("0.22.0"))
    assert result.features[0].state is State.PRISTINE
    assert b"prepare_twice" in (result.changes[0].after or b"")


def test_a_feature_on_top_of_another_is_carried_on_top_of_it(tmp_path: Path) -> None:
    """Its lines are in no release: the earlier feature brings them."""
    below = world.write(tmp_path / "below")
    second = world.PATCHED.replace(b"self.prepare_replay(size)", b"self.prepare_twice(size)")
    world.write(tmp_path / "above", world.PATCHED, second, id="twice")
    (above,) = load([tmp_path / "above"])
    carrier = world.porter()
    assert carrier.port(above, "0.22.0").conflicts
    assert carrier.port(above, "0.22.0", (below,)).conflicts  # the one below serves it not yet
    wide = tmp_path / "below/replay/10-runner"
    (wide / "0.21.0..0.21.0.patch").rename(wide / "0.21.0..0.22.0.patch")
    toml = tmp_path / "below/replay/feature.toml"
    toml.write_text(toml.read_text().replace("0.21.0..0.21.0", "0.21.0..0.22.0"))
    (below,) = load([tmp_path / "below"])
    assert carrier.port(above, "0.22.0", (below,)).outcome is Outcome.EXACT


def test_a_renamed_scope_is_found_and_waits_for_review() -> None:
    patched = world.PATCHED
    renamed = world.BASE.replace(b"def capture(", b"def capture_all(")
    texts = {"0.21.0": world.BASE, "0.22.0": renamed}
    ported = port(files(world.BASE, patched), texts, "0.22.0")
    assert ported.outcome is Outcome.MOVED
    assert ported.review
    _, feature = after_port(files(world.BASE, patched), texts, "0.22.0")
    assert feature.topics[0].variants[-1].patch.ported is PortedWay.MOVED
    assert feature.topics[0].variants[-1].patch.hunks[0].scope == "Runner.capture_all"


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        (
            b"def capture(self)",
            b"def capture(self, stream)",
            "parameters changed since the base: +stream",
        ),
        (
            b"        return sizes\n",
            b"        return sizes, count\n",
            "it returned 1 value in the base",
        ),
        (b"import os\n", b"import sys\n", "does not have the name os"),
    ],
)
def test_what_a_merge_of_lines_cannot_see_is_a_warning(
    old: bytes, new: bytes, warning: str
) -> None:
    patched = world.PATCHED.replace(b"prepare_replay(size)", b"prepare_replay(os.sep)")
    texts = {"0.21.0": world.BASE, "0.22.0": world.BASE.replace(old, new)}
    ported = port(files(world.BASE, patched), texts, "0.22.0")
    assert not ported.conflicts
    assert any(warning in text for text in ported.topics[0].warnings), ported.topics[0].warnings


def test_only_names_that_new_code_loads_are_called_missing() -> None:
    """Not the words of a docstring or a comment, nor the parts of other objects' names."""
    base = b"""\
import torch

LIMIT = 3


def show(x, kind=torch.int32):
    # it may have a list
    return x.list


def work(x):
    \"\"\"Work on it.

    Always.
    \"\"\"
    y = x + 1
    return y
"""
    after = base.replace(b"    Always.\n", b"    It may have more.\n").replace(
        b"    y = x + 1\n", b'    y = torch.int32(x) + LIMIT  # may\n    y += list(x)["kind"]\n'
    )
    release = b"import torch\n\n\n" + base[base.index(b"def work") :]
    ported = port(files(base, after), {"0.21.0": base, "0.22.0": release}, "0.22.0")
    assert ported.topics[0].warnings == (
        "work: the release's file does not have the name LIMIT, the base's did",
    )


def test_only_the_range_and_the_memory_of_a_document_change() -> None:
    written, _ = after_port(files(world.BASE, world.PATCHED), world.RELEASES, "0.22.0")
    assert written["feature.toml"] == TOML.replace(b"0.21.0..0.21.0", b"0.21.0..0.22.0")
    assert written["README.md"] == b"Kept, too.\n"
    twice = with_merged(with_merged(TOML, "0.26.0"), "0.25.0")
    assert twice.count(b"merged") == 1
    remembered = check_files("change", {**files(world.BASE, world.PATCHED), "feature.toml": twice})
    assert remembered.merged == Version("0.25.0")
    with pytest.raises(UsageError, match="expected a line releases"):
        with_releases(b"releases=[]\n", check_files("change", written).releases)
    # A text of several lines may hold what looks like the line.
    quoted = TOML.replace(b"why = ", b'why = """\nreleases = "1.0..2.0"\nmerged = 1\n"""\n#', 1)
    assert quoted != TOML
    for change in (
        lambda: with_releases(quoted, remembered.releases),
        lambda: with_merged(quoted, "0.26.0"),
    ):
        with pytest.raises(UsageError, match=r"on a line of its own|on lines of their own"):
            change()


def test_a_range_is_not_closed_over_a_release_that_it_does_not_serve() -> None:
    """0.23.0 waits for a review: what serves 0.22.0 and 0.24.0 does not serve it."""
    texts = {**world.RELEASES, "0.24.0": world.OTHER_FUNCTION}
    carrier = world.porter(texts)
    made = files(world.BASE, world.PATCHED)
    feature = check_files("change", made)
    ports = [carrier.port(feature, name) for name in ("0.22.0", "0.24.0")]
    written = with_ports(feature, made, ports, tuple(texts), "2026-11-22")
    spans = [str(v.releases) for v in check_files("change", written).topics[0].variants]
    assert spans == ["0.21.0..0.22.0", "0.24.0..0.24.0"]


def test_an_added_module_whose_name_is_taken_is_a_conflict() -> None:
    made = files(world.BASE, world.PATCHED)
    other = "vllm/v1/other.py"
    made[f"files/{other}"] = b"value = 1\n"
    carrier = world.porter()
    read = carrier.texts.read
    carrier.texts.read = lambda release, path: (  # type: ignore[method-assign]  # one more file
        b"value = 2\n" if path == other else read(release, path)
    )
    taken = carrier.port(check_files("change", made), "0.22.0")
    assert taken.conflicts
    assert "another file of that name" in (taken.problem or "")


@pytest.mark.parametrize("same", [True, False])
def test_another_text_of_another_variant_is_a_warning_and_the_same_text_is_none(same: bool) -> None:
    """Two variants are tried, and none lands exactly; the one that is not taken is compared."""
    texts = {name: world.RELEASES[name] for name in ("0.21.0", "0.22.0", "0.23.0")}
    other = world.PATCHED if same else world.PATCHED.replace(b"warm=True", b"warm=False")
    made = files(world.BASE, world.PATCHED)
    text = render_patch({**world.HEADERS, "Base": "0.22.0"}, PATH, compose(world.BASE, other))
    made["10-step/0.22.0..0.22.0.patch"] = text.encode()
    made["feature.toml"] = TOML.replace(b"0.21.0..0.21.0", b"0.21.0..0.22.0")
    (topic,) = port(made, texts, "0.23.0").topics
    assert topic.outcome is Outcome.MERGED
    told = [warning for warning in topic.warnings if "gives another text here" in warning]
    assert [warning.partition(" ")[0].rpartition("/")[2] for warning in told] == (
        [] if same else ["0.21.0..0.21.0.patch"]
    )
