"""Whether engines of ``overlay bench`` fit on one GPU together, and what they are told of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import UsageError
from overlay.proof.commands.budget import ENGINES, Budget, Part, Sharing, Start
from overlay.proof.commands.launch import Launch
from overlay.proof.commands.question import Question
from overlay.proof.commands.sharing import cache_of, free_memory, largest, read_free, sharing
from overlay.proof.shape_memory import engine_bytes, kv_cache_bytes, weight_bytes
from overlay.proof.shapes import SHAPES

GB = 10**9
MIB = 1024 * 1024
H200 = 140 * GB
BESIDE = Sharing(side_by_side=True, why="")


def test_a_shape_starts_side_by_side_where_three_engines_surely_fit() -> None:
    assert sharing(Question(), H200).side_by_side
    told = sharing(Question(shape="moe"), H200)
    assert not told.side_by_side
    assert "3 engines take up to" in told.why
    assert "of the 140 GB that the GPU has free" in told.why


def test_two_engines_fit_where_three_do_not() -> None:
    asked = {"shape": "8b", "concurrency": (256,), "only": Part.SERVING}
    assert not sharing(Question(**asked), H200).side_by_side
    told = sharing(Question(**asked, against="v2"), H200)
    assert told.side_by_side
    assert "2 engines take up to" in told.why


@given(shape=st.sampled_from(sorted(SHAPES)), share=st.floats(0.5, 2.0))
def test_what_is_taken_never_exceeds_what_is_free(shape: str, share: float) -> None:
    question = Question(shape=shape)
    free = int(share * 3 * largest(question))
    assert sharing(question, free).side_by_side == (3 * largest(question) <= 0.95 * free)


@pytest.mark.parametrize(
    ("options", "free", "why"),
    [
        ({"together": False}, H200, "--one-by-one"),
        ({"model": "a/b"}, H200, "what --model takes of the GPU is not known"),
        ({"arguments": ("--enforce-eager",)}, H200, "engine arguments of your own"),
        ({"engine": '{"max_num_seqs": 4}'}, H200, "engine arguments of your own"),
        ({}, None, "nvidia-smi did not say"),
    ],
)
def test_where_it_is_not_sure_engines_start_one_by_one(
    options: dict[str, Any], free: int | None, why: str
) -> None:
    told = sharing(Question(**options), free)
    assert (told.side_by_side, why in told.why) == (False, True)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, True),
        ({"arguments": ("--num-gpu-blocks-override", "100")}, True),
        ({"engine": '{"hf_overrides": {"text": "kv_cache_memory_bytes"}}'}, True),
        ({"arguments": ("--kv-cache-memory-bytes=100",)}, False),
        ({"arguments": ("--kv_cache_memory_bytes", "100")}, False),
        ({"engine": '{"kv_cache_memory_bytes": 100}'}, False),
    ],
)
def test_a_model_of_your_own_starts_side_by_side_only_with_a_cache_of_a_size(
    options: dict[str, Any], refused: bool
) -> None:
    question = Question(model="a/b", together=True, **options)
    if refused:
        with pytest.raises(UsageError, match="expected --kv-cache-memory-bytes behind --"):
            sharing(question, H200)
    else:
        assert sharing(question, None) == Sharing(side_by_side=True, why="--side-by-side")


GPU = st.tuples(
    st.integers(0, 9), st.uuids().map(lambda each: f"GPU-{each}"), st.integers(0, 200_000)
)


@given(gpus=st.lists(GPU, min_size=1, max_size=8, unique_by=lambda each: each[1]), data=st.data())
def test_the_free_memory_is_that_of_the_gpu_that_is_named_or_the_smallest(
    gpus: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    said = "".join(f"{number}, {uuid}, {free}\n" for number, uuid, free in gpus)
    least = min(free for _, _, free in gpus) * MIB
    # CUDA may number GPUs in another order than nvidia-smi.
    assert read_free(said, None) == read_free(said, "0") == least
    _, uuid, free = data.draw(st.sampled_from(gpus))
    assert read_free(said, uuid) == free * MIB
    assert read_free(said, "") is None


@given(
    said=st.lists(st.sampled_from(["0", ", ", "GPU-a", "\n", "²", "-1", "[N/A]", "x"])).map(
        "".join
    ),
    first=st.sampled_from([None, "", "0", "GPU-a", "x"]),
)
def test_whatever_the_program_says_is_an_amount_or_unknown(said: str, first: str | None) -> None:
    free = read_free(said, first)
    assert free is None or free >= 0


@pytest.mark.parametrize("said", ["", "0, GPU-a, [N/A]\n", "No devices were found\n", "0, GPU-a\n"])
def test_an_answer_without_an_amount_is_unknown(said: str) -> None:
    assert read_free(said, None) is None


def test_the_program_is_asked_and_may_be_missing_or_fail(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    assert free_memory({}, str(program)) is None
    for text, free in (("echo 0, GPU-a, 5; echo 1, GPU-b, 3", 3 * MIB), ("exit 9", None)):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        assert free_memory({}, str(program)) == free
    program.write_text("#!/bin/sh\necho 0, GPU-a, 5; echo 1, GPU-b, 3\n")
    assert free_memory({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, str(program)) == 5 * MIB
    assert subprocess.run([program], capture_output=True, check=True).stdout  # as it was asked


def test_a_cache_holds_all_requests_of_a_run() -> None:
    # Llama 3.1 8B has 32 layers and its draft one more, each 4096 bytes a token in bfloat16.
    assert kv_cache_bytes("8b", 256, 768) >= 256 * 768 * 33 * 4096
    few = Question(shape="8b", concurrency=(1,))
    assert cache_of(few, Part.SERVING) >= 2 * 4096 * 33 * 4096
    # 50 requests a second for 6 seconds may all be served at a time, up to what a server serves.
    fast = Question(shape="8b", concurrency=(1,), rate=50.0)
    assert cache_of(fast, Part.SERVING) == kv_cache_bytes("8b", 256, 768)
    assert cache_of(fast, Part.STEPS) == cache_of(few, Part.STEPS)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    requests=st.integers(1, 1024),
    tokens=st.integers(1, 4096),
)
def test_more_requests_or_longer_ones_never_need_less(
    shape: str, requests: int, tokens: int
) -> None:
    cache = kv_cache_bytes(shape, requests, tokens)
    assert cache <= kv_cache_bytes(shape, requests + 1, tokens)
    assert cache <= kv_cache_bytes(shape, requests, tokens + 1)
    assert engine_bytes(shape, cache) > weight_bytes(shape) + cache


@pytest.mark.parametrize(("shape", "billions"), [("1b", 1.24), ("8b", 8.03), ("moe", 30.5)])
def test_weights_are_at_least_those_of_the_model_that_a_shape_is_taken_from(
    shape: str, billions: float
) -> None:
    assert 2 * billions * GB <= weight_bytes(shape) <= 2 * billions * GB + 3 * GB


def launch(folder: Path, sharing_: Sharing, **options: Any) -> Launch:
    question = Question(shape="trial", **options)
    return Launch(question, Path("python"), folder, folder, folder, Budget(100.0), sharing_)


def test_servers_side_by_side_have_a_port_a_cache_and_compiled_code_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PORT", "4000")
    made = launch(tmp_path, BESIDE, port=8000)
    jobs = [
        made.job(f"{each}, serving", Start(Part.SERVING, each, 0), None, (), number)
        for number, each in enumerate(ENGINES)
    ]
    specs = [json.loads((job.folder / "spec.json").read_text()) for job in jobs]
    assert [spec["port"] for spec in specs] == [8000, 8001, 8002]
    assert len({job.environment["VLLM_CACHE_ROOT"] for job in jobs}) == 3
    assert not any("VLLM_PORT" in job.environment for job in jobs)
    for spec in specs:
        words = spec["arguments"]
        given_ = [words[place + 1] for place, word in enumerate(words) if "utilization" in word]
        assert given_ == ["0.1"]
        cache = words[words.index("--kv-cache-memory-bytes") + 1]
        assert int(cache) == cache_of(made.question, Part.SERVING)


def test_servers_one_by_one_take_what_vllm_takes(tmp_path: Path) -> None:
    made = launch(tmp_path, Sharing(side_by_side=False, why=""), port=8000)
    job = made.job("V2, serving", Start(Part.SERVING, "V2", 0), 2.5)
    spec = json.loads((job.folder / "spec.json").read_text())
    assert (spec["port"], spec["rate"]) == (8000, 2.5)
    assert "--kv-cache-memory-bytes" not in spec["arguments"]
    assert "VLLM_CACHE_ROOT" not in job.environment
