"""Two engines of vLLM's external launcher, as torchrun would start them, compare what they run."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_launch import append_path, foreign_environment, link_packages
from tests.engine.engine_spec import QUICKEST, EngineSpec, make_requests
from tests.in_memory.forked_plugins import engine, engine_result, printed, run_groups

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
SPEC = EngineSpec(
    "",
    "eagle3",
    3,
    make_requests(4, tokens=24),
    tensor_parallel_size=2,
    engine=QUICKEST | {"distributed_executor_backend": "external_launcher"},
    packages=(TESTS,),
    finish=("tests.in_memory.engine_hooks:live",),
)


#: By name, what each of two ranks has for itself.
PAIRS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "equal": ({}, {}),
    "another switch": ({}, {"OVERLAY_DRAFT_GRAPHS": "off"}),
}


@dataclass(frozen=True)
class Rank:
    """How the engine of a rank ended: what it printed, and its result where it has one."""

    output: str
    result: dict[str, Any] | None


@pytest.fixture(scope="module")
def ranks(
    engine_python: Path,
    installed_beside: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[Rank]]:
    """The engines of each pair, all forked from one process that imported vLLM."""
    folder = tmp_path_factory.mktemp("ranks")
    spec = replace(SPEC, models=str(tiny_models))
    path = append_path(
        {**foreign_environment(), "PYTHONPATH": str(installed_beside)},
        link_packages(folder / "code", (Path(TESTS),)),
    )
    groups = []
    for name, pair in PAIRS.items():
        variables = path | environment(folder / name, len(pair))
        groups.append(
            {
                f"{name}-{rank}": (
                    engine(spec, folder, f"{name}-{rank}"),
                    {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank), **own},
                )
                for rank, own in enumerate(pair)
            }
        )
    ended = run_groups(engine_python, groups, folder, path)
    return {
        name: [
            Rank(printed(ended[f"{name}-{rank}"]), engine_result(folder, f"{name}-{rank}"))
            for rank in range(len(pair))
        ]
        for name, pair in PAIRS.items()
    }


def environment(folder: Path, world: int) -> dict[str, str]:
    """The variables of all ranks of a group, as torchrun sets them, and places of its own."""
    folder.mkdir()
    for name in ("cache", "run"):
        (folder / name).mkdir(mode=0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "PYTHONDONTWRITEBYTECODE": "1",
        "OVERLAY_CACHE": str(folder / "cache"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def test_equal_ranks_draft_as_they_should(ranks: dict[str, list[Rank]]) -> None:
    assert len(ranks["equal"]) == 2
    for number, rank in enumerate(ranks["equal"]):
        result = rank.result
        assert result is not None, rank.output[-4000:]
        assert all(request["tokens_ok"] and request["steps_ok"] for request in result["requests"])
        assert result["counts"] == result["oracle"]
        (own,) = result["hooks"]["engine_hooks:live"]
        assert (own["problem"], own["record"]["way"]) == (None, "memory")
        assert (own["record"]["role"], own["record"]["rank"]) == ("worker", number)


def test_a_rank_with_another_switch_stops_both(ranks: dict[str, list[Rank]]) -> None:
    assert len(ranks["another switch"]) == 2
    for rank in ranks["another switch"]:
        assert rank.result is None
        assert "do not run the same code" in rank.output
