"""``overlay bench`` with engines that take what a test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.report.test_schema import DOCUMENT
from tests.support import fake_vllm
from tests.support.cli import Cli
from tests.support.fake_engine import behaving, write_fake_python

TIMES: dict[str, object] = {"stock V1": [4.0, 4.2], "overlay": [2.0, 2.1], "V2": [2.05, 2.2]}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment whose vLLM is pristine."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    fake_vllm.site_packages(folder / "lib/python3.11/site-packages")
    return write_fake_python(folder / "bin")


@pytest.fixture
def bench(python: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(times: dict[str, object], *options: str) -> Any:
        for name, value in behaving({**TIMES, **times}).items():
            monkeypatch.setenv(name, value)
        found = cli("bench", "--python", python, "--batch", "1", "--json", *options)
        told = json.loads(found.out)
        jsonschema.validate(told, DOCUMENT)
        return told

    return call


def test_a_vllm_that_is_not_patched_on_disk_is_refused(bench: Any) -> None:
    told = bench({})
    assert (told["exit"], told["code"]) == (2, "environment")
    assert "run `overlay apply`" in told["error"]


def test_engines_run_in_rounds_and_only_what_is_apart_is_concluded(
    bench: Any, cli: Cli, python: Path, tmp_path: Path
) -> None:
    assert cli("apply", "--python", python).exit == 0
    told = bench({}, "--rounds", "2", "--html", str(tmp_path / "page.html"))
    assert (told["exit"], told["code"]) == (0, "measured")
    repeats = {
        each["engine"]: each["batches"][0]["ms_per_step"] for each in told["bench"]["engines"]
    }
    assert repeats["overlay"] == [2.0, 2.1, 2.0, 2.1]
    shown = {each["other"]: each["conclusive"] for each in told["bench"]["comparisons"]}
    assert shown == {"stock V1": True, "V2": False}
    assert told["verdict"] == "Times as fast as stock V1: 2.00 with 1 request."
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_v2_is_left_out_where_it_does_not_serve_and_the_others_are_not(
    bench: Any, cli: Cli, python: Path
) -> None:
    assert cli("apply", "--python", python).exit == 0
    told = bench({"V2": "ValueError: no V2 here"})
    assert told["exit"] == 0
    assert "no V2 here" in told["bench"]["left"]["V2"]
    for engine in ("stock V1", "overlay"):
        told = bench({engine: "ValueError: what a day"})
        assert told["exit"] == 2
        assert f"{engine}: the engine ended with status 1" in told["error"]
