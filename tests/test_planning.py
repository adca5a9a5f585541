"""Features against a tree: states, changes and notes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.version import Version

from overlay.model import Feature, Hunk, Plan
from overlay.planning import plan
from overlay.releases import ReleaseRange
from overlay.scopes import Syntax
from overlay.states import State
from tests.support.patches import MemoryTree, feature, hunk, topic

A = "vllm/a.py"
TEXT = b"""\
import os


def f(x):
    y = x
    z = y
    return z


def g(x):
    return x
"""
NEW = b"VALUE = 1\n"
HUNK = hunk(["     y = x", "+    y += 1", "     z = y"], "f")
LATER = hunk([" def g(x):", "-    return x", "+    return -x"], "g")
RELEASE = Version("0.26.0")


def planned(
    *features: Feature,
    files: Mapping[str, bytes] | None = None,
    release: str | None = "0.26.0",
    record: Mapping[str, str] | None = None,
) -> Plan:
    tree = MemoryTree({A: TEXT} if files is None else files)
    return plan(features, tree, None if release is None else Version(release), record)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    assert (found.feature, found.untested, found.why) == ("demo", False, None)
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
    assert "does not compile: line 1" in str(found.files[0].why)
    assert found.files[2].why == "expected the file vllm/missing.py, found none"
    assert found.files[2].hunks[0].state is State.MISSING


# Releases


@pytest.mark.parametrize(
    ("release", "state", "untested", "why"),
    [
        ("0.19.1", State.INAPPLICABLE, False, "0.19.1 lies below its range, 0.20.0..0.33.0"),
        ("0.19.2.dev4", State.INAPPLICABLE, False, "below"),
        ("0.20.0rc1", State.PRISTINE, True, "0.20.0rc1 is no release"),
        ("0.26.1.dev3", State.PRISTINE, True, "0.26.1.dev3 is no release"),
        ("0.20.0", State.PRISTINE, False, None),
        ("0.33.0", State.PRISTINE, False, None),
        ("0.33.0.post1", State.PRISTINE, True, "newer than its range"),
        ("0.34.0", State.PRISTINE, True, "0.34.0 is newer than its range, 0.20.0..0.33.0"),
        (None, State.PRISTINE, True, "cannot be told"),
    ],
)
def test_the_release_decides(
    release: str | None, state: State, untested: bool, why: str | None
) -> None:
    (found,) = planned(feature((A, [HUNK])), release=release).features
    assert (found.state, found.untested) == (state, untested)
    assert (found.why is None) if why is None else (why in str(found.why))
    if state is State.INAPPLICABLE:
        assert found.files == ()


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
    assert found.why == (
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
    assert "'import os' stands in <module> of vllm/a.py" in str(found.why)


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
    assert "expected 'num_active_loras' in f of vllm/a.py" in str(found.why)
    assert planned(history, release="0.15.0").state is State.INAPPLICABLE


def test_upstream_tests_read_the_tree_and_not_earlier_features() -> None:
    second = feature((A, [LATER]), id="second", tests=[(A, "f", "y += 1")])
    result = planned(feature((A, [HUNK])), second)
    assert [found.state for found in result.features] == [State.PRISTINE, State.PRISTINE]


# Added modules


@pytest.mark.parametrize(
    ("there", "state"), [(NEW, State.UPSTREAMED), (b"VALUE = 2\n", State.DRIFTED)]
)
def test_an_added_module_that_stands_already(there: bytes, state: State) -> None:
    result = planned(feature(added={"vllm/z.py": NEW}), files={"vllm/z.py": there})
    assert result.state is state
    assert result.changes == ()


def test_an_added_module_that_is_not_the_release_s_own() -> None:
    given = feature(added={"vllm/z.py": NEW})
    result = planned(given, files={"vllm/z.py": NEW}, record={"vllm/z.py": sha(NEW)})
    assert result.state is State.UPSTREAMED
    result = planned(given, files={"vllm/z.py": NEW}, record={A: sha(TEXT)})
    assert result.state is State.DRIFTED
    assert "the RECORD does not list it" in str(result.features[0].files[0].why)


def test_two_features_that_add_the_same_module_are_refused() -> None:
    for content in (NEW, b"VALUE = 2\n"):
        result = planned(
            feature(added={"vllm/z.py": NEW}), feature(added={"vllm/z.py": content}, id="other")
        )
        for found in result.features:
            assert found.state is State.DRIFTED
            assert "demo (files/vllm/z.py) and other touch the same lines" in str(
                found.files[0].why
            )


def test_a_later_feature_may_patch_an_added_module() -> None:
    edit = hunk(["-VALUE = 1", "+VALUE = 2"])
    result = planned(
        feature(added={"vllm/z.py": NEW}), feature(("vllm/z.py", [edit]), id="other"), files={}
    )
    assert [(c.path, c.before, c.after) for c in result.changes] == [
        ("vllm/z.py", None, b"VALUE = 2\n")
    ]


# Stacking


def test_features_stack_on_what_the_earlier_left() -> None:
    on_top = hunk(["     y += 1", "+    y += 2", "     z = y"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [LATER, on_top]), id="other"))
    assert result.state is State.PRISTINE
    (change,) = result.changes
    assert change.after is not None
    assert b"    y += 1\n    y += 2\n    z = y\n" in change.after
    alone = planned(feature((A, [LATER, on_top]), id="other"))
    assert alone.state is State.DRIFTED


@pytest.mark.parametrize(
    "rival",
    [
        hunk(["     y = x", "+    y += 9", "     z = y"], "f"),
        hunk(["     y = x", "-    z = y", "+    z = 0"], "f"),
        HUNK,  # the same change is not made twice, and belongs to one of them
        hunk(["     z = y", "-    return z", "+    return z  # y"], "f"),
    ],
)
def test_two_features_on_the_same_lines_are_both_refused(rival: Hunk) -> None:
    first = hunk(["     y = x", "-    z = y", "+    z = y + 1", "     return z"], "f")
    first = HUNK if rival is HUNK else first
    result = planned(feature((A, [first])), feature((A, [rival, LATER]), id="other"))
    mine, other = result.features
    assert mine.state is other.state is State.DRIFTED
    assert result.changes == ()
    expected = (
        "demo (demo/01-topic/0.20.0..0.33.0.patch) and other "
        "(other/01-topic/0.20.0..0.33.0.patch) touch the same lines"
    )
    assert expected in str(mine.files[0].why)
    assert expected in str(other.files[0].hunks[0].why)
    assert other.files[0].hunks[1].state is State.PRISTINE


def test_of_three_features_the_one_that_clashes_is_named() -> None:
    result = planned(
        feature((A, [LATER]), id="one"),
        feature((A, [HUNK]), id="two"),
        feature((A, [hunk(["     y = x", "-    z = y", "+    z = 0"], "f")]), id="three"),
    )
    assert [found.state for found in result.features] == [
        State.PRISTINE,
        State.DRIFTED,
        State.DRIFTED,
    ]
    assert "two (" in str(result.features[2].files[0].hunks[0].why)


def test_what_an_earlier_feature_makes_ambiguous_is_a_clash() -> None:
    twice = hunk(["-import os", "+import os  # 1", "+import sys", "+import sys"])
    once = hunk(["-import sys", "+import re"])
    files = {A: TEXT + b"import sys\n"}
    result = planned(feature((A, [twice])), feature((A, [once]), id="other"), files=files)
    assert [found.state for found in result.features] == [State.DRIFTED, State.DRIFTED]
    assert planned(feature((A, [once])), files=files).state is State.PRISTINE


def test_what_the_release_has_stays_upstreamed_under_an_earlier_feature() -> None:
    there = hunk(["     y = x", "-    z = 9", "+    z = y"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [there]), id="other"))
    assert [found.state for found in result.features] == [State.PRISTINE, State.UPSTREAMED]
    assert len(result.changes) == 1


def test_what_only_an_earlier_feature_puts_there_is_a_clash() -> None:
    other = hunk(["-    never", "+    y += 1"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [other]), id="other"))
    assert [found.state for found in result.features] == [State.DRIFTED, State.DRIFTED]
    assert "touch the same lines" in str(result.features[1].files[0].hunks[0].why)


def test_a_feature_that_takes_another_one_back_changes_nothing() -> None:
    back = hunk(["     y = x", "-    y += 1", "     z = y"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [back]), id="other"))
    assert result.state is State.PRISTINE
    assert result.changes == ()


# Results that would not do


def test_a_result_that_does_not_compile_is_refused() -> None:
    for line, why in (("    return (", "is no Python"), ("    nonlocal y", "does not compile")):
        bad = hunk(["     y = x", "+" + line, "     z = y"], "f")
        result = planned(feature((A, [bad])))
        assert result.state is State.DRIFTED
        assert why in str(result.features[0].files[0].why)
        assert result.changes == ()


def test_of_a_series_the_patch_that_breaks_the_file_is_named() -> None:
    bad = hunk(["     return z", "+    nonlocal q"], "f")
    result = planned(
        feature((A, [HUNK]), id="one"),
        feature((A, [bad]), id="two"),
        feature((A, [LATER]), id="xx"),
    )
    assert [found.state for found in result.features] == [
        State.PRISTINE,
        State.DRIFTED,
        State.PRISTINE,
    ]


def test_a_patch_for_code_that_is_not_python_is_drifted() -> None:
    result = planned(feature((A, [HUNK])), files={A: b"def f(:\n"})
    (found,) = result.features[0].files[0].hunks
    assert found.state is State.DRIFTED
    assert "the file cannot be read: line 1: " in str(found.why)
    result = planned(feature((A, [HUNK])), files={A: b"\xff\n"})
    assert "line 1 is no utf-8 text" in str(result.features[0].files[0].hunks[0].why)


def test_a_line_that_the_file_s_encoding_lacks_is_refused() -> None:
    wide = hunk(["     y = x", "+    # 漢", "     z = y"], "f")
    latin = b"# coding: latin-1\n# \xe9\n" + TEXT
    result = planned(feature((A, [wide])), files={A: latin})
    assert result.state is State.DRIFTED
    assert "'漢', which the file's encoding, iso-8859-1" in str(result.features[0].files[0].why)
    fine = planned(feature((A, [HUNK])), files={A: latin})
    assert fine.changes[0].after == latin.replace(b"    z =", b"    y += 1\n    z =")


def test_a_hunk_that_would_apply_again_is_refused() -> None:
    text = b"def f():\n    a\n    a\n    b\n"
    eats = hunk(["-    a", "     b"], "f")
    result = planned(feature((A, [eats])), files={A: text})
    (found,) = result.features[0].files[0].hunks
    assert (found.state, result.changes) == (State.AMBIGUOUS, ())
    assert "once it is applied, its lines before the change still stand at line 2" in str(found.why)


def test_a_hunk_that_renames_its_own_scope_is_refused() -> None:
    rename = hunk(["-def g(x):", "+def h(x):", "     return x"], "g")
    result = planned(feature((A, [rename])))
    assert result.state is State.DRIFTED
    assert "another scope" in str(result.features[0].files[0].hunks[0].why)
    assert planned(feature((A, [replace(rename, scope="<module>")]))).state is State.PRISTINE


def test_hunks_that_share_lines_are_refused() -> None:
    one = replace(hunk(["     y = x", "+    a", "     z = y"], "f"), patch_line=7)
    two = replace(hunk(["     z = y", "+    b", "     return z"], "f"), patch_line=12)
    result = planned(feature((A, [two, one])))
    hunks = result.features[0].files[0].hunks
    assert [h.state for h in hunks] == [State.DRIFTED, State.DRIFTED]
    assert "the hunks at these lines of the patch: 7;" in str(hunks[0].why)
    assert "the hunks at these lines of the patch: 12;" in str(hunks[1].why)


def test_a_file_of_which_only_part_is_there_is_partial() -> None:
    half = TEXT.replace(b"return x\n", b"return -x\n")
    result = planned(feature((A, [HUNK, LATER])), files={A: half})
    assert (result.state, result.changes) == (State.PARTIAL, ())


# Files that are not the release's own


def test_an_edited_file_that_still_matches_is_a_warning() -> None:
    edited = b"# [Genesis wiring marker: P1]\n" + TEXT
    result = planned(feature((A, [HUNK])), files={A: edited}, record={A: sha(TEXT)})
    assert result.state is State.PRISTINE
    assert result.changes[0].before == edited
    (warning,) = result.warnings
    assert warning.startswith("vllm/a.py: it is not the release's own file")
    assert "Genesis" in warning
    assert planned(feature((A, [HUNK])), record={A: sha(TEXT)}).warnings == ()


def test_a_post_image_that_nobody_accounts_for_is_drifted() -> None:
    after = TEXT.replace(b"    z =", b"    y += 1\n    z =")
    assert planned(feature((A, [HUNK])), files={A: after}).state is State.UPSTREAMED
    own = planned(feature((A, [HUNK])), files={A: after}, record={A: sha(after)})
    assert own.state is State.UPSTREAMED
    other = planned(feature((A, [HUNK])), files={A: after}, record={A: sha(TEXT)})
    assert other.state is State.DRIFTED
    assert "only its lines after the change stand there, but" in str(
        other.features[0].files[0].hunks[0].why
    )
    assert other.warnings


# Cost


def test_each_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlay import scopes

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
    assert "line 1: not vllm/a.py" in str(result.features[0].files[0].why)


def test_a_range_holds_no_pre_release() -> None:
    assert Version("0.26.1.dev3") not in ReleaseRange.parse("0.20.0..0.33.0")
