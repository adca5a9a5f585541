"""The main job of auto-apply on a real engine, from an installation that nobody may write to.

In one process, in several, and with two tensor-parallel workers: tokens and the accepted counts of
every draft position equal the oracle, every process says and proves that it runs patched, and the
installation is byte for byte what it was.  A team's own feature patches the installed transformers
beside vLLM.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_fixtures import private_vllm
from tests.engine.engine_launch import (
    append_path,
    foreign_environment,
    launch,
    link_packages,
)
from tests.engine.engine_spec import ASYNCHRONOUS, QUICKEST, EngineSpec, make_requests
from tests.engine.private_copy import PrivateCopy, hash_files
from tests.in_memory.forked_plugins import engine, engine_result, printed, run_groups
from tests.in_memory.installed import read_only
from tests.support.patches import hunk, patch_text

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
ADDED = "vllm.v1.spec_decode.draft_graphs"
TARGETS = {
    PROPOSER,
    "vllm.v1.cudagraph_dispatcher",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.worker.gpu_model_runner",
}
SEVERAL = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # The test asks the workers what they run, by a function that is sent to them.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}
SPEC = EngineSpec(
    "",
    "eagle3",
    3,
    make_requests(6),
    engine=QUICKEST,
    packages=(TESTS,),
    post_load=("tests.in_memory.engine_hooks:live",),
)
#: Its scheduler is the asynchronous one, which vLLM imports only when it makes it.
ONE = replace(ASYNCHRONOUS, post_load=(*ASYNCHRONOUS.post_load, *SPEC.post_load))
#: name -> the spec, and the roles of the engine's processes.
CASES = {
    # On CPU vLLM gives each worker a process of its own as soon as there is more than one.
    "several processes": (replace(SPEC, env=SEVERAL), ["engine core", "main", "worker"]),
    "two workers": (
        replace(SPEC, env=SEVERAL, tensor_parallel_size=2),
        ["engine core", "main", "worker", "worker"],
    ),
}


MARK = """
id = "mark"
title = "A mark"
why = "To be seen."
upstream = "https://example.com/1"
releases = "0.32.0..0.32.0"
"""


@dataclass(frozen=True)
class Box:
    """A vLLM that must not change, and the overlay beside it."""

    copy: PrivateCopy
    beside: Path
    before: dict[str, str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def box(
    engine_python: Path, installed_beside: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("memory")
    for name in ("cache", "run"):
        (folder / name).mkdir(mode=0o700)
    environment = {
        "PYTHONPATH": f"{installed_beside}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OVERLAY_CACHE": str(folder / "cache"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
    }
    for copy in private_vllm(engine_python, folder):
        before = hash_files(copy.site)
        with read_only(copy.site):
            yield Box(copy, installed_beside, before, environment)


CONFIG = "transformers.models.llama.configuration_llama"
TEAM = """
id = "team-config"
title = "A change of another installed package"
why = "To be seen in the engine."
package = "transformers"
releases = "{0}..{0}"
"""


@pytest.fixture(scope="module")
def team(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patches folder with a feature for the transformers that the engine has."""
    where = "import importlib.metadata as m; print(m.distribution('transformers').locate_file(''))"
    script = f"{where}; print(m.version('transformers'))"
    site, version = subprocess.check_output(
        [str(box.copy.python), "-c", script], text=True
    ).splitlines()
    path = f"{CONFIG.replace('.', '/')}.py"
    lines = Path(site, path).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == 'model_type = "llama"')
    change = hunk([f" {lines[at]}", "+    team_mark = 1", f" {lines[at + 1]}"], "LlamaConfig")
    feature = tmp_path_factory.mktemp("team") / "team-config"
    (feature / "10-config").mkdir(parents=True)
    (feature / f"10-config/{version}..{version}.patch").write_text(patch_text(path, change))
    (feature / "feature.toml").write_text(TEAM.format(version))
    feature.parent.chmod(0o700)
    return feature.parent


def test_one_process_drafts_as_it_should_with_patched_code(box: Box, ended: Ended) -> None:
    result = ended.engine("one process")
    # In several processes the configuration, which vLLM sends to them, brings the module too early.
    expect_patched_processes(box, result, ["worker"], {CONFIG: "team-config"})
    expect_patched_scheduler(result)


@pytest.mark.parametrize(
    "case",
    [
        # Two workers have processes of the same roles.
        pytest.param("several processes", marks=pytest.mark.thorough),
        "two workers",
    ],
)
def test_every_process_drafts_as_it_should_with_patched_code(
    box: Box, ended: Ended, case: str
) -> None:
    expect_patched_processes(box, ended.engine(case), CASES[case][1], {})


def expect_patched_processes(
    box: Box, result: dict[str, Any], roles: list[str], more: dict[str, str]
) -> None:
    """All processes of an engine have the patches and say so, and its drafts are right.

    :param more: modules that are patched, too, with their features.
    """
    expect_the_oracle(result)
    said = result["hooks"]["engine_hooks:live"]
    assert sorted(process["record"]["role"] for process in said) == roles, said
    assert [process["problem"] for process in said] == [None] * len(roles)
    for process in said:
        assert process["record"]["way"] == "memory"
        assert process["record"]["digest"] == said[0]["record"]["digest"]
    for worker in result["workers"]:
        record = next(process["record"] for process in said if process["pid"] == worker["pid"])
        expect_patched(worker, record, box, {*TARGETS, *more})
        expect_told_effects(record, result["log"])
    for process in said:
        said_so = f"process {process['pid']} has the patches "
        (line,) = [line for line in result["log"].splitlines() if said_so in line]
        assert "draft-graphs" in line.partition(said_so)[2]
        assert all(feature in line for feature in more.values())
    assert hash_files(box.copy.site) == box.before


#: What vLLM imports only when it makes its scheduler.
SCHEDULER = "vllm.v1.core.sched.async_scheduler"


def expect_patched_scheduler(result: dict[str, Any]) -> None:
    """The one process of an engine has the asynchronous scheduler, patched and at work."""
    scheduler = result["hooks"]["steady_hooks:scheduling"]
    assert scheduler["counts"]["schedulers that ask which requests hold their slots"] == 1
    (process,) = result["hooks"]["engine_hooks:live"]
    modules = {module["module"]: module["state"] for module in process["record"]["modules"]}
    assert modules[SCHEDULER] == "runs"


@pytest.mark.thorough
def test_an_engine_with_the_overlay_off_is_vllms(box: Box, tiny_models: Path) -> None:
    environment = box.environment | {"OVERLAY": "off"}
    spec = replace(SPEC, models=str(tiny_models))
    result = launch(box.copy.python, spec, env=environment)
    expect_the_oracle(result)
    (worker,) = result["workers"]
    assert worker["propose"]["file"] == str(
        box.copy.site / "vllm/v1/spec_decode/llm_base_proposer.py"
    )
    assert ADDED not in worker["modules"]
    assert "off (OVERLAY=off)" in result["log"]


IMPORT = f"""
import importlib, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
print("FILE", importlib.import_module({PROPOSER!r}).__file__, {ADDED!r} in sys.modules)
"""
LOAD = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
print("overlay.in_memory.plugin" in sys.modules)
"""
INSPECT = """
import json
from vllm.model_executor.models.registry import ModelRegistry
from vllm.plugins import load_general_plugins
load_general_plugins()
info = ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
print("RESULT", json.dumps(info.is_attention_free))
"""
#: By name, a program that loads vLLM's plugins, and the variables that steer it.
PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "off": (IMPORT, {"OVERLAY": "off"}),
    "refused": (LOAD, {"OVERLAY_REQUIRED": "no-such-feature"}),
    "others allowed": (LOAD, {"VLLM_PLUGINS": "other"}),
    "allowed": (LOAD, {"VLLM_PLUGINS": "other,overlay"}),
}


@dataclass(frozen=True)
class Ended:
    """How each of ``PROGRAMS`` and ``ENGINES`` ended, and ``inspections``, by their numbers.

    :ivar folder: of what the engines came to. cache: vLLM's cache of the inspections.
    """

    programs: dict[str, subprocess.CompletedProcess[str]]
    folder: Path
    cache: Path

    def engine(self, name: str) -> dict[str, Any]:
        """What an engine came to, with what it printed as its ``log``."""
        result, log = engine_result(self.folder, name), printed(self.programs[name])
        assert result is not None, log[-4000:]
        return {**result, "log": log}


REQUIRED = {"OVERLAY_REQUIRED": "draft-graphs"}
#: By name, an engine, and the variables that steer the overlay.
ENGINES: dict[str, tuple[EngineSpec, dict[str, str]]] = {
    "one process": (ONE, {}),
    "required": (SPEC, REQUIRED),
    "required in several processes": (replace(SPEC, env=SEVERAL), REQUIRED),
    **{name: (spec, {}) for name, (spec, _) in CASES.items()},
}


@pytest.fixture(scope="module")
def ended(
    box: Box,
    team: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Ended:
    """All of them, each in a process forked from one that imported vLLM."""
    folder = tmp_path_factory.mktemp("plugins")
    mine = write_mark(box, folder)
    programs = PROGRAMS | {
        str(number): (INSPECT, {**mine, "OVERLAY": mode})
        for number, mode in enumerate(inspections(pytestconfig))
    }
    for name, (spec, variables) in ENGINES.items():
        if name == "several processes" and not pytestconfig.getoption("--thorough"):
            continue
        patches = {"OVERLAY_PATCHES": str(team)} if name == "one process" else {}
        code = engine(replace(spec, models=str(tiny_models)), folder, name)
        programs[name] = (code, {**variables, **patches})
    path = append_path(
        foreign_environment() | box.environment, link_packages(folder / "code", (Path(TESTS),))
    )
    groups = [{name: (code, {**path, **own})} for name, (code, own) in programs.items()]
    return Ended(
        run_groups(box.copy.python, groups, folder, path), folder, Path(mine["VLLM_CACHE_ROOT"])
    )


def test_off_leaves_vllm_alone(box: Box, ended: Ended) -> None:
    done = ended.programs["off"]
    assert done.returncode == 0, done.stderr
    file = box.copy.site / "vllm/v1/spec_decode/llm_base_proposer.py"
    assert done.stdout.splitlines()[-1] == f"FILE {file} False"


def test_vllm_does_not_swallow_a_refusal(ended: Ended) -> None:
    """It does swallow what the import of a plugin raises, which is why ours does nothing."""
    done = ended.programs["refused"]
    assert done.returncode != 0
    assert "vllm-overlay" in done.stderr
    assert "no-such-feature" in done.stderr


def test_vllms_allow_list_keeps_the_plugin_out(ended: Ended) -> None:
    for name, there in (("others allowed", "False"), ("allowed", "True")):
        done = ended.programs[name]
        assert (done.returncode, done.stdout.split()[-1]) == (0, there), done.stderr


def inspections(config: pytest.Config) -> tuple[str, ...]:
    """The overlay's mode in each process that asks vLLM about a model.

    The first one fills vLLM's cache, the third finds what the first one wrote.
    """
    return (
        ("off", "auto", "off", "auto") if config.getoption("--thorough") else ("off", "auto", "off")
    )


def write_mark(box: Box, folder: Path) -> dict[str, str]:
    """Write a feature that changes what vLLM answers of a model; the variables that it needs."""
    feature = folder / "team/mark"
    path = "vllm/model_executor/models/llama.py"
    lines = (box.copy.site / path).read_text().splitlines()
    start = lines.index("class LlamaForCausalLM(")
    first = lines.index("    packed_modules_mapping = {", start)
    added = "+    is_attention_free = True"
    text = patch_text(
        path, hunk([" " + lines[first - 1], added, " " + lines[first]], "LlamaForCausalLM")
    )
    (feature / "10-mark").mkdir(parents=True)
    (feature / "10-mark/0.32.0..0.32.0.patch").write_text(text)
    (feature / "feature.toml").write_text(MARK)
    feature.parent.chmod(0o700)
    return {"OVERLAY_PATCHES": str(feature.parent), "VLLM_CACHE_ROOT": str(folder / "cache")}


def test_the_model_info_cache_of_vllm_sees_the_patched_text(
    ended: Ended, pytestconfig: pytest.Config
) -> None:
    modes, answers = inspections(pytestconfig), {"off": "RESULT false", "auto": "RESULT true"}
    said = []
    for number in range(len(modes)):
        done = ended.programs[str(number)]
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines()[-1])
    assert said == [answers[mode] for mode in modes]
    folders = [place for place in (ended.cache / "modelinfos").iterdir() if place.is_dir()]
    assert len(folders) == 1


def expect_the_oracle(result: dict[str, Any]) -> None:
    """Every token, and the counts of the engine's own metrics, position by position."""
    for index, request in enumerate(result["requests"]):
        assert request["tokens_ok"], f"request {index} said {request['tokens']}"
        assert request["steps_ok"], f"request {index} accepted {request['steps']}"
    assert result["counts"] == result["oracle"]


NO_GRAPHS = "the platform (cpu) has neither CUDA nor HIP graphs"


def expect_told_effects(record: dict[str, Any], log: str) -> None:
    """On CPU nothing is captured, and record and log of the worker say so, with the reason."""
    effects = {each["feature"]: each for each in record["effects"]}
    assert effects["draft-graphs"]["state"] == "idle"
    assert NO_GRAPHS in effects["draft-graphs"]["text"]
    assert all(each["state"] in ("active", "idle", "patched") for each in effects.values()), effects
    assert f"draft-graphs is idle: {NO_GRAPHS}" in log


@pytest.mark.parametrize("name", ["required", "required in several processes"])
def test_a_required_feature_that_is_idle_refuses_to_serve(ended: Ended, name: str) -> None:
    assert engine_result(ended.folder, name) is None
    assert ended.programs[name].returncode != 0
    # All that it printed: two processes end with tracebacks, in an order that differs.
    output = printed(ended.programs[name])
    assert "OVERLAY_REQUIRED names features that have no effect" in output
    assert f"draft-graphs is idle: {NO_GRAPHS}" in output


def expect_patched(
    worker: dict[str, Any], record: dict[str, Any], box: Box, targets: set[str]
) -> None:
    """A worker runs the patched copies, whose names its code objects bear."""
    assert worker["propose"]["file"].startswith(box.environment["OVERLAY_CACHE"])
    assert ADDED in worker["modules"]
    modules = {module["module"]: module for module in record["modules"]}
    assert modules.keys() >= targets
    for name in targets:
        states = set(modules[name]["scopes"].values())
        assert states == {"runs"}, (name, modules[name])
    assert record["rank"] == worker["rank"]
