"""The parts of the benchmarks that need neither vLLM nor a GPU."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.children import last_result, run_child
from bench.meeting import Meeting, leave
from bench.plan import Cell, Party, Place, places, waves
from bench.profiling import sampling
from bench.profiling.drafters import DRAFTERS
from bench.profiling.measuring import percentile, summary
from overlay.proof.shapes import SHAPES, write_configs
from tests.bench.sittings import sitting

FUNCTION = "/x/site-packages/vllm/v1/worker/runner.py"


def test_a_profile_shares_out_the_time_of_a_step() -> None:
    raw = (
        f"run (/x/main.py:1);execute ({FUNCTION}:10);prepare ({FUNCTION}:20) 30\n"
        f"run (/x/main.py:1);execute ({FUNCTION}:11) 60\n"
        f"run (/x/main.py:2) 10\n"
    )
    found = sampling.fold(raw, ms_per_step=2.0)
    assert found["samples"] == 100
    assert found["self_ms"] == {
        "vllm/v1/worker/runner.py:execute": 1.2,
        "vllm/v1/worker/runner.py:prepare": 0.6,
        "/x/main.py:run": 0.2,
    }
    assert found["cumulative_ms"] == {
        "/x/main.py:run": 2.0,
        "vllm/v1/worker/runner.py:execute": 1.8,
        "vllm/v1/worker/runner.py:prepare": 0.6,
    }


def test_a_function_that_calls_itself_counts_once() -> None:
    frames = ";".join(["f (/a.py:1)"] * 5)
    assert sampling.fold(f"{frames} 7\n", 3.0)["cumulative_ms"] == {"/a.py:f": 3.0}


def test_only_the_main_thread_counts_where_threads_are_named() -> None:
    raw = "thread (7): Worker;f (/a.py:1) 900\nthread (1): MainThread;g (/a.py:2) 4\n"
    found = sampling.fold(raw, 1.0)
    assert found["samples"] == 4
    assert list(found["self_ms"]) == ["/a.py:g"]


def test_a_patched_copy_is_named_as_the_module_it_stands_for() -> None:
    raw = "f (/home/u/.cache/overlay/abc/vllm/v1/a.py:3) 1\n"
    assert list(sampling.fold(raw, 1.0)["self_ms"]) == ["vllm/v1/a.py:f"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/opt/x/lib/python3.12/site-packages/torch/_ops.py", "torch/_ops.py"),
        ("/opt/vllm/lib/python3.12/site-packages/torch/_ops.py", "torch/_ops.py"),
        ("/home/u/project/overlay/proof/shapes.py", "overlay/proof/shapes.py"),
        ("/home/u/project/bench/load_engine.py", "bench/load_engine.py"),
        ("/tmp/c/torch_aot_compile/e6/inductor_cache/zq/czq.py", "compiled/czq.py"),
    ],
)
def test_a_function_is_named_as_on_every_machine(file: str, name: str) -> None:
    assert list(sampling.fold(f"f ({file}:3) 1\n", 1.0)["self_ms"]) == [f"{name}:f"]


def test_a_profile_without_samples_is_none() -> None:
    with pytest.raises(ValueError, match="no samples"):
        sampling.fold("thread (7): Worker;f (/a.py:1) 900\n", 1.0)


def test_the_signal_sampler_sees_what_runs(tmp_path: Path) -> None:
    steps = 0

    def busy() -> None:
        nonlocal steps
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            pass
        steps += 1

    before = signal.getsignal(signal.SIGALRM)
    found = sampling.sample(
        tmp_path / "stacks",
        sampler="signal",
        py_spy=None,
        pid=None,
        seconds=0.5,
        rate=200,
        work=busy,
        steps=lambda: steps,
    )
    assert signal.getsignal(signal.SIGALRM) == before
    assert found["sampler"] == "signal"
    own = {name.rpartition(":")[2]: ms for name, ms in found["self_ms"].items()}
    assert own["busy"] > 0.8 * found["ms_per_step"]


def test_the_sampler_that_was_asked_for_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "find_py_spy", lambda given: given)
    with pytest.raises(FileNotFoundError, match="--py-spy"):
        sampling.sample(
            tmp_path / "stacks",
            sampler="py-spy",
            py_spy=None,
            pid=None,
            seconds=1,
            rate=1,
            work=lambda: None,
            steps=lambda: 1.0,
        )


@pytest.mark.slow
def test_a_py_spy_that_fails_is_named_and_replaced(tmp_path: Path) -> None:
    steps = iter(range(100))
    found = sampling.sample(
        tmp_path / "stacks",
        sampler="auto",
        py_spy="false",
        pid=None,
        seconds=0.2,
        rate=100,
        work=lambda: sum(range(200_000)),
        steps=lambda: next(steps),
    )
    assert found["sampler"] == "signal"
    assert found["not_py_spy"].startswith("py-spy ended with 1")


@given(
    gpus=st.integers(1, 8),
    parallel=st.sampled_from([1, 2, 4]),
    cores=st.integers(1, 128),
)
def test_places_share_neither_gpus_nor_cores(gpus: int, parallel: int, cores: int) -> None:
    found = places([str(index) for index in range(gpus)], parallel, list(range(cores)))
    assert len(found) == gpus // parallel
    for kind in ("gpus", "cores"):
        all_of_them = [one for place in found for one in getattr(place, kind)]
        assert len(set(all_of_them)) == len(all_of_them)
    assert all(len(place.gpus) == parallel for place in found)
    assert len({len(place.cores) for place in found}) <= 1


@given(engines=st.integers(1, 6), rooms=st.integers(1, 8), turn=st.integers(0, 9))
def test_every_engine_runs_and_every_wave_is_as_full(engines: int, rooms: int, turn: int) -> None:
    names = [f"e{index}" for index in range(engines)]
    where = [Place((str(index),)) for index in range(rooms)]
    found = waves(names, where, turn)
    assert {engine for wave in found for engine, _ in wave} == set(names)
    assert len({len(wave) for wave in found}) == 1
    for wave in found:
        assert len({engine for engine, _ in wave}) == len(wave)
        assert len({place.gpus for _, place in wave}) == len(wave)


def test_turns_move_every_engine_over_every_gpu() -> None:
    where = [Place((str(index),)) for index in range(4)]
    seen = {
        (engine, place.gpus)
        for turn in range(4)
        for wave in waves(["a", "b", "c"], where, turn)
        for engine, place in wave
    }
    assert len(seen) == 12


def test_cells_are_read() -> None:
    assert Cell.parse("8b:5:FULL:4") == Cell("8b", "eagle3", "5", "FULL", 4, "8b:5:FULL:4")
    assert Cell.parse("1b+pard:3:FULL") == Cell("1b", "pard", "3", "FULL", 1, "1b+pard:3:FULL")
    with pytest.raises(argparse.ArgumentTypeError, match="none of the drafters: eagle3, lora"):
        Cell.parse("1b+medusa:3:FULL")
    assert Cell.parse("1b:3:FULL").tensor_parallel == 1
    for wrong in ("1b", "1b:x:FULL", "1b:3:FULL:two", "1b:3:FULL:2:2"):
        with pytest.raises(argparse.ArgumentTypeError, match="K:MODE"):
            Cell.parse(wrong)


@pytest.mark.slow
def test_each_engine_has_the_files_and_the_gpus_that_are_its_own(tmp_path: Path) -> None:
    one = sitting(tmp_path)
    place = Place(("2", "3"), (8, 9))
    cell = Cell.parse("8b:3:FULL:2")
    parties = [Party(engine, cell, place) for engine in ("auto-loop", "patched-loop")]
    caches = [one.cache(parties, number) for number in (0, 1)]
    auto = one.environment("auto-loop", place, caches[0])
    assert auto["PYTHONPATH"].rpartition(":")[0] == "/overlay:/stock:/site"
    assert (auto["OVERLAY"], auto["OVERLAY_DRAFT_GRAPHS"]) == ("auto", "loop")
    patched = one.environment("patched-loop", place, caches[1])
    assert patched["PYTHONPATH"].rpartition(":")[0] == "/patched:/site"
    assert patched["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert patched["VLLM_CACHE_ROOT"] != auto["VLLM_CACHE_ROOT"]
    metrics = one.environment("patched-loop-metrics", place, caches[1])
    assert metrics["PYTHONPATH"].rpartition(":")[0] == "/overlay:/patched:/site"
    assert (metrics["OVERLAY"], patched["OVERLAY"]) == ("auto", "off")
    stock = one.environment("stock-v1", Place(), caches[0])
    assert stock["OVERLAY"] == "off"
    command = one.command(parties[1], caches[1])
    assert command[command.index("--cores") + 1] == "8,9"
    assert command[command.index("--tensor-parallel") + 1] == "2"


@pytest.mark.slow
def test_a_child_that_does_not_end_is_killed_with_its_own_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "print('so far', flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    found = run_child([sys.executable, "-c", program], dict(os.environ), log, 3)
    assert found["failed"] == "not done after 3 s"
    assert "so far" in found["output"]
    status = Path(f"/proc/{pid_file.read_text()}/stat")
    last = time.monotonic() + 5
    while status.exists() and " Z " not in status.read_text():
        assert time.monotonic() < last, "the child's child lives on"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_result_of_a_child_is_its_last_line(tmp_path: Path) -> None:
    program = "print('RESULT {\"a\": 1}'); print('RESULT {\"a\": 2}'); print('bye')"
    found = run_child([sys.executable, "-c", program], dict(os.environ), tmp_path / "log", 30)
    assert found == {"a": 2}
    # A profiler that failed afterwards has not cost the times.
    found = run_child(
        [sys.executable, "-c", program + "; raise SystemExit(3)"],
        dict(os.environ),
        tmp_path / "log",
        30,
    )
    assert found == {"a": 2, "ended": 3}


def test_a_result_that_was_not_written_to_its_end_gives_way_to_the_one_before() -> None:
    assert last_result('RESULT {"a": 1}\nsaid\nRESULT {"a": 2, "b') == {"a": 1}
    assert last_result("RESULT {") is None


def test_engines_wait_for_each_other_but_not_for_the_dead(tmp_path: Path) -> None:
    first, second = Meeting(tmp_path, 0, 3), Meeting(tmp_path, 1, 3)
    assert not first.wait("warm", 0.05)
    second.reach("warm")
    assert not first.all_at("warm")
    leave(tmp_path, 2)
    assert first.all_at("warm")
    assert first.wait("warm", 0)
    assert not first.all_at("done")
    late = threading.Timer(0.1, second.reach, args=("done",))
    late.start()
    assert first.wait("done", 5)


def test_whoever_measures_alone_waits_for_nobody() -> None:
    alone = Meeting(None, 0, 1)
    assert alone.wait("warm", 0)


def test_a_step_is_the_median_of_the_repeats() -> None:
    found = summary([(0.2, 100), (0.3, 100), (0.8, 200)], size=2, tokens=256)
    assert found["repeats_ms_per_step"] == [2.0, 3.0, 4.0]
    assert found["ms_per_step"] == 3.0
    assert found["best_ms_per_step"] == 2.0
    assert found["spread"] == pytest.approx(2 / 3, abs=0.001)
    assert found["tokens_per_s"] == pytest.approx(2 * 256 / 0.3, abs=0.1)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert min(values) <= found <= max(values) or found == pytest.approx(min(values))
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_fits_its_target(shape: str, drafter: str, tmp_path: Path) -> None:
    target, draft = (
        json.loads((at / "config.json").read_text())
        for at in write_configs(shape, tmp_path, DRAFTERS[drafter])
    )
    assert draft["hidden_size"] == target["hidden_size"]
    assert draft["vocab_size"] == target["vocab_size"]
    # EAGLE3 reads three of the target's layers, which must not fall together.
    assert target["num_hidden_layers"] >= 6
    layers = draft.get("dflash_config", {}).get("target_layer_ids", [])
    assert all(layer < target["num_hidden_layers"] for layer in layers)
    parallel = DRAFTERS[drafter].speculative.get("parallel_drafting", False)
    assert parallel == ("ptd_token_id" in draft)


def test_drafters_of_one_target_are_written_beside_each_other(tmp_path: Path) -> None:
    places = [write_configs("1b", tmp_path, drafter) for drafter in DRAFTERS.values()]
    assert len({draft for _, draft in places}) == len(DRAFTERS)
    assert {target for target, _ in places} == {tmp_path / "target"}
