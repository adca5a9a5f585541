"""Laws of import on random changes: it makes the change, a series is its sum, never twice."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.model import blob_id
from overlay.authoring.importing import Prepared, prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.writing import check_folder
from overlay.errors import UsageError
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import State
from tests.authoring.test_composing import changes
from tests.support.patches import MemoryTree

SLOW = settings(
    max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
PATH = "vllm/v1/runner.py"
RELEASE = "0.26.0"
MAIL = b"From %s Mon Sep 17 00:00:00 2001\nSubject: [PATCH] A change\n\n---\n\n"


def git_diff(before: bytes, after: bytes, *, ids: bool, context: int = 3) -> bytes:
    """The diff of a file as git writes it."""

    def lines(data: bytes) -> list[str]:
        parts = data.decode().split("\n")
        return [f"{line}\n" for line in parts[:-1]] + parts[-1:] * bool(parts[-1])

    def whole() -> Iterator[str]:
        yield f"diff --git a/{PATH} b/{PATH}\n"
        if ids:
            yield f"index {blob_id(before)[:12]}..{blob_id(after)[:12]} 100644\n"
        names = (f"a/{PATH}", f"b/{PATH}")
        for line in difflib.unified_diff(lines(before), lines(after), *names, n=context):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

    return "".join(whole()).encode()


def imported(data: bytes, base: bytes) -> Prepared | None:
    """The feature of a change that was made on a release; ``None`` where no hunk can say it."""
    try:
        made = prepare(
            read_changes(data, "x.diff"),
            "change",
            ReleaseTexts([RELEASE], lambda _: MemoryTree({PATH: base})),
            source="x.diff",
            verbatim=data,
            today="2026-11-22",
        )
    except UsageError:
        return None
    return None if made.folder is None else made


def applied(made: Prepared, base: bytes) -> bytes | None:
    """What the planner makes of a file with a feature."""
    assert made.folder is not None
    planned = plan([check_folder(made.folder)], MemoryTree({PATH: base}), Version(RELEASE))
    assert planned.features[0].state is State.PRISTINE, planned
    (change,) = planned.changes
    return change.after


@SLOW
@given(changes(), st.booleans(), st.integers(0, 4))
def test_the_import_of_a_change_makes_it_byte_for_byte(
    texts: tuple[bytes, bytes], ids: bool, context: int
) -> None:
    """Law 1: import(diff(a, b)) applied to a is b, with context or, where ids tell a, without."""
    before, after = texts
    assume(before != after)
    made = imported(git_diff(before, after, ids=ids, context=context), before)
    assume(made is not None)
    assert made is not None
    assert applied(made, before) == after


@st.composite
def series(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A module, what one commit makes of it, and what a second one makes of that."""
    before, middle = draw(changes())
    lines = middle.decode().split("\n")
    for number in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(lines) - 2)))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at : at + draw(st.integers(0, 1))] = [f"{indent}later{number} = {number}"]
    return before, middle, "\n".join(lines).encode()


@SLOW
@given(series())
def test_the_mails_of_a_series_and_their_sum_make_the_same_feature(
    texts: tuple[bytes, bytes, bytes],
) -> None:
    """Law 1: mails of a series, laid on each other, and one diff of all of it are one feature."""
    before, middle, after = texts
    assume(before != middle != after != before)
    steps = ((before, middle), (middle, after))
    mails = b"".join(
        MAIL % (str(number).encode() * 40) + git_diff(*step, ids=True) + b"-- \n2.39\n\n"
        for number, step in enumerate(steps, 1)
    )
    whole = imported(git_diff(before, after, ids=True), before)
    assume(whole is not None)
    laid = imported(mails, before)
    assert whole is not None
    assert laid is not None
    assert laid.hunks == whole.hunks
    assert applied(laid, before) == applied(whole, before) == after


NAMES = ("0.25.0", "0.26.0", "0.27.0", "0.28.0")
MODULE = "vllm/v1/added.py"


@st.composite
def merged_without_ids(draw: st.DrawFn) -> tuple[dict[str, bytes], bytes]:
    """Releases of a file that upstream changed, and the diff, by which nothing proves the base.

    Behind the change upstream puts lines of its own and copies of others anywhere, and so makes
    the text before the change stand at other places.
    """
    before, after = draw(changes())
    new = {line.strip() for line in after.decode().split("\n")}
    new -= {line.strip() for line in before.decode().split("\n")}
    assume(any(len(line) > 5 and line[0] != "#" for line in new))
    texts = {NAMES[0]: before, NAMES[1]: after}
    lines = after.decode().split("\n")
    for name in NAMES[2:]:
        for number in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, max(0, len(lines) - 2)))
            size = draw(st.integers(0, 3))
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines[at:at] = lines[at : at + size] or [f"{indent}upstream{name[2:4]}{number} = 1"]
        texts[name] = "\n".join(lines).encode()
        assume(Syntax().compile_error(texts[name], PATH) is None)
    return texts, git_diff(before, after, ids=False)


def import_of(
    data: bytes, texts: Mapping[str, Mapping[str, bytes]], names: Sequence[str] = NAMES
) -> Prepared | None:
    """The import over several releases, or ``None`` where nothing can be written."""
    try:
        made = prepare(
            read_changes(data, "x.diff"),
            "change",
            ReleaseTexts(names, lambda name: MemoryTree(dict(texts[name]))),
            source="x.diff",
            verbatim=data,
            today="2026-11-25",
        )
    except UsageError:
        return None
    return None if made.folder is None else made


@SLOW
@given(merged_without_ids(), st.booleans())
def test_a_guessed_base_never_makes_a_change_twice(
    history: tuple[dict[str, bytes], bytes], forgotten: bool
) -> None:
    """Law 7: whatever release the change seems to be made on, none that has it is patched."""
    texts, data = history
    made = import_of(data, {name: {PATH: text} for name, text in texts.items()})
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    (patch,) = (text for name, text in made.folder.files.items() if name[:1].isdigit())
    assert b"\nBase-Has:" not in patch  # a guess proves nothing
    feature = check_folder(made.folder)
    if forgotten:
        feature = replace(feature, merged=None)
    for name in NAMES[1:]:
        (result,) = plan([feature], MemoryTree({PATH: texts[name]}), Version(name)).features
        assert result.state is not State.PRISTINE


@st.composite
def modules_of_upstream(draw: st.DrawFn) -> tuple[bytes, list[bytes | None], list[bool]]:
    """A module, what four releases have of that name, and whether that is the module."""
    lines = [f"value_{number} = compute({number})" for number in range(draw(st.integers(2, 6)))]
    files: list[bytes | None] = []
    has: list[bool] = []
    for _ in NAMES:
        kind = draw(st.sampled_from(["none", "same", "later", "comments", "lacks"]))
        text = list(lines)
        if kind == "later":
            text.insert(draw(st.integers(0, len(text))), "upstream = 1")
        elif kind == "comments":
            text = ["# upstream's own words", *text, "# the end"]
        elif kind == "lacks":
            text.pop(draw(st.integers(0, len(text) - 1)))
        files.append(None if kind == "none" else "".join(f"{line}\n" for line in text).encode())
        has.append(kind in ("same", "later", "comments"))
    return "".join(f"{line}\n" for line in lines).encode(), files, has


@SLOW
@given(modules_of_upstream())
def test_an_added_module_is_evidence_for_and_against(
    case: tuple[bytes, list[bytes | None], list[bool]],
) -> None:
    """Law 7, of modules: a release that has one is never patched, one that lacks a line asks."""
    content, files, has = case
    data = new_file(content)
    trees = {
        name: {} if file is None else {MODULE: file}
        for name, file in zip(NAMES, files, strict=True)
    }
    made = import_of(data, trees)
    if made is None:
        assert None not in files
        return
    assert made.folder is not None
    feature = check_folder(made.folder)
    merged = feature.merged
    for name, file, there in zip(NAMES, files, has, strict=True):
        (result,) = plan([feature], MemoryTree(dict(trees[name])), Version(name)).features
        if Version(name) < feature.releases.first:
            assert result.state is State.INAPPLICABLE
        elif there or (merged is not None and Version(name) >= merged):
            assert result.state is State.UPSTREAMED
        elif file is None:
            assert result.state is State.PRISTINE
        else:
            assert result.state.needs_attention
    if merged is not None:  # upstream did not take it back
        assert None not in files[NAMES.index(str(merged)) :]


def new_file(content: bytes) -> bytes:
    """The diff that adds the module."""
    lines = content.decode().splitlines()
    head = (
        f"diff --git a/{MODULE} b/{MODULE}\nnew file mode 100644\n--- /dev/null\n+++ b/{MODULE}\n"
    )
    body = "".join(f"+{line}\n" for line in lines)
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}".encode()


@SLOW
@given(changes(), st.sampled_from(["lacks", "has"]))
def test_a_change_is_not_upstreams_while_its_module_is_not(
    texts: tuple[bytes, bytes], module: str
) -> None:
    """All hunks are in the release, and the module that they call is not: that is half of it."""
    before, after = texts
    assume(before != after)
    content = b"value = compute(1)\nother = compute(2)\n"
    beside = {MODULE: content} if module == "has" else {}
    trees = {"0.25.0": {PATH: before}, "0.26.0": {PATH: after, **beside}}
    data = git_diff(before, after, ids=True) + new_file(content)
    made = import_of(data, trees, ("0.25.0", "0.26.0"))
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    feature = check_folder(made.folder)
    assume(feature.releases.first == Version("0.25.0"))
    assert (feature.merged is not None) == (module == "has")
    (result,) = plan([feature], MemoryTree(dict(trees["0.26.0"])), Version("0.26.0")).features
    assert (result.state is State.UPSTREAMED) == (module == "has")
