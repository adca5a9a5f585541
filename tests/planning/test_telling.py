"""The lines that tell that a text has a change: code that nothing else explains, all, in order."""

from __future__ import annotations

import pytest

from overlay.planning.code_lines import code_lines
from overlay.planning.telling import Place, new_lines, partly, present, stands_together
from tests.support.patches import hunk


def there(lines: list[str], text: list[str], base_has: tuple[str, ...] = ()) -> tuple[object, ...]:
    """Whether a text has all of a hunk, and what it lacks."""
    shown = present(hunk(lines, "f")._replace(base_has=base_has), [Place(text)])
    return shown.whole, shown.missing


CHANGE = [" def f(x):", "+    first = measure(x)", "+    second = measure(first)", "     return x"]
TEXT = ["def f(x):", "    first = measure(x)", "    second = measure(first)", "    return x"]


def test_all_lines_of_code_in_their_order_are_the_change() -> None:
    assert there(CHANGE, TEXT) == (True, ())
    assert there(CHANGE, [TEXT[0], "    log(x)", *TEXT[1:3], "    log(x)", TEXT[3]]) == (True, ())
    assert there(CHANGE, [TEXT[0], TEXT[2], TEXT[1], TEXT[3]])[0] is False


def test_white_space_and_comments_behind_code_do_not_count() -> None:
    text = ["def f( x ):", "    first=measure( x )  # as before", "    second = measure(first)"]
    assert there(CHANGE, text) == (True, ())
    assert there(CHANGE, [f"        {line}" for line in text]) == (True, ())


@pytest.mark.parametrize("at", [1, 2])
def test_a_line_that_is_further_in_or_out_than_its_neighbours_is_another_one(at: int) -> None:
    """Moved out of an `if`, or into it: the release has the line, and runs it elsewhere."""
    text = [*TEXT[:at], f"    {TEXT[at]}", *TEXT[at + 1 :]]
    made = hunk(CHANGE, "f")._replace(base_has=())
    shown = present(made, [Place(text)])
    assert (shown.whole, shown.missing) == (False, ())
    assert "place or indentation" in partly(made, shown).text


def test_lines_that_only_change_places_with_those_that_stay_are_asked_about() -> None:
    change = ["     one(x)", "+    first = measure(x)", "     two(x)", "     three(x)"]
    text = ["def f(x):", "    one(x)", "    two(x)", "    first = measure(x)", "    three(x)"]
    assert there(change, text) == (False, ())
    assert there(change, [*text[:2], text[3], text[2], text[4]]) == (True, ())


def test_a_line_that_a_diff_finds_again_further_down_is_not_taken_for_one_that_stays() -> None:
    """The own removal of `store(x)` reads as new lines before a later one like it."""
    change = [
        "     first = 1",
        "+    total = count(x)",
        "+    summed = total + 1",
        "     store(x)",
        "     last = 2",
    ]
    block = ["    total = count(x)", "    summed = total + 1", "    store(x)", "    last = 2"]
    assert there(change, ["def f(x):", "    first = 1", *block]) == (True, ())
    assert there(change, ["def f(x):", "    first = 1", "    log(x)", *block]) == (True, ())
    assert there(change, ["def f(x):", "    first = 1", "    store(x)", *block]) == (False, ())


def test_a_removed_line_behind_a_copy_of_the_line_after_it_is_left() -> None:
    change = [
        "     return x",
        "+class New:",
        "+    def __init__(self):",
        "+        new(self)",
        "-class Own(Base):",
        "     def __init__(self):",
        "         old(self)",
    ]
    text = ["    return x", *(line[1:] for line in change[1:4])]
    rest = [line[1:] for line in change[5:]]
    assert there(change, [*text, *rest]) == (True, ())
    assert there(change, [*text, "class Own(Base):", *rest])[0] is False


def test_a_line_that_is_kept_alone_where_all_around_it_is_replaced_may_be_missed() -> None:
    change = [
        "-old = make(1)",
        "+new = compute(1)",
        " own = keep(old)",
        "-also = make(2)",
        "+next = compute(2)",
    ]
    text = ["new = compute(1)", "next = compute(2)"]
    assert there(change, text)[0] is False
    assert there(change, [text[0], "own = keep(old)", text[1]]) == (True, ())
    # Beside what stays it is not the change's: upstream may have reworked it.
    beside = [" first = 0", *change[:3], " stays = 1", *change[3:]]
    assert there(beside, ["first = 0", text[0], "stays = 1", text[1]]) == (True, ())


@pytest.mark.parametrize("own", ["    *,", '    "-",', "    ..."])
def test_a_star_and_a_text_of_punctuation_are_code(own: str) -> None:
    change = [*CHANGE[:2], f"+{own}", *CHANGE[2:]]
    assert there(change, TEXT) == (False, (own.strip(),))
    assert there(change, [*TEXT[:2], own, *TEXT[2:]]) == (True, ())


def test_white_space_inside_a_text_counts() -> None:
    change = [*CHANGE[:2], '+    line = "".join(first)', *CHANGE[2:]]
    theirs = [*TEXT[:2], '    line = " ".join(first)', *TEXT[2:]]
    assert there(change, theirs) == (False, ('line = "".join(first)',))
    assert there(change, [*TEXT[:2], '    line = "".join( first )', *TEXT[2:]]) == (True, ())


@pytest.mark.parametrize("own", ["    mine = own(x)", "    q = 1", "    continue", "    return x"])
def test_a_missing_line_of_code_is_never_outvoted(own: str) -> None:
    """Not a long line, not a short one, not one that the scope has elsewhere."""
    change = [*CHANGE[:2], f"+{own}", *CHANGE[2:]]
    text = [*TEXT[:3], "    if first:", "        continue", "    q = 2", TEXT[3]]
    whole, missing = there(change, text)
    assert whole is False
    assert missing == (own.strip(),)
    assert there(change, [*TEXT[:2], own, *TEXT[2:]]) == (True, ())


@pytest.mark.parametrize(
    "own",
    [["    # why"], [""], ["    )"], ['    """Why it is so."""'], ['    """Why', '    so."""']],
)
def test_prose_and_punctuation_are_not_missing(own: list[str]) -> None:
    change = [CHANGE[0], *(f"+{line}" for line in own), *CHANGE[1:]]
    assert there(change, TEXT) == (True, ())


def test_a_text_that_is_a_value_is_code() -> None:
    change = [*CHANGE[:3], '+    query = """', "+    a line of the text", '+    """', CHANGE[3]]
    assert there(change, TEXT)[1] == ('query = """', "a line of the text")
    assert [at for at, _ in code_lines(['x = """', "def f():", '"""', "y = 2"])] == [0, 1, 3]


def test_a_line_that_is_added_twice_must_be_there_twice() -> None:
    change = [*CHANGE[:2], CHANGE[1], *CHANGE[2:]]
    assert there(change, TEXT)[1] == ("first = measure(x)",)
    assert there(change, [*TEXT[:2], TEXT[1], *TEXT[2:]]) == (True, ())


def test_what_is_replaced_must_be_gone() -> None:
    change = [" def f(x):", "-    size = limit(10)", "+    size = limit(20)", "     return x"]
    assert there(change, ["def f(x):", "    size = limit(20)", "    return x"]) == (True, ())
    both = ["def f(x):", "    size = limit(10)", "    use(size)", "    size = limit(20)"]
    assert there(change, both)[0] is False


def test_a_single_line_needs_a_neighbour() -> None:
    change = [" def f(x):", "     first = 1", "+    total = count(x)", "     last = 2"]
    far = ["def f(x):", *(f"    line_{n} = {n}" for n in range(9)), "    total = count(x)"]
    assert there(change, far)[0] is False
    assert there(change, [*far, "    last = 2"]) == (True, ())


def test_what_the_base_had_tells_nothing() -> None:
    made = hunk(["     a = b", "+    total = count(x)", "+    return None"], "f")
    assert new_lines(made._replace(base_has=())) == ("total = count(x)",)
    assert new_lines(made._replace(base_has=("total = count(x)",))) == ()
    assert present(made._replace(base_has=None), [Place(TEXT)]).share == 0


def test_lines_that_tell_nothing_tell_together() -> None:
    made = hunk([" def f(x):", "+    first = measure(x)", "+    second = measure(first)"], "f")
    made = made._replace(base_has=("first = measure(x)", "second = measure(first)"))
    assert stands_together(made, [TEXT])
    assert not stands_together(made, [[TEXT[1], "    log(x)", TEXT[2]]])
    alone = hunk([" def f(x):", "+    first = measure(x)"], "f")._replace(base_has=(TEXT[1],))
    assert not stands_together(alone, [TEXT])


def test_a_copy_of_a_line_beside_it_is_missing_where_there_is_one() -> None:
    change = [
        " def f(x):",
        "     check(x)",
        "+    check(x)",
        "+    total = count(x)",
        "     end(x)",
    ]
    text = ["def f(x):", "    check(x)", "    total = count(x)", "    end(x)"]
    assert there(change, text) == (False, ("check(x)",))
    assert there(change, [*text[:2], text[1], *text[2:]]) == (True, ())


def test_a_copy_of_a_line_beyond_the_context_must_stand_beside_the_comment_that_it_had() -> None:
    """The base has the line three comments further down, and upstream has the rest."""
    change = [
        "     device = where(layer)",
        "+    space = make_space(device, old)",
        "+    perm = empty(device)",
        "     # WEIGHT",
        "     # in another order",
    ]
    head = ["def f(layer):", "    device = where(layer)", "    space = make_space(device, old)"]
    tail = ["    # WEIGHT", "    # in another order", "    perm = empty(device)", "    use(perm)"]
    known = ("perm = empty(device)",)
    assert there(change, [*head, *tail], known) == (False, ("perm = empty(device)",))
    assert there(change, [*head, tail[2], *tail], known) == (True, ())


def test_a_copy_of_a_line_that_ends_a_scope_must_end_it() -> None:
    change = ["     start(x)", "+    total = count(x)", "+    flush(x)"]
    text = [
        "def f(x):",
        "    total = count(x)",
        "    flush(x)",
        "    start(x)",
        "    total = count(x)",
    ]
    assert there(change, text, ("flush(x)",)) == (False, ("flush(x)",))
    assert there(change, [*text, "    flush(x)"], ("flush(x)",)) == (True, ())


@pytest.mark.parametrize("own", ["    lock.acquire()", "    return", "    else:"])
def test_a_line_that_is_removed_beside_what_upstream_has_is_left(own: str) -> None:
    """Whatever line it is, and whether or not the scope has it elsewhere."""
    change = [
        "     first = 1",
        "+    total = count(x)",
        "+    summed = total + 1",
        "     last = 2",
        f"-{own}",
        "     end(x)",
    ]
    text = ["def f(x):", own, *(line[1:] for line in change if line[0] != "-")]
    made = hunk(change, "f")._replace(base_has=())
    gone = present(made, [Place(text)])
    assert (gone.whole, gone.leftover) == (True, "")
    theirs = [*text[:-1], own, text[-1]]
    shown = present(made, [Place(theirs)])
    assert (shown.whole, shown.missing, shown.leftover) == (False, (), own.strip())


def test_a_line_that_alone_is_removed_is_left_or_gone() -> None:
    made = hunk(["     first = 1", "-    lock(x)", "     last = 2"], "f")._replace(base_has=())
    assert present(made, [Place(["def f(x):", "    first = 1", "    last = 2"])]).leftover == ""
    text = ["def f(x):", "    first = 1", "    lock(x)", "    last = 2"]
    assert present(made, [Place(text)]).leftover == "lock(x)"
    assert present(made, []).leftover == "lock(x)"
