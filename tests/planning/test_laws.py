"""What holds for every text and every hunk."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from overlay._features.model import Hunk
from overlay._features.patch_file import parse_patch
from overlay.errors import PatchFormatErrors
from overlay.package import parse_release
from overlay.planning.diff import render
from overlay.planning.matching import edits, match
from overlay.planning.planner import plan
from overlay.planning.scopes import find
from overlay.planning.text import Edit, SourceText
from overlay.results import Change, HunkResult, Plan, State
from tests.support.generated import Case, cases, hunks, modules, places
from tests.support.patches import HEADERS, MemoryTree, feature, patch_text

PATH = "vllm/a.py"
RELEASE = parse_release("0.26.0")
laws = settings(max_examples=300, deadline=None)


def state_in(case: Case, lines: tuple[str, ...]) -> HunkResult:
    return match(case.hunk, lines, find(lines))


def planned(case: Case, data: bytes | None = None) -> Plan:
    tree = MemoryTree({PATH: case.text.encode() if data is None else data})
    return plan([feature((PATH, [case.hunk]))], tree, RELEASE)


@laws
@given(cases())
def test_a_state_is_what_its_definition_says(case: Case) -> None:
    ranges = find(case.lines)[case.hunk.scope]
    pre, post = case.hunk.pre, case.hunk.post
    posts = places(post, case.lines, ranges)
    free = [
        at
        for at in places(pre, case.lines, ranges)
        if not any(p <= at and at + len(pre) <= p + len(post) for p in posts)
    ]
    result = state_in(case, case.lines)
    event(result.state.value)
    if len(free) == 1:
        assert (result.state, result.line) == (State.PRISTINE, free[0] + 1)
    elif free:
        assert (result.state, result.candidates) == (
            State.AMBIGUOUS,
            tuple(at + 1 for at in free),
        )
    else:
        expected = State.UPSTREAMED if anchored(case.hunk) else State.DRIFTED
        assert (result.state, result.line) == (expected, posts[0] + 1)


def anchored(hunk: Hunk) -> bool:
    """Whether neither side's context is one line alone that the change beside it holds, too."""
    text = "".join(op for op, _ in hunk.lines)
    above, below = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
    stop = len(text) - below
    first_gap = text.find(" ", above)
    top = hunk.lines[above : stop if first_gap < 0 else first_gap]
    bottom = hunk.lines[text.rfind(" ", 0, stop) + 1 : stop]
    for context, change in ((hunk.lines[:above], top), (hunk.lines[stop:], bottom)):
        lines = {line for _, line in context}
        changed = {line for _, line in change}
        if len(lines) == 1 and lines <= changed and "".join(lines).strip():
            return False
    return True


#: The last line, which has no end, goes, and the one before it is empty.
FORGETS_ITS_END = Case(
    ("v1", "v2", "v3", "v4", "", "v7"),
    Hunk("<module>", (("-", "v4"), ("+", "new"), (" ", ""), ("-", "v7")), 4, 1),
    3,
    6,
)


@laws
@example(FORGETS_ITS_END, "\n", False)
@example(FORGETS_ITS_END, "\r\n", False)
@given(cases(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_apply_then_revert_is_identity(case: Case, end: str, finished: bool) -> None:
    result = state_in(case, case.lines)
    assume(result.state is State.PRISTINE and result.line is not None)
    text = end.join(case.lines) + (end if finished or not case.lines[-1] else "")
    before = SourceText.from_bytes(text.encode())
    assume(before.lines == case.lines)
    made = edits(case.hunk, result.line - 1)
    after = before.splice(made)
    at = result.line - 1
    assert after.lines[at : at + len(case.hunk.post)] == case.hunk.post
    moved, undo = 0, []
    for edit in made:
        start = edit.start + moved
        undo.append(Edit(start, start + len(edit.lines), before.lines[edit.start : edit.stop]))
        moved += len(edit.lines) - (edit.stop - edit.start)
    assume(any(after.ends))
    assert after.splice(undo, before.final_newline).to_bytes() == before.to_bytes()
    # Whether the last line has an end is forgotten only where there would be no line without it.
    forgotten = after.lines[-1] == "" and not before.final_newline
    assert after.final_newline is (before.final_newline or forgotten)
    assert (after.splice(undo).to_bytes() == before.to_bytes()) is not forgotten
    # And the rest of the file is untouched.
    assert after.lines[:at] == before.lines[:at]
    assert after.lines[at + len(case.hunk.post) :] == before.lines[at + len(case.hunk.pre) :]


@laws
@given(cases())
def test_apply_after_apply_changes_nothing(case: Case) -> None:
    first = planned(case)
    event(first.state.value)
    assert bool(first.changes) == (first.state is State.PRISTINE)
    for change in first.changes:
        assert change.before == case.text.encode()
        assert change.after is not None
        second = planned(case, change.after)
        assert second.state is State.UPSTREAMED
        assert second.changes == ()


@st.composite
def several(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Case]]:
    case = draw(cases())
    scopes = find(case.lines)
    found = [case]
    for name in draw(st.lists(st.sampled_from(sorted(scopes)), max_size=3)):
        place = draw(st.sampled_from(list(scopes[name])))
        start = draw(st.integers(place.start, place.stop - 1))
        stop = draw(st.integers(start + 1, min(place.stop, start + 4)))
        found.append(Case(case.lines, draw(hunks(case.lines[start:stop], name)), start, stop))
    return case.lines, found


@laws
@given(several(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_hunks_and_files(
    given_: tuple[tuple[str, ...], list[Case]], random: Random
) -> None:
    lines, found = given_
    data = "".join(f"{line}\n" for line in lines).encode()
    ours = [case.hunk._replace(patch_line=n) for n, case in enumerate(found, 1)]
    shuffled = list(ours)
    random.shuffle(shuffled)
    added = {"vllm/x.py": b"", "vllm/y.py": b"y = 1\n"}
    one = plan(
        [feature((PATH, ours), ("vllm/b.py", ours[:1]), added=added)],
        MemoryTree({PATH: data, "vllm/b.py": data}),
        RELEASE,
    )
    mixed = feature((PATH, shuffled), ("vllm/b.py", ours[:1]), added=dict(reversed(added.items())))
    # A reason names the patch, so each keeps its name.
    mixed = replace(mixed, topics=mixed.topics[::-1])
    other = plan([mixed], MemoryTree({"vllm/b.py": data, PATH: data}), RELEASE)
    event(f"{len(ours)} hunks: {one.state.value}")
    assert one.changes == other.changes
    assert one.state == other.state
    for path in (PATH, "vllm/b.py"):
        mine, theirs = (
            next(file for file in p.features[0].files if file.path == path) for p in (one, other)
        )
        assert (mine.state, mine.reason) == (theirs.state, theirs.reason)
        assert sorted(mine.hunks, key=repr) == sorted(theirs.hunks, key=repr)


def insertable(case: Case) -> list[tuple[int, str]]:
    """Where an unrelated line may go, with its indent: outside every image, scopes unchanged."""
    ranges = find(case.lines)[case.hunk.scope]
    found = []
    for at in range(len(case.lines) + 1):
        inside = any(
            start < at < start + len(image)
            for image in (case.hunk.pre, case.hunk.post)
            for start in places(image, case.lines, ranges)
        )
        before = next((text for text in reversed(case.lines[:at]) if text.strip()), "")
        after = next((text for text in case.lines[at:] if text.strip()), "")
        indent = max(len(text) - len(text.lstrip()) for text in (before, after))
        if not inside:
            found.append((at, " " * indent))
    return found


@laws
@given(cases(), st.data())
def test_unrelated_code_outside_the_hunks_never_changes_a_state(
    case: Case, data: st.DataObject
) -> None:
    before = state_in(case, case.lines)
    event(before.state.value)
    at, indent = data.draw(st.sampled_from(insertable(case)))
    size = data.draw(st.integers(1, 3))
    unrelated = tuple(f"{indent}unrelated{n} = {n}" for n in range(size))
    after = state_in(case, (*case.lines[:at], *unrelated, *case.lines[at:]))

    def shifted(line: int) -> int:
        return line + (size if line > at else 0)

    assert after.state is before.state
    assert after.line == (None if before.line is None else shifted(before.line))
    assert after.candidates == tuple(shifted(line) for line in before.candidates)


@laws
@given(cases(distinct=True, inner=True), st.data())
def test_unrelated_code_does_not_heal_drift_either(case: Case, data: st.DataObject) -> None:
    broken = list(case.lines)
    broken[case.start] = broken[case.start] + "  # edited upstream"
    drifted = replace(case, lines=tuple(broken))
    assert state_in(case, drifted.lines).state is State.DRIFTED
    at, indent = data.draw(st.sampled_from(insertable(drifted)))
    lines = (*drifted.lines[:at], f"{indent}unrelated = 1", *drifted.lines[at:])
    assert state_in(case, lines).state is State.DRIFTED


@laws
@given(cases(inner=True))
def test_duplicating_the_scope_s_code_inside_it_is_ambiguous(case: Case) -> None:
    assume(state_in(case, case.lines).state is State.PRISTINE)
    place = next(r for r in find(case.lines)[case.hunk.scope] if r.start < case.start < r.stop)
    end = max(i for i in place if case.lines[i].strip() == "pass")
    body = case.lines[place.start + 1 : end]
    lines = (*case.lines[:end], *body, *case.lines[end:])
    ranges = find(lines)[case.hunk.scope]
    if places(case.hunk.post, lines, ranges):  # the seam happens to read as the post-image
        event("the seam is a post-image")
        return
    result = state_in(case, lines)
    assert result.state is State.AMBIGUOUS
    assert {case.start + 1, case.start + 1 + len(body)} <= set(result.candidates)
    assert planned(replace(case, lines=lines)).changes == ()


@laws
@given(cases(distinct=True, inner=True), st.data())
def test_deleting_a_line_of_the_pre_image_is_drift(case: Case, data: st.DataObject) -> None:
    assert state_in(case, case.lines).state is State.PRISTINE
    gone = data.draw(st.integers(case.start, case.stop - 1))
    lines = (*case.lines[:gone], *case.lines[gone + 1 :])
    result = state_in(case, lines)
    size = len(case.hunk.post)
    removed = {text for op, text in case.hunk.lines if op == "-"}
    yields_post = [
        at
        for at in places(case.hunk.post, lines, find(lines)[case.hunk.scope])
        # With another line that it removes at its edge the text has not all of the change.
        if removed.isdisjoint((*lines[max(0, at - 1) : at], *lines[at + size : at + size + 1]))
    ]
    event("yields the post-image" if yields_post else "drift")
    assert result.state is (State.UPSTREAMED if yields_post else State.DRIFTED)
    assert yields_post or result.reason


@laws
@given(cases(distinct=True, inner=True), st.data())
def test_editing_a_line_of_the_pre_image_is_drift(case: Case, data: st.DataObject) -> None:
    at = data.draw(st.integers(case.start, case.stop - 1))
    edit = data.draw(st.sampled_from(["{} ", " {}", "\t{}", "{}#", "{}\x0c"]))
    lines = (*case.lines[:at], edit.format(case.lines[at]), *case.lines[at + 1 :])
    assert match(case.hunk, lines, find(case.lines)).state is State.DRIFTED


FORMS = [
    (b"", b"\n", "utf-8"),
    (b"", b"\r\n", "utf-8"),
    (b"\xef\xbb\xbf", b"\n", "utf-8"),
    (b"# coding: latin-1\n# \xe9\n", b"\n", "latin-1"),
    (b"\x0c# \xc3\xa9\x0b\r\n", b"\r\n", "utf-8"),
    (b"s = '''a\rb'''\r\n", b"\r\n", "utf-8"),
]


@laws
@given(cases(), st.sampled_from(FORMS), st.booleans())
def test_the_form_of_the_file_changes_no_state_and_is_kept(
    case: Case, form: tuple[bytes, bytes, str], finished: bool
) -> None:
    head, end, encoding = form
    plain = planned(case)
    body = case.text.encode(encoding).replace(b"\n", end)
    if not finished and case.lines[-1].strip():
        body = body[: -len(end)]
    formed = planned(case, head + body)
    assert formed.state is plain.state
    for mine, theirs in zip(formed.changes, plain.changes, strict=True):
        assert mine.after is not None
        assert theirs.after is not None
        assert mine.after.startswith(head)
        assert mine.before == head + body
        expected = theirs.after.replace(b"\n", end)
        blank_at_end = theirs.after == b"\n" or theirs.after.endswith(b"\n\n")
        assert mine.after[len(head) :] == (
            expected if body.endswith(end) or blank_at_end else expected[: -len(end)]
        )


@laws
@given(cases())
def test_a_patch_file_says_what_the_hunk_says(case: Case) -> None:
    (hunk,) = parse_patch(patch_text(PATH, case.hunk), "x.patch").hunks
    assert hunk._replace(patch_line=1) == case.hunk


@laws
@given(modules(), modules())
def test_what_is_rendered_applies_to_what_it_was_rendered_from(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    old, new = ("".join(f"{line}\n" for line in lines).encode() for lines in (before, after))
    assume(old != new)
    diff = render([Change(PATH, old, new)]).decode()
    try:
        patch = parse_patch(HEADERS + diff, "x.patch")
    except PatchFormatErrors:  # which hunks a patch may hold is another law
        event("no patch may hold it")
        return
    # Line numbers are right here, so every hunk lands where it says.
    source = SourceText.from_bytes(old)
    made = [edit for hunk in patch.hunks for edit in edits(hunk, hunk.source_line - 1)]
    assert source.splice(made).to_bytes() == new
