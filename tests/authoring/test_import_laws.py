"""Laws of import on random changes: it makes the change, and a series is its sum."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.authoring.importing import Prepared, prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts, blob_id
from overlay.authoring.writing import check_folder, write_folder
from overlay.errors import OverlayError, UsageError
from overlay.planning.planner import plan
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


MODULES = st.dictionaries(
    st.sampled_from(["vllm/v1/a.py", "vllm/v1/b/__init__.py", "vllm/v1/b/c.py", "vllm/é.py"]),
    st.lists(st.sampled_from(["A = 1", "", "# é \u2028 \x0c", "B = '\x1c'", "if A: pass"])).flatmap(
        lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
    ),
    max_size=3,
)


def added_diff(path: str, text: str) -> bytes:
    """The diff of an added file as git writes it."""
    unfinished = not text.endswith("\n") and bool(text)
    lines = text.split("\n")[: None if unfinished else -1]
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    if not lines:
        return head.encode()
    body = "".join(f"+{line}\n" for line in lines)
    end = "\\ No newline at end of file\n" if unfinished else ""
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}{end}".encode()


@SLOW
@given(changes(), MODULES)
def test_what_is_read_back_makes_the_change_and_its_modules(
    texts: tuple[bytes, bytes], modules: dict[str, str]
) -> None:
    """Law 1, read back: the folder that would be written has each hunk and each module."""
    before, after = texts
    assume(before != after)
    data = git_diff(before, after, ids=True)
    data += b"".join(added_diff(path, text) for path, text in modules.items())
    made = imported(data, before)
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    feature = check_folder(made.folder)
    assert {file.path: file.content for file in feature.added} == {
        path: text.encode() for path, text in modules.items()
    }
    planned = plan([feature], MemoryTree({PATH: before}), Version(RELEASE))
    assert {change.path: change.after for change in planned.changes} == {
        PATH: after,
        **{path: text.encode() for path, text in modules.items()},
    }


BASE, AFTER = b"a = 1\nb = 2\nc = 3\n", b"a = 1\nb = 4\nc = 3\n"


def test_a_folder_that_does_not_make_the_change_is_not_written(tmp_path: Path) -> None:
    data = git_diff(BASE, AFTER, ids=True) + added_diff("vllm/v1/a.py", "A = 1\n")
    made = imported(data, BASE)
    assert made is not None
    folder = made.folder
    assert folder is not None
    kept = dict(folder.files)
    (patch,) = (name for name in kept if name.startswith("10-") and name.endswith(".patch"))
    harms: list[dict[str, bytes]] = [
        {patch: kept[patch].replace(b"+b = 4", b"+b = 5")},
        {patch: kept[patch].replace(b"+b = 4", b"+b =  4")},
        {"files/vllm/v1/.a.py": b"A = 1\n"},
        {"files/vllm/__pycache__/a.py": b"A = 1\n"},
    ]
    for harm in harms:
        damaged = replace(folder, files={**kept, **harm})
        with pytest.raises(OverlayError, match="read back it does not"):
            write_folder(damaged, tmp_path)
        assert not list(tmp_path.iterdir())
    write_folder(folder, tmp_path)
    assert (tmp_path / "change/files/vllm/v1/a.py").read_bytes() == b"A = 1\n"
