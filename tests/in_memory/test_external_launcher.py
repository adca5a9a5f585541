"""Two engines of vLLM's external launcher, as torchrun would start them, compare what they run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_launch import EngineFailed, launch
from tests.engine.engine_spec import EngineSpec, make_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
SPEC = EngineSpec(
    "",
    "eagle3",
    3,
    make_requests(4, tokens=24),
    tensor_parallel_size=2,
    engine={"distributed_executor_backend": "external_launcher"},
    packages=(TESTS,),
    pre=("tests.support.rested_collector:rest",),
    finish=("tests.in_memory.engine_hooks:live",),
)


def run(
    python: Path, beside: Path, models: Path, folder: Path, *changes: Mapping[str, str]
) -> list[Any]:
    """One engine a rank, each with its own variables: its result, or how it failed."""
    for name in ("cache", "run"):
        (folder / name).mkdir(mode=0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "PYTHONPATH": str(beside),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OVERLAY_CACHE": str(folder / "cache"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "WORLD_SIZE": str(len(changes)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }

    def run_rank(rank: int) -> Any:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **changes[rank]}
        spec = replace(SPEC, models=str(models))
        try:
            return launch(python, spec, env=environment | own, timeout=900)
        except EngineFailed as error:
            return error

    with ThreadPoolExecutor(len(changes)) as pool:
        return list(pool.map(run_rank, range(len(changes))))


def test_equal_ranks_draft_as_they_should(
    engine_python: Path, installed_beside: Path, tiny_models: Path, tmp_path: Path
) -> None:
    results = run(engine_python, installed_beside, tiny_models, tmp_path, {}, {})
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert all(request["tokens_ok"] and request["steps_ok"] for request in result["requests"])
        assert result["counts"] == result["oracle"]
        (own,) = result["hooks"]["engine_hooks:live"]
        assert (own["problem"], own["record"]["way"]) == (None, "memory")
        assert (own["record"]["role"], own["record"]["rank"]) == ("worker", rank)


def test_a_rank_with_another_switch_stops_both(
    engine_python: Path, installed_beside: Path, tiny_models: Path, tmp_path: Path
) -> None:
    other = {"OVERLAY_DRAFT_GRAPHS": "off"}
    for result in run(engine_python, installed_beside, tiny_models, tmp_path, {}, other):
        assert isinstance(result, EngineFailed), result
        assert "do not run the same code" in result.output
