#!/usr/bin/env python3
"""Whether an engine whose capture fails above vLLM's own sizes serves on with those.

    failed_capture.py --out result.json [--runner 1] [--timeout 250]

Runs inside an environment that holds a patched vLLM. Two engines of a small random model serve the
same 600 requests: one with the feature decode-graph-sizes off, and one in which memory runs out
within the first capture. Exit 0: the second has withdrawn its further sizes, and their tokens are
the same.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu.full_mode import write_model

REQUESTS = 600
WITHDRAWN = "since capturing further ones failed"


def fail_once() -> None:
    """Have the first forward pass that is captured ask for more memory than there is."""
    import torch
    from vllm.plugins import load_general_plugins

    # What is imported before them cannot be patched in memory.
    load_general_plugins()
    from vllm.model_executor.models.llama import LlamaModel

    upstream, failures = LlamaModel.forward, [1 << 50]

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if failures and torch.cuda.is_current_stream_capturing():
            torch.empty(failures.pop(), dtype=torch.uint8, device="cuda")
        return upstream(self, *given, **named)

    LlamaModel.forward = forward


def serve(folder: str, *, failing: bool) -> None:
    """Serve all requests, and print their tokens with what the feature says of itself."""
    os.environ["OVERLAY_DECODE_GRAPH_SIZES"] = "on" if failing else "off"
    import torch
    import vllm

    if failing:
        fail_once()
    llm = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=128,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.3,
        enable_prefix_caching=False,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    # In memory the module is there once plugins are loaded.
    from vllm.v1.overlay_effects import effects

    params = vllm.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    prompts: list[Any] = [
        {"prompt_token_ids": [(37 * place + 11 * number) % 1000 + 10 for place in range(12)]}
        for number in range(REQUESTS)
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    compilation = llm.llm_engine.vllm_config.compilation_config
    document = {
        "vllm": vllm.__version__,
        "device": torch.cuda.get_device_name(0),
        "largest": compilation.max_cudagraph_capture_size,
        "effect": effects()["decode-graph-sizes"],
        "tokens": [list(each.outputs[0].token_ids) for each in outputs],
    }
    print("SERVED " + json.dumps(document), flush=True)


def started(folder: str, args: argparse.Namespace, *, failing: bool) -> dict[str, Any]:
    """What an engine in a process of its own printed; with ``failed`` where it died."""
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if args.runner is not None:
        variables["VLLM_USE_V2_MODEL_RUNNER"] = args.runner
    ended = subprocess.run(
        [sys.executable, __file__, "--serve", folder, *(["--failing"] if failing else [])],
        env={**os.environ, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=args.timeout,
    )
    for line in ended.stdout.splitlines():
        if line.startswith("SERVED "):
            document: dict[str, Any] = json.loads(line.removeprefix("SERVED "))
            return document
    return {"failed": ended.stdout[-4000:]}


def main() -> int:
    """Serve with both, compare, write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runner", choices=("0", "1"), help="VLLM_USE_V2_MODEL_RUNNER")
    parser.add_argument("--timeout", type=float, default=250)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--failing", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, failing=args.failing)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        stock, failing = (started(folder, args, failing=each) for each in (False, True))
    right = (
        WITHDRAWN in str(failing.get("effect"))
        and failing.get("largest") == stock.get("largest")
        and failing.get("tokens") == stock.get("tokens") is not None
    )
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    engines = [{k: v for k, v in each.items() if k != "tokens"} for each in (stock, failing)]
    result = {
        "what": "an engine whose first capture fails, beside one without further sizes",
        "date": date,
        "runner": args.runner,
        "requests": REQUESTS,
        "right": right,
        "engines": engines,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
