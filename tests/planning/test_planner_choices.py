"""Which variant, place and reason the planner chooses where there are several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from overlay._features.model import AddedFile, Build, Feature, PortedWay, Topic
from overlay.planning import advice
from overlay.results import Clash, FeatureResult, HunkResult, Reason, State
from tests.support.patches import feature, hunk, topic
from tests.support.plans import HUNK, LATER, NEW, RELEASE, TEXT, A, planned, sha

#: What Python parses and does not compile.
BROKEN = hunk(["+return 1", " import os"])


def only(given: Feature, **options: str) -> FeatureResult:
    (result,) = planned(given, **options).features  # type: ignore[arg-type]  # release alone
    return result


def retired(given: Topic, number: int) -> Topic:
    variants = list(given.variants)
    patch = variants[number].patch._replace(ported=PortedWay.UPSTREAM)
    variants[number] = variants[number]._replace(patch=patch)
    return given._replace(variants=tuple(variants))


def test_a_release_above_a_range_is_named_once() -> None:
    result = only(feature((A, [HUNK])), release="0.34.0")
    assert result.reason is not None
    assert result.reason.text == (
        "0.34.0 is newer than its range, 0.20.0..0.33.0; untested, judged by content"
    )


def test_a_hole_is_judged_by_the_variant_before_it() -> None:
    """Not by the newest, which may be retired."""
    given = topic("01-topic", {"0.20.0..0.22.0": (A, [HUNK]), "0.26.0..0.33.0": (A, [LATER])})
    result = only(replace(feature(), topics=(retired(given, 1),)), release="0.24.0")
    assert [file.patch for file in result.files] == ["demo/01-topic/0.20.0..0.22.0.patch"]
    assert result.untested
    result = only(replace(feature(), topics=(retired(given, 0),)), release="0.24.0")
    assert result.files == ()
    assert result.state is State.UPSTREAMED


@pytest.mark.parametrize("live", [False, True])
def test_modules_are_added_where_a_topic_is_not_retired(live: bool) -> None:
    """Where all are, nothing of the release would call them."""
    topics = [topic(name, {"0.20.0..0.33.0": (A, [HUNK])}) for name in ("01-one", "02-two")]
    gone = retired(topics[0], 0), topics[1] if live else retired(topics[1], 0)
    given = replace(feature(), topics=gone, added=(AddedFile("vllm/new.py", b"A = 1\n"),))
    plan = planned(given)
    result = plan.features[0]
    assert result.state is (State.PRISTINE if live else State.UPSTREAMED)
    assert [change.path for change in plan.changes] == ([A, "vllm/new.py"] if live else [])
    assert result.reason is not None
    assert result.reason.text.count("upstream has ") == (1 if live else 2)


@pytest.mark.parametrize("bad", ["vllm/b.py", "both"])
def test_every_file_whose_result_does_not_compile_is_refused(bad: str) -> None:
    first = BROKEN if bad == "both" else HUNK
    given = feature((A, [first]), ("vllm/b.py", [BROKEN]))
    result = planned(given, files={A: TEXT, "vllm/b.py": TEXT}).features[0]
    states = [file.state for file in result.files]
    assert states == [State.DRIFTED if bad == "both" else State.PRISTINE, State.DRIFTED]
    reason = result.files[1].reason
    assert reason is not None
    assert reason.next_step == advice.for_result(given, "demo/02-topic/0.20.0..0.33.0.patch")


def test_a_feature_without_patches_names_the_places_that_lack_it() -> None:
    tests = [(A, "f", "y = x"), (A, "g", "no such text"), ("vllm/none.py", "<module>", "x")]
    given = feature(tests=tests)
    result = only(given)
    assert result.state is State.DRIFTED
    assert [(file.path, file.hunks[0].scope) for file in result.files] == [
        (A, "g"),
        ("vllm/none.py", "<module>"),
    ]
    waiting = replace(feature(), merged=Version("0.30.0"))
    result = only(waiting)
    assert result.state is State.DRIFTED
    assert result.files == ()
    assert result.reason is not None
    assert "the release does not have it" in result.reason.text


def test_a_clash_says_what_to_do_on_both_sides() -> None:
    other = feature((A, [hunk(["     y = x", "-    z = y", "+    z = 1"], "f")]), id="other")
    first, second = planned(feature((A, [HUNK])), other).features
    for result, reason in (
        (first, first.files[0].reason),
        (second, second.files[0].hunks[0].reason),
    ):
        assert result.state is State.DRIFTED
        assert reason is not None
        assert isinstance(reason, Clash)
        assert reason.next_step == (
            "leave one of them out, `overlay apply --without demo` or `overlay apply --without "
            "other`, or make one patch of both"
        )
    # The line at which the pre-image is in the release's own text.
    assert second.files[0].hunks[0].line == 5


def test_modules_that_cannot_be_added_say_what_to_do() -> None:
    broken = feature(added={"vllm/z.py": b"def f(:\n"})
    reason = only(broken).files[0].reason
    assert reason is not None
    assert reason.next_step == advice.for_module(broken, "vllm/z.py")
    given = feature(added={"vllm/z.py": NEW})
    taken = planned(given, files={"vllm/z.py": b"OTHER = 1\n"}).features[0].files[0].reason
    assert taken is not None
    assert taken.next_step == advice.for_taken_name(given, "vllm/z.py")


def test_a_part_that_upstream_took_is_told_where_it_explains_something() -> None:
    given = feature((A, [HUNK, LATER]), ("vllm/b.py", [LATER]), ("vllm/c.py", [HUNK]))
    taken = TEXT.replace(b"    z =", b"    y += 1\n    z =")
    files = {A: taken, "vllm/b.py": TEXT, "vllm/c.py": b"def f(x):\n    return x\n"}
    result = planned(given, files=files).features[0]
    told = "upstream took 1 of 4 hunks"
    step = advice.for_part(given, RELEASE)
    assert step is not None
    assert result.reason == Reason(told, step)
    assert [file.state for file in result.files] == [State.PARTIAL, State.PRISTINE, State.DRIFTED]
    assert result.files[0].reason == Reason(f"the release has a part of the change: {told}", step)
    assert result.files[1].reason is None
    assert told not in str(result.files[2].reason)
    whole = planned(feature((A, [HUNK])), files={A: taken}).features[0]
    assert (whole.state, whole.reason) == (State.UPSTREAMED, None)


@pytest.mark.parametrize("edited", [True, False])
def test_a_hunk_that_does_not_fit_says_what_to_do(edited: bool) -> None:
    other = hunk(["     no = such", "+    line = 1"], "f")
    given = feature((A, [other]))
    patch = given.topics[0].variants[0].patch
    record = {A: "0" * 64 if edited else sha(TEXT)}
    (found,) = planned(given, record=record).features[0].files[0].hunks
    step = advice.for_hunk(
        given, patch, other, found.state, misplaced=False, original=not edited, release=RELEASE
    )
    assert found.reason is not None
    assert found.reason.next_step == step is not None
    misplaced = hunk(["     y = x", "+    line = 1"], "g")
    given = feature((A, [misplaced]))
    (found,) = planned(given, record=record).features[0].files[0].hunks
    assert found.reason is not None
    assert "correct the scope" in str(found.reason.next_step)


def test_a_missing_file_says_what_to_do() -> None:
    given = feature(("vllm/none.py", [HUNK]))
    reason = only(given).files[0].reason
    assert reason is not None
    patch = given.topics[0].variants[0].patch
    assert reason.next_step == advice.for_missing_file(given, patch, RELEASE) is not None


def test_what_upstream_has_goes_before_what_does_not_compile() -> None:
    """Of two variants without a hunk that does not fit, the one that the release has is chosen."""
    unparsable = hunk(["     y = x", "+    y = (", "     z = y"], "f")
    there = hunk(["-def h(x):", "+def g(x):", "     return x"])
    both = topic("01-topic", {"0.20.0..0.22.0": (A, [there]), "0.23.0..0.25.0": (A, [unparsable])})
    result = only(replace(feature(), topics=(both,)), release="0.30.0")
    assert result.state is State.UPSTREAMED
    assert result.files[0].patch == "demo/01-topic/0.20.0..0.22.0.patch"


def test_a_hunk_that_upstream_has_in_another_place_names_line_and_reason() -> None:
    lines = ["     y = x", "+    increment = y + 1", "     z = y"]
    wanted = hunk(lines, "f", base_has=())
    text = TEXT.replace(b"    y = x\n", b"    y = x\n    # upstream\n    increment = y + 1\n")
    (found,) = planned(feature((A, [wanted])), files={A: text}).features[0].files[0].hunks
    reason = Reason("all 1 lines of code that it adds are in f")
    assert found == HunkResult("f", State.UPSTREAMED, 5, reason)


def test_a_vendor_s_build_is_not_for_the_feature() -> None:
    build = Build("a vendor", A, "f", "y = x", "it drafts in another way")
    result = only(replace(feature((A, [HUNK])), builds=(build,)))
    assert result.state is State.INAPPLICABLE
    assert "a vendor's build" in str(result.reason)
