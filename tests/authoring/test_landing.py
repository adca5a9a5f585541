"""How a change lands on releases: what added modules have to do with it, and what is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from overlay.authoring.context import FittedHunks
from overlay.authoring.landing import (
    ContextKept,
    Summary,
    landings,
    modules_on,
    moved_lines,
    names_taken,
    not_installed,
    on_disk_only,
    taken_back,
)
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.triage import FileFate
from overlay.report.lines import Line
from overlay.results import Fate, Outcome
from tests.support.patches import MemoryTree

EXACT, UPSTREAM, CONFLICT = Outcome.EXACT, Outcome.UPSTREAM, Outcome.CONFLICT
NAMES = tuple(f"0.{number}.0" for number in range(20, 28))
EARLY, EARLY_IN_33 = "vllm/envs.py", "vllm/v1/core/sched/scheduler.py"


def said(lines: Iterable[Line]) -> list[str]:
    return [str(line) for line in lines]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, EXACT),
        ({"vllm/a.py": b"import os\nfirst = os.sep\n"}, UPSTREAM),
        ({"vllm/a.py": b"import os\nfirst = os.sep\nsecond = 2\n"}, UPSTREAM),
        ({"vllm/a.py": b"other = 3\n"}, CONFLICT),
        ({"vllm/a/__init__.py": b""}, CONFLICT),  # Python imports that package in its place
    ],
)
def test_an_added_module_lands_where_its_name_is_free(
    there: Mapping[str, bytes], expected: Outcome
) -> None:
    trees = {"0.20.0": MemoryTree(there), "0.21.0": MemoryTree({})}
    texts = ReleaseTexts(tuple(trees), trees.__getitem__)
    modules = modules_on({"vllm/a.py": b"import os\nfirst = os.sep\n"}, texts)
    assert modules == {"0.20.0": {"vllm/a.py": expected}, "0.21.0": {"vllm/a.py": EXACT}}


def test_the_releases_that_have_another_file_of_a_name() -> None:
    modules = {
        "0.20.0": {"a": CONFLICT, "b": EXACT},
        "0.21.0": {"a": UPSTREAM, "b": CONFLICT},
        "0.22.0": {"a": CONFLICT, "b": CONFLICT},
    }
    assert names_taken(modules) == {"a": ("0.20.0", "0.22.0"), "b": ("0.21.0", "0.22.0")}


@pytest.mark.parametrize(
    ("exact", "upstream", "says"),
    [
        ((3, 4), (), None),
        ((0, 1), (2, 3), None),
        ((0, 3, 4), (2,), "0.22.0, and yet it lands exactly on 0.23.0, 0.24.0: "),
        ((1, 2, 3, 4), (0, 6), "0.20.0, and yet it lands exactly on 0.21.0, 0.22.0, 0.23.0, "),
        ((1, 2, 3, 4), (0,), "on 0.21.0, 0.22.0, 0.23.0, 0.24.0: "),
        ((1, 2, 3, 4, 5), (0,), "on 0.21.0, 0.22.0, 0.23.0, 0.24.0 and 1 more: "),
    ],
)
def test_what_lands_again_behind_a_release_that_has_it_is_told(
    exact: tuple[int, ...], upstream: tuple[int, ...], says: str | None
) -> None:
    outcomes = dict.fromkeys(NAMES, CONFLICT)
    outcomes |= {NAMES[at]: EXACT for at in exact} | {NAMES[at]: UPSTREAM for at in upstream}
    warnings = list(taken_back(outcomes, NAMES))
    assert len(warnings) == (says is not None)
    assert says is None or says in warnings[0]


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (0, None),
        (1, "p0 left out: if it asks for another version"),
        (2, "p0 and p1 left out: if they ask for another version"),
        (4, "p0, p1, p2 and p3 left out: "),
        (5, "p0, p1, p2 and 2 others left out: "),
    ],
)
def test_what_would_be_installed_beside_it_is_told(number: int, says: str | None) -> None:
    files = [FileFate("vllm/a.py", Fate.EDITED)]
    files += [FileFate(f"p{at}", Fate.PACKAGING) for at in range(number)]
    warnings = list(not_installed(files))
    assert len(warnings) == (says is not None)
    assert says is None or warnings[0].startswith(says)


def test_a_summary_has_the_context_of_all_its_files_and_where_that_helps() -> None:
    fitted = {
        "a": FittedHunks((), (1, 2), ("0.20.0", "0.21.0")),
        "b": FittedHunks((), (2, 3), ("0.21.0", "0.22.0")),
        "told": FittedHunks((), None),
    }
    outcomes = {"0.20.0": CONFLICT, "0.21.0": EXACT, "0.22.0": EXACT, "0.23.0": EXACT}
    summary = Summary("id", "Title", 1, (), outcomes, contexts=fitted)
    assert summary.context == ContextKept(1, 3, ("0.21.0", "0.22.0"))
    for none in ({}, {"told": fitted["told"]}):
        assert Summary("id", "Title", 1, (), outcomes, contexts=none).context is None


@pytest.mark.parametrize(
    ("kept", "lines", "more"),
    [
        (ContextKept(0, 0, ()), "no line", ""),
        (ContextKept(1, 1, ()), "1 line", ""),
        (ContextKept(0, 2, ("0.20.0",)), "0 to 2 lines", "; with 3, 1 release fewer would take it"),
    ],
)
def test_how_much_context_is_kept_is_said(kept: ContextKept, lines: str, more: str) -> None:
    expected = f"context   {lines} around a change (--context N keeps more){more}"
    assert str(kept.line) == expected


def test_releases_on_which_it_lands_alike_are_one_line_in_columns() -> None:
    outcomes = dict.fromkeys(NAMES[:3], EXACT) | {NAMES[3]: CONFLICT, NAMES[4]: EXACT}
    assert said(landings(outcomes)) == [
        "0.20.0..0.22.0    lands exactly",
        "0.23.0            conflicts",
        "0.24.0            lands exactly",
    ]
    candidates = {"0.20.0": UPSTREAM, "0.21.0rc1": EXACT, "0.21.0rc20": EXACT}
    assert said(landings(candidates)) == [
        "0.20.0                 upstream has it",
        "0.21.0rc1..0.21.0rc20  lands exactly",
    ]
    assert {span.style for line in landings(candidates) for span in line.head} == {"heading"}
    assert list(landings({})) == []


def test_where_upstream_moved_a_file_is_said_once_a_run_of_releases() -> None:
    places = dict.fromkeys(NAMES[:3], "vllm/b.py") | {NAMES[3]: "vllm/c.py (f)"}
    assert said(moved_lines({"vllm/a.py": {**places, NAMES[4]: "vllm/b.py"}}, "")) == [
        "moved     vllm/a.py  to vllm/b.py in 0.20.0..0.22.0",
        "moved     vllm/a.py  to vllm/c.py (f) in 0.23.0",
        "moved     vllm/a.py  to vllm/b.py in 0.24.0",
    ]
    carried, told = said(moved_lines({"vllm/a.py": places}, "mine"))
    assert carried.endswith("; `overlay port mine --releases 0.20.0` carries it there")
    assert told.endswith("; `overlay port mine --releases 0.23.0` says how")


@pytest.mark.parametrize(
    ("paths", "releases", "removed", "says"),
    [
        ([EARLY], None, ["vllm/b.py"], None),
        (["vllm/a.py"], "0.32.0..0.33.0", [], None),
        (["vllm/a.py"], "0.32.0..0.33.0", ["vllm/b.py", "c"], "it removes vllm/b.py"),
        ([EARLY, "vllm/a.json", "c"], "0.32.0..0.33.0", [], "vllm/a.json is no module"),
        ([EARLY_IN_33], "0.31.0..0.32.0", [], None),
        ([EARLY_IN_33], "0.33.0..0.33.0", [], "vLLM imports vllm.v1.core.sched.scheduler before"),
        ([EARLY_IN_33, EARLY], "0.20.0..0.33.0", [], "vLLM imports vllm.envs and vllm.v1.core"),
        ([EARLY], "99.0.0..99.1.0", [], "vLLM imports vllm.envs before"),  # of none known
    ],
)
def test_what_cannot_be_patched_in_memory_is_noted(
    paths: list[str], releases: str | None, removed: list[str], says: str | None
) -> None:
    notes = said(on_disk_only(iter(paths), releases, removed))
    assert len(notes) == (says is not None)
    assert says is None or notes[0].startswith(f"note: it cannot be patched in memory: {says}")
    # Where not all of the releases import it so early, the note names those that do.
    (note,) = said(on_disk_only([EARLY_IN_33], "0.32.0..0.33.0"))
    assert note.startswith("note: on 0.33.0 it cannot be patched in memory: vLLM imports vllm.v1.")
