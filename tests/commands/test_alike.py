"""Things that have much in common: the one in the middle is worked on first, the order stays."""

from __future__ import annotations

import os

import pytest

from overlay.commands.parallel import in_processes


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("alike", [True, False])
def test_the_answers_keep_the_order_and_are_counted(number: int, alike: bool) -> None:
    steps: list[int] = []
    answers = in_processes(
        lambda thing: (thing, os.getpid()),
        range(number),
        2,
        lambda: steps.append(1),
        alike=alike,
    )
    assert [thing for thing, _ in answers] == list(range(number))
    here = [thing for thing, process in answers if process == os.getpid()]
    assert here == ([number // 2] if alike else [])
    assert len(steps) == number
