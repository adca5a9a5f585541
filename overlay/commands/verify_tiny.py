"""The models with a known answer that ``overlay verify --tiny`` makes and serves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import OverlayError
from overlay.proof.engine_launch import write_models
from overlay.proof.oracle import Rule, make_rule
from overlay.proof.prompts import LIVE, tiny_requests
from overlay.proof.tiny_drafters import LEAST_PROMPT, VOTERS, following, voters_rule
from overlay.proof.verification import Mode
from overlay.proof.verify_engine import VerifySpec

#: vLLM's arguments for the tiny models.  Some requests are preempted: the KV cache is too small for
#: all.  A small share of the memory must be free, so that several engines fit beside each other.
_ARGUMENTS: dict[str, str | int | float | None] = {
    "--skip-tokenizer-init": None,
    "--dtype": "bfloat16",
    "--seed": 0,
    "--block-size": 16,
    "--num-gpu-blocks-override": 26,
    "--max-model-len": 128,
    "--max-num-seqs": LIVE,
    "--max-num-batched-tokens": 512,
    "--gpu-memory-utilization": 0.05,
    "--kv-cache-memory-bytes": 1 << 28,
    "--no-enable-prefix-caching": None,
}


class TinySet(NamedTuple):
    """Tiny models, what they serve, and the rule that gives the answer."""

    name: str
    spec: VerifySpec
    rule: Rule
    modes: tuple[Mode, ...]


def tiny_sets(
    python: Path, folder: Path, arguments: Sequence[str], modes: Sequence[Mode]
) -> list[TinySet]:
    """Make the models; the sets that have any of the modes.

    :param python: an interpreter with PyTorch.
    :param folder: where to write them.
    :param arguments: the user's own arguments of vLLM, which win.
    :param modes: those to run; empty: all, with the one without graphs.
    :raises OverlayError: if the models cannot be made.
    """
    sets: list[TinySet] = []
    wanted = _chosen((Mode.OFF, Mode.STEP, Mode.LOOP), modes)
    if set(wanted) - {Mode.OFF}:
        rule = make_rule()
        _write(python, folder / "eagle3", "tiny_models")
        # Of the drafts, the one that depends most on what a pass hands on to the next.
        speculative = {"method": "eagle3", "num_speculative_tokens": 5}
        spec = _spec(folder / "eagle3", "eagle3hid", speculative, arguments)
        sets.append(
            TinySet("eagle3", replace(spec, requests=tiny_requests(rule.vocab)), rule, wanted)
        )
    wanted = _chosen((Mode.OFF, Mode.WHOLE), modes)
    if set(wanted) - {Mode.OFF}:
        rule = voters_rule()
        _write(python, folder / "drafters", "tiny_drafters")
        speculative = {
            "method": "eagle3",
            "parallel_drafting": True,
            "num_speculative_tokens": 3,
        }
        requests = following(rule, tiny_requests(VOTERS, LEAST_PROMPT))
        spec = _spec(folder / "drafters" / "parallel", "peagle", speculative, arguments)
        sets.append(TinySet("p-eagle", replace(spec, requests=requests), rule, wanted))
    return sets


def _chosen(have: tuple[Mode, ...], modes: Sequence[Mode]) -> tuple[Mode, ...]:
    return tuple(mode for mode in have if not modes or mode in modes)


def _spec(
    folder: Path, draft: str, speculative: dict[str, Any], arguments: Sequence[str]
) -> VerifySpec:
    made = ["--model", str(folder / "target")]
    for name, value in _ARGUMENTS.items():
        made += [name] if value is None else [name, str(value)]
    config = {**speculative, "model": str(folder / draft)}
    made += ["--speculative-config", json.dumps(config)]
    return VerifySpec((*made, *arguments))


def _write(python: Path, folder: Path, writer: str) -> None:
    try:
        write_models(python, folder, writer)
    except subprocess.CalledProcessError as error:
        raise OverlayError(
            f"expected {python} to write the tiny models, found exit status {error.returncode}: it "
            "must be the Python that vLLM is installed in, with PyTorch and safetensors; name it "
            "with --python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise OverlayError(
            f"expected {python} to write the tiny models within {error.timeout:.0f} s, found that "
            "it had not; name the Python that vLLM is installed in with --python"
        ) from error
