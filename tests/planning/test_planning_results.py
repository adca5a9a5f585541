"""What features make of a tree: added modules, stacking, and results that would not do."""

from __future__ import annotations

import sys

import pytest

from overlay._features.model import Hunk
from overlay.package import VLLM
from overlay.planning import advice
from overlay.results import FileResult, State
from tests.support.patches import feature, hunk
from tests.support.plans import HUNK, LATER, NEW, TEXT, A, planned, sha

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
    assert result.features[0].files[0].reason == advice.unrecorded(VLLM)


def test_two_features_that_add_unlike_modules_of_one_name_are_refused() -> None:
    result = planned(
        feature(added={"vllm/z.py": NEW}), feature(added={"vllm/z.py": b"VALUE = 2\n"}, id="other")
    )
    for found in result.features:
        assert found.state is State.DRIFTED
        assert "demo (files/vllm/z.py) and other touch the same lines" in str(found.files[0].reason)


def test_features_may_share_a_module_of_equal_bytes() -> None:
    """Each lists the file, and it is written once, whichever of them are chosen."""
    one, two = feature(added={"vllm/z.py": NEW}), feature(added={"vllm/z.py": NEW}, id="other")
    (change,) = planned(one).changes
    for chosen in ((one, two), (two, one), (two,)):
        result = planned(*chosen)
        assert result.changes == (change,)
        for found in result.features:
            assert found.files == (FileResult("vllm/z.py", State.PRISTINE),)


def test_a_shared_module_may_be_patched_between_the_features_that_add_it() -> None:
    edit = feature(("vllm/z.py", [hunk(["-VALUE = 1", "+VALUE = 2"])]), id="patch")
    one, two = feature(added={"vllm/z.py": NEW}), feature(added={"vllm/z.py": NEW}, id="other")
    expected = planned(one, two, edit, files={})
    assert expected.state is State.PRISTINE
    assert planned(one, edit, two, files={}).changes == expected.changes


def test_a_shared_module_that_does_not_compile_stops_each_feature() -> None:
    bad = b"VALUE = = 1\n"
    one, two = feature(added={"vllm/z.py": bad}), feature(added={"vllm/z.py": bad}, id="other")
    for found in planned(one, two).features:
        assert found.state is State.DRIFTED
        assert "does not compile" in str(found.files[0].reason)


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
        "demo (demo/01-topic/0.20.0..0.33.0.patch:1) and other "
        "(other/01-topic/0.20.0..0.33.0.patch:1) touch the same lines"
    )
    assert expected in str(mine.files[0].reason)
    assert expected in str(other.files[0].hunks[0].reason)
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
    assert "two (" in str(result.features[2].files[0].hunks[0].reason)


def test_what_an_earlier_feature_makes_ambiguous_lands_where_it_lands_alone() -> None:
    twice = hunk(["-import os", "+import os  # 1", "+import sys", "+import sys"])
    once = hunk(["-import sys", "+import re"])
    files = {A: TEXT + b"import sys\n"}
    result = planned(feature((A, [twice])), feature((A, [once]), id="other"), files=files)
    assert [found.state for found in result.features] == [State.PRISTINE, State.PRISTINE]
    (change,) = result.changes
    assert change.after is not None
    assert change.after.startswith(b"import os  # 1\nimport sys\nimport sys\n")
    assert change.after.endswith(b"\nimport re\n")


def test_what_the_release_has_stays_upstreamed_under_an_earlier_feature() -> None:
    there = hunk(["     y = x", "-    z = 9", "+    z = y"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [there]), id="other"))
    assert [found.state for found in result.features] == [State.PRISTINE, State.UPSTREAMED]
    assert len(result.changes) == 1


def test_what_only_an_earlier_feature_puts_there_is_a_clash() -> None:
    other = hunk(["-    never", "+    y += 1"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [other]), id="other"))
    assert [found.state for found in result.features] == [State.DRIFTED, State.DRIFTED]
    assert "touch the same lines" in str(result.features[1].files[0].hunks[0].reason)


def test_a_feature_that_takes_another_one_back_changes_nothing() -> None:
    back = hunk(["     y = x", "-    y += 1", "     z = y"], "f")
    result = planned(feature((A, [HUNK])), feature((A, [back]), id="other"))
    assert result.state is State.PRISTINE
    assert result.changes == ()


# Results that would not do


def test_a_result_that_does_not_compile_is_refused() -> None:
    for line, why in (("    return (", "is not Python"), ("    nonlocal y", "does not compile")):
        bad = hunk(["     y = x", "+" + line, "     z = y"], "f")
        result = planned(feature((A, [bad])))
        assert result.state is State.DRIFTED
        assert why in str(result.features[0].files[0].reason)
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
    assert "the file cannot be read: line 1: " in str(found.reason)
    running = f"(this is {sys.version_info.major}.{sys.version_info.minor})"
    assert f"run overlay with the Python that imports the package {running}" in str(found.reason)
    result = planned(feature((A, [HUNK])), files={A: b"\xff\n"})
    assert "line 1 is not utf-8 text" in str(result.features[0].files[0].hunks[0].reason)


def test_a_line_that_the_file_s_encoding_lacks_is_refused() -> None:
    wide = hunk(["     y = x", "+    # 漢", "     z = y"], "f")
    latin = b"# coding: latin-1\n# \xe9\n" + TEXT
    result = planned(feature((A, [wide])), files={A: latin})
    assert result.state is State.DRIFTED
    assert "'漢', which the file's encoding, iso-8859-1" in str(result.features[0].files[0].reason)
    fine = planned(feature((A, [HUNK])), files={A: latin})
    assert fine.changes[0].after == latin.replace(b"    z =", b"    y += 1\n    z =")


def test_a_hunk_that_would_apply_again_is_refused() -> None:
    text = b"def f():\n    a\n    a\n    b\n"
    eats = hunk(["-    a", "     b"], "f")
    result = planned(feature((A, [eats])), files={A: text})
    (found,) = result.features[0].files[0].hunks
    assert (found.state, result.changes) == (State.AMBIGUOUS, ())
    assert "once it is applied, its lines before the change are still there, at line 2" in str(
        found.reason
    )


def test_a_hunk_that_renames_its_own_scope_is_refused() -> None:
    rename = hunk(["-def g(x):", "+def h(x):", "     return x"], "g")
    result = planned(feature((A, [rename])))
    assert result.state is State.DRIFTED
    assert "another scope" in str(result.features[0].files[0].hunks[0].reason)
    assert planned(feature((A, [rename._replace(scope="<module>")]))).state is State.PRISTINE


def test_hunks_that_share_lines_are_refused() -> None:
    one = hunk(["     y = x", "+    a", "     z = y"], "f")._replace(patch_line=7)
    two = hunk(["     z = y", "+    b", "     return z"], "f")._replace(patch_line=12)
    result = planned(feature((A, [two, one])))
    hunks = result.features[0].files[0].hunks
    assert [h.state for h in hunks] == [State.DRIFTED, State.DRIFTED]
    assert "the hunks at these lines of the patch: 7;" in str(hunks[0].reason)
    assert "the hunks at these lines of the patch: 12;" in str(hunks[1].reason)


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
    (notice,) = result.notices
    assert notice.path == "vllm/a.py"
    assert notice.text.startswith("it is not the release's own file")
    assert "Genesis" in notice.text
    assert planned(feature((A, [HUNK])), record={A: sha(TEXT)}).notices == ()


def test_a_post_image_that_nobody_accounts_for_is_drifted() -> None:
    after = TEXT.replace(b"    z =", b"    y += 1\n    z =")
    assert planned(feature((A, [HUNK])), files={A: after}).state is State.UPSTREAMED
    own = planned(feature((A, [HUNK])), files={A: after}, record={A: sha(after)})
    assert own.state is State.UPSTREAMED
    other = planned(feature((A, [HUNK])), files={A: after}, record={A: sha(TEXT)})
    assert other.state is State.DRIFTED
    assert other.features[0].files[0].hunks[0].reason == advice.unrecorded(VLLM)
    assert other.notices
