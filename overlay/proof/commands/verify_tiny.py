"""The models that ``overlay verify`` serves, and those with a known answer that it makes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import OverlayError, UsageError
from overlay.proof.engine_compat import GraphMode
from overlay.proof.engine_pool import WriterFailed, write_models
from overlay.proof.oracle import Rule, make_rule
from overlay.proof.prompts import LIVE, EngineRequest, tiny_requests
from overlay.proof.tiny_drafters import LEAST_PROMPT, VOTERS, following, voters_rule
from overlay.proof.verify_engine import VerifySpec
from overlay.untrusted import printable

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
#: The same on a CPU, whose attention takes blocks of 32 tokens and multiples of it.  To compile the
#: models takes most of an engine's time there, and captures nothing.
_CPU_ARGUMENTS: dict[str, str | int | float | None] = {
    "--enforce-eager": None,
    "--block-size": 32,
    "--num-gpu-blocks-override": 13,
}


class ModelSet(NamedTuple):
    """Models that are served in several modes.

    :ivar name: empty where there is one set.
    :ivar answer: the rule and the requests where the answer is known beforehand.
    :ivar modes: those with graphs; empty: the engine without graphs tells.
    """

    name: str
    spec: VerifySpec
    answer: tuple[Rule, Sequence[EngineRequest]] | None = None
    modes: tuple[GraphMode, ...] = ()


class _TinyDraft(NamedTuple):
    """One of the drafts.

    :ivar writer: the module that writes it; :ivar folder: the folder of its models below the rest.
    :ivar model: its name there; :ivar k: draft tokens a step.
    :ivar modes: those that differ for it.
    """

    writer: str
    folder: str
    model: str
    k: int
    speculative: dict[str, Any]
    modes: tuple[GraphMode, ...]
    one_pass: bool = False


_EAGLE: dict[str, Any] = {"method": "eagle3"}
#: By name: what depends most on what a pass hands on to the next; what reads the past through the
#: tokens that it is given; and what drafts all tokens in one pass.
DRAFTS = {
    "eagle3hid": _TinyDraft(
        "tiny_models",
        "eagle3",
        "eagle3hid",
        5,
        _EAGLE,
        (GraphMode.OFF, GraphMode.STEP, GraphMode.LOOP),
    ),
    "eagle3": _TinyDraft(
        "tiny_models", "eagle3", "eagle3", 5, _EAGLE, (GraphMode.STEP, GraphMode.LOOP)
    ),
    "p-eagle": _TinyDraft(
        "tiny_drafters",
        "drafters",
        "peagle",
        3,
        {**_EAGLE, "parallel_drafting": True},
        (GraphMode.OFF, GraphMode.WHOLE),
        one_pass=True,
    ),
}
#: What a CPU serves: few engines, since each takes a minute and all cores.
_ON_CPU = {"eagle3hid": (GraphMode.OFF, GraphMode.WHOLE), "p-eagle": (GraphMode.WHOLE,)}


def tiny_sets(
    python: Path,
    folder: Path,
    arguments: Sequence[str],
    modes: Sequence[GraphMode],
    only: str | None = None,
    on_cpu: bool = False,
    whole: bool = False,
) -> list[ModelSet]:
    """Make the models; the sets that have any of the modes with graphs.

    :param python: an interpreter with PyTorch.
    :param folder: where to write them.
    :param arguments: the user's own arguments of vLLM, which win.
    :param modes: those to run; empty: all, with the one without graphs.
    :param only: the name of the only draft that is meant; ``None`` for all.
    :param on_cpu: whether there are no graphs, so that each draft is served as the overlay leaves
        it to upstream, and one of them without the overlay's part as well.
    :param whole: whether stock and the overlay are compared; P-EAGLE is V1's alone.
    :raises UsageError: if no draft of that name has any of the modes.
    :raises OverlayError: if the models cannot be made.
    """
    sets = []
    for name, draft in DRAFTS.items():
        own_modes = tuple(mode for mode in draft.modes if not modes or mode in modes)
        if whole:
            own_modes = () if draft.one_pass else (GraphMode.STOCK, GraphMode.OVERLAY)
        elif on_cpu:
            own_modes = _ON_CPU.get(name, ())
        if only not in (None, name) or not set(own_modes) - {GraphMode.OFF}:
            continue
        _write(python, folder / draft.folder, draft.writer)
        rule = voters_rule() if draft.one_pass else make_rule()
        requests = tiny_requests(rule.vocab)
        if draft.one_pass:
            requests = following(rule, tiny_requests(VOTERS, LEAST_PROMPT))
        spec = replace(_spec(folder, draft, arguments, on_cpu=on_cpu), requests=requests)
        sets.append(ModelSet(name, spec, (rule, requests), own_modes))
    if not sets:
        served = f"on a CPU one of the drafts {', '.join(_ON_CPU)}"
        if whole:
            names = ", ".join(name for name, draft in DRAFTS.items() if not draft.one_pass)
            served = f"one of the drafts {names} to compare the overlay with stock"
        elif not on_cpu:
            served = f"one of the drafts {', '.join(DRAFTS)}, and a mode that it has"
        mode = f" and {', '.join(mode.shown for mode in modes)}" if modes else ""
        raise UsageError(f"expected with --tiny {served}, found --draft {only}{mode}")
    return sets


def _spec(
    folder: Path, draft: _TinyDraft, arguments: Sequence[str], *, on_cpu: bool = False
) -> VerifySpec:
    """What the engines of a draft are started with, without what they serve."""
    models = folder / draft.folder / ("parallel" if draft.one_pass else "")
    words = ["--model", str(models / "target")]
    for name, value in (_ARGUMENTS | (_CPU_ARGUMENTS if on_cpu else {})).items():
        words += [name] if value is None else [name, str(value)]
    config = {
        **draft.speculative,
        "model": str(models / draft.model),
        "num_speculative_tokens": draft.k,
    }
    words += ["--speculative-config", json.dumps(config)]
    return VerifySpec((*words, *arguments))


def _write(python: Path, folder: Path, writer: str) -> None:
    try:
        write_models(python, folder, f"overlay.proof.{writer}", os.environ)
    except WriterFailed as error:
        printed = [line for line in error.output.splitlines() if line.strip()]
        last = f" ({printable(printed[-1].strip())})" if printed else ""
        raise OverlayError(
            f"expected {python} to write the tiny models, found exit status {error.status}"
            f"{last}: it must be the Python that vLLM is installed in, with PyTorch and "
            "safetensors; name it with --python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise OverlayError(
            f"expected {python} to write the tiny models within {error.timeout:.0f} s, found that "
            "it had not; name the Python that vLLM is installed in with --python"
        ) from error
