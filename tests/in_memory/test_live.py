"""Which running processes are vLLM's, and what is wrong with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlay import _processes
from overlay._processes import CodeState, ModuleRecord, live
from overlay.results import Way
from tests.support.process_records import record


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_processes, "folders", lambda: (tmp_path,))
    return tmp_path


def test_a_record_comes_back_while_its_process_runs() -> None:
    modules = (ModuleRecord("vllm.a", "0" * 64, {"f": CodeState.RUNS}),)
    mine = record(os.getpid(), modules=modules, left_out=("x (drifted): gone",))
    _processes.write(mine)
    assert list(_processes.read_all()) == [mine]


@pytest.mark.parametrize(
    "change",
    [
        {"way": "by hand"},
        {"way": ["disk"]},
        {"modules": [{"module": "vllm.a", "sha256": "", "scopes": {"f": "half"}}]},
        {"modules": [{"module": "vllm.a", "sha256": "", "scopes": ["f"]}]},
        {"effects": [["x", "elsewhere", ""]]},
        {"started": 5},
        {"host": None},
        {"pid": "\0"},
        {"rank": "\0"},
        {"counts_fd": "\0"},
        {"role": {}},
    ],
)
def test_a_record_with_foreign_values_is_not_read(folder: Path, change: dict[str, object]) -> None:
    """Another version may have written it; its process is listed without a record."""
    _processes.write(record(os.getpid()))
    [file] = folder.rglob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert list(_processes.read_all()) == []


def test_a_record_of_an_ended_process_is_taken_away(folder: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"  # before it, its start is not yet told in full
    _processes.write(record(child.pid))
    child.communicate(b"\n")
    assert list(_processes.read_all()) == []
    assert list(folder.iterdir()) == []


def test_a_reused_pid_is_noticed() -> None:
    _processes.write(record(os.getpid(), started="1"))
    assert list(_processes.read_all()) == []


def test_hosts_that_share_a_folder_keep_their_records(folder: Path) -> None:
    """As where TMPDIR lies on a cluster's own file system."""
    mine, other = record(os.getpid()), record(os.getpid(), host="another")
    _processes.write(mine)
    _processes.write(other)
    assert list(_processes.read_all()) == [mine]
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        old = time.time() - _processes.FORGOTTEN_AFTER - 60
        os.utime(file, (old, old))
    assert list(_processes.read_all()) == [mine]  # it runs, however old its record is
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("known", ["12345 140732470190112", "12345"])
def test_a_child_that_became_another_program_is_noticed(
    known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _processes.write(record(os.getpid(), started="12345 140732470190112"))
    monkeypatch.setattr(_processes, "start_time", lambda pid: known)  # the stack is not always told
    assert len(list(_processes.read_all())) == 1
    monkeypatch.setattr(_processes, "start_time", lambda pid: "12345 140729645475200")
    assert list(_processes.read_all()) == []


def test_processes_with_and_without_a_record_are_listed_with_their_engine() -> None:
    # Each says that it runs: before that its command line and its stack are not yet to be read.
    code = (
        "import subprocess, sys\n"
        "worker = 'print(1, flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', worker, 'VLLM::Worker'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\ninput()\nchild.communicate(b'')\n"
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", code, "VLLM::EngineCore"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    worker = int(engine.stdout.readline())
    try:
        _processes.write(record(engine.pid))
        listed = {each.pid: each for each in live.processes() if each.engine == engine.pid}
        assert set(listed) == {engine.pid, worker}
        assert listed[engine.pid].problem is None
        assert listed[worker].record is None
        assert "without the overlay's plugin, its peers with it" in str(listed[worker].problem)
    finally:
        engine.communicate("\n")


@pytest.mark.parametrize(
    "wrapper",
    [["sh", "-c", '"$@"; :', "sh"], ["timeout", "60"], ["env", "-S", "timeout 60"]],
    ids=lambda command: str(command[0]),
)
def test_what_only_starts_vllm_is_none_of_its_processes(wrapper: list[str]) -> None:
    code = "import os; print(os.getpid(), flush=True); input()"
    started = subprocess.Popen(
        [*wrapper, sys.executable, "-c", code, "vllm serve", "vllm.entrypoints"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    try:
        assert pid != started.pid
        listed = {each.pid: each for each in live.processes()}
        assert started.pid not in listed
        assert listed[pid].engine == pid
    finally:
        started.communicate("\n")


def test_a_process_whose_program_is_not_told_is_judged_by_what_it_calls_itself(
    tmp_path: Path,
) -> None:
    for pid, command in (
        (7, b"VLLM::EngineCore"),
        (8, b"/usr/bin/python3\0vllm serve"),
        (9, b"sh\0vllm serve"),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(command)
        (folder / "stat").write_text(f"{pid} (x) S 1 " + "0 " * 30)
    (tmp_path / "self").mkdir()
    assert [each.pid for each in live.processes(tmp_path)] == [7, 8]


def test_equal_peers_have_no_problem() -> None:
    peers = [record(1), record(2)]
    assert [live.problem(peer, peers) for peer in peers] == [None, None]


def test_peers_that_differ_are_said_plainly() -> None:
    peers = [record(1), record(2, digest="b" * 64)]
    assert "2 bbbbbbbbbbbb" in str(live.problem(peers[0], peers))


@pytest.mark.parametrize("way", [way for way in Way if way.patched])
def test_whichever_way_a_process_is_patched_it_is_compared_with_its_peers(way: Way) -> None:
    peers = [record(1, way=way), record(2)]
    assert [live.problem(peer, peers) for peer in peers] == [None, None]
    other = [record(1, way=way, digest="b" * 64), record(2)]
    assert ["its peers differ" in str(live.problem(peer, other)) for peer in other] == [True, True]


def test_an_unpatched_process_among_patched_ones_is_a_problem() -> None:
    peers = [record(1), record(2, way=Way.NONE)]
    assert "unpatched" in str(live.problem(peers[1], peers))


@pytest.mark.parametrize("way", [Way.NONE, Way.MEMORY, Way.DISK])
def test_a_feature_that_is_left_out_everywhere_is_a_problem_of_each(way: Way) -> None:
    """Equal processes that all lack the same are no less unpatched."""
    peers = [record(pid, way=way, left_out=("x (drifted): a.py: gone", "y")) for pid in (1, 2)]
    said = [live.problem(peer, peers) for peer in peers]
    assert said == ["runs without x (drifted): a.py: gone; without y"] * 2
    beside = record(3, digest="b" * 64)
    assert str(live.problem(peers[0], [*peers, beside])).endswith("; " + str(said[0]))
    assert "without" not in str(live.problem(beside, [*peers, beside]))


def test_code_that_differs_from_the_plan_is_a_problem() -> None:
    mine = record(1, modules=(ModuleRecord("vllm.a", "0" * 64, {"f": CodeState.DIFFERS}),))
    assert "vllm.a" in str(live.problem(mine, [mine]))


def test_a_lone_process_without_the_plugin_is_a_problem() -> None:
    assert "VLLM_PLUGINS" in str(live.problem(None, [None]))


def test_a_place_that_cannot_be_written_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(_processes, "folders", lambda: (Path("/proc/nowhere"), first, second))
    # For root no mode is in the way, so that a folder takes the record's place.
    name = f"{os.uname().nodename}-{os.getpid()}.json"
    (first / name).mkdir(parents=True)
    first.chmod(0o700)
    _processes.write(record(os.getpid()))
    assert [place.name for place in second.iterdir()] == [name]
    assert list(_processes.read_all()) == [record(os.getpid())]


def test_a_place_that_is_open_to_others_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one, own = tmp_path / "open", tmp_path / "own"
    monkeypatch.setattr(_processes, "folders", lambda: (open_one,))
    _processes.write(record(os.getpid()))
    open_one.chmod(0o777)
    assert list(_processes.read_all()) == []
    with pytest.raises(OSError, match="no folder"):
        _processes.write(record(os.getpid()))
    monkeypatch.setattr(_processes, "folders", lambda: (open_one, own))
    _processes.write(record(os.getpid()))
    assert list(own.iterdir())
