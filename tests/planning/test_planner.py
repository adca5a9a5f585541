"""Features against a tree: states, changes and notes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from overlay.package import VLLM, ReleaseRange, package_named
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import Plan, State
from tests.support.patches import MemoryTree, feature, hunk, topic
from tests.support.plans import HUNK, LATER, NEW, RELEASE, TEXT, A, planned


def test_a_feature_that_matches_everywhere_is_pristine_and_gives_the_changes() -> None:
    result = planned(feature((A, [HUNK, LATER]), added={"vllm/z.py": NEW, "vllm/0.py": b""}))
    assert result.state is State.PRISTINE
    assert [change.path for change in result.changes] == ["vllm/0.py", A, "vllm/z.py"]
    change = result.changes[1]
    assert change.before == TEXT
    assert change.after == TEXT.replace(b"    z =", b"    y += 1\n    z =").replace(
        b"return x\n", b"return -x\n"
    )
    assert (result.changes[0].before, result.changes[0].after) == (None, b"")
    (found,) = result.features
    assert (found.feature, found.untested, found.reason) == ("demo", False, None)
    patched = next(file for file in found.files if file.path == A)
    assert patched.patch == "demo/01-topic/0.20.0..0.33.0.patch"
    assert [(h.scope, h.line) for h in patched.hunks] == [("f", 5), ("g", 10)]
    module = next(file for file in found.files if file.path == "vllm/z.py")
    assert (module.state, module.hunks, module.patch) == (State.PRISTINE, (), None)


def test_nothing_selected_is_nothing_to_do() -> None:
    assert planned() == Plan(())


def test_a_plan_over_its_own_result_changes_nothing() -> None:
    features = [feature((A, [HUNK, LATER]), added={"vllm/z.py": NEW})]
    first = planned(*features)
    after = {change.path: change.after for change in first.changes if change.after is not None}
    second = planned(*features, files=after)
    assert second.state is State.UPSTREAMED
    assert second.changes == ()


def test_one_feature_in_need_of_attention_withholds_every_change() -> None:
    bad = feature((A, [hunk([" nothing", "+x"], "g")]), id="other")
    result = planned(feature((A, [HUNK])), bad)
    assert [found.state for found in result.features] == [State.PRISTINE, State.DRIFTED]
    assert result.changes == ()


def test_every_problem_is_reported() -> None:
    broken = [hunk([" nothing", "+x"], "f"), HUNK, hunk([" x", "+y"], "nowhere")]
    result = planned(
        feature((A, broken), ("vllm/missing.py", [HUNK]), added={"vllm/bad.py": b"def f(:\n"})
    )
    (found,) = result.features
    assert found.state is State.MISSING
    assert [file.state for file in found.files] == [State.DRIFTED, State.MISSING, State.MISSING]
    assert [h.state for h in found.files[1].hunks] == [
        State.DRIFTED,
        State.PRISTINE,
        State.MISSING,
    ]
    assert "does not compile: line 1" in str(found.files[0].reason)
    reason = found.files[2].reason
    assert reason is not None
    assert reason.text == "expected the file vllm/missing.py, found none"
    assert found.files[2].hunks[0].state is State.MISSING


# Releases


@pytest.mark.parametrize(
    ("release", "state", "untested", "why"),
    [
        ("0.19.1", State.INAPPLICABLE, False, "0.19.1 is below its range, 0.20.0..0.33.0"),
        ("0.19.2.dev4", State.INAPPLICABLE, False, "below"),
        ("0.20.0rc1", State.PRISTINE, True, "0.20.0rc1 is not a final release"),
        ("0.26.1.dev3", State.PRISTINE, True, "0.26.1.dev3 is not a final release"),
        ("0.20.0", State.PRISTINE, False, None),
        ("0.33.0", State.PRISTINE, False, None),
        ("0.33.0.post1", State.PRISTINE, True, "newer than its range"),
        ("0.34.0", State.PRISTINE, True, "0.34.0 is newer than its range, 0.20.0..0.33.0"),
        (None, State.PRISTINE, True, "is not known"),
    ],
)
def test_the_release_decides(
    release: str | None, state: State, untested: bool, why: str | None
) -> None:
    (found,) = planned(feature((A, [HUNK])), release=release).features
    assert (found.state, found.untested) == (state, untested)
    assert (found.reason is None) if why is None else (why in str(found.reason))
    if state is State.INAPPLICABLE:
        assert found.files == ()


def test_an_unknown_release_is_said_of_the_package() -> None:
    package = package_named("transformers")
    change = replace(feature((A, [HUNK])), package=package)
    (found,) = plan([change], MemoryTree({A: TEXT}), None).features
    assert str(found.reason).startswith("the release of this transformers is not known")


OLD = hunk(["     y = x", "-    z = w", "+    z = 1", "     return z"], "f")
MID = hunk(["     y = x", "+    y += 1", "     z = y"], "f")
NOW = hunk(["     y = x", "+    y += 2", "     z = y"], "f")


@pytest.mark.parametrize(
    ("release", "patch", "state", "untested"),
    [
        ("0.20.0", "0.20.0..0.21.0", State.DRIFTED, False),  # the variant of a range is taken
        ("0.22.0", "0.22.0..0.25.0", State.PRISTINE, False),
        ("0.26.0", "0.22.0..0.25.0", State.PRISTINE, True),  # a hole: the nearest older one
        ("0.30.0", "0.30.0..0.33.0", State.PRISTINE, False),
        ("0.40.0", "0.30.0..0.33.0", State.PRISTINE, True),
        ("0.25.0.post1", "0.22.0..0.25.0", State.PRISTINE, True),
        ("0.21.0rc2", "0.22.0..0.25.0", State.PRISTINE, True),  # its own does not fit
        (None, "0.30.0..0.33.0", State.PRISTINE, True),
    ],
)
def test_which_variant_is_taken(
    release: str | None, patch: str, state: State, untested: bool
) -> None:
    ranges = {
        "0.20.0..0.21.0": (A, [OLD]),
        "0.22.0..0.25.0": (A, [MID]),
        "0.30.0..0.33.0": (A, [NOW]),
    }
    given = replace(feature(), topics=(topic("01-x", ranges),))
    (found,) = planned(given, release=release).features
    assert found.files[0].patch == f"demo/01-x/{patch}.patch"
    assert (found.state, found.untested) == (state, untested)


def test_a_hole_is_named() -> None:
    ranges = {"0.20.0..0.21.0": (A, [HUNK])}
    given = replace(
        feature(), topics=(topic("01-x", ranges), topic("02-y", {"0.20.0..0.21.0": (A, [LATER])}))
    )
    (found,) = planned(given).features
    assert (found.state, found.untested) == (State.PRISTINE, True)
    assert str(found.reason) == (
        "01-x has no variant for 0.26.0; untested, judged by content; "
        "02-y has no variant for 0.26.0; untested, judged by content"
    )


def test_by_content_all_of_it_pristine_goes_before_upstreamed_and_the_least_wrong_last() -> None:
    there = hunk(["     y = x", "-    z = 9", "+    z = y"], "f")
    ranges = {"0.20.0..0.21.0": (A, [MID]), "0.22.0..0.33.0": (A, [there])}
    given = replace(feature(), topics=(topic("01-x", ranges),))
    (found,) = planned(given, release="0.40.0").features
    assert (found.state, found.files[0].patch) == (
        State.PRISTINE,
        "demo/01-x/0.20.0..0.21.0.patch",
    )
    one = replace(given, topics=(topic("01-x", {"0.20.0..0.21.0": (A, [OLD, LATER])}),))
    two = [OLD, hunk([" no", "+x"], "g")]
    one = replace(
        one,
        topics=(topic("01-x", {"0.20.0..0.21.0": (A, [OLD, LATER]), "0.22.0..0.33.0": (A, two)}),),
    )
    (found,) = planned(one, release="0.40.0").features
    assert found.files[0].patch == "demo/01-x/0.20.0..0.21.0.patch"


# Upstream


def test_an_upstream_test_retires_a_feature() -> None:
    tests = [(A, "f", "y = x\n    z"), (A, "<module>", "import os")]
    (found,) = planned(feature((A, [HUNK]), tests=tests)).features
    assert (found.state, found.files) == (State.UPSTREAMED, ())
    assert "'import os' in <module> of vllm/a.py" in str(found.reason)


@pytest.mark.parametrize(
    "unmet",
    [(A, "g", "z = y"), (A, "h", "x"), ("vllm/none.py", "f", "x"), (A, "f", "def g")],
)
def test_all_upstream_tests_have_to_hold(unmet: tuple[str, str, str]) -> None:
    (found,) = planned(feature((A, [HUNK]), tests=[(A, "f", "z = y"), unmet])).features
    assert found.state is State.PRISTINE


def test_a_feature_of_tests_alone_needs_attention_where_they_fail() -> None:
    history = feature(tests=[(A, "f", "num_active_loras")])
    (found,) = planned(history).features
    assert found.state is State.DRIFTED
    (file,) = found.files
    assert (file.path, file.patch, file.hunks[0].scope) == (A, None, "f")
    assert "expected 'num_active_loras' in f of vllm/a.py" in str(file.hunks[0].reason)
    assert planned(history, release="0.15.0").state is State.INAPPLICABLE


def test_upstream_tests_read_the_tree_and_not_earlier_features() -> None:
    second = feature((A, [LATER]), id="second", tests=[(A, "f", "y += 1")])
    result = planned(feature((A, [HUNK])), second)
    assert [found.state for found in result.features] == [State.PRISTINE, State.PRISTINE]


# Cost


def test_each_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlay.planning import scopes

    parsed: list[int] = []
    real = scopes.find
    monkeypatch.setattr(scopes, "find", lambda lines: parsed.append(len(lines)) or real(lines))
    planned(feature((A, [HUNK, LATER])), feature((A, [hunk([" import os", "+import re"])]), id="o"))
    assert len(parsed) == 3  # the pristine text and one result for each patch


def test_answers_about_texts_may_come_from_elsewhere() -> None:
    class Known(Syntax):
        def compile_error(self, data: bytes, path: str) -> str | None:
            return f"line 1: not {path}"

    tree = MemoryTree({A: TEXT})
    result = plan([feature((A, [HUNK]))], tree, RELEASE, None, Known())
    assert "line 1: not vllm/a.py" in str(result.features[0].files[0].reason)


def test_a_range_holds_no_pre_release() -> None:
    assert Version("0.26.1.dev3") not in ReleaseRange.parse("0.20.0..0.33.0", VLLM)
