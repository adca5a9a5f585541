#!/usr/bin/env python3
"""Time one engine's step of speculative decoding on dummy weights, and print it as JSON.

Runs inside an environment that holds vLLM and a GPU; which runner, which patch and which
draft-graph mode is decided by whoever starts it (see ``compare.py`` beside this file).  Weights are
dummies and acceptance is synthetic, so nothing is downloaded and the tokens mean nothing.

The last line of standard output is ``RESULT {...}``: per batch size the median milliseconds per
engine step, the spread of the repeats, and the median host milliseconds inside ``propose``; with
``--profile`` also the share of time in which the GPU was busy and the launches per engine step, and
with ``--sample`` where the host's time goes, by function (see ``sampling.py``).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import sampling

_COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Targets by name: the shapes of Llama 3.2 1B, Llama 3.1 8B and Qwen3 30B-A3B.
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
_SHARED_BY_DRAFT: tuple[str, ...] = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
)
_SHARED_BY_DRAFT += ("num_key_value_heads", "head_dim")
_PROMPT_TOKENS = 128


def write_configs(shape: str, folder: Path) -> tuple[Path, Path]:
    """Write the configurations of a target and its one-layer EAGLE3 draft; return their folders."""
    target = _COMMON | SHAPES[shape]
    draft = _COMMON | {key: target[key] for key in _SHARED_BY_DRAFT}
    draft |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    draft |= {"num_hidden_layers": 1, "draft_vocab_size": 32000}
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder / "target", folder / "draft"


def host_figures(seconds: list[float]) -> dict[str, float]:
    """Median, mean and largest host milliseconds of the calls; nothing where none was seen."""
    if not seconds:
        return {}
    return {
        "propose_host_ms": round(1000 * statistics.median(seconds), 3),
        "propose_host_mean_ms": round(1000 * statistics.fmean(seconds), 3),
        "propose_host_max_ms": round(1000 * max(seconds), 3),
    }


class HostTimer:
    """Collects the host seconds of every call of one method."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wrap(self, owner: Any, name: str) -> None:
        """Time ``owner.name`` from now on."""
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            result = inner(*args, **kwargs)
            self.seconds.append(time.perf_counter() - begun)
            return result

        setattr(owner, name, timed)


def launch_figures(trace: Path, steps: float) -> dict[str, float]:
    """GPU-busy share and launches per step from a Chrome trace, leaving out its warm ends."""
    events = json.loads(trace.read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds)
    calls = collections.Counter(
        e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
    )
    first, last = work[0][0], work[-1][1]
    begin, end = first + 0.3 * (last - first), first + 0.9 * (last - first)
    busy, reached = 0.0, begin
    for start, stop in work:
        counted_from, counted_to = max(start, reached), min(stop, end)
        if counted_to > counted_from:
            busy, reached = busy + counted_to - counted_from, counted_to
    kernels = sum(count for name, count in calls.items() if "LaunchKernel" in name)
    return {
        "gpu_busy": round(busy / (end - begin), 3),
        "graph_launches_per_step": round(calls.get("cudaGraphLaunch", 0) / steps, 2),
        "kernel_launches_per_step": round(kernels / steps, 2),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", help="target's cudagraph mode")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per request and repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--accept", type=float, default=2.5, help="synthetic mean acceptance length"
    )
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--functions", action="store_true", help="host time by function (cProfile)")
    parser.add_argument("--sample", type=Path, metavar="FILE", help="stacks sampled at batch 1")
    parser.add_argument("--sampler", choices=("auto", "py-spy", "signal"), default="auto")
    parser.add_argument("--py-spy", metavar="PROGRAM", help="default: the one on the path")
    parser.add_argument("--sample-seconds", type=float, default=8)
    parser.add_argument("--sample-rate", type=int, default=500)
    return parser.parse_args()


def main() -> None:
    """Start one engine, time it at every batch size, print the RESULT line."""
    args = arguments()
    if args.tensor_parallel == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    begun = time.perf_counter()
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    target, draft = write_configs(args.shape, Path(tempfile.mkdtemp()))
    batches = [int(size) for size in args.batch.split(",")]
    options: dict[str, Any] = {
        "model": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "max_num_seqs": max(batches),
        "gpu_memory_utilization": 0.6,
        "tensor_parallel_size": args.tensor_parallel,
        "disable_log_stats": False,
        "compilation_config": {"cudagraph_mode": args.mode},
        "speculative_config": {
            "method": "eagle3",
            "model": str(draft),
            "num_speculative_tokens": args.k,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": args.accept,
        },
    }
    llm = LLM(**(options | json.loads(args.engine)))
    result: dict[str, Any] = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "shape": args.shape,
        "k": args.k,
        "cudagraph_mode": args.mode,
        "tensor_parallel": args.tensor_parallel,
        "start_s": round(time.perf_counter() - begun, 1),
    }
    timer = HostTimer()
    try:  # in-process engines only; other executors keep their runner in another process
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        result["runner"] = type(runner).__module__
        drafter = getattr(runner, "drafter", None)
        if drafter is not None:
            timer.wrap(drafter, "propose")
    except AttributeError:
        result["runner"] = "in another process"

    def counter(name: str) -> float:
        name = f"vllm:spec_decode_{name}"
        return float(sum(getattr(m, "value", 0) for m in llm.get_metrics() if m.name == name))

    def generate(size: int, tokens: int) -> None:
        prompts = [
            {"prompt_token_ids": [(7 * i + 13 * j) % 30000 + 10 for j in range(_PROMPT_TOKENS)]}
            for i in range(size)
        ]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.synchronize()

    for size in batches:
        before = None
        for _ in range(6):  # until two warm-up runs agree
            begun = time.perf_counter()
            generate(size, args.tokens)
            took = time.perf_counter() - begun
            if before is not None and abs(took - before) < 0.02 * before:
                break
            before = took
        drafts, accepted = counter("num_drafts"), counter("num_accepted_tokens")
        timer.seconds.clear()
        times = []
        for _ in range(args.repeats):
            begun = time.perf_counter()
            generate(size, args.tokens)
            times.append(time.perf_counter() - begun)
        drafts = counter("num_drafts") - drafts
        accepted = counter("num_accepted_tokens") - accepted
        steps = drafts / args.repeats / size
        median = statistics.median(times)
        result[f"batch{size}"] = {
            "ms_per_step": round(1000 * median / steps, 3),
            "tokens_per_s": round(size * args.tokens / median, 1),
            "spread": round((max(times) - min(times)) / median, 3),
            "best_ms_per_step": round(1000 * min(times) / steps, 3),
            "mean_acceptance_length": round(1 + accepted / drafts, 3),
            **host_figures(timer.seconds),
        }
    if args.profile:
        from torch.profiler import ProfilerActivity, profile

        drafts = counter("num_drafts")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            generate(1, 60)
        path = Path(tempfile.mkdtemp()) / "trace.json"
        prof.export_chrome_trace(str(path))
        result |= launch_figures(path, counter("num_drafts") - drafts)
    if args.sample:
        result["sampled"] = sampling.sample(
            args.sample.resolve(),
            sampler=args.sampler,
            py_spy=args.py_spy,
            pid=None,
            seconds=args.sample_seconds,
            rate=args.sample_rate,
            work=lambda: generate(1, 1024),  # so long that the prompts hardly count
            steps=lambda: counter("num_drafts"),
        )
    if args.functions:
        result["host_functions_ms_per_step"] = host_functions(lambda: generate(1, 256), counter)
    print("RESULT " + json.dumps(result), flush=True)


def host_functions(run: Any, counter: Any) -> dict[str, float]:
    """Cumulative host milliseconds per step of vLLM's most expensive functions, from cProfile."""
    import cProfile
    import pstats

    drafts = counter("num_drafts")
    profiler = cProfile.Profile()
    profiler.runcall(run)
    steps = counter("num_drafts") - drafts
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows = {
        f"{Path(file).name}:{line}:{name}": 1000 * cumulative / steps
        for (file, line, name), (_, _, _, cumulative, _) in stats.items()
        if "vllm" in file
    }
    top = sorted(rows.items(), key=lambda row: -row[1])[:60]
    return {name: round(value, 4) for name, value in top}


if __name__ == "__main__":
    main()
