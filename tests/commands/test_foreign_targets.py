"""Special files in the places that a command reads: told at once, with exit 2, and left alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import PROPOSER, Cli

INFO = "vllm-0.26.0.dist-info"


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _zeros(place: Path) -> None:
    place.symlink_to("/dev/zero")


def _huge(place: Path) -> None:
    place.touch()
    os.truncate(place, 17 * 2**20)


def _brackets(place: Path) -> None:
    place.write_bytes(b"[" * 200_000)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End the test with the process's own signal where a command waits for ever."""
    signal.alarm(60)
    yield
    signal.alarm(0)


CASES: list[tuple[str, Callable[[Path], None], str]] = [
    (place, make, word)
    for place in (f"{INFO}/RECORD", f"{INFO}/METADATA", PROPOSER, "vllm/_version.py")
    for make, word in (
        (_pipe, "found a pipe"),
        (_zeros, "/dev/zero"),
        (_huge, "at most 16777216 bytes"),
    )
    if not (make is _zeros and place != PROPOSER)
] + [
    (f"{INFO}/RECORD", _zeros, "found a device"),
    (f"{INFO}/METADATA", _zeros, "found a device"),
    (".vllm-overlay/ledger.json", _pipe, "found a pipe"),
    (".vllm-overlay/ledger.json", _zeros, "found a symbolic link"),
    (".vllm-overlay/ledger.json", _huge, "found 17825792"),
    (".vllm-overlay/ledger.json", _brackets, "nested too deeply"),
    (".vllm-overlay/journal.json", _pipe, "found a pipe"),
    (".vllm-overlay/journal.json", _huge, "found 17825792"),
    (".vllm-overlay/journal.json", _brackets, "nested too deeply"),
    (".vllm-overlay", _pipe, "found a pipe"),
    (".vllm-overlay/pristine", _pipe, "found a pipe"),
]


@pytest.mark.parametrize("command", ["check", "status", "apply"])
@pytest.mark.parametrize(
    ("place", "make", "word"), CASES, ids=[f"{p}-{m.__name__[1:]}" for p, m, _ in CASES]
)
def test_a_special_file_is_told(
    cli: Cli, tmp_path: Path, place: str, make: Callable[[Path], None], word: str, command: str
) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    (site / place).parent.mkdir(exist_ok=True)
    (site / place).unlink(missing_ok=True)
    make(site / place)
    result = cli(command, site)
    assert result.exit == 2, result
    assert word in result.err
    assert "Traceback" not in result.err
    assert os.path.lexists(site / place)


@pytest.mark.parametrize(
    ("make", "word"),
    [(_pipe, "found a pipe"), (_zeros, "found a device")],
    ids=["pipe", "device"],
)
def test_a_target_that_is_no_file_is_told(
    cli: Cli, tmp_path: Path, make: Callable[[Path], None], word: str
) -> None:
    make(tmp_path / "it.whl")
    result = cli("check", tmp_path / "it.whl")
    assert result.exit == 2
    assert word in result.err


def test_where_upstream_moved_a_file_is_told_of_a_folder_without_record(
    cli: Cli, tmp_path: Path
) -> None:
    moved = "vllm/v1/spec_decode/proposers/proposer.py"
    there = {PROPOSER: None, moved: fake_vllm.files()[PROPOSER]}
    for make in (fake_vllm.tree, fake_vllm.site_packages):
        site = make(tmp_path / make.__name__, extra=there)
        answer = cli("check", site)
        assert answer.exit == 1
        assert f"its lines before the change are in {moved}" in answer.out
