"""Ranks compare what they run over a real gloo group, and stop where they differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay.in_memory import ranks
from overlay.in_memory.ranks import RanksDiffer
from tests.in_memory.boxes import REPO, Box
from tests.support.process_records import rank_report as report

torch = pytest.importorskip("torch", reason="ranks form a process group of torch's")

#: As vLLM's module of that name, as far as the plugin knows it.
PARALLEL_STATE = '''
import datetime
from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class GroupCoordinator:
    rank: int
    world_size: int
    cpu_group: object


_WORLD = None
MODEL_PARALLEL = False


def get_world_group():
    return _WORLD


def init_distributed_environment(world_size, rank, init_method):
    global _WORLD
    dist.init_process_group(
        "gloo", init_method=init_method, world_size=world_size, rank=rank,
        timeout=datetime.timedelta(seconds=60),
    )
    dist.barrier()  # until all are connected: one that ends before would end the others, too
    _WORLD = GroupCoordinator(rank, world_size, dist.group.WORLD)


def initialize_model_parallel(*sizes):
    """Makes the groups, before any model is loaded."""
    global MODEL_PARALLEL
    assert _WORLD is not None
    MODEL_PARALLEL = True


def ensure_model_parallel_initialized(*sizes):
    if not MODEL_PARALLEL:
        initialize_model_parallel(*sizes)
'''
WORKER = """
import os, sys
from pathlib import Path
import overlay._features.folder
empty = Path(os.environ["TEST_SHIPPED"])
overlay._features.sources.shipped_folder = lambda: empty
import overlay.in_memory.ranks
overlay.in_memory.ranks.TIMEOUT = 8.0
rank, world, method, loads = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if loads == "early":
    import vllm.distributed.parallel_state
if loads != "never":
    from overlay.plugin import register
    register()
from vllm.distributed import parallel_state
parallel_state.init_distributed_environment(world, rank, method)
parallel_state.ensure_model_parallel_initialized(world, 1)
print("the model is loaded")
if loads != "never":
    from overlay import _processes as records
    (own,) = [one for one in records.read_all() if one.pid == os.getpid()]
    assert own.rank == rank, own
    assert own.role == "worker", own
# As a worker that is ended by its executor: the threads of gloo do not survive the interpreter's
# own end, which they would abort now and then.
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(
        tmp_path,
        {
            "vllm/distributed/__init__.py": b"",
            "vllm/distributed/parallel_state.py": PARALLEL_STATE.encode(),
        },
    )


@dataclass(frozen=True)
class Ended:
    """What a rank has printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., list[Ended]]


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process with PyTorch that forks ranks."""
    command = [sys.executable, "-m", "tests.in_memory.forked_ranks"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPO, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def run(forking: subprocess.Popen[str], box: Box, tmp_path: Path) -> Run:
    """One process a rank, each with its own changes of the environment, at once."""

    def run(
        changes: Sequence[Mapping[str, str]], loads: Sequence[str] | None = None
    ) -> list[Ended]:
        how = loads or ["late"] * len(changes)
        method = f"file://{box.cache.parent / 'rendezvous'}"
        files = [(tmp_path / f"{rank}.out", tmp_path / f"{rank}.err") for rank in range(len(how))]
        ranks = [
            (
                WORKER,
                [str(rank), str(len(changes)), method, how[rank]],
                box.environment | {"TEST_SHIPPED": str(box.empty)} | dict(own),
                *map(str, files[rank]),
            )
            for rank, own in enumerate(changes)
        ]
        assert forking.stdin is not None
        assert forking.stdout is not None
        print(json.dumps(ranks), file=forking.stdin, flush=True)
        statuses = json.loads(forking.stdout.readline())
        return [
            Ended(status, out.read_text(), err.read_text())
            for status, (out, err) in zip(statuses, files, strict=True)
        ]

    return run


def expect_stopped(done: list[Ended], *texts: str) -> None:
    for ended in done:
        assert ended.returncode != 0, ended.stderr
        assert "the model is loaded" not in ended.stdout
        assert "RanksDiffer" in ended.stderr
        for text in ("host", "rank", "vllm", "digest", *texts):
            assert text in ended.stderr, ended.stderr


@pytest.mark.parametrize("loads", ["late", "early"])
def test_equal_ranks_pass(run: Run, loads: str) -> None:
    for ended in run([{}, {}], [loads, loads]):
        assert ended.returncode == 0, ended.stderr
        assert "the model is loaded" in ended.stdout


def test_another_switch_stops_every_rank(run: Run) -> None:
    done = run([{}, {"OVERLAY_DRAFT_GRAPHS": "off"}, {}])
    expect_stopped(done, "do not run the same code", "demo (memory)")


def test_another_patch_set_stops_every_rank(run: Run, box: Box, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(box.patches, other)
    file = other / "demo/files/vllm/v1/spec_decode/added.py"
    file.write_text("MARK = 'another'\n")
    done = run([{}, {"OVERLAY_PATCHES": str(other)}])
    expect_stopped(done, "do not run the same code")


def test_a_rank_without_the_overlay_stops_the_others(run: Run) -> None:
    with_it, without = run([{}, {}], ["late", "never"])
    expect_stopped([with_it], "rank 1 did not say what it runs", "demo (memory)")
    assert without.returncode == 0  # it knows nothing of us; its engine ends with the others


def test_places_of_one_machine_may_differ(run: Run, tmp_path: Path) -> None:
    for ended in run([{}, {"OVERLAY_CACHE": str(tmp_path / "elsewhere")}]):
        assert ended.returncode == 0, ended.stderr


def test_a_single_process_compares_nothing() -> None:
    class Alone:
        world_size = 1

    ranks.compare(report(0), Alone())


def test_elastic_worlds_gather_in_their_own_way() -> None:
    class Elastic:
        world_size = 2

        class tcp_store_group:  # noqa: N801  (vLLM's name)
            @staticmethod
            def all_gather_obj(row: dict[str, Any]) -> list[dict[str, Any]]:
                return [row, row | {"rank": 1, "digest": "b" * 64}]

    with pytest.raises(RanksDiffer, match="bbbbbbbbbbbb"):
        ranks.compare(report(0), Elastic())


def test_the_repository_is_what_the_workers_import() -> None:
    assert os.path.isfile(REPO / "overlay/plugin.py")
