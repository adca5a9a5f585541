"""Modules that import vLLM run where vLLM is, whether they or their folder are named."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engine.engine_fixtures import TESTS, WITH_VLLM, is_left_out, with_vllm

ROOT = TESTS.parent
WHOLE = f"{WITH_VLLM}::test_the_run_as_a_whole_succeeded"
#: A folder of such modules alone, one of them, and a folder that holds others, too.
ONLY, MODULE, MIXED = (
    "tests/steady_inputs",
    "tests/steady_inputs/test_steady_inputs.py",
    "tests/ascend",
)


def run_there(module: str) -> str:
    return f"{WITH_VLLM}::test_a_module_that_imports_vllm[{module}]"


def left_out(folder: str) -> list[str]:
    modules = filter(is_left_out, (ROOT / folder).rglob("test_*.py"))
    return sorted(module.relative_to(ROOT).as_posix() for module in modules)


@pytest.mark.parametrize("folder", [ONLY, MIXED, f"{MIXED}/"])
def test_a_folder_brings_the_modules_that_it_holds(folder: str) -> None:
    modules = left_out(folder)
    assert modules
    wanted = [folder, "-x", *map(run_there, modules), WHOLE]
    assert with_vllm([folder, "-x"], ROOT) == wanted


def test_a_module_is_run_there_and_not_here() -> None:
    assert with_vllm([MODULE], ROOT) == [run_there(MODULE), WHOLE]
    assert with_vllm([MODULE.removeprefix("tests/")], TESTS) == [run_there(MODULE), WHOLE]
    assert with_vllm([str(ROOT / MODULE), MODULE], ROOT) == [run_there(MODULE), WHOLE]


def test_what_is_named_twice_is_run_once() -> None:
    """Each process of pytest-xdist gets the arguments that the first one made."""
    once = with_vllm([ONLY], ROOT)
    assert with_vllm(once, ROOT) == once


@pytest.mark.parametrize("arguments", [[], ["tests"], ["."], ["tests/engine"], [str(WITH_VLLM)]])
def test_nothing_is_added_where_all_of_them_run(arguments: list[str]) -> None:
    assert with_vllm(arguments, ROOT) == arguments
    assert with_vllm([*arguments, "tests"], ROOT) == [*arguments, "tests"]


@pytest.mark.parametrize(
    "arguments", [["tests/planning"], [f"{Path(__file__)}::test_x"], ["no/such/folder"], ["/tmp"]]
)
def test_other_arguments_stay_as_they_are(arguments: list[str]) -> None:
    assert with_vllm(arguments, ROOT) == arguments


def test_a_single_test_of_such_a_module_is_refused_with_what_runs_it() -> None:
    named = f"{MODULE}::test_one[a::b]"
    with pytest.raises(pytest.UsageError) as error:
        with_vllm([named], ROOT)
    assert str(error.value).endswith(f"/engine/bin/python -m pytest {named}")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="they are run right here")
def test_pytest_collects_them() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        ONLY,
    ]
    ended = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    ids = [line.removeprefix(f"{WITH_VLLM.relative_to(ROOT)}::") for line in lines if "::" in line]
    wanted = [run_there(module).rpartition("::")[2] for module in left_out(ONLY)]
    assert ids == [*wanted, "test_the_run_as_a_whole_succeeded"]
