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
from tests.engine.engine_spec import EngineSpec, make_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("ray_cluster.py")
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


@pytest.fixture
def cluster(ray_python: Path, installed_beside: Path, tiny_models: Path, tmp_path: Path) -> Any:
    def run(nodes: list[dict[str, str]], driver: dict[str, str]) -> tuple[Any, str]:
        (tmp_path / "run").mkdir(mode=0o700)
        plan = {"model": str(tiny_models / "target"), "nodes": nodes, "driver": driver}
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "OVERLAY", "RAY_"))
        }
        own = {
            "PYTHONPATH": str(installed_beside),
            "OVERLAY_CACHE": str(tmp_path / "cache"),
            "XDG_RUNTIME_DIR": str(tmp_path / "run"),
            **QUIET,
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
        }
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(ray_python), str(SCRIPT), str(tmp_path / "plan.json")],
                cwd=tmp_path,
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
        text = (tmp_path / "log").read_text(errors="replace")
        line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
        assert line is not None, text[-6000:]
        return json.loads(line.removeprefix("RESULT "))["workers"], text

    return run


def test_equal_nodes_pass_and_have_the_drivers_switches(cluster: Any) -> None:
    workers, _ = cluster([{}, {}], {"OVERLAY_DRAFT_GRAPHS": "step"})
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
    path = (installed_beside, here / "ray_on_cpu")
    spec = EngineSpec(
        str(tiny_models),
        "eagle3",
        3,
        make_requests(6),
        tensor_parallel_size=2,
        engine={"distributed_executor_backend": "ray"},
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
    for worker in workers:
        assert "do not run the same code" in worker["error"], worker
        assert "digest" in worker["error"]


@pytest.mark.thorough  # as another patch set does, and under the external launcher in CI
def test_a_node_with_another_switch_stops_all(cluster: Any) -> None:
    workers, _ = cluster([{}, {"OVERLAY_DRAFT_GRAPHS": "off"}], {})
    expect_stopped(workers)


def test_a_node_with_another_patch_set_stops_all(cluster: Any, tmp_path: Path) -> None:
    feature = tmp_path / "team/mark"
    module = feature / "files/vllm/mark.py"
    module.parent.mkdir(parents=True)
    module.write_text('"""Something else."""\n')
    (feature / "feature.toml").write_text(ADDED)
    workers, _ = cluster([{}, {"OVERLAY_PATCHES": str(tmp_path / "team")}], {})
    expect_stopped(workers)
    assert any("mark" in worker["error"] for worker in workers)
