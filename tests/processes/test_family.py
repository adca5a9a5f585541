"""The ancestors of a process, as the kernel tells them."""

from __future__ import annotations

from pathlib import Path

from overlay._processes.live import _Parents


def process(proc: Path, pid: int, name: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0")


def test_a_process_is_under_its_ancestors_up_to_the_first(tmp_path: Path) -> None:
    process(tmp_path, 1, "raylet", 0)
    process(tmp_path, 7, "a (worker)", 1)
    parents = _Parents(tmp_path)
    assert parents.under(7, "a (worker)")
    assert parents.under(7, "raylet")
    assert not parents.under(1, "a (worker)")


def test_the_ancestors_of_a_process_that_has_ended_are_not_known(tmp_path: Path) -> None:
    """Process 1 is not its parent because nobody else is."""
    process(tmp_path, 1, "raylet", 0)
    process(tmp_path, 8, "orphan", 9)
    parents = _Parents(tmp_path)
    for pid in (9, 8):
        assert list(parents._line(pid)) == ([9] if pid == 9 else [8, 9])
        assert not parents.under(pid, "raylet")


def test_whatever_a_process_calls_itself_its_parent_is_known(tmp_path: Path) -> None:
    process(tmp_path, 7, "x", 5)
    stat = tmp_path / "7/stat"
    stat.write_bytes(stat.read_bytes().replace(b"x", b"\xff) S 9 (\xfe"))
    parents = _Parents(tmp_path)
    assert parents._stat(7) == ("\ufffd) S 9 (\ufffd", 5)
    assert parents._stat(8) == ("", 0)
