"""What shows that a release has a feature: memory first, then texts, then all of its lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import AddedFile, Build, Feature, UpstreamTest
from overlay.authoring.composing import compose
from overlay.errors import PatchFormatErrors
from overlay.planning.planner import plan
from overlay.planning.upstream import Evidence, build_of, evidence, has_module, hunk_is_upstream
from overlay.results import State
from tests.support.patches import hunk, patch_text, write_feature

PATH = "vllm/a.py"
TEXT = b"def f():\n    first = 1\n    second = 2\n    return first\n"
PATCH = patch_text(
    PATH, hunk(["     first = 1", "-    second = 2", "+    second = 22", "     return first"], "f")
)
LINES = tuple(f"line_number = {number}" for number in range(5))


class Tree:
    """One file."""

    def __init__(self, data: bytes = TEXT) -> None:
        self.data = data

    def read(self, path: str) -> bytes | None:
        return self.data if path == PATH else None


@pytest.fixture
def feature(tmp_path: Path) -> Feature:
    write_feature(tmp_path, {"10-a/0.20.0..0.33.0.patch": PATCH})
    return load([tmp_path])[0]


def shown(feature: Feature, lines: list[str], release: str | None = "0.26.0") -> Evidence:
    version = None if release is None else Version(release)
    return evidence(feature, version, lambda path, scope: [lines] if scope == "f" else [])


@pytest.mark.parametrize(
    ("release", "merged"),
    [
        ("0.26.0", False),
        ("0.27.0rc1", True),
        ("0.27.0", True),
        ("0.27.1.dev3", True),
        ("0.33.0", True),
        (None, False),
    ],
)
def test_once_merged_it_is_there_for_good(
    feature: Feature, release: str | None, merged: bool
) -> None:
    remembered = replace(feature, merged=Version("0.27.0"))
    assert shown(remembered, [], release).merged is merged


def test_a_vendors_build_is_recognised_whatever_else_it_holds(feature: Feature) -> None:
    """Its own change may show every text of upstream's, switched off."""
    tests = (UpstreamTest(PATH, "f", "first = 1"),)
    build = Build("a vendor", PATH, "f", "VENDOR_SWITCH", "it has graphs of its own")
    made = replace(feature, upstream_tests=tests, builds=(build,))
    (result,) = plan([made], Tree(), Version("0.26.0")).features
    assert result.state is State.UPSTREAMED
    theirs = Tree(TEXT.replace(b"    return first", b"    VENDOR_SWITCH = 0\n    return first"))
    (result,) = plan([made], theirs, Version("0.26.0")).features
    assert result.state is State.INAPPLICABLE
    assert str(result.reason) == "this is a vendor's build of the release: it has graphs of its own"
    # Elsewhere the text means nothing.
    beside = Tree(TEXT + b"VENDOR_SWITCH = 0\n")
    (result,) = plan([made], beside, Version("0.26.0")).features
    assert result.state is State.UPSTREAMED


def test_without_memory_and_tests_there_is_no_evidence(feature: Feature) -> None:
    assert shown(feature, ["anything"]) == Evidence(False, "")


@pytest.mark.parametrize(
    ("there", "merged", "partly"),
    [(0, False, False), (2, False, False), (3, False, True), (4, False, True), (5, True, False)],
)
def test_a_share_of_the_new_lines_asks_and_all_of_them_are_enough(
    feature: Feature, there: int, merged: bool, partly: bool
) -> None:
    lined = replace(feature, upstream_tests=(UpstreamTest(PATH, "f", "", LINES, 0.6),))
    result = shown(lined, [f"    {line}" for line in LINES[:there]])
    assert (result.merged, result.partly) == (merged, partly)
    assert f"{there} of the 5 lines" in result.text
    assert merged or f"missing: {LINES[there]!r}" in result.text


def test_comments_in_a_test_of_lines_count_for_nothing(feature: Feature) -> None:
    """Earlier versions wrote them into ``feature.toml``."""
    lines = ("# of the change", "line_number = 1", "# why it is so", ")")
    lined = replace(feature, upstream_tests=(UpstreamTest(PATH, "f", "", lines, 0.6),))
    assert shown(lined, ["    line_number = 1"]).merged
    without = shown(lined, ["# of the change", "# why it is so", ")"])
    assert (without.merged, without.partly) == (False, False)


def test_the_share_counts_over_all_scopes(feature: Feature) -> None:
    tests = (UpstreamTest(PATH, "f", "", LINES, 0.6), UpstreamTest(PATH, "g", "", LINES[:3], 0.6))
    lined = replace(feature, upstream_tests=tests)
    assert shown(lined, list(LINES)).partly
    assert not shown(lined, list(LINES[:4])).partly
    assert not shown(lined, list(LINES)).merged


def test_texts_and_lines_must_both_hold(feature: Feature) -> None:
    tests = (UpstreamTest(PATH, "f", "needle"), UpstreamTest(PATH, "f", "", LINES, 0.6))
    both = replace(feature, upstream_tests=tests)
    assert not shown(both, list(LINES)).merged
    assert not shown(both, ["needle"]).merged
    assert shown(both, ["needle", *LINES]).merged


@pytest.mark.parametrize("release", ["0.27.0", "0.33.0", "0.40.0"])
def test_the_plan_retires_what_was_merged_even_where_it_would_match(
    feature: Feature, release: str
) -> None:
    before = plan([feature], Tree(), Version(release))
    assert before.features[0].state is State.PRISTINE
    after = plan([replace(feature, merged=Version("0.27.0"))], Tree(), Version(release))
    assert after.features[0].state is State.UPSTREAMED
    assert after.changes == ()


def test_the_keys_are_read(tmp_path: Path) -> None:
    write_feature(tmp_path, {"10-a/0.20.0..0.33.0.patch": PATCH})
    toml = tmp_path / "demo" / "feature.toml"
    toml.write_text(
        toml.read_text()
        + 'merged = "0.27.0"\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "f"\n'
        + 'lines = ["    second = 22"]\nshare = 0.5\n'
    )
    (feature,) = load([tmp_path])
    assert feature.merged == Version("0.27.0")
    assert feature.upstream_tests == (UpstreamTest("vllm/a.py", "f", "", ("second = 22",), 0.5),)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('merged = "soon"', "merged"),
        ("merged = 27", "merged"),
        ('[[upstreamed]]\npath = "vllm/a.py"\nlines = []', "lines"),
        ('[[upstreamed]]\npath = "vllm/a.py"\nlines = ["a\\nb"]', "lines"),
        ('[[upstreamed]]\npath = "vllm/a.py"\nlines = ["abcdef"]\nshare = 0', "share"),
        ('[[upstreamed]]\npath = "vllm/a.py"\nlines = ["abcdef"]\nshare = true', "share"),
        ('[[upstreamed]]\npath = "vllm/a.py"\nlines = ["abcdef"]\ncontains = "a"', "not both"),
    ],
)
def test_malformed_keys_are_named(tmp_path: Path, keys: str, message: str) -> None:
    write_feature(tmp_path, {"10-a/0.20.0..0.33.0.patch": PATCH})
    toml = tmp_path / "demo" / "feature.toml"
    toml.write_text(toml.read_text() + keys + "\n")
    with pytest.raises(PatchFormatErrors, match=message):
        load([tmp_path])


#: Three hunks in three functions; upstream took the changes of two of them, in its own words.
THREE = b"".join(
    f"def f{n}():\n    first_{n} = 1\n    second_{n} = 2\n    return first_{n}\n\n\n".encode()
    for n in range(3)
)
MINE = THREE.replace(b"    second_0 = 2\n", b"    second_0 = compute(0)\n    third_0 = 3\n")
MINE = MINE.replace(b"    second_1 = 2\n", b"    second_1 = compute(1)\n    third_1 = 3\n")
MINE = MINE.replace(b"    second_2 = 2\n", b"    second_2 = compute(2)\n    third_2 = 3\n")
TOOK_TWO = MINE.replace(b"    second_2 = compute(2)\n    third_2 = 3\n", b"    second_2 = 2\n")
TOOK_TWO = TOOK_TWO.replace(b"    first_0 = 1\n", b"    first_0 = 1\n    upstream_0 = 1\n")


def three(folder: Path) -> Feature:
    """The feature of the three hunks, made on 0.25.0."""
    headers = "Description: A\nOrigin: B\nLast-Update: 2026-11-22\nBase: 0.25.0\n"
    patch = patch_text(PATH, *compose(THREE, MINE), headers=headers)
    write_feature(folder, {"10-a/0.25.0..0.25.0.patch": patch}, releases="0.25.0..0.25.0")
    return load([folder])[0]


def test_upstream_took_two_of_three_hunks(tmp_path: Path) -> None:
    feature = three(tmp_path)
    result = plan([feature], Tree(TOOK_TWO), Version("0.26.0")).features[0]
    assert [hunk.state for hunk in result.files[0].hunks] == [
        State.UPSTREAMED,
        State.UPSTREAMED,
        State.PRISTINE,
    ]
    assert result.state is State.PARTIAL
    assert result.reason is not None
    assert "upstream took 2 of 3 hunks" in result.reason.text
    reason = result.files[0].reason
    assert reason is not None
    assert "upstream took 2 of 3 hunks" in reason.text
    assert "overlay port demo --releases 0.26.0" in (reason.next_step or "")


def test_what_upstream_reworked_around_is_still_its_own(tmp_path: Path) -> None:
    feature = three(tmp_path)
    whole = MINE.replace(b"    first_1 = 1\n", b"    first_1 = 10\n")
    assert plan([feature], Tree(whole), Version("0.26.0")).features[0].state is State.UPSTREAMED
    assert plan([feature], Tree(THREE), Version("0.26.0")).features[0].state is State.PRISTINE


def test_without_a_base_lines_tell_nothing_of_a_hunk(tmp_path: Path) -> None:
    (first, *_) = three(tmp_path).topics[0].variants[0].patch.hunks
    lines = [["    second_0 = compute(0)", "    third_0 = 3"]]
    assert hunk_is_upstream(first, lines).merged
    assert not hunk_is_upstream(first._replace(base_has=None), lines).merged
    assert hunk_is_upstream(first, [["    third_0 = 3"]]) == Evidence(False, "")


def test_a_hunk_is_taken_where_all_of_its_code_is_and_asked_about_from_a_share_on() -> None:
    lines = [f"value_{n} = {n}" for n in range(5)]
    made = hunk([f"+{line}" for line in lines], "f")._replace(base_has=())
    there = Evidence(True, "all 5 lines of code that it adds are in f")
    assert hunk_is_upstream(made, [lines[:2], lines, lines[:1]]) == there
    some = hunk_is_upstream(made, [lines[:2], lines[:3], lines[:1]])
    assert (some.merged, some.partly) == (False, True)
    assert "3 of the 5 lines" in some.text
    assert "missing: 'value_3 = 3', 'value_4 = 4'" in some.text
    assert hunk_is_upstream(made, [lines[:2]]) == Evidence(False, "")
    assert hunk_is_upstream(made, []) == Evidence(False, "")


def test_a_text_may_be_of_several_lines(feature: Feature) -> None:
    text = "first = 1\n    second = 2"
    places = [["other"], ["def f():", "    first = 1", "    second = 2"]]
    tested = replace(feature, upstream_tests=(UpstreamTest(PATH, "f", text),))
    assert evidence(tested, None, lambda path, scope: places).merged
    built = replace(feature, builds=(Build("a vendor", PATH, "f", text, "why"),))
    assert build_of(built, lambda path, scope: places) == (
        "this is a vendor's build of the release: why"
    )
    assert build_of(built, lambda path, scope: places[:1]) is None


def test_a_file_that_is_not_the_releases_own_is_not_upstreams(tmp_path: Path) -> None:
    record = {PATH: "0" * 64}
    result = plan([three(tmp_path)], Tree(MINE), Version("0.26.0"), record).features[0]
    assert result.state is State.DRIFTED


def test_a_retired_variant_is_not_applied_and_does_not_count(tmp_path: Path) -> None:
    feature = three(tmp_path)
    patch = tmp_path / "demo/10-a/0.25.0..0.25.0.patch"
    text = patch.read_text()
    retired = text.replace("Base: 0.25.0\n", "Ported-From: 0.25.0 upstream\n")
    patch.with_name("0.26.0..0.26.0.patch").write_text(retired)
    toml = tmp_path / "demo/feature.toml"
    toml.write_text(toml.read_text().replace("0.25.0..0.25.0", "0.25.0..0.26.0"))
    (feature,) = load([tmp_path])
    for release in ("0.26.0", "0.27.0"):
        result = plan([feature], Tree(THREE), Version(release))
        assert result.features[0].state is State.UPSTREAMED
        assert result.changes == ()
    assert plan([feature], Tree(THREE), Version("0.25.0")).features[0].state is State.PRISTINE


def test_how_a_variant_was_ported_must_be_known(tmp_path: Path) -> None:
    three(tmp_path)
    patch = tmp_path / "demo/10-a/0.25.0..0.25.0.patch"
    patch.write_text(patch.read_text().replace("Base:", "Ported-From: 0.24.0 somehow\nBase:"))
    with pytest.raises(PatchFormatErrors, match="Ported-From: expected a release and one of"):
        load([tmp_path])


def test_a_module_that_is_indented_otherwise_is_another_one() -> None:
    added = AddedFile("pkg/own.py", b"if fast:\n    start()\n    stop()\n")
    assert has_module(added, [["if fast:", "    start()", "    check()", "    stop()"]]).merged
    assert not has_module(added, [["if fast:", "    start()", "stop()"]]).merged
