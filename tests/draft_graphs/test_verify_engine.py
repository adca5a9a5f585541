"""``overlay verify --tiny`` on CPU, as a user starts it: right as it is, and with bugs put in.

The draft graphs are recordings (``double_site``); everything else is a user's: the command, its
processes, a vLLM that ``overlay apply`` patched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import environment
from tests.draft_graphs.double_environment import ARGUMENTS, double_environment, write_mutated
from tests.draft_graphs.mutation_table import MUTATIONS
from tests.draft_graphs.mutation_types import Mutation
from tests.engine.private_copy import site_packages

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: Bugs that tokens or accepted drafts show, in the drafts that ``--tiny`` has.
SHOWN = [
    each
    for each in MUTATIONS
    if each.catcher == "acceptance" and each.engine in ("eagle3hid", "eagle3")
]
#: What CI looks at; every other one with ``--thorough``.
SAMPLE = ("a later pass does not get the hidden states of the one before",)


@pytest.fixture(scope="module")
def site(patched_python: Path) -> Path:
    """The site-packages of the patched vLLM."""
    return site_packages(patched_python)


def verify(
    python: Path, folder: Path, *options: str, mutated: Path | None = None
) -> tuple[int, dict[str, Any], str]:
    """Call the command: its exit status, its JSON, and what it said beside it."""
    folder.mkdir()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "overlay", "verify", "--tiny", "--json", "--jobs", "1"),
            *("--python", str(python), *options, "--", *ARGUMENTS),
        ],
        cwd=environment.ROOT,
        env=double_environment(folder, mutated),
        text=True,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    return ended.returncode, json.loads(ended.stdout), ended.stderr


def test_what_is_right_passes(patched_python: Path, tmp_path: Path) -> None:
    options = ("--draft", "eagle3hid", "--mode", "loop", "--check")
    status, told, said = verify(patched_python, tmp_path / "code", *options)
    assert (status, told["code"]) == (0, "verified"), told
    (mode,) = told["verify"]["modes"]
    (rank,) = mode["run"]["ranks"]
    assert (mode["outcome"], mode["against"]) == ("same", "the known answer")
    assert rank["state"] == "active"
    assert rank["captured"] == {"first": 4, "loop": 4}
    assert rank["replayed"]["first"] > 0
    assert rank["replayed"]["loop"] > 0
    assert any("left to upstream" in text for text in rank["left"])
    assert "engine eagle3hid loop: started" in said


@pytest.mark.thorough
def test_every_mode_of_every_draft_passes(patched_python: Path, tmp_path: Path) -> None:
    status, told, _ = verify(patched_python, tmp_path / "code", "--check")
    assert (status, told["code"]) == (0, "verified"), told
    modes = {(each["models"], each["mode"]): each for each in told["verify"]["modes"]}
    assert set(modes) == {
        *(("eagle3hid", mode) for mode in ("off", "step", "loop")),
        *(("eagle3", mode) for mode in ("step", "loop")),
        *(("p-eagle", mode) for mode in ("off", "auto")),
    }
    assert not any(modes[name, "off"]["run"]["ranks"][0]["replayed"] for name in ("eagle3hid",))
    assert set(modes["p-eagle", "auto"]["run"]["ranks"][0]["replayed"]) == {"whole"}


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, marks=() if each.name in SAMPLE else pytest.mark.thorough)
        for each in SHOWN
    ],
    ids=lambda each: each.name,
)
def test_a_bug_is_found(
    patched_python: Path, site: Path, tmp_path: Path, mutation: Mutation
) -> None:
    mutated = write_mutated(site, mutation.changes, tmp_path / "mutated")
    options = ("--draft", mutation.engine, "--mode", mutation.mode)
    status, told, _ = verify(patched_python, tmp_path / "code", *options, mutated=mutated)
    assert (status, told["code"]) == (1, "drafts-differ"), told
    (mode,) = told["verify"]["modes"]
    assert mode["outcome"] == "differs"
    difference = mode["difference"]
    assert difference["expected"] != difference["found"]
    assert f"request {difference['request']}, position {difference['position']}" in told["verdict"]


@pytest.mark.parametrize("mutation", SHOWN, ids=lambda each: each.name)
def test_a_bug_fits_the_patched_file(site: Path, tmp_path: Path, mutation: Mutation) -> None:
    """Upstream's file too, which only the engine has; without starting an engine."""
    assert any(write_mutated(site, mutation.changes, tmp_path / "mutated").iterdir())


def test_the_sample_is_of_bugs_that_there_are() -> None:
    assert set(SAMPLE) <= {each.name for each in SHOWN}


def bench(python: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Call the command for the smallest shape, with recordings for graphs; its JSON."""
    folder.mkdir()
    engine = {"max_model_len": 256, "compilation_config": json.loads(ARGUMENTS[1])}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "overlay", "bench", "--shape", "trial", "--json"),
            *("--rounds", "1", "--accept", "0", "--mode", "FULL_DECODE_ONLY", "--against", "both"),
            *("--engine", json.dumps(engine), "--python", str(python), *options),
        ],
        cwd=environment.ROOT,
        env=double_environment(folder),
        text=True,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["code"] in ("measured", "slower"), told
    assert set(told["bench"]["left"]) <= {"V2"}
    return told


@pytest.mark.thorough
def test_bench_times_stock_and_the_overlay(patched_python: Path, tmp_path: Path) -> None:
    """The smallest shape, with recordings for graphs: what is timed means nothing, but it runs."""
    page = tmp_path / "bench.html"
    sizes = ("--batch", "1", "--repeats", "2", "--tokens", "16", "--only", "steps")
    told = bench(patched_python, tmp_path / "code", *sizes, "--html", str(page))
    engines = {each["engine"]: each for each in told["bench"]["engines"]}
    assert engines["stock V1"]["graphs"] == {}
    assert set(engines["overlay"]["graphs"]) == {"first", "loop"}
    assert all(each["batches"][0]["requests"] == 1 for each in engines.values())
    assert "<svg" in page.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_bench_asks_real_servers_with_vllms_own_client(
    patched_python: Path, tmp_path: Path
) -> None:
    sizes = ("--concurrency", "2", "--prompt", "16", "--answer", "8", "--only", "serving")
    told = bench(
        patched_python,
        tmp_path / "code",
        *sizes,
        "--request-rate",
        "4",
        "--",
        "--max-num-seqs",
        "8",
    )
    served = {each["engine"]: each for each in told["bench"]["serving"]}
    assert {"stock V1", "overlay"} <= set(served)
    for each in served.values():
        (cell,) = each["concurrency"]
        assert cell["requests"] == 2
        assert len(cell["output_tokens_per_s"]) == 2
        assert min(cell["output_tokens_per_s"]) > 0
        assert each["request_rate"] == 4
        assert min(each["first_token_ms"]) > 0
        assert each["tokens_per_step"] >= 1
