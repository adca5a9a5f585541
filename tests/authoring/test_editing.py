"""Law 1: what ``edit --commit`` makes of edited files gives these files, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.model import Feature, UpstreamTest
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.editing import CommittedFolder, Edited, commit, expect_bytes, lay_out
from overlay.authoring.writing import check_files, render_patch, with_tests
from overlay.errors import PatchFormatErrors, UsageError
from overlay.package import ReleaseRange, package_named
from overlay.planning.planner import plan
from overlay.planning.scopes import UnparsableError
from overlay.untrusted import parse_toml
from tests.authoring.test_composing import changes
from tests.support.patches import MemoryTree

SLOW = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
RELEASE = Version("0.26.0")
A, B, NEW = "vllm/a.py", "vllm/b.py", "vllm/new.py"
NAMES = ("0.25.0", "0.26.0", "0.27.0")

TOML = b"""\
id = "fix"  # ours
title = "A fix"
why = "to test"
releases = "0.25.0..0.27.0"
"""

HEADERS = {"Description": "A fix", "Origin": "tests", "Last-Update": "2026-01-01"}


def folder(*texts: tuple[str, bytes, bytes], toml: bytes = TOML) -> dict[str, bytes]:
    """The files of a feature that makes one text of another, a topic each."""
    files = {"feature.toml": toml}
    for number, (path, before, after) in enumerate(texts, 1):
        patch = render_patch(HEADERS, path, compose(before, after))
        files[f"{number}0-x/0.25.0..0.27.0.patch"] = patch.encode()
    return files


def committed(
    files: Mapping[str, bytes],
    tree: MemoryTree,
    now: Mapping[str, bytes | None],
    unfit: frozenset[str] = frozenset(),
) -> CommittedFolder:
    """A session on the release's files, edited and committed."""
    feature = check_files("fix", files)
    more = [path for path in now if path in tree.files and path not in feature.patched_paths]
    layout = lay_out(feature, (), tree, RELEASE, more)
    texts = {**dict.fromkeys(layout.base), **layout.texts, **now}
    base = {path: layout.base.get(path, tree.files.get(path)) for path in texts}
    laid = {**base, **dict.fromkeys(layout.base), **layout.texts}
    changed = tuple(sorted(path for path in texts if texts[path] != laid[path]))
    return commit(
        feature,
        files,
        Edited(RELEASE, base, texts, changed),
        lambda _, release: release not in unfit,
        NAMES,
        "2026-11-22",
    )


def applied(feature: Feature, tree: MemoryTree, release: str = "0.26.0") -> dict[str, bytes]:
    planned = plan([feature], tree, Version(release))
    made = {change.path: change.after for change in planned.changes}
    assert not planned.state.needs_attention, planned
    return {**tree.files, **{path: data for path, data in made.items() if data is not None}}


def written(made: CommittedFolder, files: Mapping[str, bytes]) -> dict[str, bytes]:
    after = {**files, **made.files}
    return {name: data for name, data in after.items() if data is not None}


@SLOW
@given(changes(), changes(), st.sampled_from(["one topic", "two topics", "another file"]))
def test_applying_what_was_committed_gives_the_edited_files(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes], shape: str
) -> None:
    base, middle = first
    other, after = second
    tree = MemoryTree({A: base, B: other})
    try:
        if shape == "another file":
            files, now = folder((A, base, middle)), {A: middle, B: after}
        elif shape == "one topic":
            files, now = folder((A, base, middle)), {A: after}
        else:
            files, now = folder((A, base, middle), (A, middle, other)), {A: after}
        check_files("fix", files)
        lay_out(check_files("fix", files), (), tree, RELEASE)
        made = committed(files, tree, {**now, NEW: b"NEW = 1\n"})
    except (UnparsableError, NotComposable, PatchFormatErrors):
        assume(False)
        return
    except UsageError as error:
        if "would not give" in str(error):
            raise
        assume(False)  # no hunk can say it
        return
    feature = check_files("fix", written(made, files))
    assert applied(feature, tree) == {**tree.files, **now, NEW: b"NEW = 1\n"}


BASE = b"""\
import os


class Runner:
    def capture(self):
        sizes = [1, 2, 4]
        for size in sizes:
            self.run(size)
        return sizes

    def run(self, size):
        return size
"""
ONE = BASE.replace(b"[1, 2, 4]", b"[1, 2, 4, 8]")
TWO = ONE.replace(b"return size\n", b"return size + 1\n")


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree({A: BASE, B: BASE})


def test_a_hunk_that_was_not_edited_keeps_its_context_and_headers(tree: MemoryTree) -> None:
    narrow = compose(BASE, ONE, (1,))
    headers = {**HEADERS, "Signed-off-by": "a\nb", "Bug": "https://example.invalid/1"}
    files = {
        "feature.toml": TOML,
        "10-x/0.25.0..0.27.0.patch": render_patch(headers, A, narrow).encode(),
    }
    made = committed(files, tree, {A: TWO})
    (variant,) = made.feature.topics[0].variants
    assert variant.patch.hunks[0].lines == narrow[0].lines
    assert variant.patch.headers == {**headers, "Last-Update": "2026-11-22", "Base": "0.26.0"}
    assert made.files["feature.toml"] == TOML


def test_releases_that_do_not_take_the_edit_keep_the_text_that_they_had(tree: MemoryTree) -> None:
    files = folder((A, BASE, ONE))
    made = committed(files, tree, {A: TWO}, frozenset({"0.27.0"}))
    assert (str(made.releases), made.unedited) == ("0.25.0..0.26.0", ("0.27.0",))
    assert made.files["10-x/0.27.0..0.27.0.patch"] == files["10-x/0.25.0..0.27.0.patch"]
    assert applied(made.feature, tree)[A] == TWO
    assert applied(made.feature, tree, "0.27.0")[A] == ONE


def test_a_release_gets_all_of_an_edit_or_nothing_of_it(tree: MemoryTree) -> None:
    files = folder((A, BASE, ONE))
    made = committed(files, tree, {A: TWO, B: TWO}, frozenset({"0.27.0"}))
    later = {topic.name: [str(v.releases) for v in topic.variants] for topic in made.feature.topics}
    assert later == {"10-x": ["0.25.0..0.26.0", "0.27.0..0.27.0"], "20-b": ["0.25.0..0.26.0"]}


def test_a_range_that_lost_the_sessions_release_is_refused(tree: MemoryTree) -> None:
    """Somebody may change `feature.toml` between the edit and its commit."""
    whole = check_files("fix", folder((A, BASE, ONE)))
    feature = replace(whole, releases=ReleaseRange(Version("0.25.0"), Version("0.25.1")))
    with pytest.raises(UsageError, match=r"to hold 0\.26\.0.*found 0\.25\.0\.\.0\.25\.1"):
        commit(feature, {}, Edited(RELEASE, {}, {}, ()), lambda *_: True, NAMES, "2026-11-22")


def test_derived_tests_follow_the_edit_and_those_by_hand_stay(tree: MemoryTree) -> None:
    toml = TOML + (
        b'\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "Runner"\ncontains = "by hand"  # ours\n'
        b'\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "Runner.capture"\nlines = [\n'
        b'    "sizes = [1, 2, 4, 8]",\n]\nshare = 0.6\n'
    )
    made = committed(folder((A, BASE, ONE), toml=toml), tree, {A: TWO})
    by_hand, *derived = made.feature.upstream_tests
    assert by_hand.contains == "by hand"
    assert {(test.scope, test.lines) for test in derived} == {
        ("Runner.capture", ("sizes = [1, 2, 4, 8]",)),
        ("Runner.run", ("return size + 1",)),
    }
    written_toml = made.files["feature.toml"]
    assert written_toml is not None
    assert b"# ours\n" in written_toml


def test_tables_that_cannot_be_told_apart_are_refused() -> None:
    quoted = (
        b'\n[[upstreamed]]\npath = "vllm/b.py"\ncontains = """\nx\n[[upstreamed]]\nlines=\n"""\n'
    )
    for toml in (TOML + b'upstreamed = [{path = "vllm/a.py", lines = ["a"]}]\n', TOML + quoted):
        with pytest.raises(UsageError, match="as a table of its own"):
            with_tests(toml, (UpstreamTest(A, "Runner", lines=("line",), share=0.6),))


def test_a_byte_order_mark_does_not_stop_the_tests_of_an_edit() -> None:
    made = with_tests(
        b"\xef\xbb\xbf" + TOML, (UpstreamTest(A, "Runner", lines=("line",), share=2 / 3),)
    )
    assert parse_toml(made)["upstreamed"][0]["lines"] == ["line"]


def test_a_change_that_is_taken_back_takes_its_topic_with_it(tree: MemoryTree) -> None:
    files = folder((A, BASE, ONE), (B, BASE, ONE))
    made = committed(files, tree, {A: BASE})
    assert [topic.name for topic in made.feature.topics] == ["20-x"]
    assert made.files["10-x/0.25.0..0.27.0.patch"] is None
    split = {
        "feature.toml": TOML,
        "10-x/0.25.0..0.26.0.patch": files["10-x/0.25.0..0.27.0.patch"],
        "10-x/0.27.0..0.27.0.patch": files["10-x/0.25.0..0.27.0.patch"],
        "20-x/0.25.0..0.27.0.patch": files["20-x/0.25.0..0.27.0.patch"],
    }
    with pytest.raises(UsageError, match="10-x keeps one for 0"):
        committed(split, tree, {A: BASE})


@pytest.mark.parametrize(
    ("last", "new"), [(88, 98), (89, 99), (90, 91), (91, 92), (98, 99), (99, 99)]
)
def test_the_order_of_topics_has_room_for_a_hundred(tree: MemoryTree, last: int, new: int) -> None:
    files = {
        "feature.toml": TOML,
        f"{last}-x/0.25.0..0.27.0.patch": folder((A, BASE, ONE))["10-x/0.25.0..0.27.0.patch"],
    }
    made = committed(files, tree, {B: ONE})
    assert {topic.name for topic in made.feature.topics} == {f"{last}-x", f"{new}-b"}


DATA = "vllm/kernels.bin"


def test_a_feature_that_removes_a_file_is_edited_again(tree: MemoryTree) -> None:
    """Its session knows the text that is removed, and lays none out."""
    made = committed(folder((A, BASE, ONE)), tree, {B: None})
    files = written(made, {})
    layout = lay_out(made.feature, (), tree, RELEASE)
    assert (sorted(layout.base), sorted(layout.texts)) == ([A, B], [A])
    again = committed(files, tree, {A: TWO, B: None})
    assert applied(again.feature, tree)[A] == TWO
    assert {hunk.whole for patch in again.feature.patches for hunk in patch.hunks} > {None}
    back = committed(files, tree, {B: ONE})
    assert applied(back.feature, tree)[B] == ONE
    with pytest.raises(UsageError, match=r"fix leaves no such file in vLLM 0\.26\.0"):
        lay_out(made.feature, (), tree, RELEASE, [B])
    with pytest.raises(UsageError, match=r"vLLM 0\.26\.0 has no such file"):
        lay_out(made.feature, (), tree, RELEASE, [NEW])


def test_a_binary_that_is_the_releases_own_again_is_not_changed(tree: MemoryTree) -> None:
    tree.files[DATA] = b"\0own"
    made = committed(folder((A, BASE, ONE)), tree, {DATA: b"\0other"})
    again = committed(written(made, {}), tree, {DATA: b"\0own"})
    assert again.feature.patched_paths == {A}


def retired(way: str) -> dict[str, bytes]:
    """A feature of two topics, of which one is retired from the session's release on."""
    files = folder((A, BASE, ONE), (B, BASE, ONE))
    patch = files.pop("20-x/0.25.0..0.27.0.patch")
    head = b"Description: A fix\n"
    return {
        **files,
        "20-x/0.25.0..0.25.0.patch": patch,
        "20-x/0.26.0..0.27.0.patch": patch.replace(
            head, head + f"Ported-From: 0.25.0 {way}\n".encode()
        ),
    }


@pytest.mark.parametrize("way", ["not-needed", "upstream"])
def test_a_file_of_a_retired_topic_is_edited_if_it_is_asked_for(tree: MemoryTree, way: str) -> None:
    own = lay_out(check_files("fix", retired(way)), (), MemoryTree({A: BASE}), RELEASE)
    assert list(own.texts) == [A]  # the release needs no file of what is not applied to it
    made = committed(retired(way), tree, {A: TWO})
    assert made.feature.topics[1].variants[1].patch.retired
    again = committed(retired(way), tree, {B: TWO})
    assert not again.feature.topics[1].variants[1].patch.retired
    assert applied(again.feature, tree) == {A: ONE, B: TWO}


def test_an_edit_goes_to_the_last_topic_of_a_file_that_is_applied(tree: MemoryTree) -> None:
    files = retired("not-needed")
    second = {name: data.replace(B.encode(), A.encode()) for name, data in files.items()}
    first = compose(BASE, TWO.replace(b"[1, 2, 4, 8]", b"[1, 2, 4]"))
    second["10-x/0.25.0..0.27.0.patch"] = render_patch(HEADERS, A, first).encode()
    made = committed(second, tree, {A: ONE})
    assert made.feature.topics[1].variants[1].patch.retired
    assert applied(made.feature, tree)[A] == ONE


def test_what_is_retired_is_not_below_an_edit(tree: MemoryTree) -> None:
    files = retired("not-needed")
    again = folder((B, ONE, TWO))["10-x/0.25.0..0.27.0.patch"]
    way = b"Description: A fix\nPorted-From: 0.25.0 not-needed\n"
    files["30-x/0.25.0..0.25.0.patch"] = again
    files["30-x/0.26.0..0.27.0.patch"] = again.replace(b"Description: A fix\n", way)
    made = committed(files, tree, {B: TWO})
    assert applied(made.feature, tree) == {A: ONE, B: TWO}
    assert [t.variants[1].patch.retired for t in made.feature.topics[1:]] == [True, False]


def test_a_line_with_a_form_feed_that_the_base_has_is_one_line(tree: MemoryTree) -> None:
    line = b"mark = 'a\x0cb\xe2\x80\xa8c'\n"
    tree.files[A] = BASE.replace(b"import os\n", b"import os\n" + line)
    after = tree.files[A] + line
    made = committed(folder((B, BASE, ONE)), tree, {A: after})
    assert applied(made.feature, tree)[A] == after


def test_only_the_file_is_named_that_would_not_be_as_it_was_edited(tree: MemoryTree) -> None:
    with pytest.raises(
        UsageError,
        match=r"^vllm/new\.py: applying .* nothing was written: the .* compile: [^;]*$",
    ):
        committed(folder((A, BASE, ONE)), tree, {A: TWO, NEW: b"a = (\n"})


LINES = b"".join(b"    a%d()\n" % number for number in range(9))
TWICE = b"def f():\n" + b"    x = 1\n".join([LINES] * 3)


def test_one_of_two_equal_changes_is_taken_back() -> None:
    tree, both = MemoryTree({A: TWICE}), TWICE.replace(b"x = 1", b"x = 2")
    for now in (TWICE.replace(b"x = 1", b"x = 2", 1), both.replace(b"x = 2", b"x = 1", 1)):
        made = committed(folder((A, TWICE, both)), tree, {A: now})
        assert applied(made.feature, tree)[A] == now


@pytest.mark.parametrize("wide", [1, 4, 9])
def test_a_hunk_keeps_its_context_as_far_as_there_is_room(wide: int) -> None:
    """Its neighbours are those of the edit, which may come near."""
    lines = [b"n%d = 0\n" % number for number in range(30)]
    base, one = b"".join(lines), b"".join([*lines[:14], b"n14 = 1\n", *lines[15:]])
    (hunk,) = compose(base, one, (wide,))
    assert hunk.source_line == 15 - wide
    for near in (0, 3, 14 - wide - 2, 14 - wide - 1, 14 + wide + 1, 14 + wide + 2, 25, 29):
        now = b"".join(b"m = 1\n" if line == lines[near] else line for line in one.splitlines(True))
        patch = render_patch(HEADERS, A, (hunk,)).encode()
        files = {"feature.toml": TOML, "10-x/0.25.0..0.27.0.patch": patch}
        made = committed(files, MemoryTree({A: base}), {A: now})
        assert applied(made.feature, MemoryTree({A: base}))[A] == now
        hunks = made.feature.topics[0].variants[0].patch.hunks
        if abs(near - 14) > wide + 3:
            assert hunk.lines in [each.lines for each in hunks]


@given(
    unfit=st.sets(st.sampled_from(["0.23.0", "0.24.0", "0.25.0", "0.27.0", "0.28.0"])),
    cut=st.sampled_from([None, "0.25.0", "0.26.0"]),
    known=st.sampled_from(["0.23.0", "0.24.0", "0.26.0"]),
)
def test_each_release_has_the_edit_or_what_it_had(
    unfit: set[str], cut: str | None, known: str
) -> None:
    """The edit is a run of releases around its own; those behind the known ones go with them."""
    tree = MemoryTree({A: BASE})
    names = [f"0.{minor}.0" for minor in range(int(known[2:4]), 29)]
    toml = TOML.replace(b"0.25.0..0.27.0", b"0.22.0..0.30.0")
    patch = folder((A, BASE, ONE))["10-x/0.25.0..0.27.0.patch"]
    files = {"feature.toml": toml, f"10-x/{cut or '0.22.0'}..0.30.0.patch": patch}
    if cut is not None:
        files[f"10-x/0.22.0..0.{int(cut[2:4]) - 1}.0.patch"] = patch
    feature = check_files("fix", files)
    edited = Edited(RELEASE, {A: BASE}, {A: TWO}, (A,))
    made = commit(feature, files, edited, lambda _, name: name not in unfit, names, "2026-11-22")
    run = ["0.26.0"]
    for name in reversed(names[: names.index("0.26.0")]):
        if name in unfit or (cut is not None and Version(name) < Version(cut)):
            break
        run.insert(0, name)
    for name in names[names.index("0.26.0") + 1 :]:
        if name in unfit:
            break
        run.append(name)
    (topic,) = made.feature.topics
    spans = [variant.releases for variant in topic.variants]
    assert (str(spans[0].first), str(spans[-1].last)) == ("0.22.0", "0.30.0")
    assert (str(made.releases), list(made.unedited)) == (
        f"{run[0]}..{run[-1]}",
        [name for name in names if name not in run],
    )
    for name in ("0.22.0", *names, "0.29.0"):
        text = applied(made.feature, tree, name)[A]
        nearest = min(names, key=lambda each: abs(int(each[2:4]) - int(name[2:4])))
        is_older = cut is not None and Version(name) < Version(cut)
        assert text == (TWO if nearest in run and not is_older else ONE), name


def other(id_: str, path: str, before: bytes, after: bytes) -> Feature:
    files = folder((path, before, after), toml=TOML.replace(b'"fix"', f'"{id_}"'.encode()))
    return check_files(id_, files)


def test_a_session_lies_on_what_the_features_before_it_leave(tree: MemoryTree) -> None:
    below = BASE.replace(b"import os\n", b"import os\nimport io\n")
    earlier = [
        other("apart", B, BASE, ONE),
        other("clashing", A, BASE, BASE.replace(b"[1, 2, 4]", b"[3]")),
        other("gone", A, BASE.replace(b"size\n", b"siz\n"), BASE.replace(b"size\n", b"sized\n")),
        other("under", A, BASE, below),
    ]
    feature = check_files("fix", folder((A, BASE, ONE)))
    layout = lay_out(feature, earlier, tree, RELEASE)
    assert [each.id for each in layout.below] == ["under"]
    assert layout.without == ("clashing", "gone")
    assert layout.base == {A: below}
    assert layout.texts == {A: ONE.replace(b"import os\n", b"import os\nimport io\n")}
    alone = lay_out(None, earlier, tree, RELEASE, [B])
    assert [each.id for each in alone.below] == ["apart"]
    assert (alone.base, alone.texts, alone.without) == ({B: ONE}, {B: ONE}, ())


def test_a_session_is_about_its_release_alone(tree: MemoryTree) -> None:
    files = folder((A, BASE, ONE))
    patch = files.pop("10-x/0.25.0..0.27.0.patch")
    files["10-x/0.25.0..0.26.0.patch"] = patch
    files["10-x/0.27.0..0.27.0.patch"] = folder((A, BASE, TWO))["10-x/0.25.0..0.27.0.patch"]
    feature = check_files("fix", files)
    assert lay_out(feature, (), tree, Version("0.26.0")).texts == {A: ONE}
    assert lay_out(feature, (), tree, Version("0.27.0")).texts == {A: TWO}
    beside = [check_files("fix", files)]
    assert lay_out(None, beside, tree, Version("0.27.0"), [A]).base == {A: TWO}
    assert lay_out(None, beside, tree, Version("0.25.0"), [A]).base == {A: ONE}
    under = [other("a-under", A, BASE, BASE.replace(b"import os\n", b"import os\nimport io\n"))]
    for release, text in (("0.25.0", ONE), ("0.27.0", TWO)):
        layout = lay_out(feature, under, tree, Version(release))
        assert layout.texts == {A: text.replace(b"import os\n", b"import os\nimport io\n")}
    ascend = package_named("vllm_ascend")
    with pytest.raises(UsageError, match=r"^fix is missing on vllm-ascend 0\.26\.0 "):
        lay_out(feature, (), MemoryTree({A: b""}), RELEASE, package=ascend)


@pytest.mark.parametrize(
    ("text", "state", "carries"),
    [
        (
            b"x = 1\n",
            r"missing .* \(.*, found none.*\)",
            "`overlay port fix --releases 0.26.0` carries it there, ",
        ),
        (ONE, "upstreamed on vLLM 0.26.0", ""),
    ],
)
def test_a_release_to_which_a_feature_does_not_apply_is_named(
    text: bytes, state: str, carries: str
) -> None:
    feature = check_files("fix", folder((A, BASE, ONE)))
    words = f"^fix is {state}: expected a release to which it applies. {carries}`overlay log fix` "
    with pytest.raises(UsageError, match=words + "lists where it is$"):
        lay_out(feature, (), MemoryTree({A: text}), RELEASE)


def test_a_shared_module_is_not_edited_as_a_features_own(tree: MemoryTree) -> None:
    files = folder((A, BASE, ONE), toml=TOML + b'shared = ["vllm/new.py"]\n')
    feature = check_files("fix", files, shared={NEW: b"NEW = 1\n"})
    assert lay_out(feature, (), tree, RELEASE).texts == {A: ONE}
    words = r"^vllm/new\.py is not fix's own: .* adds shared/files/vllm/new\.py of imported\."
    with pytest.raises(UsageError, match=words):
        lay_out(feature, (), tree, RELEASE, [B, NEW])
    edited = Edited(RELEASE, {A: BASE}, {A: TWO}, (A,))
    made = commit(feature, files, edited, lambda *_: True, NAMES, "2026-11-22")
    assert [each.path for each in made.feature.added] == [NEW]
    edited = Edited(RELEASE, {A: BASE, NEW: None}, {A: ONE, NEW: b""}, (NEW,))
    with pytest.raises(UsageError, match=words):
        commit(feature, files, edited, lambda *_: True, NAMES, "2026-11-22")


def test_every_file_that_cannot_be_carried_is_named(tree: MemoryTree) -> None:
    now = {"vllm/a.so": b"", "vllm/b.pyc": b""}
    with pytest.raises(UsageError) as caught:
        committed(folder((A, BASE, ONE)), tree, now)
    lines = str(caught.value).split("\n")
    assert [line.partition(" ")[0] for line in lines] == ["'vllm/a.so'", "'vllm/b.pyc'"]
    assert lines[0].endswith("a feature carries modules and data files of vllm/")
    with pytest.raises(UsageError) as caught:
        committed(folder((A, BASE, ONE)), tree, {A: b"a = (\n", B: b"b = (\n"})
    assert [line.partition(" ")[0] for line in str(caught.value).split("\n")] == [A, B]


def test_a_new_topic_is_by_whom_the_feature_is(tree: MemoryTree) -> None:
    patch = render_patch({**HEADERS, "Author": "A <a@b.invalid>"}, A, compose(BASE, ONE))
    files = {"feature.toml": TOML, "95-x/0.25.0..0.27.0.patch": patch.encode()}
    made = committed(files, tree, {B: ONE})
    assert [topic.name for topic in made.feature.topics] == ["95-x", "96-b"]
    headers = made.feature.topics[1].variants[0].patch.headers
    assert dict(headers) == {
        "Description": "A fix",
        "Origin": "tests",
        "Author": "A <a@b.invalid>",
        "Last-Update": "2026-11-22",
        "Base": "0.26.0",
    }
    mail = {"From": "B <b@b.invalid>", "Date": "Fri, 20 Nov 2026 10:00:00 +0000", "Subject": "A"}
    files["95-x/0.25.0..0.27.0.patch"] = render_patch(mail, A, compose(BASE, ONE)).encode()
    headers = committed(files, tree, {B: ONE}).feature.topics[1].variants[0].patch.headers
    assert (headers["From"], headers["Origin"]) == ("B <b@b.invalid>", "vendor")
    first = committed({"feature.toml": TOML, "files/vllm/x.py": b""}, tree, {A: ONE})
    (topic,) = first.feature.topics
    assert (topic.name, topic.variants[0].patch.headers["Origin"]) == ("10-a", "vendor")


@pytest.mark.parametrize(("context", "lines"), [(0, 1), (1, 3), (6, 6)])
def test_the_context_that_was_asked_for_is_given(
    tree: MemoryTree, context: int, lines: int
) -> None:
    files = folder((A, BASE, ONE))
    edited = Edited(RELEASE, {A: BASE}, {A: TWO}, (A,))
    feature = check_files("fix", files)
    made = commit(feature, files, edited, lambda *_: True, NAMES, "2026-11-22", context)
    assert len(made.feature.topics[0].variants[0].patch.hunks[0].pre) == lines


def test_derived_tests_are_those_of_what_is_applied(tree: MemoryTree) -> None:
    files = retired("not-needed")
    first = {name.replace("20-", "05-"): data for name, data in files.items()}
    first["feature.toml"] = TOML + (
        b'\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "Runner.capture"\nlines = [\n'
        b'    "sizes = [1, 2, 4, 8]",\n]\nshare = 0.6\n'
    )
    made = committed(first, MemoryTree({A: BASE}), {A: TWO})
    assert {test.scope for test in made.feature.upstream_tests} == {"Runner.capture", "Runner.run"}


@pytest.mark.parametrize(
    ("least", "lines"), [(0, 3), (5, 5), (100, 3)], ids=["narrow", "wide", "neither"]
)
def test_more_context_is_kept_where_more_releases_take_it(least: int, lines: int) -> None:
    tree, files = MemoryTree({A: BASE}), {"feature.toml": TOML, f"files/{NEW}": b""}

    def fits(form: Feature, _: str) -> bool:
        return len(form.topics[0].variants[0].patch.hunks[0].pre) >= least

    edited = Edited(RELEASE, {A: BASE, NEW: None}, {A: ONE, NEW: b""}, (A,))
    made = commit(check_files("fix", files), files, edited, fits, NAMES, "2026-11-22")
    assert len(made.feature.topics[0].variants[0].patch.hunks[0].pre) == lines
    assert applied(made.feature, tree)[A] == ONE
    assert str(made.releases) == ("0.26.0..0.26.0" if least == 100 else "0.25.0..0.27.0")


def test_releases_are_in_the_order_of_their_numbers() -> None:
    toml = TOML.replace(b"0.25.0..0.27.0", b"0.9.0..0.11.0")
    files = {"feature.toml": toml, f"files/{NEW}": b""}
    names, base = ("0.9.0", "0.10.0", "0.11.0"), {A: BASE, NEW: None}
    edited = Edited(Version("0.10.0"), base, {A: ONE, NEW: b""}, (A,))
    feature = check_files("fix", files)
    made = commit(feature, files, edited, lambda _, name: name != "0.11.0", names, "2026-11-22")
    assert (str(made.releases), made.unedited) == ("0.9.0..0.10.0", ("0.11.0",))


def test_what_came_and_went_is_told(tree: MemoryTree) -> None:
    files = {**folder((A, BASE, ONE)), "files/vllm/x.py": b""}
    made = committed(files, tree, {NEW: b"", "vllm/x.py": None})
    assert (made.added, made.removed, made.unedited) == ((NEW,), ("vllm/x.py",), ())
    assert (made.hunks, str(made.releases)) == ({}, "0.25.0..0.27.0")
    with pytest.raises(UsageError, match=r"^vllm/a\.py: .*, so nothing was written$"):
        expect_bytes(made.feature, Edited(RELEASE, {A: BASE}, {A: TWO, NEW: b""}, ()))
