"""Two Ray nodes with vLLM's own Ray workers: equal overlays pass, others stop with the table."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import environment
from tests.engine.engine_fixtures import note_missing
from tests.engine.engine_launch import launch
from tests.engine.engine_spec import QUICKEST, EngineSpec, make_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("ray_cluster.py")
#: The folder of what each Python of a cluster does first.
RESTED = Path(__file__).with_name("ray_rested")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
ADDED = """
id = "mark"
title = "A further module"
why = "To be another patch set."
upstream = "https://example.com/1"
releases = "0.20.0..0.33.0"
"""


@pytest.fixture(scope="module")
def ray_python(engine_python: Path, pytestconfig: pytest.Config) -> Path:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return environment.ray_python()
    except environment.EnvironmentFailed as error:
        note_missing(pytestconfig, f"Ray cannot be installed here: {error}")
        pytest.skip(f"no Ray: {error}")


@pytest.fixture(scope="module")
def groups(
    ray_python: Path,
    installed_beside: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> dict[str, list[dict[str, Any]]]:
    """What the workers of each group of two nodes said, all in one cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "run").mkdir(mode=0o700)
    nodes = [{}, {}, {"OVERLAY_PATCHES": str(write_team(folder))}, {"OVERLAY_DRAFT_GRAPHS": "off"}]
    pairs: dict[str, tuple[list[int], dict[str, str]]] = {
        "equal": ([0, 1], {"OVERLAY_DRAFT_GRAPHS": "step"}),
        "another patch set": ([0, 2], {}),
    }
    if pytestconfig.getoption("--thorough"):
        pairs["another switch"] = ([0, 3], {})
    plan = {
        "model": str(tiny_models / "target"),
        "nodes": nodes[: 1 + max(max(pair) for pair, _ in pairs.values())],
        "groups": pairs,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OVERLAY", "RAY_"))
    }
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (installed_beside, RESTED))),
        "OVERLAY_CACHE": str(folder / "cache"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        **QUIET,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(ray_python), str(SCRIPT), str(folder / "plan.json")],
            cwd=folder,
            env=kept | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=900)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    text = (folder / "log").read_text(errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, text[-6000:]
    result: dict[str, list[dict[str, Any]]] = json.loads(line.removeprefix("RESULT "))["groups"]
    return result


def write_team(folder: Path) -> Path:
    """A folder of patches with another patch set."""
    feature = folder / "team/mark"
    module = feature / "files/vllm/mark.py"
    module.parent.mkdir(parents=True)
    module.write_text('"""Something else."""\n')
    (feature / "feature.toml").write_text(ADDED)
    return feature.parent


def test_equal_nodes_pass_and_have_the_drivers_switches(
    groups: dict[str, list[dict[str, Any]]],
) -> None:
    workers = groups["equal"]
    assert [worker["error"] for worker in workers] == [None, None]
    assert [worker["rank"] for worker in workers] == [0, 1]
    assert {worker["role"] for worker in workers} == {"worker"}
    assert {worker["mode"] for worker in workers} == {"step"}
    assert [worker["shown"] for worker in workers] == [[0, 1], [0, 1]]
    assert len({worker["digest"] for worker in workers}) == 1
    for worker in workers:
        assert worker["modules"]["vllm.v1.worker.gpu_model_runner"] == "runs"


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("1", id="executor"),
        # Its workers load the plugin as those of the cluster in the tests above.
        pytest.param("0", id="older executor", marks=pytest.mark.thorough),
    ],
)
def test_the_engine_drafts_as_it_should_under_the_ray_executor(
    ray_python: Path, installed_beside: Path, tiny_models: Path, tmp_path: Path, version: str
) -> None:
    """vLLM's own executor and its whole engine; only the resource that Ray counts is made up."""
    (tmp_path / "run").mkdir(mode=0o700)
    here = SCRIPT.parent
    path = (installed_beside, here / "ray_on_cpu", RESTED)
    spec = EngineSpec(
        str(tiny_models),
        "eagle3",
        3,
        make_requests(6),
        tensor_parallel_size=2,
        engine=QUICKEST | {"distributed_executor_backend": "ray"},
        packages=(str(here.parent),),
        pre=("tests.in_memory.engine_hooks:ray_first",),
        finish=("tests.in_memory.engine_hooks:live",),
    )
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OVERLAY_CACHE": str(tmp_path / "cache"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": version,
        **QUIET,
    }
    result = launch(ray_python, spec, env=environment, timeout=900)
    assert all(request["tokens_ok"] and request["steps_ok"] for request in result["requests"])
    assert result["counts"] == result["oracle"]
    said = result["hooks"]["engine_hooks:live"]
    assert len(said) == 3, said  # and none of Ray's own processes, which were forked from ours
    assert [process["problem"] for process in said] == [None] * 3
    assert {process["record"]["way"] for process in said} == {"memory"}
    records = {process["pid"]: process["record"] for process in said}
    assert [records[worker["pid"]]["rank"] for worker in result["workers"]] == [0, 1]
    for worker in result["workers"]:
        modules = {process["module"]: process for process in records[worker["pid"]]["modules"]}
        scopes = modules["vllm.v1.worker.gpu_model_runner"]["scopes"]
        assert set(scopes.values()) == {"runs"}


def expect_stopped(workers: list[dict[str, Any]]) -> None:
    assert len(workers) == 2
    for worker in workers:
        assert "do not run the same code" in worker["error"], worker
        assert "digest" in worker["error"]


@pytest.mark.thorough  # as another patch set does, and under the external launcher in CI
def test_a_node_with_another_switch_stops_all(groups: dict[str, list[dict[str, Any]]]) -> None:
    expect_stopped(groups["another switch"])


def test_a_node_with_another_patch_set_stops_all(groups: dict[str, list[dict[str, Any]]]) -> None:
    expect_stopped(groups["another patch set"])
    assert any("mark" in worker["error"] for worker in groups["another patch set"])
