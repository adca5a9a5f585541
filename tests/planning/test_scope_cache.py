"""The memory changes nothing but the time: the answers are those of a fresh ``Syntax``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.cache import PrivateFolder
from overlay.planning import scope_cache as memo
from overlay.planning import scopes
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.untrusted import NotPrivate

TEXT = "class A:\n    def b(self):\n        pass\n\n\ndef c():\n    def d():\n        pass\n"


assert len(TEXT.split("\n")) == 9  # as the damaged memory below says


def lines(text: str) -> list[str]:
    return text.split("\n")


def ask(syntax: Syntax, text: str) -> object:
    try:
        found = syntax.scopes(text.encode(), lines(text))
    except UnparsableError as error:
        return str(error)
    return {name: [tuple(place) for place in places] for name, places in found.items()}


def remembered(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot be asked any more."""

    def refuse(*_: object) -> None:
        raise AssertionError("Python was asked")

    monkeypatch.setattr(scopes, "find", refuse)
    monkeypatch.setattr(scopes, "compiles_in_chunks", refuse)


sources = st.lists(
    st.sampled_from(
        ["class A:", "def b():", "    def b(self):", "    pass", "pass", ")", "", "# c"]
    ),
    max_size=12,
).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sources)
def test_the_answers_are_the_same_at_first_and_ever_after(tmp_path: Path, text: str) -> None:
    plain = Syntax()
    for _ in range(2):
        memory = Memo(tmp_path)
        for _ in range(2):
            assert ask(memory, text) == ask(plain, text)
            told = memory.compile_error(text.encode(), "x.py")
            assert told == plain.compile_error(text.encode(), "x.py")


def test_python_is_asked_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = Memo(tmp_path)
    expected = ask(first, TEXT), first.compile_error(TEXT.encode(), "x.py")
    request.getfixturevalue("deaf")
    second = Memo(tmp_path)
    assert (ask(second, TEXT), second.compile_error(TEXT.encode(), "y.py")) == expected
    with pytest.raises(AssertionError, match="Python was asked"):
        ask(second, TEXT + "\n")


def test_errors_are_not_remembered(tmp_path: Path) -> None:
    memory = Memo(tmp_path)
    assert memory.compile_error(b"return\n", "x.py") == "line 1: 'return' outside function"
    assert ask(memory, "def (") != {}
    assert remembered(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"{}", b"0" * 64 + b'{"lines":9,"scopes":{}}'])
def test_a_damaged_memory_is_none(tmp_path: Path, damage: bytes) -> None:
    memory = Memo(tmp_path)
    expected = ask(memory, TEXT)
    memory.compile_error(TEXT.encode(), "x.py")
    found = remembered(tmp_path)
    assert len(found) == 2
    for path in found:
        path.write_bytes(damage)
    again = Memo(tmp_path)
    assert ask(again, TEXT) == expected
    assert again.compile_error(TEXT.encode(), "x.py") is None


def test_a_memory_that_others_can_write_to_is_not_believed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ask(Memo(tmp_path), TEXT)
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    request.getfixturevalue("deaf")
    with pytest.raises(AssertionError, match="Python was asked"):
        ask(Memo(tmp_path), TEXT)
    folder.chmod(0o755)
    assert ask(Memo(tmp_path), TEXT)


def test_without_a_place_it_works_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert ask(Memo(tmp_path / "file"), TEXT) == ask(Syntax(), TEXT)


def test_the_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST", 4)
    for number in range(12):
        text = f"a = {number}\n"
        ask(Memo(tmp_path), text)
        newest = max(remembered(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert len(remembered(tmp_path)) <= 5


def test_the_newest_half_is_kept_where_there_is_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "MOST", 6)
    for number in range(6):
        ask(Memo(tmp_path), f"a = {number}\n")
    ask(Memo(tmp_path), "b = 1\n")  # six may stay
    assert len(remembered(tmp_path)) == 7
    ask(Memo(tmp_path), "b = 2\n")
    assert len(remembered(tmp_path)) == 6 // 2 + 1


def test_a_cache_that_cannot_be_used_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        asked.append("asked")
        raise NotPrivate("others can write there")

    for name in ("read", "write"):
        with monkeypatch.context() as refusing:
            refusing.setattr(PrivateFolder, name, refuse)
            memory = Memo(tmp_path / name)
            for number in range(3):
                ask(memory, f"a = {number}\n")
        assert asked == ["asked"]
        asked.clear()


def test_room_is_made_once_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[PrivateFolder] = []

    def sweep(folder: PrivateFolder) -> None:
        swept.append(folder)

    monkeypatch.setattr(PrivateFolder, "sweep", sweep)
    memory = Memo(tmp_path)
    for number in range(3):
        ask(memory, f"a = {number}\n")
    assert len(swept) == 1


def test_another_edition_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(Memo(tmp_path), TEXT)
    monkeypatch.setattr(memo, "SCHEMA", 2)
    ask(Memo(tmp_path), TEXT)
    assert len(list(tmp_path.iterdir())) == 2
