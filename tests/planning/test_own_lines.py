"""A law: upstream's change with a bit of one's own is not upstream's, wherever that bit is."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.writing import check_folder
from overlay.planning.planner import plan
from overlay.results import State
from tests.authoring.test_guessed_bases import PATH, diff
from tests.support.patches import MemoryTree

#: Lines as files have them: some are in every function, some in one place alone.
_LINES = st.sampled_from(
    ["x = 1", "return x", "check(x)", "# why", "total = count(x)", "self.a = x", "flush(x)", ""]
)


@st.composite
def files(draw: st.DrawFn) -> list[str]:
    """Two functions of lines, many of which recur."""
    lines: list[str] = []
    for name in ("first", "second"):
        body = draw(st.lists(_LINES, min_size=4, max_size=14))
        lines += [f"def {name}(x):", f"    begin_{name}(x)", *(f"    {line}" for line in body)]
        lines += [f"    end_{name}(x)", "", ""]
    return [line.rstrip() for line in lines]


def _code(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and line.strip()[0] != "#"]


@settings(deadline=None)
@given(files(), st.data())
def test_a_line_of_ones_own_is_never_dropped_unseen(base: list[str], data: st.DataObject) -> None:
    """Put in or taken out: a copy of any line, beside upstream's lines or far from them."""
    inside = [at for at, line in enumerate(base) if line.startswith("    ")]
    at = data.draw(st.sampled_from(inside))
    new = [
        f"    upstream_{number} = work({number})" for number in range(data.draw(st.integers(1, 3)))
    ]
    theirs = [*base[:at], *new, *base[at:]]
    place = data.draw(st.sampled_from([n for n, line in enumerate(theirs) if line[:4] == "    "]))
    if data.draw(st.booleans()):
        mine = [
            *theirs[:place],
            data.draw(st.sampled_from(theirs[place:] or theirs)),
            *theirs[place:],
        ]
        mine[place] = f"    {mine[place].strip()}"
    else:
        assume(theirs[place] not in new)
        mine = [*theirs[:place], *theirs[place + 1 :]]
    assume(_code(mine) != _code(theirs))
    assume(not mine[place].strip().startswith("def "))
    releases = {
        name: ("\n".join(lines) + "\n").encode()
        for name, lines in (("0.21.0", base), ("0.22.0", theirs))
    }
    texts = ReleaseTexts(tuple(releases), lambda name: MemoryTree({PATH: releases[name]}))
    change = diff(releases["0.21.0"], ("\n".join(mine) + "\n").encode())
    commits = read_changes(change, "x.diff")
    made = prepare(commits, "change", texts, source="x.diff", verbatim=change, today="2026-11-25")
    assume(made.folder is not None)
    assert made.folder is not None
    feature = check_folder(made.folder)
    (result,) = plan([feature], MemoryTree({PATH: releases["0.22.0"]}), Version("0.22.0")).features
    assert result.state not in (State.UPSTREAMED, State.PRISTINE), "\n".join([change.decode()])
