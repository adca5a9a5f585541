"""Law 7: a hunk that is in a text is never applied to it again, whatever is between its lines."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay._features.patch_file import parse_patch
from overlay.planning.matching import edits, match, new_lines
from overlay.planning.scopes import UnparsableError, find
from overlay.planning.text import SourceText
from overlay.results import State
from tests.support.generated import Case, cases

SLOW = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def with_base(case: Case) -> Hunk:
    """The hunk, with what its scope held before."""
    places = find(case.lines)[case.hunk.scope]
    there = {line.strip() for place in places for line in case.lines[place.start : place.stop]}
    added = {text for op, text in case.hunk.lines if op == "+"}
    return case.hunk._replace(base_has=tuple(text for text in added if text.strip() in there))


@SLOW
@given(cases(distinct=True), st.data())
def test_what_was_applied_never_matches_again(case: Case, data: st.DataObject) -> None:
    hunk = with_base(case)
    source = SourceText.from_bytes(case.text.encode())
    found = match(hunk, source.lines, find(source.lines))
    assume(found.state is State.PRISTINE and found.line is not None and new_lines(hunk))
    assert found.line is not None
    lines = list(source.splice(edits(hunk, found.line - 1)).lines)
    for number in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        near = lines[at] if at < len(lines) else ""
        indent = near[: len(near) - len(near.lstrip())]
        # Lines of upstream's own, or copies of what is there.
        line = data.draw(st.sampled_from([f"upstream{number} = {number}", near.strip() or "pass"]))
        lines.insert(at, indent + line)
    try:
        scopes = find(lines)
    except UnparsableError:
        assume(False)
        return
    assume(_still_inside(hunk, lines, scopes))
    assert match(hunk, lines, scopes).state is not State.PRISTINE


def _still_inside(hunk: Hunk, lines: list[str], scopes: dict[str, list[range]]) -> bool:
    """Whether every new line is still in the hunk's scope: a line put in can end a scope."""
    telling = set(new_lines(hunk))
    return any(
        telling <= {line.strip() for line in lines[place.start : place.stop]}
        for place in scopes.get(hunk.scope, ())
    )


#: The change of vllm#44412 in small: upstream has it, and put another class between.
BASE = """\
class First:
    backend = "first"


class Last:
    backend = "last"
""".splitlines()
ADDED = ["class Second:", '    backend = "second"', "    frames = 30", "", ""]
PATCH = """\
Description: A second backend
Origin: upstream
Last-Update: 2026-11-22
Base: 0.23.0
--- a/vllm/multimodal/video.py
+++ b/vllm/multimodal/video.py
@@ -2,4 +2,9 @@ <module>
     backend = "first"


+class Second:
+    backend = "second"
+    frames = 30
+
+
 class Last:
"""


def test_a_change_that_upstream_has_torn_apart_is_not_made_twice() -> None:
    (hunk,) = parse_patch(PATCH, "video.patch").hunks
    assert hunk.base_has == ()
    assert match(hunk, BASE, find(BASE)).state is State.PRISTINE
    between = ["class Between:", '    backend = "first"', "", ""]
    upstream = [*BASE[:4], *ADDED, *between, *BASE[4:]]
    result = match(hunk, upstream, find(upstream))
    assert result.state is State.AMBIGUOUS
    assert result.reason is not None
    assert "may be there already" in result.reason.text
    assert "retire" in (result.reason.next_step or "")


def test_without_a_base_nothing_is_known_of_other_lines() -> None:
    (hunk,) = parse_patch(PATCH.replace("Base: 0.23.0\n", ""), "video.patch").hunks
    assert hunk.base_has is None
    upstream = [*BASE[:4], *ADDED, "class Between:", '    backend = "first"', "", "", *BASE[4:]]
    assert match(hunk, upstream, find(upstream)).state is State.PRISTINE


def test_lines_that_the_base_had_tell_nothing() -> None:
    lines = ["def f():", "    count = 0", "    a = 1", "    count = 0"]
    hunk = Hunk("f", ((" ", "    a = 1"), ("+", "    count = 0")), 3, 1, base_has=())
    assert match(hunk, lines[:3], find(lines[:3])).state is State.AMBIGUOUS
    known = hunk._replace(base_has=("    count = 0",))
    assert match(known, lines[:3], find(lines[:3])).state is State.PRISTINE
    assert MODULE_SCOPE not in (hunk.scope, known.scope)


#: A class as it was, and what a change adds behind its first method, with a line of one's own.
CLASS = """\
class A:
    def first(self):
        return 1

    def last(self):
        return 2
""".splitlines()
METHOD = ["    def new(self):", "        return", ""]
OWN = [METHOD[0], "        own = measured(7)", *METHOD[1:]]


def added(lines: list[str], base_has: tuple[str, ...] | None = ()) -> Hunk:
    """A hunk that puts lines between the two methods."""
    pairs = (("", CLASS[2]), ("", ""), *(("+", line) for line in lines), ("", CLASS[4]))
    return Hunk("A", tuple((op or " ", line) for op, line in pairs), 3, 1, base_has=base_has)


@given(st.permutations([CLASS[1:4], [*CLASS[4:], ""], METHOD]), st.sampled_from(["", "async "]))
def test_a_method_with_a_line_of_ones_own_is_not_put_in_twice(
    methods: list[list[str]], kind: str
) -> None:
    """Upstream has the method without that line, wherever in the class: most of it is new."""
    lines = [CLASS[0], *(line for method in methods for line in method)]
    assume(lines[lines.index(CLASS[2]) + 1 :][:2] == ["", CLASS[4]])  # where it lands
    own = [OWN[0].replace("def", f"{kind}def"), *OWN[1:]]
    result = match(added(own), lines, find(lines))
    assert result.state is State.DRIFTED
    assert result.reason is not None
    assert "def new(self):" in result.reason.text
    known = added(own, ("def new(self):",))  # its base had one: it is given anew
    assert match(known, lines, find(lines)).state is State.PRISTINE
    assert match(added(own, None), lines, find(lines)).state is State.PRISTINE
    assert match(added(own), CLASS, find(CLASS)).state is State.PRISTINE


@pytest.mark.parametrize(
    ("own", "there"),
    [
        (["    limit: int = 2", "    own = measured(7)"], ["    limit: int = 1"]),
        (["    limit = 2", "    own = measured(7)"], ["    limit: int"]),
        (["    class New(A):", "        own = measured(7)"], ["    class New:", "        pass"]),
        (["    @cached", "    def new(self, x):", "        own(7)"], METHOD),
    ],
)
def test_a_name_is_not_defined_twice_in_a_block(own: list[str], there: list[str]) -> None:
    lines = [*CLASS, "", *there]
    assert match(added(own), lines, find(lines)).state is State.DRIFTED


@pytest.mark.parametrize(
    ("own", "there"),
    [
        (
            ["    @new.setter", "    def new(self, x):", "        own(7)"],
            ["    @property", *METHOD],
        ),
        (["    @overload", "    def new(self, x: A): ..."], METHOD),
        (["    if OWN:", "", "        def new(self, x):", "            own(7)"], METHOD),
        (["    def _(self, x: A):", "        own(7)"], ["    def _(self, x: B):", "        pass"]),
        (
            ["    def new(self):", "        own(7)"],
            ["    def other(self):", "        def new(self):", "            pass"],
        ),
        (["    x = 2", "    own = measured(7)"], ["    def new(self):", "        x = 1"]),
    ],
)
def test_what_may_stand_side_by_side(own: list[str], there: list[str]) -> None:
    """The functions of one property, overloads, branches, and names of other blocks."""
    lines = [*CLASS, "", *there]
    assert match(added(own), lines, find(lines)).state is State.PRISTINE
