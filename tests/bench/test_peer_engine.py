"""SGLang in the place of one of vLLM's engines: the same loads, answered as paired_load.py asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.load_engine import answer_length, prompt_tokens
from bench.paired_load import MIXED, PROFILED, UNIFORM, arguments, command_of, party

#: Answers at once with as many tokens as were asked for, and notes what it was asked.
ENGINE = """
import asyncio, gzip, json, os
__version__ = "0"
class Engine:
    def __init__(self, **options):
        self.loop = asyncio.new_event_loop()
        self.in_flight = 0
        self.note(options | {"length": os.environ.get("SGLANG_SIMULATE_ACC_LEN")})
    def note(self, what):
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(json.dumps(what) + "\\n")
    async def async_generate(self, *, input_ids, sampling_params):
        self.in_flight += 1
        self.note([self.in_flight, input_ids, sampling_params["max_new_tokens"]])
        await asyncio.sleep(0)
        self.in_flight -= 1
        return {"meta_info": {"completion_tokens": sampling_params["max_new_tokens"]}}
    def start_profile(self, output_dir, **options):
        self.folder = output_dir
    def stop_profile(self):
        kernel = {"cat": "kernel", "name": "gemm", "dur": 2000.0}
        events = [kernel | {"ts": 0.0}, kernel | {"ts": 4000.0}]
        with gzip.open(self.folder + "/1-TP-0.trace.json.gz", "wt") as trace:
            json.dump({"traceEvents": events}, trace)
    def shutdown(self):
        self.note("shut down")
"""
TORCH = "class cuda:\n    get_device_name = staticmethod(lambda _: 'a GPU')\n"


def test_a_peer_gets_the_loads_of_the_other_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sglang.py").write_text(ENGINE)
    (tmp_path / "torch.py").write_text(TORCH)
    notes = tmp_path / "notes"
    monkeypatch.setattr(
        sys,
        "argv",
        ["paired_load.py", "--out", "x", "--party", "stock", "--shape", "trial", "--k", "3"],
    )
    args = arguments()
    args.requests = [4]
    peer = party('SGLang;;{"peer": "sglang", "mem_fraction_static": 0.3}')
    ran = subprocess.run(
        [sys.executable, *command_of(peer, args, tmp_path / "log")],
        input=json.dumps([UNIFORM, 4, 6, 8])
        + "\n"
        + json.dumps([MIXED, 4, 6, 8])
        + "\n"
        + json.dumps([PROFILED, 2, 6, 8])
        + "\n",
        env={**os.environ, "PYTHONPATH": str(tmp_path), "NOTES": str(notes)},
        capture_output=True,
        text=True,
        check=True,
    )
    started, uniform, mixed, profiled = ran.stdout.splitlines()
    assert started == 'STARTED {"sglang": "0", "gpu": "a GPU"}'
    options, *asked, last = map(json.loads, notes.read_text().splitlines())
    assert options["length"] == "2.5"
    assert options["speculative_num_draft_tokens"] == 4
    assert options["mem_fraction_static"] == 0.3
    assert Path(options["model_path"], "config.json").is_file()
    assert last == "shut down"
    lengths = [answer_length(place, 8, 0.5) for place in range(16)]
    assert [each[2] for each in asked] == [8] * 4 + lengths + [8] * 2
    assert [each[1] for each in asked] == [
        prompt_tokens(n, 6) for n in [*range(4), *range(16), 0, 1]
    ]
    assert max(each[0] for each in asked) == 4
    for line, produced in ((uniform, 32), (mixed, sum(lengths))):
        assert json.loads(line.removeprefix("TOOK "))[0] == produced
    figures = json.loads(profiled.removeprefix("PROFILED "))
    assert figures["gpu_kernels"] == [{"name": "gemm", "times": 2.0, "us": 4000.0}]
    assert figures["gpu_ms_per_step"] == 4.0
