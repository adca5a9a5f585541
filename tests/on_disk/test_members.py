"""Who takes part in a transaction, and in which order they are locked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import TransactionError
from overlay.on_disk import journal, lock
from overlay.on_disk.journal import Journal, Member, Partner
from overlay.on_disk.members import held, in_order
from overlay.package import VLLM, package_named

PACKAGES = (VLLM, package_named("vllm_ascend"), package_named("plugin"))

members = st.builds(
    Member, st.sampled_from([Path("/a"), Path("/a/b"), Path("/a-b")]), st.sampled_from(PACKAGES)
)


@given(st.lists(members))
def test_every_command_locks_them_in_one_order(chosen: list[Member]) -> None:
    ordered = in_order(chosen)
    assert set(ordered) == {*chosen}
    keys = [(str(member.root), member.package.name) for member in ordered]
    assert keys == sorted(set(keys))


def place(root: Path, *, begun: str = "", partners: tuple[Path, ...] = ()) -> Member:
    """A package, and its journal of a transaction with others where it has an id."""
    (root / "vllm").mkdir(parents=True)
    named = tuple(Partner(os.path.relpath(partner, root), "vllm") for partner in partners)
    if begun:
        journal.write(root, Journal("apply", "0.1.0", (), id=begun, partners=named), None)
    return Member(root, VLLM)


def test_partners_of_partners_are_held_too(tmp_path: Path) -> None:
    """Whichever is asked for; one that is named twice, or that names back, is held once."""
    names = [tmp_path / name for name in ("a", "b", "c", "d")]
    a, b, c, d = names
    known = [
        place(a, begun="t1", partners=(b,)),
        place(b, begun="t1", partners=(a, c)),
        place(c, begun="t1", partners=(b, d)),
        place(d, begun="t1", partners=(c,)),
    ]
    other = place(tmp_path / "z")
    for asked in known:
        with held([asked]) as party:
            assert party == tuple(known)
    with held([other, *known, other]) as party:
        assert party == (*known, other)


@pytest.mark.parametrize("partner", ["gone", "without-journal", "of-another-transaction"])
def test_what_does_not_name_it_back_takes_no_part(tmp_path: Path, partner: str) -> None:
    other = tmp_path / "other"
    if partner != "gone":
        place(other, begun="t2" if partner == "of-another-transaction" else "")
    third = place(tmp_path / "third", begun="t1", partners=(tmp_path / "asked",))
    asked = place(tmp_path / "asked", begun="t1", partners=(other, third.root))
    for named in (asked, third):
        with held([named]) as party:
            assert party == (asked, third)


def test_all_of_them_are_locked_until_the_end(tmp_path: Path) -> None:
    known = [place(tmp_path / "a"), place(tmp_path / "b")]
    with held(known, timeout=0.0):
        for member in known:
            with pytest.raises(TransactionError), lock.shared(member.root, 0.0):
                raise AssertionError("another command may read it")
            with pytest.raises(TransactionError), held([member], timeout=0.0):
                raise AssertionError("another command holds it")
    for member in known:
        with lock.exclusive(member.root, 0.0):
            pass


def test_what_begins_before_the_lock_is_held_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction over two that another command began meanwhile is held whole."""
    asked, other = place(tmp_path / "a"), place(tmp_path / "b")
    path = asked.root / VLLM.journal_path
    exclusive = lock.exclusive
    seen = []

    def late(root: Path, *rest: object) -> object:
        if not seen:
            for one, two in ((asked, other), (other, asked)):
                partner = Partner(os.path.relpath(two.root, one.root), "vllm")
                journal.write(
                    one.root, Journal("apply", "0.1.0", (), id="t1", partners=(partner,)), None
                )
        seen.append(root)
        return exclusive(root, *rest)  # type: ignore[arg-type] - passed on as they came

    monkeypatch.setattr(lock, "exclusive", late)
    with held([asked]) as party:
        assert party == (asked, other)
        assert json.loads(path.read_text())["id"] == "t1"
    assert seen == [asked.root, asked.root, other.root]
