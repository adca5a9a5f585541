#!/usr/bin/env python3
"""Whether graphs of mixed batches (cudagraph mode FULL) compute a prompt as no graph does.

    full_mode.py --out result.json [--modes NONE FULL] [--runner 1] [--timeout 250]

Runs inside an environment that holds vLLM. For each mode an engine of its own serves the same
prompts, one at a time and several together, greedily; the first mode is what is right. Up to 0.30.0
model runner V2 captures the graph of a mixed batch with the longest request of a dummy batch (one
token of each where there are as many requests), and not with the longest that it may replay: by
reading, attention then leaves rows of a prompt out, or lets them see what follows. The model is a
small random one, so that a wrong row shows. Exit 0: all modes agree.
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

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, HEAD = 1024, 512, 1024, 4, 8, 64
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024]
#: Tokens of each prompt that is served alone, and of those that are served together.
ALONE, TOGETHER = (1, 2, 5, 17, 65, 100, 129, 200, 250, 300, 500, 700), (30, 60, 90, 120)
#: Above what bfloat16 makes of the logarithm of a probability.
CLOSE = 0.25


def write_model(folder: Path) -> None:
    """Write a Llama of random weights."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) * shape[-1] ** -0.5).bfloat16()

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN).bfloat16(),
        "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
        "lm_head.weight": 3 * random(VOCABULARY, HIDDEN),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        for name in "qkv":
            weights[f"{layer}self_attn.{name}_proj.weight"] = 2 * random(HEADS * HEAD, HIDDEN)
        weights[f"{layer}self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD)
        for name in ("gate", "up"):
            weights[f"{layer}mlp.{name}_proj.weight"] = random(INNER, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = random(HIDDEN, INNER)
        for name in ("input", "post_attention"):
            weights[f"{layer}{name}_layernorm.weight"] = torch.ones(HIDDEN).bfloat16()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def serve(folder: str, mode: str) -> None:
    """Serve all prompts in an engine of a mode, and print the tokens with their logarithms."""
    import torch
    import vllm

    llm = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,
        compilation_config=(
            {"mode": 0, "cudagraph_mode": mode}
            | ({} if mode == "NONE" else {"cudagraph_capture_sizes": SIZES})
        ),
    )
    params = vllm.SamplingParams(
        temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1, detokenize=False
    )

    def prompt(length: int) -> Any:
        tokens = [(37 * place * place + 11 * place + length) % 1000 + 10 for place in range(length)]
        return {"prompt_token_ids": tokens}

    found: dict[str, Any] = {}
    for name, lengths in [*((str(each), (each,)) for each in ALONE), ("together", TOGETHER)]:
        outputs = llm.generate([prompt(each) for each in lengths], params, use_tqdm=False)
        found[name] = [
            [
                [token, round(places[token].logprob, 3)]
                for token, places in zip(
                    answer.outputs[0].token_ids, answer.outputs[0].logprobs, strict=True
                )
            ]
            for answer in outputs
        ]
    runner = llm.llm_engine.vllm_config
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    told = {"vllm": vllm.__version__, "device": device}
    told["mode"] = str(runner.compilation_config.cudagraph_mode)
    print("SERVED " + json.dumps({**told, "answers": found}), flush=True)


def differences(right: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The prompts whose first token, or its logarithm, is another one."""
    wrong = []
    for name, answers in right["answers"].items():
        for number, (mine, theirs) in enumerate(zip(answers, other["answers"][name], strict=True)):
            (token, value), (its, its_value) = mine[0], theirs[0]
            # Written so that a NaN, which is close to nothing, is a difference, too.
            if not abs(value - its_value) <= CLOSE:
                wrong.append(f"{name}, {number}: {token} {value} and not {its} {its_value}")
    return wrong


def main() -> int:
    """Run an engine for each mode, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--modes", nargs="+", default=["NONE", "FULL"])
    parser.add_argument("--runner", default="1", help="VLLM_USE_V2_MODEL_RUNNER of the engines")
    parser.add_argument("--timeout", type=float, default=250, help="seconds of an engine")
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return 0
    environment = {**os.environ, "VLLM_USE_V2_MODEL_RUNNER": args.runner}
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="full-mode-") as folder:
        write_model(Path(folder))
        for mode in args.modes:
            command = [sys.executable, str(Path(__file__).resolve()), "--serve", folder, mode]
            try:
                ended = subprocess.run(
                    command,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=args.timeout,
                    check=False,
                )
                output = ended.stdout
            except subprocess.TimeoutExpired as error:
                output = f"{error.stdout!r}\nnothing within {args.timeout:.0f} s"
            lines = [line for line in output.splitlines() if line.startswith("SERVED ")]
            ran[mode] = json.loads(lines[-1][7:]) if lines else {"failed": output[-4000:]}
            print(mode, "served" if lines else ran[mode]["failed"], flush=True)
    right = ran[args.modes[0]]
    wrong: dict[str, Any] = {
        mode: each["failed"] if "failed" in each else differences(right, each)
        for mode, each in ran.items()
        if "failed" not in right
    }
    document = {
        "script": "tests/gpu/full_mode.py",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "runner": args.runner,
        "different": wrong,
        "modes": ran,
    }
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for mode, found in wrong.items():
        print(mode, len(found), "different", json.dumps(found)[:1500])
    return 1 if not wrong or any(wrong.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
