"""Laws of when two runs differ as kernels round, and when something is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof.oracle import Answer, OracleStep
from overlay.proof.rounding import NEAR_TIE, Opinion, partings, rounding_of

TOKENS = tuple(range(40))


def answer(accepted: list[int], tokens: tuple[int, ...] = TOKENS) -> Answer:
    """An answer whose drafts were verified at each third token."""
    return Answer(5, tokens, tuple(OracleStep(5 + 3 * n, 3, a) for n, a in enumerate(accepted)))


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 20))
def test_what_is_the_same_is_explained(accepted: list[int], requests: int) -> None:
    same = [answer(accepted)] * requests
    rounding = rounding_of(same, same)
    assert rounding.explains
    assert rounding.partings == ()
    assert rounding.worst is None
    assert (rounding.compared, rounding.fewer, rounding.more) == (len(accepted) * requests, 0, 0)


@given(st.data())
def test_one_parting_that_is_no_near_tie_is_wrong_whatever_the_others_are(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 12))
    gaps = data.draw(st.lists(st.floats(0, NEAR_TIE), min_size=count, max_size=count))
    places = data.draw(st.lists(st.integers(0, 39), min_size=count, max_size=count))
    other = [
        answer([], (*TOKENS[:place], TOKENS[place] + 100, *TOKENS[place + 1 :])) for place in places
    ]
    stock = [answer([])] * count
    # Either of the two may be the likelier one for stock, which is asked with other kernels.
    signs = data.draw(st.lists(st.sampled_from((1, -1)), min_size=count, max_size=count))
    opinions: list[Opinion] = [(-2.0, -2.0 - gap * s) for gap, s in zip(gaps, signs, strict=True)]
    rounding = rounding_of(stock, other, opinions)
    assert [each.position for each in rounding.partings] == places
    assert rounding.explains
    number = data.draw(st.integers(0, count - 1))
    over = NEAR_TIE + 0.1
    for wrong in ((-1.0, -1.0 - over), (-1.0 - over, -1.0), (-1.0, None), (None, None)):
        judged = rounding_of(stock, other, [*opinions[:number], wrong, *opinions[number + 1 :]])
        assert not judged.explains
        assert judged.worst == judged.partings[number]
    assert not rounding_of(stock, other).explains  # nobody was asked


@pytest.mark.parametrize(
    ("fewer", "more", "wrong"),
    [
        (9, 0, False),
        (10, 0, True),
        (30, 30, False),
        (12, 12, False),
        (40, 12, True),
        (0, 40, False),
    ],
)
def test_drafts_round_to_both_sides(fewer: int, more: int, wrong: bool) -> None:
    stock = [answer([2])] * (fewer + more + 50)
    other = [answer([1])] * fewer + [answer([3])] * more + [answer([2])] * 50
    rounding = rounding_of(stock, other)
    assert (rounding.fewer, rounding.more, rounding.compared) == (fewer, more, fewer + more + 50)
    assert rounding.loses_drafts is wrong
    assert rounding.explains is not wrong


def test_drafts_are_not_to_blame_for_another_token_of_the_target() -> None:
    """Nor are those behind it, whose text is another."""
    stock = answer([3, 3, 3, 3])
    other = answer([3, 1, 0, 0], (*TOKENS[:4], 100, *TOKENS[5:]))
    (parting,) = partings([stock], [other])
    assert (parting.position, parting.expected, parting.actual) == (4, 4, 100)
    rounding = rounding_of([stock], [other], [(-1.0, -1.0)])
    assert (rounding.compared, rounding.fewer) == (1, 0)
    assert rounding.explains
    to_the_last_token = Answer(5, TOKENS[:3], (OracleStep(5, 3, 3),))
    assert rounding_of([to_the_last_token], [to_the_last_token]).compared == 1


def test_fewer_drafts_near_a_limit_are_compared_as_far_as_both_drafted() -> None:
    stock = Answer(5, TOKENS, (OracleStep(8, 3, 3),))
    other = Answer(5, TOKENS, (OracleStep(8, 1, 1), OracleStep(9, 3, 0)))
    rounding = rounding_of([stock], [other])
    assert (rounding.compared, rounding.fewer, rounding.more) == (1, 0, 0)
