"""Serve the loads of ``paired_load.py`` with SGLang, so that both engines take turns on one GPU.

Runs inside an environment that holds SGLang; a party of ``paired_load.py`` starts it that has
``"peer": "sglang"`` among its options.  Shapes, prompts and lengths of answers are vLLM's.
Acceptance is synthetic here too, but SGLang draws one length for a whole batch, and vLLM one for
each request.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load_engine import answer_length, prompt_tokens
from bench.paired_load import MIXED, PROFILED
from bench.profiling.timeline import launch_figures
from overlay.proof.shapes import write_configs


def start(given: dict[str, Any]) -> Any:
    """An engine of the shape, with dummy weights and an EAGLE3 draft where ``k`` is above 0."""
    if given["k"]:
        os.environ["SGLANG_SIMULATE_ACC_LEN"] = str(given["accept"])
    import sglang

    target, draft = write_configs(given["shape"], Path(tempfile.mkdtemp()))
    options: dict[str, Any] = {
        "model_path": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "context_length": 4096,
        "max_running_requests": given["most"],
        "cuda_graph_max_bs_decode": given["most"],
        "disable_radix_cache": True,
    }
    if given["k"]:
        options |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": str(draft),
            "speculative_draft_load_format": "dummy",
            "speculative_num_steps": given["k"],
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": given["k"] + 1,
        }
    return sglang.Engine(**options | given["options"])


def serve(engine: Any, number: int, total: int, lengths: tuple[int, int, float]) -> int:
    """Have so many requests answered, ``number`` in flight; output tokens of all.

    :param lengths: tokens of a prompt and of an answer, and how far answers differ from that.
    """
    prompt, answer, spread = lengths
    free = asyncio.Semaphore(number)

    async def one(place: int) -> int:
        async with free:
            most = answer_length(place, answer, spread)
            params = {"temperature": 0.0, "max_new_tokens": most, "ignore_eos": True}
            output = await engine.async_generate(
                input_ids=prompt_tokens(place, prompt), sampling_params=params
            )
        tokens: int = output["meta_info"]["completion_tokens"]
        return tokens

    async def every() -> int:
        return sum(await asyncio.gather(*map(one, range(total))))

    tokens: int = engine.loop.run_until_complete(every())
    return tokens


def profiled(engine: Any, serve_load: Callable[[], object]) -> dict[str, Any]:
    """What the GPU does in a load, as ``bench_profiled`` says it of vLLM's: of the whole load."""
    with tempfile.TemporaryDirectory() as folder:
        engine.start_profile(
            output_dir=folder, activities=["CPU", "GPU"], with_stack=False, record_shapes=False
        )
        serve_load()
        engine.stop_profile()
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        return launch_figures(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"], 1.0)


def main() -> None:
    """Start the engine; for each line that comes, serve a load and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("load", type=json.loads, help="shape, k, accept, most, options, as JSON")
    given = parser.parse_args().load
    import sglang
    import torch

    engine = start(given)
    about = {"sglang": sglang.__version__, "gpu": torch.cuda.get_device_name(0)}
    print("STARTED " + json.dumps(about), flush=True)
    for line in sys.stdin:
        kind, number, prompt, answer = json.loads(line)
        # As many as vLLM's load has: three times what is in flight end, and the rest of these.
        total, spread = (4 * number, 0.5) if kind == MIXED else (number, 0.0)
        serve_load = partial(serve, engine, number, total, (prompt, answer, spread))
        if kind == PROFILED:
            print("PROFILED " + json.dumps(profiled(engine, serve_load)), flush=True)
            continue
        began = time.perf_counter()
        produced = serve_load()
        taken = time.perf_counter() - began
        print("TOOK " + json.dumps([produced, round(taken, 4)]), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
