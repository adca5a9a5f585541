"""Changes that touch upstream's are placed as a proposal, or stay a conflict; never unseen."""

from __future__ import annotations

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.authoring.carry import carry, place_touching
from overlay.authoring.composing import compose
from overlay.authoring.merge import merge
from overlay.results import Outcome

BASE = """\
def build(config):
    coordinator = make(
        config=config,
        max_tokens=config.max_tokens,
        use_eagle=False,
        caching=True,
    )
    return coordinator
"""


def placed(base: str, ours: str, theirs: str) -> str | None:
    result = place_touching(merge(*(text.splitlines() for text in (base, ours, theirs))))
    return None if result is None else "\n".join(result.lines) + "\n"


def test_a_line_that_stands_once_is_changed_among_those_that_upstream_changed() -> None:
    ours = BASE.replace("use_eagle=False", "use_eagle=eagle")
    theirs = BASE.replace("        max_tokens=config.max_tokens,\n", "        most=most(config),\n")
    assert placed(BASE, ours, theirs) == theirs.replace("use_eagle=False", "use_eagle=eagle")


def test_lines_go_beside_the_neighbour_that_is_still_there() -> None:
    ours = BASE.replace("        use_eagle=F", "        limit=8,\n        use_eagle=F")
    theirs = BASE.replace("use_eagle=False", "use_eagle=config.eagle")
    assert placed(BASE, ours, theirs) == theirs.replace(
        "        use_eagle=c", "        limit=8,\n        use_eagle=c"
    )


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        (
            "it may be there",
            ("False,", "False,\n        q_limit=8,"),
            ("False", "True,\n  q_limit=8"),
        ),
        (
            "its line is twice",
            ("=False", "=1"),
            ("=False,", "=False,\n        1,\n        use_eagle=False,"),
        ),
        ("nothing is like it", ("=False", "=eagle"), ("=False", "=False and rocm")),
        ("it takes the line out", ("        use_eagle=False,\n", ""), ("=False", "=Falsy")),
    ],
)
def test_what_has_no_place_of_its_own_stays_a_conflict(
    name: str, ours: tuple[str, str], theirs: tuple[str, str]
) -> None:
    assert placed(BASE, BASE.replace(*ours), BASE.replace(*theirs)) is None, name


def test_lines_that_are_not_those_it_was_made_on_are_named() -> None:
    """A port shows which of upstream's lines the change replaces, and how alike they are."""
    ours = BASE.replace("max_tokens=config.max_tokens", "max_tokens=most(config)")
    theirs = BASE.replace("max_tokens=config.max_tokens", "max_tokens=configs.max_tokens")
    result = place_touching(merge(*(text.splitlines() for text in (BASE, ours, theirs))))
    assert result is not None
    assert "\n".join(result.lines) + "\n" == ours
    (difference,) = result.differences
    assert (
        "'max_tokens=configs.max_tokens,', 98% like 'max_tokens=config.max_tokens,'" in difference
    )


def test_a_port_has_it_reviewed_and_an_import_does_not_count_it() -> None:
    ours = BASE.replace("max_tokens=config.max_tokens", "max_tokens=most(config)").encode()
    theirs = BASE.replace("max_tokens=config.max_tokens", "max_tokens=configs.max_tokens").encode()
    hunks = compose(BASE.encode(), ours)
    (port,) = carry(BASE.encode(), hunks, theirs, less=True).hunks
    assert port.outcome is Outcome.MERGED
    assert port.outcome.wants_review
    assert port.beside
    assert port.differences
    (plain,) = carry(BASE.encode(), hunks, theirs).hunks
    assert plain.outcome is Outcome.CONFLICT


LONG = "one, " * 60
SIGNS = "abcdefghijklmnopqr"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result"),
    [
        # A text that is nothing but the conflict has no neighbours.
        (["make(config.a)"], ["make(x)"], ["make(configs.a)"], ["make(x)"]),
        ([f"q{LONG}r"], ["make(x)"], [f"s{LONG}t"], ["make(x)"]),
        # A neighbour that says nothing tells no place.
        (
            ["one(x, y)", ")", "two(x, y)"],
            ["one(x, y)", ")", "new(x)", "two(x, y)"],
            ["one(x, y)", ")", "due(y)"],
            None,
        ),
        # What stands further away is no place, however like it is.
        (
            ["zero(q)", "make(config.a)", "sep(x)", "make(config.a)"],
            ["zero(q)", "make(config.a)", "sep(x)", "make(x)"],
            ["zero(q)", "make(config.a)", "sep(x)", "make(configs.a)"],
            ["zero(q)", "make(config.a)", "sep(x)", "make(x)"],
        ),
        (
            ["make(config.a)", "sep(x)", "make(config.a)"],
            ["make(x)", "sep(x)", "make(config.a)"],
            ["make(configs.a)", "sep(x)", "make(config.a)"],
            ["make(x)", "sep(x)", "make(config.a)"],
        ),
        # Nine tenths are enough, and a next likely place has to be far less like it.
        ([f"{SIGNS}12"], ["make(x)"], [f"{SIGNS}34"], ["make(x)"]),
        ([f"{SIGNS[1:]}123"], ["make(x)"], [f"{SIGNS[1:]}456"], None),
        (
            ["make(config.a)"],
            ["make(x)"],
            ["make(configs.a)", "else(y, z)"],
            ["make(x)", "else(y, z)"],
        ),
        (
            ["make(config.a)"],
            ["make(x)"],
            ["else(y, z)", "make(configs.a)"],
            ["else(y, z)", "make(x)"],
        ),
        (["make(config.a)"], ["make(x)"], ["make(configs.a)", "make(configz.a)"], None),
        # Both stand beside each other in upstream's text, and not in the base.
        (
            ["make(config.a)", "keep(x)", "end(x, y)"],
            ["make(z)", "keep(x)", "new(z)", "end(x, y)"],
            ["make(configs.a)", "end(x, y)"],
            ["make(z)", "new(z)", "end(x, y)"],
        ),
        # What stands there once is taken out.
        (["one(x, y)", "two(x, y)"], ["one(x, y)"], ["three(x)", "two(x, y)"], ["three(x)"]),
        # New lines go before the one that stands below as well, if that says anything.
        (
            ["one(x, y)", "two(x, y)"],
            ["one(x, y)", "new(x)", "two(x, y)"],
            ["uno(x)", "two(x, y)"],
            ["uno(x)", "new(x)", "two(x, y)"],
        ),
        (
            ["one(x, y)", ")", "two(x)"],
            ["one(x, y)", "new(x)", ")", "two(x)"],
            ["uno(x)", ")", "due(x)"],
            None,
        ),
    ],
)
def test_each_line_has_one_place_or_none(
    base: list[str], ours: list[str], theirs: list[str], result: list[str] | None
) -> None:
    for above, below in ((0, 0), (2, 2), (1, 0), (0, 1)):
        texts = [
            [*["above(x)", "over(x)"][2 - above :], *each, *["under(x)", "below(x)"][:below]]
            for each in (base, ours, theirs)
        ]
        made = placed(*("\n".join(text) for text in texts))
        expected = None
        if result is not None:
            expected = [*["above(x)", "over(x)"][2 - above :], *result]
            expected += ["under(x)", "below(x)"][:below]
        assert made == (None if expected is None else "\n".join(expected) + "\n"), (above, below)


def test_a_port_into_a_scope_that_moved_is_moved_and_keeps_the_end() -> None:
    more = "".join(f"    step_{number}(config)\n" for number in range(9))
    base = BASE.replace("    coordinator", f"{more}    coordinator").removesuffix("\n")
    ours = base.replace("max_tokens=config.max_tokens", "max_tokens=most(config)")
    ours = ours.replace("return coordinator", "return coordinator.more(config)\n")
    theirs = base.replace("max_tokens=config.max_tokens", "max_tokens=configs.max_tokens")
    for old, new, outcome in (
        ("def build", "def build", Outcome.MERGED),
        ("def build", "def construct", Outcome.MOVED),
    ):
        made = carry(
            base.encode(),
            compose(base.encode(), ours.encode()),
            theirs.replace(old, new).encode(),
            less=True,
        )
        assert (made.outcome, made.hunks[0].beside) == (outcome, True)
        assert made.after == ours.replace(old, new).encode()


_LINES = st.sampled_from(
    ["call_one(x)", "call_two(x)", "call_three(x, y)", "value = 1", "value = 2", "x", ")", ""]
)
_TEXTS = st.lists(_LINES, max_size=8)


@given(_TEXTS, _TEXTS, _TEXTS)
@example(
    ["call_one(x)", "value = 1", "call_two(x)"],
    ["call_one(x)", "zeta(x)", "value = 1", "alpha(x)", "call_two(x)"],
    ["call_one(x)", "call_two(x)"],
)
def test_no_line_is_lost_unseen(base: list[str], ours: list[str], theirs: list[str]) -> None:
    """Whatever is placed, upstream's lines are there, but those that the change takes out.

    The lines that it adds come in their order.
    """
    result = place_touching(merge(base, ours, theirs))
    if result is None:
        return
    removed = [line for line in base if base.count(line) > ours.count(line)]
    for line in set(theirs):
        lost = theirs.count(line) - result.lines.count(line)
        if lost > 0 and line not in removed:
            assert any(repr(line) in text for text in result.differences)
    for line in set(ours):
        if ours.count(line) > base.count(line):
            assert line in result.lines
    new = {*ours} - {*base} - {*theirs}
    assert [line for line in result.lines if line in new] == [line for line in ours if line in new]


@given(st.data())
def test_a_port_leaves_python_or_a_conflict(data: st.DataObject) -> None:
    """A function of statements, changed on both sides: what is placed compiles."""
    body = st.lists(
        st.sampled_from(["use(x)", "x = f(\n        x,\n    )", "if x:\n        go(x)"])
    )
    texts = [
        "def run(x):\n"
        + "".join(f"    {line}\n" for line in ["begin(x)", *data.draw(body), "end(x)"])
        for _ in range(3)
    ]
    base, ours, theirs = (text.encode() for text in texts)
    try:
        hunks = compose(base, ours)
    except ValueError:
        return
    carried = carry(base, hunks, theirs, less=True)
    assert carried.after is not None
    ast.parse(carried.after)
