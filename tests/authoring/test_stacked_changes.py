"""What a new feature is made on: the release, and of the features below only those it needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.model import Feature
from overlay.authoring.building import StackedTexts, TwoTexts, Words, build, change_of
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.writing import check_folder
from overlay.planning.planner import lay, plan
from overlay.planning.scopes import Syntax
from overlay.results import Outcome, State
from tests.support.patches import MemoryTree

PATH, MODULE = "vllm/a.py", "vllm/ours.py"
NAMES = ("0.26.0", "0.27.0")
TEXT = """\
import os


def f(x):
    a = x
    b = a
    c = b
    d = c
    e = d
    return e


def g(x):
    return x
"""


@dataclass
class World:
    """Two releases and the features that are made on them, one on top of the other."""

    releases: dict[str, dict[str, str]]
    features: list[Feature] = field(default_factory=list)

    @property
    def texts(self) -> ReleaseTexts:
        return ReleaseTexts(NAMES, self.tree)

    def tree(self, release: str) -> MemoryTree:
        return MemoryTree({p: text.encode() for p, text in self.releases[release].items()})

    def add(self, *edits: tuple[str, str], path: str = PATH, new: str = "") -> Feature:
        """A feature that edits what the features before it left, or adds a module."""
        syntax = Syntax()
        texts = StackedTexts(self.features, self.texts, syntax)
        before = texts.read(NAMES[0], path)
        after = new or (before or b"").decode()
        for old, text in edits:
            assert after.count(old) == 1, old
            after = after.replace(old, text)
        change = change_of([TwoTexts(path, before, after.encode())], NAMES[0], syntax)
        words = Words(f"f{len(self.features)}", "t", "w", "", "the tests", "", "2026-11-26")
        folder = build(change, words, texts, {}, syntax).folder
        assert folder is not None
        self.features.append(check_folder(folder))
        return self.features[-1]

    def made(self, *chosen: Feature, path: str = PATH) -> str | None:
        whole = plan(chosen, self.tree(NAMES[0]), Version(NAMES[0]))
        if whole.state is not State.PRISTINE:
            return None
        return next(c.after for c in whole.changes if c.path == path).decode()  # type: ignore[union-attr]  # never removed


def world() -> World:
    return World({NAMES[0]: {PATH: TEXT}, NAMES[1]: {PATH: TEXT.replace("a = x", "a = x + 0")}})


def test_what_is_apart_from_the_features_below_is_made_on_the_release() -> None:
    """Of a series of neighbours each lands without the others, and all in any order."""
    w = world()
    edits = [("b = a", "b = a + 1"), ("d = c", "d = c + 2"), ("return e", "return e + 3")]
    features = [w.add(edit) for edit in edits]
    whole = TEXT
    for given_, (old, new) in zip(features, edits, strict=True):
        whole = whole.replace(old, new)
        assert w.made(given_) == TEXT.replace(old, new)
    for order in permutations(features):
        assert w.made(*order) == whole


def test_what_is_made_on_a_feature_keeps_that_one_alone() -> None:
    w = world()
    near = w.add(("d = c", "d = c + 2"))
    first = w.add(("b = a", "b = a + 1"))
    second = w.add(("b = a + 1", "b = a + 9"))
    assert w.made(second) is None
    assert w.made(first, second) == TEXT.replace("b = a", "b = a + 9")
    expected = TEXT.replace("b = a", "b = a + 9").replace("d = c", "d = c + 2")
    for order in ((near, first, second), (first, near, second), (first, second, near)):
        assert w.made(*order) == expected


def test_a_module_that_a_feature_adds_is_below_the_edits_of_it() -> None:
    w = world()
    w.add(path=MODULE, new="def scale(x):\n    y = x\n    return y * 2\n")
    w.add(("    y = x\n", "    assert x\n    y = x\n"), path=MODULE)
    top = w.add(("y * 2", "y * 3"), path=MODULE)
    expected = "def scale(x):\n    assert x\n    y = x\n    return y * 3\n"
    assert w.made(*w.features, path=MODULE) == expected
    assert w.made(w.features[0], top, path=MODULE) == expected.replace("    assert x\n", "")
    ported = Porter(w.texts).port(w.features[1], NAMES[1], w.features[:1])
    assert ported.covered  # it lands there, so its range holds the release


def test_a_port_lays_the_modules_of_the_features_before() -> None:
    w = world()
    texts = ReleaseTexts((*NAMES, "0.28.0"), lambda release: w.tree(min(release, NAMES[1])))
    w.add(path=MODULE, new="def scale(x):\n    y = x\n    return y * 2\n")
    top = w.add(("y * 2", "y * 3"), path=MODULE)
    below = w.features[0]
    assert Porter(texts).port(top, "0.28.0", [below]).conflicts  # it does not serve the release yet
    serving = replace(below, releases=below.releases._replace(last=Version("0.28.0")))
    ported = Porter(texts).port(top, "0.28.0", [serving])
    (topic,) = ported.topics
    assert (topic.outcome, ported.problem) == (Outcome.EXACT, None)
    assert topic.after == b"def scale(x):\n    y = x\n    return y * 3\n"


def test_a_feature_that_does_not_fit_a_release_leaves_the_others_there() -> None:
    w = world()
    w.releases[NAMES[1]][PATH] = TEXT.replace("return e", "return (e)")
    drifted = w.add(("return e", "return e + 3"))
    other = w.add(("b = a", "b = a + 1"))
    for features in ([drifted, other], [other, drifted]):
        texts = StackedTexts(features, w.texts, Syntax())
        expected = w.releases[NAMES[1]][PATH].replace("b = a", "b = a + 1")
        assert texts.read(NAMES[1], PATH) == expected.encode()
        laid = lay(features, w.tree(NAMES[1]), Version(NAMES[1]))
        assert laid.features == (other,)


def test_of_two_that_clash_the_first_is_laid() -> None:
    first, second = (world().add(("b = a", f"b = a + {n}")) for n in (1, 2))
    laid = lay([first, second], world().tree(NAMES[0]), Version(NAMES[0]))
    assert laid.features == (first,)
    assert laid.tree.current(PATH) == TEXT.replace("b = a", "b = a + 1").encode()


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(5)), st.sets(st.integers(0, 4), min_size=1))
def test_a_series_may_lose_any_of_its_members(order: list[int], chosen: set[int]) -> None:
    """Of a series of one-line changes, made in any order, whatever is left goes on."""
    w = World({name: {PATH: TEXT} for name in NAMES})
    edits = [("b = a", "b = a + 1"), ("d = c", "d = c + 2"), ("return e", "return e + 3"),
             ("import os", "import sys"), ("    return x", "    return -x")]  # fmt: skip
    features = {number: w.add(edits[number]) for number in order}
    expected = TEXT
    for number in chosen:
        expected = expected.replace(*edits[number])
    assert w.made(*(features[number] for number in order if number in chosen)) == expected


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_end_of_a_file_is_carried_to_what_a_change_needs(end: str) -> None:
    text = TEXT.rstrip("\n") + end
    w = World({name: {PATH: text} for name in NAMES})
    w.add(("b = a", "b = a + 1"))
    last = w.add(("    return x" + end, "    return -x" + ("" if end else "\n")))
    expected = text.removesuffix("x" + end) + "-x" + ("" if end else "\n")
    assert w.made(last) == expected
    assert w.made(*w.features) == expected.replace("b = a", "b = a + 1")


def test_a_name_that_a_release_lacks_is_a_warning() -> None:
    """Trimmed context lands where what it was made on is not there: that is said, and which."""
    w = world()
    for text, releases in (
        ("def g(x, exact=1):\n    # exact\n    return x\n", [NAMES[1]]),
        ("def g(x, exact=1):\n    return x\n", []),
    ):
        own = TEXT.replace("def g(x):\n    return x\n", text.replace("# exact", "y = 1"))
        w.releases = {NAMES[0]: {PATH: own}, NAMES[1]: {PATH: TEXT if releases else own}}
        after = own.replace("    return x\n", "    return x * exact\n")
        syntax = Syntax()
        change = change_of([TwoTexts(PATH, own.encode(), after.encode())], NAMES[0], syntax)
        words = Words("a", "t", "w", "", "the tests", "", "2026-11-26")
        prepared = build(change, words, w.texts, {}, syntax)
        assert set(prepared.summary.outcomes.values()) == {Outcome.EXACT}
        assert [
            f"lands on {NAMES[1]}, whose file lacks the name exact" in warning
            for warning in prepared.summary.warnings
        ] == [True] * len(releases)


@given(st.permutations(range(5)), st.integers(0, 5), st.booleans())
def test_what_a_series_adds_is_what_a_check_lays(order: list[int], first: int, read: bool) -> None:
    """Laid one by one or at once, read before or not, the features and the files are the same."""
    w = World({NAMES[0]: {PATH: TEXT}, NAMES[1]: {PATH: TEXT.replace("return e", "return (e)")}})
    lines = ("b = a", "b = a + 7", "d = c", "return e", "    return x")
    made = [World(w.releases).add((line, f"{line}  # {line}")) for line in lines if line in TEXT]
    features = [replace(made[at], id=f"g{at}") for at in order if at < len(made)]
    whole = StackedTexts(features, w.texts, Syntax())
    grown = StackedTexts(features[:first], w.texts, Syntax())
    for feature in features[first:]:
        if read:
            grown.read(NAMES[0], PATH)
        grown.add([feature])
    for name in NAMES:
        assert grown.read(name, PATH) == whole.read(name, PATH)
        assert grown.stack(name).features == whole.stack(name).features
